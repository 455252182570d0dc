"""mlops-emit as a shell sees it: exit codes, one line for what went wrong, help."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MODULE = (sys.executable, "-m", "mlops_events.producers")
SCRIPT = (str(Path(sys.executable).with_name("mlops-emit")),)
EMIT = ("observation", "training", "loss=0.5", "--run", "demo")

Done = subprocess.CompletedProcess[str]
Emit = Callable[..., Done]


@pytest.fixture
def emit() -> Emit:
    """A function that runs mlops-emit to its end."""

    def emit(*args: str, program: tuple[str, ...] = MODULE, **env: str) -> Done:
        return subprocess.run(
            [*program, *args],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return emit


@pytest.fixture
def closed(free_port: Callable[[], int]) -> str:
    """The address of a broker that is not there."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """A listening socket that never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


def address(server: socket.socket) -> str:
    """Where a socket listens."""
    host, port = server.getsockname()
    return f"{host}:{port}"


class TestExitCodes:
    """0, 1 and 2, and what is said about them."""

    def test_no_broker_is_one_line_and_exit_1(self, emit: Emit, closed: str) -> None:
        """The line names the broker, what happened and what to do."""
        done = emit(*EMIT, "--brokers", closed, "--timeout", "5s")

        assert done.returncode == 1
        assert done.stdout == ""
        assert re.fullmatch(
            rf"mlops-emit: {closed} has not acknowledged the observation within 5 s: "
            r".*[Cc]onnect.*; check that the broker runs, that --brokers names it and that it has "
            r"the topic mlops\.events\.observation\.v1\n",
            done.stderr,
        )

    def test_broker_that_hangs_is_exit_1_too(self, emit: Emit, deaf: socket.socket) -> None:
        """A port that accepts and says nothing does not hold the command up."""
        done = emit(*EMIT, "--brokers", address(deaf), "--timeout", "1s")

        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert address(deaf) in done.stderr

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("observation", "x", "loss"), "'loss' is not FIELD=VALUE, such as loss=0.5"),
            (("observation", "x"), "Missing argument 'FIELD=VALUE...'; see 'mlops-emit obs"),
            (("observation", "x", "a=1", "--stp", "3"), "No such option: --stp"),
            (("observation", "x", "a=1", "--timeout", "soon"), "'soon' is no duration"),
            (("observation", "x", "a=1", "--tag", "b"), "'b' is not KEY=VALUE"),
            (("log", "loud", "hello"), "no log level 'loud'; levels: debug, info"),
            (("profile", "x", "12"), "'12' is no duration; write one such as 12ms"),
            (("simulate", "--for", "long"), "'long' is no duration"),
            (("simulate", "--nodes", "0"), "settings cannot be used: nodes: "),
            (("obervation", "x", "a=1"), "No such command 'obervation'"),
        ],
    )
    def test_wrong_usage_is_one_line_and_exit_2(
        self, emit: Emit, args: tuple[str, ...], message: str
    ) -> None:
        """Whatever is wrong, the line says what."""
        done = emit(*args, MLOPS_EVENTS_KAFKA_BROKERS="127.0.0.1:9")

        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("mlops-emit: ")
        assert message in done.stderr

    @pytest.mark.parametrize("args", [EMIT, ("simulate", "--nodes", "1", "--for", "1s")])
    def test_without_brokers_it_says_what_to_set(self, emit: Emit, args: tuple[str, ...]) -> None:
        """There is no default address."""
        done = emit(*args)

        assert done.returncode == 2
        assert done.stderr == (
            "mlops-emit: no brokers; give --brokers HOST:PORT or set MLOPS_EVENTS_KAFKA_BROKERS\n"
        )

    def test_wrong_setting_is_one_line(self, emit: Emit, closed: str) -> None:
        """All that is wrong in the environment, in one go."""
        done = emit(*EMIT, "--brokers", closed, MLOPS_EVENTS_LINGER_S="x", MLOPS_EVENTS_NETUID="y")

        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "MLOPS_EVENTS_LINGER_S" in done.stderr
        assert "MLOPS_EVENTS_NETUID" in done.stderr

    def test_disabled_means_not_sent(self, emit: Emit, closed: str) -> None:
        """MLOPS_EVENTS_DISABLED switches the command off as it does a program."""
        done = emit(*EMIT, "--brokers", closed, MLOPS_EVENTS_DISABLED="1")

        assert done.returncode == 1
        assert "MLOPS_EVENTS_DISABLED is set" in done.stderr

    def test_without_the_extra_it_says_how_to_install_it(self, emit: Emit) -> None:
        """A training environment need not have typer."""
        code = (
            "import sys; sys.modules['typer'] = None; "
            "from mlops_events.producers.cli import main; sys.exit(main(['--help']))"
        )

        done = emit(program=(sys.executable, "-c", code))

        assert done.returncode == 2
        assert done.stderr == (
            'mlops-emit: typer is not installed; run: pip install "mlops-events[cli]"\n'
        )

    def test_ctrl_c_ends_it_without_a_traceback(self, deaf: socket.socket, processes: Any) -> None:
        """Even while it waits for a broker."""
        process = processes.start(*MODULE, *EMIT, "--brokers", address(deaf), "--timeout", "60s")
        connection, _ = deaf.accept()
        process.signal(signal.SIGINT)

        code = process.wait(within=20)
        connection.close()

        assert code == 130
        assert process.stderr() == ""


