"""`mlops-emit cuda-metrics` and `memory-risk` as a shell sees them."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = (sys.executable, "-m", "mlops_events.producers")
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def emit(nvml_folder: Path) -> Callable[..., Done]:
    """A function that runs mlops-emit on a machine with such GPUs."""

    def emit(*args: str, play: str = "", folder: Path = nvml_folder, **env: str) -> Done:
        return subprocess.run(
            [*PROGRAM, *args],
            env={**os.environ, "LD_LIBRARY_PATH": str(folder), "NVML_STANDIN": play, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return emit


class TestCudaMetrics:
    """What GPUs tell."""

    def test_json_is_a_list_of_gpus(self, emit: Any) -> None:
        """For programs."""
        done = emit("cuda-metrics", "--json", play="count=2 temperature@1=88")
        found = json.loads(done.stdout)

        assert (done.returncode, done.stderr) == (0, "")
        assert [gpu["temperature"] for gpu in found] == [65, 88]
        assert found[0]["cuda_version"] == "13.0"
        assert found[0]["compute_capability"] == "9.0"

    @pytest.mark.parametrize(("columns", "lines"), [("80", 1), ("40", 3)])
    def test_it_fits_into_the_terminal(self, emit: Any, columns: str, lines: int) -> None:
        """A table, or lines for each GPU; a GPU that is lost is told in it."""
        play = "count=2 error.gpu@1=15 name=NVIDIA_H200"
        done = emit("cuda-metrics", play=play, COLUMNS=columns)

        assert done.returncode == 0
        assert max(map(len, done.stdout.splitlines())) <= int(columns)
        assert "driver 580.65.06, CUDA 13.0" in done.stdout
        assert "10.0 of 80.0 GiB" in done.stdout
        assert "fallen off the bus" in done.stdout
        assert "65 °C" in done.stdout
        text = done.stdout[done.stdout.index("NVIDIA H200") : done.stdout.index("250 W")]
        assert text.count("\n") == lines - 1

    @pytest.mark.parametrize("option", [(), ("--json",)])
    def test_without_nvml_one_line_says_so(
        self, emit: Any, no_nvml_folder: Path, option: tuple[str, ...]
    ) -> None:
        """And there are no GPUs."""
        done = emit("cuda-metrics", *option, folder=no_nvml_folder)

        assert done.returncode == 1
        assert done.stdout == ("[]\n" if option else "")
        assert done.stderr.count("\n") == 1
        assert "no NVIDIA driver is installed on this machine" in done.stderr

    def test_watching_goes_on_until_ctrl_c(
        self, processes: Any, nvml_folder: Path, until: Any
    ) -> None:
        """One line for each reading."""
        process = processes.start(
            *PROGRAM,
            *("cuda-metrics", "--watch", "--every", "100ms", "--json"),
            env={"LD_LIBRARY_PATH": str(nvml_folder), "NVML_STANDIN": "", "PYTHONUNBUFFERED": "1"},
        )
        until.sync(lambda: process.stdout().count("\n") >= 3)
        process.signal(signal.SIGINT)

        assert process.wait() == 0
        assert process.stderr() == ""
        assert all(len(json.loads(line)) == 1 for line in process.stdout().splitlines())

    def test_a_terminal_gets_colours_unless_it_wants_none(self, nvml_folder: Path) -> None:
        """NO_COLOR is honoured."""

        def run(**env: str) -> str:
            ours, theirs = pty.openpty()
            process = subprocess.Popen(
                [*PROGRAM, "memory-risk"],
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": str(nvml_folder),
                    "TERM": "xterm",
                    "COLUMNS": "80",
                    **env,
                },
                stdout=theirs,
            )
            os.close(theirs)
            text = b""
            try:
                while part := os.read(ours, 65536):
                    text += part
            except OSError:
                pass  # Linux says so at the end
            process.wait(60)
            os.close(ours)
            return text.decode()

        assert "\x1b[32mok" in run()
        assert "\x1b[32m" not in run(NO_COLOR="1")

    def test_watching_in_a_terminal_does_not_wipe_away_why_there_is_nothing(
        self, no_nvml_folder: Path
    ) -> None:
        """The screen is cleared only for something to show."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*PROGRAM, "cuda-metrics", "--watch"],
            env={**os.environ, "LD_LIBRARY_PATH": str(no_nvml_folder), "TERM": "xterm"},
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:
            pass  # Linux says so at the end
        os.close(ours)

        assert process.wait(60) == 1
        assert b"no GPU can be read" in text
        assert b"\x1b[2J" not in text

    def test_a_narrow_terminal_leaves_out_what_is_not_told(self, emit: Any) -> None:
        """Rather than a row of dashes."""
        play = "count=1 error.power=3 error.temperature=3"
        done = emit("cuda-metrics", play=play, COLUMNS="40")

        assert done.stdout.splitlines()[-1] == "  busy 37%"

    def test_publishing_needs_a_broker(self, emit: Any, free_port: Callable[[], int]) -> None:
        """That is set, and that answers; what was found is shown all the same."""
        unset = emit("cuda-metrics", "--emit")
        address = f"127.0.0.1:{free_port()}"
        away = emit("cuda-metrics", "--emit", "--brokers", address, "--timeout", "1s")

        assert (unset.returncode, unset.stdout) == (2, "")
        assert "no brokers; give --brokers HOST:PORT" in unset.stderr
        assert away.returncode == 1
        assert "NVIDIA H200" in away.stdout
        assert away.stderr.count("\n") == 1
        assert f"{address} has not acknowledged the events within 1 s" in away.stderr


