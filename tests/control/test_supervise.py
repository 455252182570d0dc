"""Supervision: programs are kept running, stopped in time, and never outlive their parent."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mlops_events.control import leash
from mlops_events.control.supervise import Program, ProgramFailedError, Supervisor, keep_small

Script = Callable[..., Program]


@pytest.fixture
def script() -> Script:
    """Make a program of lines of Python."""

    def make(code: str, *, name: str = "program", **options: Any) -> Program:
        return Program(name=name, argv=(sys.executable, "-c", code), **options)

    return make


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    running = Supervisor(tmp_path)
    yield running
    await running.close()


SLEEP = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); "


async def test_a_killed_program_is_started_again(
    supervisor: Supervisor, script: Script, until: Any
) -> None:
    """Under another pid, and the restart is counted."""
    child = supervisor.start(script(SLEEP))
    first = await until(lambda: child.pid)
    os.kill(first, signal.SIGKILL)
    second = await until(lambda: child.pid not in (0, first) and child.pid)

    assert psutil.Process(second).is_running()
    assert (child.state, child.restarts, child.exit_code) == ("running", 1, -signal.SIGKILL)


async def test_a_program_that_may_end_is_not_started_again(
    supervisor: Supervisor, script: Script
) -> None:
    """Its exit code is kept, its output is in its log."""
    child = supervisor.start(script("print('done'); raise SystemExit(3)", lasting=False))
    await asyncio.wait_for(child.ended.wait(), 10)

    assert (child.state, child.restarts, child.exit_code) == ("ended", 0, 3)
    assert child.log.read_text() == "done\n"


async def test_a_program_that_never_starts_is_given_up(
    supervisor: Supervisor, script: Script
) -> None:
    """With the end of what it said."""
    supervisor.start(script("raise SystemExit('no such setting')"))

    with pytest.raises(
        ProgramFailedError, match=r"(?s)ended 5 times.*exit code 1.*no such setting"
    ):
        await asyncio.wait_for(supervisor.failure(), 20)


async def test_programs_are_asked_to_end(
    supervisor: Supervisor, script: Script, until: Any
) -> None:
    """By SIGTERM, and may clean up."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('bye')))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    child = supervisor.start(script(code))
    await until(lambda: child.log.exists() and child.log.read_text() == "ready\n")
    await supervisor.close()

    assert child.log.read_text() == "ready\nbye\n"
    assert (child.state, child.exit_code) == ("ended", 0)


async def test_a_program_that_does_not_end_is_killed_with_its_children(
    supervisor: Supervisor, script: Script, until: Any
) -> None:
    """When its time is over."""
    code = f"import os; os.fork(); {STUBBORN} time.sleep(600)"
    child = supervisor.start(script(code, stop_s=0.2))
    await until(lambda: child.log.exists() and child.log.read_text().count("deaf") == 2)
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children()]
    await supervisor.stop("program")

    assert len(family) == 2
    assert child.exit_code == -signal.SIGKILL
    await until(lambda: not any(alive(p) for p in family))


async def test_stopping_a_program_that_waits_to_be_started_again(
    supervisor: Supervisor, script: Script, until: Any
) -> None:
    """It is not started again."""
    child = supervisor.start(script("raise SystemExit(1)"))
    await until(lambda: child.restarts == 3)
    await asyncio.wait_for(supervisor.stop("program"), 5)

    assert (child.state, child.restarts) == ("ended", 3)


async def test_programs_end_with_the_reverse_of_their_start(
    supervisor: Supervisor, script: Script, until: Any, tmp_path: Path
) -> None:
    """A broker outlives its clients."""
    for name in ("broker", "client"):
        code = (
            "import signal, sys, time\n"
            "def end(*_):\n"
            f"    open({str(tmp_path / 'order')!r}, 'a').write('{name} '); sys.exit()\n"
            "signal.signal(signal.SIGTERM, end)\n"
            "print('ready', flush=True)\n"
            "time.sleep(600)"
        )
        child = supervisor.start(script(code, name=name))
        await until(lambda log=child.log: log.exists() and log.read_text())
    await supervisor.close()

    assert (tmp_path / "order").read_text() == "client broker "


def test_a_large_log_is_moved_aside_while_it_is_written(tmp_path: Path) -> None:
    """So that a program that complains for ever does not fill the disk."""
    path = tmp_path / "program.log"
    with path.open("ab", buffering=0) as log:
        log.write(b"x" * 100)
        keep_small(path, max_bytes=100)
        log.write(b"y")
        keep_small(path, max_bytes=100)
        log.write(b"z")

    assert (tmp_path / "program.log.1").read_bytes() == b"x" * 100 + b"y"
    assert path.read_bytes() == b"z"


PARENT = """
import asyncio, sys, time
from pathlib import Path
from mlops_events.control.supervise import Program, Supervisor

async def main():
    supervisor = Supervisor(Path(sys.argv[1]))
    child = supervisor.start(Program(name="c", argv=(sys.executable, "-c", sys.argv[2])))
    while not (child.log.exists() and child.log.read_text()):
        await asyncio.sleep(0.02)
    print(child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_programs_do_not_outlive_a_supervisor_that_is_killed(
    processes: Any, until: Any, tmp_path: Path, how: int
) -> None:
    """Not even those that ignore every request to end."""
    parent = processes.start(sys.executable, "-c", PARENT, tmp_path, f"{STUBBORN} time.sleep(600)")
    child = psutil.Process(int(until.sync(parent.stdout)))
    before = alive(child)
    parent.signal(how)
    parent.wait()

    assert before
    until.sync(lambda: not alive(child))


def test_without_the_help_of_linux_a_program_ends_with_standard_input(
    processes: Any, until: Any
) -> None:
    """Where the system does not kill children with their parent, a process in between does."""
    watched = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {WATCH!r}, sys.executable, '-c', {SLEEP!r}],"
        " stdin=subprocess.PIPE)\n"
        "time.sleep(600)"
    )
    parent = processes.start(sys.executable, "-c", watched)
    found = until.sync(lambda: psutil.Process(parent.pid).children(recursive=True)[1:])
    parent.kill()

    until.sync(lambda: not any(alive(p) for p in found))


WATCH = f"import runpy, sys; sys.exit(runpy.run_path({leash.__file__!r})['watch'](sys.argv[1:]))"


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