class TestOutput:
    """What it prints."""

    def test_dry_run_prints_the_event_and_needs_no_broker(self, emit: Emit) -> None:
        """Origin, topic, key and values, as they would be sent."""
        done = emit(
            *("observation", "training", "loss=nan", "lr=1e-4", "scores=[1,2.5]", "ok=true"),
            *("--step", "7", "--run", "demo", "--role", "miner", "--uid", "12"),
            *("--version", "1.4.0", "--tag", "phase=train", "--dry-run", "--json"),
        )
        found = json.loads(done.stdout)

        assert done.returncode == 0
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1
        assert found["dry_run"] is True
        assert found["acked"] is False
        assert found["topic"] == "mlops.events.observation.v1"
        assert found["key"] == "demo/miner/12/"
        assert (
            found["origin"].items()
            >= {
                "run": "demo",
                "role": "miner",
                "uid": 12,
                "version": "1.4.0",
                "tags": {"phase": "train"},
            }.items()
        )
        assert found["event"]["name"] == "training"
        assert found["event"]["step"] == 7
        assert found["event"]["fields"] == {
            "loss": "NaN",
            "lr": 1e-4,
            "scores": [1, 2.5],
            "ok": True,
        }

    def test_profile_and_log_too(self, emit: Emit) -> None:
        """A duration in nanoseconds; a level by its full name; --json is for machines."""
        profile = emit("profile", "forward", "12ms", "--dry-run")
        log = emit("log", "WARN", "peer is gone", "peer=12", "--dry-run")

        assert json.loads(profile.stdout)["event"]["duration_ns"] == 12_000_000
        assert (
            json.loads(log.stdout)["event"].items()
            >= {
                "level": "warning",
                "message": "peer is gone",
                "fields": {"peer": 12},
            }.items()
        )

    def test_failure_is_an_object_too(self, emit: Emit, closed: str) -> None:
        """With --json a script reads the reason instead of parsing the line."""
        done = emit(*EMIT, "--brokers", closed, "--timeout", "500ms", "--json")
        found = json.loads(done.stdout)

        assert done.returncode == 1
        assert found["acked"] is False
        assert found["error"] in done.stderr

    def test_settings_come_from_the_environment(self, emit: Emit) -> None:
        """As in a program; an option wins."""
        found = json.loads(
            emit(*EMIT, "--dry-run", MLOPS_EVENTS_ROLE="miner", MLOPS_EVENTS_RUN_ID="other").stdout
        )

        assert (found["origin"]["role"], found["origin"]["run"]) == ("miner", "demo")

    def test_stray_variable_is_worth_a_warning(self, emit: Emit) -> None:
        """It stops nothing."""
        done = emit(*EMIT, "--dry-run", MLOPS_EVENTS_ROEL="miner")

        assert done.returncode == 0
        assert "did you mean MLOPS_EVENTS_ROLE?" in done.stderr


