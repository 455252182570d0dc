"""Which nodes are missing and which are back: said once each, and not when all stood still."""

from typing import Any

import pytest

from mlops_events.schemas.events import Origin, Stats
from mlops_events.streams.crew import Crews
from mlops_events.streams.fleetsettings import FleetStatsSettings
from mlops_events.streams.presence import Presence

SECOND = 1_000_000_000
START = 1_000_000 * SECOND


class Lab:
    """Nodes that are heard now and then; times are in seconds."""

    def __init__(self, **settings: Any) -> None:
        found = FleetStatsSettings(**settings)
        self.crews = Crews(found)
        self.presence = Presence(found, self.crews)

    def hear(self, uid: int | str, at: float, **origin: Any) -> None:
        """Hear a node."""
        who = Origin(**{"run": "r", "role": "miner", "uid": uid, "version": "1.0", **origin})
        log_ns = START + round(at * SECOND)
        stats = Stats(
            kind="observation",
            name="training",
            field="loss",
            start=log_ns - 12 * SECOND,
            size=10 * SECOND,
            revision=1,
            final=True,
            count=1,
        )
        self.presence.note(who, log_ns=log_ns)
        self.crews.hear(who, emitter(uid), [stats], log_ns=log_ns)

    def hear_all(self, *uids: int, since: int, until: int) -> None:
        """Hear nodes every ten seconds."""
        for at in range(since, until, 10):
            for uid in uids:
                self.hear(uid, at)

    def said(self, at: float) -> list[str]:
        """Return what is said at that time."""
        found = self.presence.changes(now_ns=START + round(at * SECOND))
        return [f"{one.log.level}: {one.log.message}" for one in found]


def emitter(uid: int | str) -> bytes:
    return str(uid).ljust(16).encode()


def test_a_node_that_falls_silent_is_missing_until_it_is_heard() -> None:
    """Each is said once."""
    lab = Lab()
    lab.hear_all(1, 12, since=0, until=60)
    lab.hear_all(1, since=60, until=120)

    assert lab.said(110) == []
    assert lab.said(111) == ["warning: node miner/12 is missing"]
    assert lab.presence.missing() == 1
    assert lab.said(115) == []
    lab.hear_all(1, 12, since=120, until=130)
    assert lab.said(125) == ["info: node miner/12 is back"]
    assert lab.presence.missing() == 0
    assert lab.said(126) == []


def test_what_is_said_has_ids_that_follow_from_the_log() -> None:
    """Who reads all of it later says the same, even if it was over by then."""
    live, later = Lab(), Lab()
    said = []
    for at in range(0, 300, 10):
        for lab in (live, later):
            lab.hear(1, at)
            if not 60 <= at < 200:
                lab.hear(2, at)
        said += live.presence.changes(now_ns=START + at * SECOND)
    again = later.presence.changes(now_ns=START + 300 * SECOND)

    assert [one.log.message for one in said] == ["node miner/2 is missing", "node miner/2 is back"]
    assert [one.frame().encode() for one in again] == [one.frame().encode() for one in said]
    assert said[0].log.ts == START + 110 * SECOND
    assert said[0].log.fields == {
        "run": "r",
        "role": "miner",
        "uid": 2,
        "version": "1.0",
        "heard_ns": START + 50 * SECOND,
    }
    assert said[0].emitter != said[1].emitter


def test_nobody_is_missing_when_everything_stood_still() -> None:
    """A stretch without Stats from anybody is the pipeline's, not the nodes'."""
    lab = Lab()
    lab.hear_all(1, 2, since=0, until=60)
    lab.hear(1, 600)

    assert lab.said(605) == []
    lab.hear(2, 606)
    assert lab.said(610) == []


def test_the_order_of_partitions_means_nothing() -> None:
    """One node's Stats may all be read before another one's."""
    lab = Lab()
    lab.hear_all(1, since=0, until=200)
    lab.hear_all(2, since=0, until=60)
    lab.hear_all(2, since=180, until=200)

    assert lab.said(195) == ["warning: node miner/2 is missing", "info: node miner/2 is back"]


def test_a_program_that_ended_as_it_should_is_not_missing() -> None:
    """Nor is it back when it starts again."""
    lab = Lab()
    lab.hear_all(1, 2, since=0, until=60)
    lab.crews.finish(emitter(2), log_ns=START + 51 * SECOND)
    lab.hear_all(1, since=60, until=200)
    silent = lab.said(195)
    lab.hear(2, 196)

    assert (silent, lab.said(197)) == ([], [])


@pytest.mark.parametrize(
    ("seen_s", "said"), [(600, ["warning: node miner/2 is missing"]), (100, [])]
)
def test_without_a_roster_those_are_missed_that_were_heard_lately(
    seen_s: float, said: list[str]
) -> None:
    """After that nobody expects them."""
    lab = Lab(seen_s=seen_s)
    lab.hear_all(1, 2, since=0, until=60)
    lab.hear_all(1, since=60, until=300)

    assert lab.said(290) == said


def test_of_a_roster_those_are_missing_that_never_came() -> None:
    """And only those of the roster are; one that comes is back."""
    lab = Lab(roster={"miner": (1, "2-3")})
    lab.hear_all(1, 9, since=0, until=60)
    lab.hear_all(1, since=60, until=200)

    assert lab.said(50) == []
    assert lab.said(195) == [
        "warning: node miner/2 is missing",
        "warning: node miner/3 is missing",
    ]
    lab.hear(3, 196)
    assert lab.said(197) == ["info: node miner/3 is back"]


def test_what_is_old_is_let_go() -> None:
    """With the last node of a run."""
    lab = Lab()
    lab.hear_all(1, 2, since=0, until=60)
    lab.hear_all(1, since=60, until=200)
    lab.said(190)
    later = START + 100_000 * SECOND
    lab.crews.forget(now_ns=later)
    lab.presence.forget(now_ns=later)

    assert lab.presence.missing() == 0