class TestMemoryRisk:
    """Will it run out of memory?"""

    @pytest.mark.parametrize(
        ("play", "args", "code", "levels"),
        [
            ("count=2", (), 0, ["ok", "ok"]),
            ("count=2 used@1=72000", (), 2, ["ok", "warning"]),
            ("count=2 used@1=72000 used@0=80000", (), 3, ["critical", "warning"]),
            ("count=2 used@1=80000", ("--device", "0"), 0, ["ok"]),
            ("count=2 error.gpu@1=15", (), 1, ["ok", "unknown"]),
            ("mig=2", (), 0, ["ok", "ok"]),
            ("mig=2", ("--device", "0:1"), 0, ["ok"]),
            ("used=40000", ("--min-free-gib", "50"), 3, ["critical"]),
            ("used=40000", ("--min-free-gib", "30"), 2, ["warning"]),
            ("used=40000", ("--min-free-ratio", "0.6"), 3, ["critical"]),
        ],
    )
    def test_the_exit_code_is_the_worst(
        self, emit: Any, play: str, args: tuple[str, ...], code: int, levels: list[str]
    ) -> None:
        """0 ok, 2 warning, 3 critical; 1 where it cannot be told."""
        done = emit("memory-risk", "--json", *args, play=play)

        assert [risk["level"] for risk in json.loads(done.stdout)] == levels
        assert (done.returncode, done.stderr) == (code, "")

    def test_cudas_list_is_followed_unless_all_are_wanted(self, emit: Any) -> None:
        """A job sees its own GPUs."""
        play, shown = "count=3 used@2=81000", {"CUDA_VISIBLE_DEVICES": "1"}
        own = emit("memory-risk", "--json", play=play, **shown)
        everything = emit("memory-risk", "--json", "--all-devices", play=play, **shown)

        assert [risk["gpu"] for risk in json.loads(own.stdout)] == ["1"]
        assert (own.returncode, everything.returncode) == (0, 3)
        assert len(json.loads(everything.stdout)) == 3

    @pytest.mark.parametrize("columns", ["80", "40"])
    def test_it_says_why_and_what_to_do(self, emit: Any, columns: str) -> None:
        """Within the terminal."""
        done = emit("memory-risk", play="used=80000", COLUMNS=columns)
        text = " ".join(done.stdout.split())

        assert max(map(len, done.stdout.splitlines())) <= int(columns)
        assert "GPU 0 NVIDIA H200: critical, 2% free" in text
        assert "1.9 GiB of 80.0 GiB are free, less than 10% of it" in text
        assert "- use a smaller batch" in text

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("--device", "7"), "no GPU 7; there are: 0"),
            (("--min-free-ratio", "2"), "Invalid value for '--min-free-ratio'"),
        ],
    )
    def test_wrong_usage_is_one_line(self, emit: Any, args: tuple[str, ...], message: str) -> None:
        """And exit code 2, with nothing on standard output."""
        done = emit("memory-risk", *args)

        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1

    def test_without_nvml_it_cannot_be_told(self, emit: Any, no_nvml_folder: Path) -> None:
        """Which is no all-clear."""
        done = emit("memory-risk", "--json", folder=no_nvml_folder)

        assert (done.returncode, done.stdout) == (1, "[]\n")
        assert done.stderr.count("\n") == 1