class TestHelp:
    """Help for each command."""

    @pytest.mark.parametrize("columns", ["80", "40"])
    @pytest.mark.parametrize(
        ("command", "example"),
        [
            ("observation", "mlops-emit observation training loss=0.5 lr=1e-4 --step 100"),
            ("profile", "mlops-emit profile checkpoint 3.5s --run demo"),
            ("log", "mlops-emit log info 'checkpoint written' path=model.pt --run demo"),
            ("simulate", "mlops-emit simulate --nodes 8 --for 60s"),
        ],
    )
    def test_help_has_examples(self, emit: Emit, command: str, example: str, columns: str) -> None:
        """On a wide terminal and on a narrow one, and no line is wider than it."""
        done = emit(command, "--help", COLUMNS=columns)

        assert done.returncode == 0
        assert example in " ".join(done.stdout.split())
        assert max(map(len, done.stdout.splitlines())) <= int(columns)

    @pytest.mark.parametrize("program", [MODULE, SCRIPT])
    def test_without_arguments_it_lists_the_commands(
        self, emit: Emit, program: tuple[str, ...]
    ) -> None:
        """As a module and as a script."""
        done = emit(program=program)

        assert done.returncode == 0
        assert "Usage: mlops-emit" in done.stdout
        assert all(name in done.stdout for name in ("observation", "profile", "log", "simulate"))

    def test_no_color_is_honoured(self) -> None:
        """On a terminal, too."""
        colours = {value: _on_a_terminal({"NO_COLOR": value}) for value in ("", "1")}

        assert re.search(r"\x1b\[[0-9;]*3[0-7]", colours[""])
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]", colours["1"])


def _on_a_terminal(env: dict[str, str]) -> str:
    """What the help looks like on a terminal."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **env}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen([*MODULE, "--help"], stdout=theirs, env=environ)
        os.close(theirs)
        found = b""
        try:
            while piece := terminal.read(4096):
                found += piece
        except OSError:  # Linux says so when the other side is closed
            pass
        assert process.wait(30) == 0
    return found.decode()


class TestSimulate:
    """The simulator without a broker."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_truth_is_complete_when_it_is_told_to_end(
        self, processes: Any, until: Any, closed: str, tmp_path: Path, number: int
    ) -> None:
        """All emitters' accounts are there; what was not delivered is said, in one line."""
        truth = tmp_path / "truth.jsonl"
        process = processes.start(
            *MODULE,
            *("simulate", "--nodes", "2", "--brokers", closed, "--truth", truth),
            *("--close-timeout", "500ms", "--json"),
        )
        until.sync(lambda: truth.exists() and truth.read_text().count("\n") > 20)
        process.signal(number)

        assert process.wait() == 1
        lines = [json.loads(line) for line in truth.read_text().splitlines()]
        accounts = [line for line in lines if line["t"] == "emitter"]
        assert lines[-2:] == accounts
        assert [line["ended"] for line in accounts] == [False, False]
        found = json.loads(process.stdout())
        assert found["emitted"] == len(lines) - 2
        assert found["sent"] == 0
        assert f"{found['emitted']} events were not acknowledged" in process.stderr()
        assert "Traceback" not in process.stderr()

    def test_truth_that_cannot_be_written_is_one_line(
        self, emit: Emit, closed: str, tmp_path: Path
    ) -> None:
        """A folder that is not there."""
        file = tmp_path / "nowhere" / "truth.jsonl"

        done = emit("simulate", "--brokers", closed, "--truth", str(file))

        assert done.returncode == 1
        assert str(file) in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
