"""`mlops-pipeline up`: everything on one machine, from simulated nodes to a verified store."""

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

QUICK = {
    "NO_COLOR": "1",
    "MLOPS_EVENTS_STREAM_BY": "time:2s",
    "MLOPS_EVENTS_STREAM_LATENESS_S": "1",
}
ZEROS = (
    *("lost", "changed", "duplicates", "extra", "dropped", "unsent", "tail", "unknown_tail"),
    *("foreign", "dead_letters", "windows_missing", "windows_wrong", "windows_extra", "late"),
    *("fleet_partial", "fleet_wrong"),
)


@pytest.fixture
def up(processes: Any) -> Callable[..., Any]:
    """Start `up` with windows of two seconds."""

    def start(*options: str | Path, **env: str) -> Any:
        return processes.start(
            *(sys.executable, "-m", "mlops_events.control", "up", *options), env={**QUICK, **env}
        )

    return start


@pytest.fixture
def state(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Return what `up` says about its processes; nothing before it does."""

    def read() -> dict[str, Any]:
        path = tmp_path / "data" / "up.json"
        return msgspec.json.decode(path.read_bytes()) if path.exists() else {}

    return read


def report(process: Any) -> dict[str, Any]:
    return msgspec.json.decode(process.stdout())


def stored(folder: Path) -> int:
    """How many events there are."""
    try:
        db = sqlite3.connect(f"file:{folder}/events.db?mode=ro", uri=True)
        with closing(db):
            return db.execute("SELECT count(*) FROM event").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def all_running(state: dict[str, Any]) -> bool:
    names = {"store", "broker", "stream", "fleet", "sink-sqlite", "simulate"}
    return names <= state.get("processes", {}).keys() and all(state["processes"].values())


def test_a_fleet_is_stored_and_verified(up: Callable[..., Any], tmp_path: Path) -> None:
    """Every event and window, and what goes away is gone."""
    process = up("--simulate", "8", "--for", "10s", "--verify", "--json", TMPDIR=str(tmp_path))
    code = process.wait(within=120)

    assert code == 0, process.stderr()
    found = report(process)
    assert {name: found[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert found["emitted"] == found["stored"] > 500
    assert found["windows_checked"] == found["windows_expected"] > 100
    assert found["fleet_checked"] > 50
    assert "first events after" in process.stderr()
    assert "first aggregates after" in process.stderr()
    assert list(tmp_path.iterdir()) == []


def test_a_fleet_is_stored_and_verified_through_real_kafka(
    up: Callable[..., Any], kafka: str, prefix: str, tmp_path: Path
) -> None:
    """With one broker there is one replica; a second run finds the topics there."""
    for duration in ("8s", "3s"):
        process = up(
            *("--simulate", "8", "--for", duration, "--verify", "--json", "--brokers", kafka),
            MLOPS_EVENTS_KAFKA_PREFIX=prefix,
            TMPDIR=str(tmp_path),
        )
        code = process.wait(within=120)

        assert code == 0, process.stderr()
        found = report(process)
        assert {name: found[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
        assert found["emitted"] == found["stored"] > 100
        assert found["windows_checked"] == found["windows_expected"] > 50
        assert found["fleet_checked"] > 20


def test_ctrl_c_stops_every_process_and_nothing_is_lost(
    up: Callable[..., Any], state: Callable[[], dict[str, Any]], tmp_path: Path, until: Any
) -> None:
    """What was on its way is delivered by the next run on the same folder."""
    data = tmp_path / "data"
    first = up("--simulate", "8", "--data", data)
    until.sync(lambda: all_running(state()) and stored(data) > 50)
    children = [psutil.Process(pid) for pid in state()["processes"].values()]
    first.signal(signal.SIGINT)
    code = first.wait()
    alive = [child for child in children if child.is_running()]
    ended = state()
    second = up("--simulate", "2", "--for", "3s", "--data", data, "--verify", "--json")

    assert (code, alive) == (0, []), first.stderr()
    assert second.wait(within=120) == 0, second.stderr()
    found = report(second)
    assert {name: found[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert found["emitters"] >= 10
    assert ended["pid"] == 0
    assert ended["brokers"] == state()["brokers"]  # programs find it again


def test_its_processes_do_not_outlive_it(
    up: Callable[..., Any], state: Callable[[], dict[str, Any]], tmp_path: Path, until: Any
) -> None:
    """Not even when it is killed; and a second one on the folder is told who has it."""
    data = tmp_path / "data"
    first = up("--simulate", "1", "--data", data)
    until.sync(lambda: all_running(state()))
    children = [psutil.Process(pid) for pid in state()["processes"].values()]
    second = up("--data", data)
    refused = second.wait()
    first.kill()

    assert refused == 1
    assert f"{data} is in use by process {first.pid}; stop that one" in second.stderr()
    until.sync(lambda: not any(child.is_running() for child in children))


def test_verification_notices_a_deleted_event_and_a_changed_one(
    up: Callable[..., Any], tmp_path: Path
) -> None:
    """And says which."""
    data = tmp_path / "data"
    sound = up("--simulate", "2", "--for", "4s", "--data", data, "--verify", "--json")
    code = sound.wait(within=120)
    db = sqlite3.connect(data / "events.db", isolation_level=None)
    (gone,), (odd,) = db.execute(
        "SELECT e.id FROM event e JOIN series s ON s.id = e.series WHERE s.name = 'training' LIMIT 2"
    )
    db.execute("DELETE FROM event WHERE id = ?", (gone,))
    db.execute(
        "UPDATE event SET body = '[0.5' || substr(body, instr(body, ',')) WHERE id = ?", (odd,)
    )
    db.close()
    damaged = up("--for", "0.5s", "--data", data, "--verify", "--json")
    damaged_code = damaged.wait(within=120)

    assert code == 0, sound.stderr()
    assert damaged_code == 1
    found = report(damaged)
    assert (found["lost"], found["changed"]) == (1, 1)
    assert any(problem.startswith("lost: observation training") for problem in found["problems"])


def test_events_can_be_followed(
    up: Callable[..., Any],
    state: Callable[[], dict[str, Any]],
    processes: Any,
    tmp_path: Path,
    until: Any,
) -> None:
    """As they arrive, from the broker that runs in a folder; topics can be listed there."""
    data = tmp_path / "data"
    up("--simulate", "3", "--data", data)
    until.sync(lambda: all_running(state()))
    own = (sys.executable, "-m", "mlops_events.control")
    tail = processes.start(*own, "tail", "--data", data, "--kind", "observation", "--json")
    listing = processes.start(*own, "topics", "list", "--data", data, "--json")
    lines = until.sync(lambda: tail.stdout().splitlines()[:-1])
    tail.signal(signal.SIGINT)

    first = msgspec.json.decode(lines[0])
    assert first["kind"] == "observation"
    assert first["origin"]["role"] in ("miner", "validator", "aggregator")
    assert tail.wait() == 130
    assert listing.wait() == 0
    names = {topic["name"] for topic in msgspec.json.decode(listing.stdout())}
    assert {"mlops.events.observation.v1", "mlops.events.sink.sqlite.v1"} <= names


def test_it_runs_in_memory(up: Callable[..., Any], tmp_path: Path) -> None:
    """Nothing of the broker is on the disk."""
    data = tmp_path / "data"
    process = up("--simulate", "1", "--for", "3s", "--memory", "--data", data, "--verify")

    assert process.wait(within=120) == 0, process.stderr()
    assert not (data / "store").exists()
    assert process.stdout().startswith("everything arrived and is right")


@pytest.mark.parametrize(
    ("options", "env", "said"),
    [
        (["--brokers", "127.0.0.1:1"], {}, "no Kafka answers at 127.0.0.1:1"),
        ([], {"MLOPS_EVENTS_STREAM_WINDOWS": "1"}, "MLOPS_EVENTS_STREAM_WINDOWS"),
        ([], {"MLOPS_EVENTS_STREAM_SINKS": "console"}, "MLOPS_EVENTS_STREAM_SINKS lacks sqlite"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(
    up: Callable[..., Any], tmp_path: Path, options: list[str], env: dict[str, str], said: str
) -> None:
    """With exit code 2."""
    process = up("--data", tmp_path / "data", *options, **env)

    assert process.wait(within=60) == 2
    assert said in process.stderr()
    assert "Traceback" not in process.stderr()


def test_a_process_that_cannot_start_ends_it_with_the_reason(
    up: Callable[..., Any], tmp_path: Path
) -> None:
    """The end of its log."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "events.db").write_bytes(b"no database at all" * 100)
    process = up("--data", data, "--simulate", "1")

    assert process.wait(within=60) == 1
    assert "sink-sqlite ended 5 times" in process.stderr()
    assert os.fspath(data / "logs" / "sink-sqlite.log") in process.stderr()
