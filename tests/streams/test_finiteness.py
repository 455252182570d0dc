"""Series that become NaN or infinite, and finite again: what is said of them, and when."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mlops_events.schemas.events import Log, Origin
from mlops_events.schemas.frame import Frame, FrameEncoder, decode_frame
from mlops_events.schemas.topics import Topics
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.outputs import FrameOut, Output
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

S = 10**9
NAN, INF = math.nan, math.inf
SETTINGS = StreamSettings(sinks=("sqlite", "influxdb", "loki"), tags={"cluster": "eu"})


def frame(events: Sequence[tuple[Any, ...]], *, seq: int = 0, end: bool = False) -> bytes:
    """Return a frame; an event is (second, {field: value}); its step is ten times the second."""
    origin = Origin(run="r", role="miner", uid=1, version="v2.0")
    wire = [("m", ts * S, ts * 10, "training", fields) for ts, fields in events]
    return FrameEncoder(emitter=bytes(16), kind="observation", origin=origin).encode(
        [ENCODER.encode(e) for e in wire],
        seq=seq,
        closed_ns=1000 * S,
        accepted=len(events),
        dropped=0,
        end=end,
    )


def fresh() -> PartitionState:
    """Return the state of an empty log."""
    return PartitionState(SETTINGS, topics=Topics("p"), kind="observation", partition=0)


def folded(state: PartitionState, *values: bytes) -> list[Output]:
    """Fold frames at one log time."""
    return [out for value in values for out in state.fold(state.next, 1_000_000, value)]


def told(outputs: Sequence[Output], topic: str = "p.sink.loki.v1") -> list[tuple[Frame, Log]]:
    """Return the lines of log that went to a sink."""
    frames = [
        decode_frame(o.value) for o in outputs if isinstance(o, FrameOut) and o.topic == topic
    ]
    return [(f, e) for f in frames for _, e in f.events() if isinstance(e, Log)]


def said(outputs: Sequence[Output]) -> list[tuple[str, str]]:
    """Return the level and the message of each line."""
    return [(log.level, log.message) for _, log in told(outputs)]


def losses(*values: Any, since: int = 1, seq: int = 0) -> bytes:
    """Return a frame with a loss each second."""
    return frame([(since + k, {"loss": v}) for k, v in enumerate(values)], seq=seq)


def test_the_first_bad_sample_is_told_to_all_who_take_logs() -> None:
    """Under an id that follows from it, with the origin and tags of its emitter."""
    state = fresh()
    outputs = folded(state, losses(2.0, 1.5), losses(1.25, NAN, NAN, since=3, seq=1))
    ((sent, log),) = told(outputs)

    assert len(told(outputs, "p.sink.sqlite.v1")) == 1
    assert told(outputs, "p.sink.influxdb.v1") == []
    assert (log.level, log.message) == ("warning", "loss became NaN at step 40")
    assert (log.ts, log.step, log.logger) == (4 * S, 40, "mlops_events.streams")
    assert math.isnan(log.fields.pop("value"))
    assert log.fields == {"name": "training", "field": "loss", "step": 40, "last_finite": 1.25}
    assert (sent.kind, sent.seq, sent.accepted, sent.end) == ("log", 0, 1, True)
    assert (sent.origin.uid, sent.tags) == (1, {"version": "2.0", "cluster": "eu"})
    assert sent.emitter == bytes.fromhex("022afe0b0b7f3887a2a91f68bd7600f7")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (NAN, "NaN"),
        (INF, "infinite"),
        (-INF, "minus infinity"),
        ([1.0, -INF, NAN], "minus infinity"),
    ],
)
def test_what_it_became_is_said_in_words(value: Any, word: str) -> None:
    """In a list the first that is not finite counts."""
    outputs = folded(fresh(), losses(1.0, value))

    assert said(outputs) == [("warning", f"loss became {word} at step 20")]


def test_the_last_finite_value_comes_from_open_windows_or_the_frame() -> None:
    """The newest before the bad one, by event time; None if there is none."""
    state = fresh()
    first = folded(state, frame([(1, {"a": NAN, "b": 3.0, "c": [4.0, 5.0]}), (2, {"b": INF})]))
    second = folded(state, frame([(3, {"c": NAN}), (3, {"d": 1.0}), (2, {"d": NAN})], seq=1))

    assert [(x.fields["field"], x.fields["last_finite"]) for _, x in told(first)] == [
        ("a", None),
        ("b", 3.0),
    ]
    assert [(x.fields["field"], x.fields["last_finite"]) for _, x in told(second)] == [
        ("d", None),
        ("c", 5.0),
    ]


def test_a_series_has_recovered_after_ten_seconds_of_its_own_time() -> None:
    """The sample that shows it is told; a bad one in between starts anew, and then it may turn again."""
    state = fresh()
    first = folded(
        state, losses(1.0, NAN), losses(2.0, since=11, seq=1), losses(INF, since=12, seq=2)
    )
    early = folded(state, losses(2.0, since=21, seq=3))
    late = folded(state, losses(3.0, 4.0, since=22, seq=4))
    again = folded(state, losses(NAN, since=25, seq=5))

    assert said(first) == [("warning", "loss became NaN at step 20")]
    assert said(early) == []
    assert said(late) == [("info", "loss is finite again at step 220")]
    ((_, line),) = told(late)
    assert (line.fields["value"], line.fields["last_finite"]) == (3.0, 1.0)
    assert said(again) == [("warning", "loss became NaN at step 250")]
    ids = {sent.emitter for sent, _ in told([*first, *late, *again])}
    assert len(ids) == 3


def test_both_may_happen_in_one_frame() -> None:
    """In the order of event time."""
    events = [(20, {"loss": 1.0}), (1, {"loss": NAN}), (12, {"lr": INF})]

    assert said(folded(fresh(), frame(events))) == [
        ("warning", "loss became NaN at step 10"),
        ("warning", "lr became infinite at step 120"),
        ("info", "loss is finite again at step 200"),
    ]


def test_a_replay_from_a_checkpoint_says_the_same_bytes() -> None:
    """And repeats say nothing."""
    values = [losses(1.0, NAN), losses(5.0, since=20, seq=1), losses(NAN, since=30, seq=2)]
    state = fresh()
    whole = [folded(state, value) for value in values]
    for k in range(3):
        again = fresh()
        folded(again, *values[:k])
        again = PartitionState.decode(
            again.encode(), SETTINGS, topics=Topics("p"), kind="observation", partition=0
        )

        assert [folded(again, value) for value in values[k:]] == whole[k:]
        assert again.encode() == state.encode()
    assert folded(state, *values) == []


def test_what_cannot_be_a_sample_turns_nothing() -> None:
    """Steps, events whose time is wrong; sums of finite numbers beyond the largest float are finite."""
    events: list[tuple[int, dict[str, Any]]] = [
        (1, {"global_step": NAN}),
        (5000, {"loss": NAN}),
        (2, {"loss": 1.7e308}),
        (2, {"loss": [1.7e308, 1.7e308]}),
    ]

    assert said(folded(fresh(), frame(events))) == []


def test_so_many_series_are_remembered() -> None:
    """The others are counted; a healthy emitter has none."""
    state = fresh()
    folded(state, frame([(1, {"loss": 1.0})]))
    (emitter,) = state.emitters()
    assert emitter.windows.bad == {}

    outputs = folded(state, frame([(1, {f"f{k}": NAN for k in range(1005)})], seq=1))
    assert len(told(outputs)) == len(emitter.windows.bad) == 1000
    assert msgspec.structs.asdict(state.counts)["untold"] == 5
