"""`mlops-pipeline up` under kill -9 of its processes: nothing is lost, doubled, changed or wrong."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

SETTINGS = {
    "NO_COLOR": "1",
    "MLOPS_EVENTS_STREAM_BY": "time:5s",
    "MLOPS_EVENTS_STREAM_LATENESS_S": "2",
    "MLOPS_EVENTS_STREAM_CHECKPOINT_S": "2",
}
ROUNDS = 3
WRONG = (
    *("lost", "changed", "duplicates", "extra", "unsent", "tail", "unknown_tail", "dead_letters"),
    *("windows_missing", "windows_wrong", "windows_extra", "late", "too_old", "ahead"),
    *("fleet_partial", "fleet_wrong"),
)


class Victims:
    """The processes of `up`, to be killed by name."""

    def __init__(self, folder: Path, until: Any) -> None:
        self._folder = folder
        self._until = until

    def pid(self, name: str) -> int:
        """The pid of a process that runs; 0 while it does not."""
        path = self._folder / "up.json"
        if not path.exists():
            return 0
        return msgspec.json.decode(path.read_bytes())["processes"].get(name, 0)

    def kill(self, name: str) -> None:
        """Kill a process and wait until it runs again."""
        before = self._until.sync(lambda: self.pid(name))
        os.kill(before, signal.SIGKILL)
        self._until.sync(lambda: self.pid(name) not in (0, before))


@pytest.fixture
def up(processes: Any, tmp_path: Path) -> Callable[..., Any]:
    """Start `up` on the folder `data`."""

    def start(*options: str) -> Any:
        command = (sys.executable, "-m", "mlops_events.control", "up", "--data", tmp_path / "data")
        return processes.start(*command, "--simulate", "8", *options, env=SETTINGS)

    return start


def killed_and_verified(
    up: Callable[..., Any], victims: Victims, names: list[str], until: Any, *options: str
) -> dict[str, Any]:
    """Kill processes at random moments of a run, stop it, run again and verify both runs."""
    chance = random.Random(7)
    first = up(*options)
    until.sync(lambda: "first events after" in first.stderr())
    for _ in range(ROUNDS):
        for name in chance.sample(names, len(names)):
            victims.kill(name)
            # of any length, so that the next dies while it does any of the things that it does
            time.sleep(chance.uniform(0.0, 3.0))
    first.signal(signal.SIGINT)
    code = first.wait(within=60)
    assert code == 0, first.stderr()
    second = up("--for", "8s", "--verify", "--json", *options)
    code = second.wait(within=180)
    assert code == 0, second.stderr() + second.stdout()
    return msgspec.json.decode(second.stdout())


def test_every_process_may_be_killed(up: Callable[..., Any], tmp_path: Path, until: Any) -> None:
    """The stream worker, the fleet service, the sink, the broker and its store, in any order."""
    victims = Victims(tmp_path / "data", until)
    names = ["stream", "fleet", "sink-sqlite", "broker", "store"]
    found = killed_and_verified(up, victims, names, until)

    assert {name: found[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert found["emitted"] == found["stored"] > 1000
    assert found["windows_checked"] == found["windows_expected"] > 300
    assert found["fleet_checked"] > 100


def test_on_real_kafka_the_services_may_be_killed(
    up: Callable[..., Any],
    kafka: str,
    prefix: str,
    tmp_path: Path,
    until: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with the embedded broker."""
    monkeypatch.setenv("MLOPS_EVENTS_KAFKA_PREFIX", prefix)
    victims = Victims(tmp_path / "data", until)
    names = ["stream", "fleet", "sink-sqlite"]
    found = killed_and_verified(up, victims, names, until, "--brokers", kafka)

    assert {name: found[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert found["emitted"] == found["stored"] > 1000
    assert found["windows_checked"] == found["windows_expected"] > 300
    assert found["fleet_checked"] > 100
