"""`mlops-emit run-analysis` as a shell sees it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = (sys.executable, "-m", "mlops_events.producers", "run-analysis")
TARGETS = """
import asyncio, os, sys, time

def step(n):
    return sum(i * i for i in range(n))

def main(steps: int = 3, lr: float = 0.1):
    print("training", steps, lr)
    os.system("echo from a child")
    for _ in range(steps):
        step(1000)
    return {"loss": 0.5}

async def asynchronous():
    await asyncio.sleep(0.001)
    return "awaited"

def fail():
    raise ValueError("no [bold]data[/bold]")

def leave():
    sys.exit(3)

def complain():
    sys.exit("cannot go on")

def closed():
    sys.stdout.close()

def generating():
    yield step(10)

def forever():
    step(10)
    print("ready", flush=True)
    while True:
        time.sleep(0.01)

def huge():
    names = {}
    for n in range(3000):
        exec(f"def f{n}(): pass", names)
        names[f"f{n}"]()

if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    main()
"""
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program."""
    (tmp_path / "targets.py").write_text(TARGETS)
    return tmp_path


@pytest.fixture
def analyse(folder: Path) -> Callable[..., Done]:
    """A function that runs the command in that folder."""

    def analyse(*args: str, **env: str) -> Done:
        return subprocess.run(
            [*PROGRAM, *args],
            env={**os.environ, **env},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return analyse


def test_the_report_alone_is_on_standard_output(analyse: Any) -> None:
    """What the target prints, and what its children print, is on standard error."""
    done = analyse("--json", "targets:main", "5", "lr=0.5")
    report = json.loads(done.stdout)

    assert done.returncode == 0
    assert done.stderr == "training 5 0.5\nfrom a child\n"
    assert report["result"] == "{'loss': 0.5}"
    assert report["rows"][0]["function"] == "targets.py:main"
    assert {row["function"]: row["calls"] for row in report["rows"]}["targets.py:step"] == 5


def test_a_script_gets_its_arguments_as_they_are(analyse: Any) -> None:
    """Also those that look like options of the command."""
    done = analyse("--top", "3", "targets.py", "--json", "--top", "lr=1")

    assert done.returncode == 0
    assert "arguments ['--json', '--top', 'lr=1']" in done.stderr
    assert "targets.py returned" in done.stdout
    assert "targets.py:<module>" in done.stdout


@pytest.mark.parametrize(
    ("target", "code", "told", "error"),
    [
        ("targets:asynchronous", 0, "returned 'awaited'", ""),
        ("targets:fail", 1, "raised ValueError: no [bold]data[/bold]", "ValueError: no [bold]"),
        ("targets:leave", 3, "exited with 3", ""),
        ("targets:complain", 1, "exited with 1", "cannot go on"),
        ("targets:closed", 0, "returned", ""),
        ("targets:missing", 2, "", "module 'targets' has no 'missing'"),
        ("nothing.py", 2, "", "there is no script 'nothing.py'"),
    ],
)
def test_the_exit_code_is_the_targets(
    analyse: Any, target: str, code: int, told: str, error: str
) -> None:
    """And the report says how it ended."""
    done = analyse(target)

    assert (done.returncode, bool(done.stdout)) == (code, code != 2)
    assert told in done.stdout
    assert error in done.stderr
    assert "mlops_events/producers" not in done.stderr


@pytest.mark.parametrize("columns", [80, 40])
def test_a_generator_is_told_to_have_done_nothing(analyse: Any, columns: int) -> None:
    """There is no empty table."""
    done = analyse("targets:generating", COLUMNS=str(columns))

    assert done.returncode == 0
    assert "0 calls of 0 functions" in done.stdout
    assert "its body has not run" in done.stdout
    assert "─" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= columns


def test_one_call_is_not_one_calls(analyse: Any) -> None:
    """Grammar counts."""
    assert ", 1 call of 1 function, by cumulative" in analyse("targets:fail").stdout


def test_ctrl_c_prints_the_report_so_far(processes: Any, folder: Path, until: Any) -> None:
    """Instead of nothing."""
    process = processes.start(*PROGRAM, "--json", "targets:forever", cwd=folder)
    until.sync(lambda: "ready" in process.stderr())
    process.signal(signal.SIGINT)

    assert process.wait() == 130
    report = json.loads(process.stdout())
    assert report["outcome"] == "interrupted"
    assert any(row["function"] == "targets.py:step" for row in report["rows"])


@pytest.mark.parametrize("columns", [80, 40])
def test_a_huge_report_fits_into_the_terminal(analyse: Any, columns: int) -> None:
    """And says what it leaves out."""
    done = analyse("--top", "5", "targets:huge", COLUMNS=str(columns))
    lines = done.stdout.splitlines()

    assert max(map(len, lines)) <= columns
    assert len(lines) < 20
    assert "more functions; --top N shows" in done.stdout


def test_two_versions_are_compared(analyse: Any, folder: Path) -> None:
    """By a report that was saved."""
    analyse("--version", "1.0", "--save", "old.json", "targets.py")
    source = (folder / "targets.py").read_text()
    (folder / "targets.py").write_text("\n" + source.replace("step(1000)", "step(400_000)"))
    wide = analyse("--version", "1.1", "--compare", "old.json", "targets.py", COLUMNS="80")
    narrow = analyse("--compare", "old.json", "targets.py", COLUMNS="40")
    as_json = analyse("--compare", "old.json", "--json", "targets.py")

    assert "Compared with version 1.0" in wide.stdout
    assert "slower" in wide.stdout
    assert max(map(len, narrow.stdout.splitlines())) <= 40
    changes = {c["function"]: c for c in json.loads(as_json.stdout)["changes"]}
    assert changes["targets.py:step"]["verdict"] == "slower"
    assert changes["targets.py:step"]["calls_before"] == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--compare", "none.json"), "none.json cannot be read"),
        (("--compare", "targets.py"), "targets.py holds no report"),
        (("--save", "no/folder.json"), "cannot be written"),
        (("--sort", "size"), "there are: cumulative, own, calls, name"),
    ],
)
def test_what_cannot_be_used_is_told_before_the_target_runs(
    analyse: Any, options: tuple[str, ...], told: str
) -> None:
    """It may take hours."""
    done = analyse(*options, "targets:main")

    assert done.returncode == 2
    assert told in done.stderr
    assert "training" not in done.stderr
