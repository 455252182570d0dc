"""Versions of a run: what is said about which start of a node."""

from typing import Any

import pytest

from mlops_events.schemas.events import Log, Origin, Run
from mlops_events.streams.derived import DerivedLog
from mlops_events.streams.history import Versions, name_of

TS = 1_767_225_600_000_000_000


def start(
    versions: Versions, uid: int, version: str, *, ts: int = 0, process: int = 0, **more: Any
) -> list[DerivedLog]:
    """Start a process of a node."""
    origin = Origin(run="llama", role="miner", uid=uid, version=version, node="gpu-1", **more)
    emitter = f"{uid}.{version}.{process}".ljust(16).encode()
    return versions.take(origin, emitter, Run(ts=TS + ts, state="start"))


def messages(said: list[DerivedLog]) -> list[str]:
    return [f"{one.log.level}: {one.log.message}" for one in said]


def test_the_first_appearance_of_a_version() -> None:
    """It is said once for a run, whoever runs it, with what came before."""
    versions = Versions()
    first = start(versions, 12, "v1.2.0", project="p", netuid=3, environment="test")
    same = start(versions, 13, "1.2.0")
    (next_,) = start(versions, 12, "1.3.0", ts=5)

    assert messages(first) == ["info: version 1.2.0 first appears in run llama, on miner/12"]
    assert same == []
    assert next_.origin == Origin(run="llama", version="1.3.0")
    assert first[0].origin == Origin(
        run="llama", project="p", netuid=3, environment="test", version="1.2.0"
    )
    assert next_.log == Log(
        ts=TS + 5,
        level="info",
        message="version 1.3.0 first appears in run llama, on miner/12, after 1.2.0",
        logger="mlops_events.fleet",
        fields={
            "run": "llama",
            "version": "1.3.0",
            "previous": "1.2.0",
            "role": "miner",
            "uid": 12,
        },
    )


def test_a_return_to_an_older_version() -> None:
    """To one that came up in the run before what the node ran last, on this node or not."""
    versions = Versions()
    start(versions, 1, "1.0")
    start(versions, 2, "2.0")
    (back,) = start(versions, 2, "1.0", ts=1)
    again = start(versions, 2, "2.0", ts=2)
    (rolled,) = start(versions, 2, "1.0", ts=3, process=1)

    assert messages([back]) == ["warning: node miner/2 goes back to version 1.0, after 2.0"]
    assert back.origin == Origin(run="llama", role="miner", uid=2, version="1.0", node="gpu-1")
    assert again == []
    assert rolled.log.message == back.log.message
    assert rolled.emitter != back.emitter


@pytest.mark.parametrize("state", ["update", "end"])
def test_other_events_of_a_run_say_nothing(state: Any) -> None:
    """Only a start does."""
    origin = Origin(run="llama", role="miner", uid=1, version="1.0")

    assert Versions().take(origin, bytes(16), Run(ts=TS, state=state)) == []


def test_an_old_start_that_arrives_late_is_no_return() -> None:
    """Such as one from the spool of a process that died; nor is the same start once more."""
    versions = Versions()
    start(versions, 1, "1.0", ts=0)
    start(versions, 1, "2.0", ts=10)

    assert start(versions, 1, "1.0", ts=0) == []
    assert start(versions, 1, "1.0", ts=5, process=1) == []
    assert start(versions, 1, "2.0", ts=10) == []


def test_runs_and_ranks_are_apart() -> None:
    """A version is new in each run; each rank is a node."""
    versions = Versions()
    start(versions, 1, "1.0", rank=0)
    start(versions, 1, "2.0", ts=1, rank=1)
    other = Origin(run="other", role="miner", uid=1, version="2.0")
    (new,) = versions.take(other, bytes(16), Run(ts=TS, state="start"))

    assert new.log.message == "version 2.0 first appears in run other, on miner/1"
    assert messages(start(versions, 1, "1.0", ts=2, rank=1)) == [
        "warning: node miner/1#1 goes back to version 1.0, after 2.0"
    ]


def test_what_started_long_ago_is_forgotten() -> None:
    """With the run, if nobody else started in it; as if the log began later."""
    versions = Versions()
    start(versions, 1, "1.0", ts=0)
    start(versions, 2, "2.0", ts=10)
    versions.forget(before_ns=TS + 5)
    kept = start(versions, 1, "1.0", ts=20)
    versions.forget(before_ns=TS + 30)

    assert kept == []
    assert messages(start(versions, 2, "2.0", ts=40)) == [
        "info: version 2.0 first appears in run llama, on miner/2"
    ]


def test_what_is_said_is_the_same_whenever_it_is_said() -> None:
    """Its id and its bytes follow from what it is about."""
    one, two = (start(Versions(), 1, "1.0")[0].frame() for _ in range(2))

    assert one.encode() == two.encode()
    assert (one.kind, one.seq, one.accepted, one.end, len(one)) == ("log", 0, 1, True, 1)
    assert one.emitter == start(Versions(), 9, "1.0", ts=77)[0].emitter
    assert str(one.event_id(0)).endswith("/log/0/0")


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        (Origin(role="miner", uid=12), "miner/12"),
        (Origin(role="miner", uid="a", rank=3), "miner/a#3"),
        (Origin(role="miner", node="gpu-1"), "miner/gpu-1"),
        (Origin(uid=0), "0"),
        (Origin(), "an unnamed node"),
    ],
)
def test_what_people_call_a_node(origin: Origin, name: str) -> None:
    """Role, uid or host, rank."""
    assert name_of(origin) == name
