"""`mlops-emit doctor` as a shell sees it: what it finds on a node and on the way to a broker."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = (sys.executable, "-m", "mlops_events.producers", "doctor")
Done = subprocess.CompletedProcess[str]
Findings = list[dict[str, str]]


@pytest.fixture
def run(nvml_folder: Path) -> Callable[..., Done]:
    """Return a function that runs the doctor on a machine with such GPUs."""

    def run(*args: str, play: str = "", **env: str) -> Done:
        return subprocess.run(
            [*PROGRAM, *args],
            env={**os.environ, "LD_LIBRARY_PATH": str(nvml_folder), "NVML_STANDIN": play, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def examine(run: Callable[..., Done]) -> Callable[..., tuple[int, Findings]]:
    """Return a function that returns the exit code and the findings."""

    def examine(*args: str, **options: str) -> tuple[int, Findings]:
        done = run("--json", *args, **options)
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    return examine


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the address of a port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def of(findings: Findings, check: str) -> dict[str, str]:
    """Return the only finding of a check."""
    (found,) = [one for one in findings if one["check"] == check]
    return found


class TestNode:
    """What needs no broker."""

    def test_without_brokers_the_rest_is_examined(self, examine: Any) -> None:
        """That nothing is emitted is an error; what nobody asked for is skipped."""
        code, found = examine()

        assert code == 1
        assert of(found, "broker")["status"] == "error"
        assert "MLOPS_EVENTS_KAFKA_BROKERS" in of(found, "broker")["cure"]
        assert of(found, "packages")["status"] == "ok"
        assert of(found, "spool")["status"] == "skipped"
        assert of(found, "gpu")["found"].startswith("NVML finds 0 ")

    def test_a_misspelt_variable_is_named(self, examine: Any) -> None:
        """With what was likely meant; an emitter goes on without it, so it is a warning."""
        _, found = examine(MLOPS_EVENTS_RUN_IDD="x")

        assert of(found, "settings")["status"] == "warning"
        assert "MLOPS_EVENTS_RUN_ID?" in of(found, "settings")["found"]

    def test_a_setting_that_cannot_be_used_ends_the_examination_of_the_way(
        self, examine: Any
    ) -> None:
        """And is an error."""
        code, found = examine(MLOPS_EVENTS_BUFFER_BYTES="many")

        assert code == 1
        assert of(found, "settings")["status"] == "error"
        assert "MLOPS_EVENTS_BUFFER_BYTES" in of(found, "settings")["found"]
        assert of(found, "broker")["status"] == "skipped"

    def test_variables_of_sinks_do_nothing_on_a_node(self, examine: Any) -> None:
        """They are named, never their values."""
        _, found = examine(INFLUXDB_TOKEN="hunter2", WANDB_API_KEY="hunter2")
        told = [one["found"] for one in found if one["check"] == "settings"]

        assert any(text.startswith("INFLUXDB_TOKEN, WANDB_API_KEY: nothing") for text in told)
        assert "hunter2" not in json.dumps(found)

    def test_who_emits_is_told(self, examine: Any) -> None:
        """And what of it is missing."""
        _, some = examine("--role", "miner")
        _, all_of_it = examine("--role", "miner", "--uid", "7", "--run", "r", "--version", "1.2")

        assert of(some, "origin")["found"] == "role miner; without run, uid, version"
        assert of(all_of_it, "origin") == {
            "check": "origin",
            "status": "ok",
            "found": "run r, role miner, uid 7, version 1.2",
            "cure": "",
        }

    def test_a_spool_that_cannot_be_written_is_an_error(self, examine: Any, tmp_path: Path) -> None:
        """One that can is told with what waits in it."""
        (tmp_path / "file").touch()
        folder = tmp_path / "spool" / ("a" * 32)
        folder.mkdir(parents=True)
        (folder / "000000000001-log.seg").write_bytes(b"\0" * (3 << 20))
        code, bad = examine(MLOPS_EVENTS_SPOOL_DIR=str(tmp_path / "file" / "spool"))
        _, good = examine(
            MLOPS_EVENTS_SPOOL_DIR=str(tmp_path / "spool"), MLOPS_EVENTS_SPOOL_BYTES="1MiB"
        )

        assert code == 1
        assert of(bad, "spool")["status"] == "error"
        assert "MLOPS_EVENTS_SPOOL_DIR" in of(bad, "spool")["cure"]
        assert "3 MiB wait in 1 files" in of(good, "spool")["found"]
        assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == ["a" * 32]

    def test_a_gpu_off_the_bus_is_an_error(self, examine: Any) -> None:
        """Whatever else is well."""
        code, found = examine(play="count=2 error.gpu@1=15")

        assert code == 1
        assert of(found, "gpu")["found"] == "GPU 1 has fallen off the bus"


class TestWay:
    """What is on the way to a broker that is none."""

    def test_where_nobody_listens(self, examine: Any, free_port: Callable[[], int]) -> None:
        """Each address is told by itself."""
        place = f"127.0.0.1:{free_port()}"
        code, found = examine("--brokers", f"{place},no..host:9092")
        ways = [one["found"] for one in found if one["check"] == "broker"]

        assert code == 1
        assert ways[0].startswith(f"{place} cannot be reached")
        assert ways[1] == "no..host:9092: the name cannot be resolved"

    def test_a_port_that_says_nothing_is_not_waited_for(self, examine: Any, silent: str) -> None:
        """It is no port of Kafka."""
        code, found = examine("--brokers", silent, "--timeout", "3s")

        assert code == 1
        assert of(found, "broker")["status"] == "ok"
        assert "does not answer as Kafka does" in of(found, "login")["found"]

    def test_a_port_without_tls_is_told_from_one_that_is_away(
        self, examine: Any, silent: str
    ) -> None:
        """It connects and then nothing comes."""
        _, found = examine(
            "--brokers", silent, "--timeout", "3s", MLOPS_EVENTS_KAFKA_SECURITY_PROTOCOL="SSL"
        )

        assert "connects and makes no TLS handshake" in of(found, "broker")["found"]


def test_it_fits_into_the_terminal(run: Any) -> None:
    """A table, or blocks; without colours, since this is no terminal."""
    for columns in ("80", "40"):
        done = run("--brokers", "127.0.0.1:1", COLUMNS=columns)
        assert max(map(len, done.stdout.splitlines())) <= int(columns)
        assert "\x1b" not in done.stdout
        assert done.stdout.rstrip().endswith("1 error, 1 warning")


def test_wrong_usage_is_exit_code_2(run: Any) -> None:
    """Said in a line."""
    done = run("--timeout", "soon")

    assert (done.returncode, done.stdout) == (2, "")
    assert "'soon' is no duration" in done.stderr
