"""Limits on what windows hold: what is refused, who may still go on, and that memory stays level."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mlops_events.schemas.deadletters import decode_dead_letter
from mlops_events.schemas.events import DeadLetter, Origin
from mlops_events.schemas.frame import Frame, FrameEncoder, Series, decode_frame, decode_stats
from mlops_events.schemas.topics import Topics, read_headers
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.limits import Held
from mlops_events.streams.outputs import DeadLetterOut, FrameOut, Output, StatsOut
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

S = 10**9
SMALL = StreamSettings(max_samples=5, max_series=8)


def frame(events: Sequence[Any], *, emitter: int = 0, seq: int = 0, end: bool = False) -> bytes:
    """Return a frame; an event is (second, {field: value})."""
    origin = Origin(run="r", role="miner", uid=emitter)
    wire = [("m", ts * S, ts, "training", fields) for ts, fields in events]
    return FrameEncoder(emitter=bytes([emitter]) * 16, kind="observation", origin=origin).encode(
        [ENCODER.encode(e) for e in wire],
        seq=seq,
        closed_ns=1000 * S,
        accepted=len(events),
        dropped=0,
        series=[Series(0, "training", ["loss", "lr"])],
        end=end,
    )


def fresh(config: StreamSettings = SMALL) -> PartitionState:
    """Return the state of an empty log."""
    return PartitionState(config, topics=Topics("p"), kind="observation", partition=0)


def folded(state: PartitionState, *values: bytes) -> list[Output]:
    """Fold frames at one log time."""
    return [out for value in values for out in state.fold(state.next, 100_000, value)]


def letters_in(outputs: Sequence[Output]) -> list[DeadLetter]:
    """Return the dead letters."""
    return [decode_dead_letter(o.value) for o in outputs if isinstance(o, DeadLetterOut)]


def sent_in(outputs: Sequence[Output]) -> list[Frame]:
    """Return the frames that went to the sink."""
    return [decode_frame(o.value) for o in outputs if isinstance(o, FrameOut)]


def counts_in(outputs: Sequence[Output]) -> dict[tuple[str, str, int], int]:
    """Return the revisions of final Stats, by field and window."""
    frames = [
        decode_stats(o.value)
        for o in outputs
        if isinstance(o, StatsOut) and o.topic == "p.stats.v1"
    ]
    return {(s.field, s.by, s.start): s.revision for f in frames for s in f.stats}


@pytest.mark.parametrize(
    ("values", "kept", "revision"),
    [
        ([1.0] * 5, [0, 1, 2, 3, 4], 5),
        ([1.0] * 7, [0, 1, 2, 3, 4], 5),
        ([float("nan")] * 6, [0, 1, 2, 3, 4], 5),
        ([[1.0] * 3, [1.0] * 3, [1.0] * 2], [0, 2], 5),
        ([[1.0] * 6], [], None),
        ([[1.0] * 4, "x", True, 1.0, 1.0], [0, 1, 2, 3], 5),
    ],
    ids=str,
)
def test_a_window_takes_so_many_samples_of_a_series(
    values: list[Any], kept: list[int], revision: int | None
) -> None:
    """What is one too many goes nowhere else; what fits behind it goes in."""
    state = fresh()
    outputs = folded(state, frame([(1, {"loss": v}) for v in values], end=True))
    sent = next(f for f in sent_in(outputs) if f.kind == "observation")

    assert list(sent.indices) == kept
    assert counts_in(outputs).get(("loss", "time", 0)) == revision
    assert state.counts.over_limit == len(values) - len(kept)
    assert (state.counts.events, len(letters_in(outputs))) == (len(values), len(kept) < len(values))


def test_the_letter_holds_all_that_a_frame_had_too_many() -> None:
    """It has the key of the first and says who it was; headers count what went on."""
    state = fresh()
    value = frame([(1, {"loss": float(k)}) for k in range(8)], emitter=3)
    outputs = folded(state, value, value)
    (letter,) = letters_in(outputs)
    (sent,) = (o for o in outputs if isinstance(o, FrameOut))
    alone = decode_frame(letter.payload)

    assert (letter.sink, letter.reason) == ("stream", "series_limit")
    assert letter.key == f"stream/{alone.event_id(5)}"
    assert list(alone.indices) == [5, 6, 7]
    assert read_headers(sent.headers).count == sent.count == 5
    assert letter.message == (
        "3 events of r/miner/3 too many: training.loss has 5 samples in its window time:10s at 0; "
        "max_samples is 5"
    )


def test_samples_are_counted_over_frames_and_however_they_come() -> None:
    """Tables, lists and checkpoints between them; another series and the next window are free."""
    state = fresh()
    folded(state, frame([(1, {"loss": 1.0, "lr": 1.0}), (2, {"loss": [1.0, 2.0]})]))
    state = PartitionState.decode(
        state.encode(), SMALL, topics=Topics("p"), kind="observation", partition=0
    )
    outputs = folded(
        state,
        frame([(3, {"loss": 1.0}), (3, {"loss": 1.0, "b": 1.0}), (3, {"loss": 1.0})], seq=1),
        frame([(4, {"lr": 1.0}), (4, {"loss": 1.0}), (12, {"loss": 1.0})], seq=2, end=True),
    )

    assert [list(decode_frame(x.payload).indices) for x in letters_in(outputs)] == [[2], [1]]
    assert counts_in(outputs) == {
        ("loss", "time", 0): 5,
        ("lr", "time", 0): 2,
        ("b", "time", 0): 1,
        ("loss", "time", 10 * S): 1,
    }


def test_an_event_goes_into_all_windows_or_none() -> None:
    """The limit of one rule keeps it out of the others, too."""
    config = msgspec.structs.replace(SMALL, by=("time:10s", "field:step/100"))
    outputs = folded(
        fresh(config), frame([(k, {"loss": 1.0}) for k in range(4, 14)], seq=0, end=True)
    )

    assert counts_in(outputs) == {("loss", "time", 0): 5, ("loss", "step", 0): 5}


@pytest.mark.parametrize(
    ("held", "room"),
    [
        (Held(0, 0, 1), 100),
        (Held(90, 90, 1), 10),
        (Held(100, 100, 1), 0),
        (Held(100, 90, 2), 0),
        (Held(100, 10, 2), 40),
        (Held(95, 0, 2), 50),
        (Held(190, 0, 2), 10),
        (Held(200, 0, 2), 0),
        (Held(100, 0, 1000), 0),
    ],
)
def test_where_a_partition_is_full_an_emitter_still_has_its_share(held: Held, room: int) -> None:
    """And never is twice as much held as there should be."""
    assert held.room(100) == room


def test_one_bad_node_does_not_cost_the_others_theirs() -> None:
    """Its own series are refused as one; they are free again when windows close."""
    state = fresh()
    wide = {f"f{k}": 1.0 for k in range(8)}
    folded(state, frame([(1, wide)]))
    flood = folded(state, frame([(1, {"g1": 1.0}), (2, {"g2": 1.0}), (2, {"f1": 1.0})], seq=1))
    quiet = folded(state, frame([(1, {"loss": 1.0, "lr": 1.0})], emitter=1))
    (letter,) = letters_in(flood)

    assert letters_in(quiet) == []
    assert (letter.reason, list(decode_frame(letter.payload).indices)) == ("cardinality", [0, 1])
    assert letter.message == (
        "2 events of r/miner/0 too many: training.g1 is one series too many: 8 are in open windows "
        "of the partition, 8 of them of this emitter; max_series is 8, shared by 1 live emitters"
    )
    folded(state, frame([(25, {"g3": 1.0})], seq=2))
    assert letters_in(folded(state, frame([(25, {"g3": 1.0})], seq=3))) == []


def test_a_full_emitter_goes_on_with_its_next_windows() -> None:
    """Refused events move the watermark, else nothing would ever close."""
    state = fresh()
    wide = {f"f{k}": 1.0 for k in range(8)}
    lost = [
        len(letters_in(folded(state, frame([(ts, wide)], seq=ts // 5)))) for ts in range(0, 95, 5)
    ]

    assert 0 < sum(lost) < len(lost)
    assert lost[-6:].count(0) >= 2


def test_a_flood_keeps_memory_level() -> None:
    """Ten times as many series and samples as may be held; the same from any checkpoint."""
    state, again = fresh(), fresh()
    most = 0
    for k in range(400):
        fields = {f"f{k % 80}": 1.0, "loss": [1.0] * (k % 4)}
        value = frame([(k // 20, fields)] * 3, emitter=k % 5, seq=k // 5)
        again = PartitionState.decode(
            again.encode(), SMALL, topics=Topics("p"), kind="observation", partition=0
        )

        assert folded(state, value) == folded(again, value)
        emitters = list(state.emitters())
        held = [
            cell.count(field)
            for e in emitters
            for windows in e.windows.each
            for window in windows.open.values()
            for cell in window.values()
            for field in cell.series()
        ]
        assert sum(e.windows.series for e in emitters) == len(held)
        assert max(held, default=0) <= 5
        most = max(most, len(held))
    assert 8 <= most <= 16
    assert state.encode() == again.encode()
