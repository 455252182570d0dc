"""Provisional Stats: what a silent emitter's open windows hold, once, and without a trace."""

from mlops_events.schemas.events import Origin, Stats
from mlops_events.schemas.frame import FrameEncoder, Series, decode_stats
from mlops_events.schemas.topics import Topics
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.outputs import StatsOut
from mlops_events.streams.provisional import Provisional
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

SECOND = 10**9
SETTINGS = StreamSettings()


def frame(*times: int, emitter: int = 0, seq: int = 0) -> bytes:
    """Return a frame with one observation at each of these seconds."""
    return FrameEncoder(
        emitter=bytes([emitter]) * 16, kind="observation", origin=Origin(run="r")
    ).encode(
        [ENCODER.encode(("r", 0, ts * SECOND, None, [1.0])) for ts in times],
        seq=seq,
        closed_ns=1000 * SECOND,
        accepted=len(times),
        dropped=0,
        series=[Series(0, "training", ["loss"])],
    )


def fold(state: PartitionState, *values: bytes) -> None:
    """Fold frames, all at the same log time."""
    for value in values:
        state.fold(state.next, 1_000_000, value)


def fresh() -> PartitionState:
    """Return the state of an empty log."""
    return PartitionState(SETTINGS, topics=Topics("p"), kind="observation", partition=0)


def shown(outputs: list[StatsOut]) -> list[Stats]:
    """Return the Stats that go to the topic of all Stats."""
    frames = [decode_stats(o.value) for o in outputs if o.topic == "p.stats.v1"]
    return [s for f in frames for s in f.stats]


def test_open_windows_are_shown_after_a_minute_of_silence() -> None:
    """By the worker's own clock, from when it first saw the emitter's last record; once."""
    state, provisional = fresh(), Provisional(SETTINGS)
    fold(state, frame(901, 902, 911))

    assert provisional.due(state, now=5.0) == []
    assert provisional.due(state, now=64.9) == []
    stats = shown(provisional.due(state, now=65.0))
    assert [(s.start // SECOND, s.revision, s.final, s.closed_by) for s in stats] == [
        (900, 2, False, ""),
        (910, 1, False, ""),
    ]
    assert provisional.due(state, now=500.0) == []


def test_showing_changes_no_state() -> None:
    """A worker that showed something and one that did not go on alike."""
    state, provisional = fresh(), Provisional(SETTINGS)
    fold(state, frame(901))
    before = state.encode()
    provisional.due(state, now=0.0)
    outputs = provisional.due(state, now=60.0)

    assert outputs
    assert {o.topic for o in outputs} == {"p.stats.v1", "p.sink.sqlite.v1"}
    assert state.encode() == before


def test_only_windows_that_changed_are_shown_again() -> None:
    """A new frame starts the minute anew; a repeat brings no new revision."""
    state, provisional = fresh(), Provisional(SETTINGS)
    fold(state, frame(901, 911))
    provisional.due(state, now=0.0)
    provisional.due(state, now=60.0)
    fold(state, frame(912, seq=1), frame(901, 911))

    assert provisional.due(state, now=70.0) == []
    assert provisional.due(state, now=129.0) == []
    (stats,) = shown(provisional.due(state, now=130.0))
    assert (stats.start // SECOND, stats.revision) == (910, 2)
    fold(state, frame(912, seq=1))
    assert provisional.due(state, now=140.0) == []
    assert provisional.due(state, now=240.0) == []


def test_each_emitter_has_its_own_silence() -> None:
    """One that goes on is not shown, and holds no other back."""
    state, provisional = fresh(), Provisional(SETTINGS)
    fold(state, frame(901))
    by_emitter: list[list[int]] = []
    for seq in range(8):
        fold(state, frame(901, emitter=1, seq=seq))
        outputs = provisional.due(state, now=10.0 * seq)
        by_emitter.append([decode_stats(o.value).emitter[0] for o in outputs])

    assert by_emitter == [[], [], [], [], [], [], [0, 0], []]


def test_closed_windows_are_forgotten() -> None:
    """An emitter without open windows takes no memory here."""
    state, provisional = fresh(), Provisional(SETTINGS)
    fold(state, frame(901))
    provisional.due(state, now=0.0)
    state.fold(state.next, 10_000_000, None)

    assert provisional.due(state, now=100.0) == []
    assert not provisional._watched
