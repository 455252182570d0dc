"""The fold over a partition's log: what it puts out, what it remembers, and that nothing else counts."""

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlops_events.schemas.deadletters import decode_dead_letter
from mlops_events.schemas.errors import ConfigError, DecodeError
from mlops_events.schemas.events import DeadLetter, Log, Origin, RawKind, Stats
from mlops_events.schemas.frame import FrameEncoder, Series, decode_frame, decode_stats
from mlops_events.schemas.topics import Topics, read_headers
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.outputs import DeadLetterOut, FrameOut, Output, StatsOut
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import Emitter, Mark, PartitionState

MS = 1_000_000
FIELDS = ["loss", "lr"]
FAST = StreamSettings(by=("time:10ms",), lateness_s=0.005, hold_s=0.04, keep_s=0.3, ahead_s=0.1)
"""One millisecond stands for a second or more: windows of 10, 5 late, 40 of silence, 300 kept."""


def named(emitter: int) -> bytes:
    """Return an emitter's id."""
    return bytes([emitter]) * 16


def frame(
    events: Sequence[Any] = (),
    *,
    emitter: int = 0,
    seq: int = 0,
    closed: int = 1000,
    accepted: int | None = None,
    end: bool = False,
    kind: RawKind = "observation",
    origin: Origin | None = None,
) -> bytes:
    """Return a frame; an event is (milliseconds, loss, lr) or what stands on the wire."""
    wire = [("r", 0, e[0] * MS, e[0], e[1:]) if type(e) is tuple else e for e in events]
    return FrameEncoder(
        emitter=named(emitter),
        kind=kind,
        origin=origin or Origin(run="r", role="miner", uid=emitter, version="v1.0"),
    ).encode(
        [e if isinstance(e, bytes) else ENCODER.encode(e) for e in wire],
        seq=seq,
        closed_ns=closed * MS,
        accepted=len(events) if accepted is None else accepted,
        dropped=0,
        series=[Series(0, "training", FIELDS)] if kind == "observation" else (),
        end=end,
    )


def fresh(config: StreamSettings = FAST, *, kind: RawKind = "observation") -> PartitionState:
    """Return the state of an empty log."""
    return PartitionState(config, topics=Topics("p"), kind=kind, partition=3)


def reread(state: PartitionState, config: StreamSettings = FAST) -> PartitionState:
    """Return a state that went through its bytes."""
    data = state.encode()
    again = PartitionState.decode(data, config, topics=Topics("p"), kind="observation", partition=3)

    assert again.encode() == data
    return again


def folded(state: PartitionState, *records: tuple[int, bytes | None]) -> list[Output]:
    """Fold records, (log time in ms, value), and return what all of them put out."""
    return [o for ts, value in records for o in state.fold(state.next, ts, value)]


def stats_in(outputs: Iterable[Output], topic: str = "p.stats.v1") -> list[tuple[bytes, Stats]]:
    """Return the Stats that went to a topic, each with its emitter."""
    frames = [decode_stats(o.value) for o in outputs if o.topic == topic]
    return [(f.emitter, s) for f in frames for s in f.stats]


def letters_in(outputs: Iterable[Output]) -> list[DeadLetter]:
    """Return the dead letters."""
    return [decode_dead_letter(o.value) for o in outputs if isinstance(o, DeadLetterOut)]


def only_emitter(state: PartitionState) -> Emitter:
    """Return the one emitter that is remembered."""
    (emitter,) = state.emitters()
    return emitter


# --- frames ---------------------------------------------------------------------------------------


def test_a_frame_goes_to_each_sink_under_its_own_identity() -> None:
    """Tagged, encoded once, keyed as the sink needs it; headers say what is in it."""
    config = StreamSettings(sinks=("sqlite", "wandb", "loki"), tags={"cluster": "eu"})
    state = fresh(config)
    value = frame([(1, 0.5, 0.1), (2, 0.25, 0.1)], emitter=7, seq=0)
    first, second = folded(state, (10, value))
    sent, raw = decode_frame(first.value), decode_frame(value)

    assert isinstance(first, FrameOut)
    assert (first.topic, second.topic) == ("p.sink.sqlite.v1", "p.sink.wandb.v1")
    assert (first.key, second.key) == (b"r/miner/7/", b"r/miner/7")
    assert first.value is second.value
    assert (first.count, len(sent)) == (2, 2)
    assert sent.tags == {"version": "1.0", "cluster": "eu"}
    assert list(sent.events()) == list(raw.events())
    assert sent.event_id(1) == raw.event_id(1)
    headers = read_headers(first.headers)
    assert (headers.emitter, headers.kind, headers.seq) == (named(7), "observation", 0)
    assert (headers.run, headers.uid, headers.count) == ("r", "7", 2)


def test_later_frames_of_an_emitter_have_their_own_headers() -> None:
    """Also one that says something else about where it comes from."""
    state = fresh()
    moved = Origin(run="r2", role="validator", uid=9)
    first, second, third = folded(
        state,
        (1, frame([(1, 1.0, 1.0)])),
        (2, frame([(2, 1.0, 1.0), (3, 1.0, 1.0)], seq=1)),
        (3, frame([], seq=2, origin=moved)),
    )

    assert [read_headers(o.headers).seq for o in (first, second, third)] == [0, 1, 2]
    assert [o.count for o in (first, second, third)] == [1, 2, 0]
    assert [o.key for o in (first, second, third)] == [
        b"r/miner/0/",
        b"r/miner/0/",
        b"r2/validator/9/",
    ]
    assert decode_frame(third.value).tags == {"version": "unknown"}


def test_a_repeat_puts_out_nothing() -> None:
    """It is counted, and its emitter was heard."""
    state = fresh()
    value = frame([(1, 1.0, 1.0)])
    folded(state, (1, value))

    assert folded(state, (20, value)) == []
    assert (state.counts.frames, state.counts.events, state.counts.repeats) == (1, 1, 1)
    assert only_emitter(state).heard_ns == 20 * MS


def test_a_kind_that_no_sink_takes_is_aggregated_all_the_same() -> None:
    """Its frames stay in the raw topic; Stats have a topic of their own."""
    state = fresh(StreamSettings(sinks=("loki",)))
    outputs = folded(state, (1, frame([(1, 1.0, 1.0)], end=True)))

    assert {o.topic for o in outputs} == {"p.stats.v1"}


def test_an_end_frame_without_events_goes_to_the_sinks() -> None:
    """They learn from it that nothing is missing at the tail."""
    state = fresh()
    (out,) = folded(state, (1, frame(end=True)))

    assert isinstance(out, FrameOut)
    assert decode_frame(out.value).end


def test_what_an_emitter_lost_is_known_at_its_end() -> None:
    """Accepted less what was seen; unknown before."""
    state = fresh()
    folded(state, (1, frame([(1, 1.0, 1.0)], accepted=1)))
    assert only_emitter(state).lost is None

    folded(state, (2, frame([(2, 1.0, 1.0)], seq=2, accepted=5, end=True)))
    assert only_emitter(state).lost == 3


# --- Stats ----------------------------------------------------------------------------------------


def test_stats_follow_the_frame_that_closed_their_window() -> None:
    """One record for each place, with all series of the emitter, tagged like the frames."""
    state = fresh(StreamSettings(by=("time:10ms",), lateness_s=0.005, sinks=("sqlite", "influxdb")))
    outputs = folded(
        state, (1, frame([(1, 1.0, 0.1), (2, 3.0, 0.2)])), (2, frame([(15, 5.0, 0.3)], seq=1))
    )
    topics = [o.topic for o in outputs if isinstance(o, StatsOut)]

    assert [type(o) for o in outputs] == [FrameOut] * 4 + [StatsOut] * 3
    assert topics == ["p.stats.v1", "p.sink.sqlite.v1", "p.sink.influxdb.v1"]
    decoded = decode_stats(outputs[-1].value)
    assert (decoded.emitter, decoded.tags) == (named(0), {"version": "1.0"})
    assert read_headers(outputs[-1].headers).kind == "stats"
    assert (outputs[-1].count, outputs[-1].key) == (2, b"r/miner/0/")
    loss, lr = decoded.stats
    assert (loss.field, loss.mean, loss.count, loss.start) == ("loss", 2.0, 2, 0)
    assert (lr.field, lr.max, lr.closed_by) == ("lr", 0.2, "watermark")


def test_an_end_closes_what_is_open() -> None:
    """What the watermark had passed says so; the rest was closed by the end."""
    state = fresh()
    outputs = folded(
        state,
        (1, frame([(1, 1.0, 1.0)])),
        (2, frame([(25, 1.0, 1.0)], seq=1, end=True)),
        (3, frame([(26, 1.0, 1.0)], seq=2)),
    )
    closed = [(s.start // MS, s.closed_by) for _, s in stats_in(outputs) if s.field == "loss"]

    assert closed == [(0, "watermark"), (20, "end")]
    assert state.counts.late == 1


def test_silence_closes_windows_by_log_time() -> None:
    """After more than `hold`; whoever speaks then, another or itself, finds them closed."""
    state = fresh()
    folded(state, (100, frame([(101, 1.0, 1.0)])))
    assert stats_in(folded(state, (140, frame([], emitter=1)))) == []

    closed = stats_in(folded(state, (141, frame([], emitter=1, seq=1))))
    assert [(e, s.field, s.closed_by) for e, s in closed] == [
        (named(0), "loss", "hold"),
        (named(0), "lr", "hold"),
    ]
    folded(state, (142, frame([(109, 1.0, 1.0)], seq=1)))
    assert state.counts.late == 1
    folded(state, (143, frame([(110, 1.0, 1.0)], seq=2)))
    assert state.counts.late == 1


def test_log_time_never_goes_back() -> None:
    """A record with an old timestamp, or none, counts as heard at the highest so far."""
    state = fresh()
    folded(state, (100, frame([])), (-1, frame([], seq=1)), (50, frame([], seq=2)))
    assert (state.log_ns, only_emitter(state).heard_ns) == (100 * MS, 100 * MS)

    folded(state, (2**62, None), (100, frame([], emitter=1)))
    assert (state.log_ns, only_emitter(state).heard_ns) == (2**62, 2**62)


def test_a_repeat_keeps_windows_open() -> None:
    """It says that the emitter lives."""
    state = fresh()
    value = frame([(101, 1.0, 1.0)])
    folded(state, (100, value), (130, value), (160, frame([], emitter=1)))

    assert state.counts.stats == 0


def test_many_stats_are_split_into_records_that_fit() -> None:
    """A window of thousands of series closes all the same."""
    fields = {f"field-{'x' * 100}-{k}": 1.0 for k in range(4000)}
    state = fresh()
    events = [["m", MS, 1, "wide", fields]]
    outputs = folded(state, (1, frame(events, end=True)))
    records = [o for o in outputs if o.topic == "p.stats.v1"]

    assert len(records) > 1
    assert max(len(o.value) for o in records) < 1 << 20
    assert sum(o.count for o in records) == len(stats_in(outputs)) == 4000


# --- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "undecodable"),
        (b"", "undecodable"),
        (b"garbage", "undecodable"),
        (frame([(1, 1.0, 1.0)])[:-1], "undecodable"),
        (frame([Log(ts=1, level="info", message="m")], kind="log"), "wrong_kind"),
        (frame([["m", MS, 1, "n", {"text": "x" * 2_000_000}]]), "too_large"),
    ],
    ids=["none", "empty", "garbage", "cut", "kind", "large"],
)
def test_a_record_that_is_no_frame_becomes_a_dead_letter(value: bytes | None, reason: str) -> None:
    """With its place in the log; the fold goes on."""
    state = fresh()
    outputs = folded(state, (1, frame([])), (9, value), (10, frame([], seq=1)))
    (letter,) = letters_in(outputs)

    assert [type(o) for o in outputs] == [FrameOut, DeadLetterOut, FrameOut]
    assert (outputs[1].topic, outputs[1].key) == ("p.dead-letters.v1", letter.key.encode())
    assert (letter.sink, letter.reason, letter.kind) == ("stream", reason, "observation")
    assert (letter.topic, letter.partition, letter.offset) == ("p.observation.v1", 3, 1)
    assert letter.first_seen_ns == 9 * MS
    assert letter.payload == (value or b"")[: len(letter.payload)]
    assert letter.key == f"stream/p.observation.v1/3/1/{zlib.crc32(value or b''):08x}"
    assert state.counts.undecodable == 1


def test_a_frame_that_no_sink_takes_is_kept_if_wanted() -> None:
    """As one dead letter under its id, besides the Stats; by default it is only counted."""
    config = msgspec.structs.replace(FAST, sinks=("loki",), unrouted="dead_letter")
    value = frame([(1, 1.0, 1.0), (2, 2.0, 2.0)], seq=4)
    outputs = folded(fresh(config), (1, value), (2, value), (3, frame([], seq=5, end=True)))
    (letter,) = letters_in(outputs)

    assert (letter.sink, letter.reason) == ("stream", "no_route")
    assert letter.key == f"stream/{named(0).hex()}/observation/4"
    assert letter.payload == value
    assert stats_in(outputs)
    quiet = msgspec.structs.replace(config, unrouted="count")
    assert letters_in(folded(fresh(quiet), (1, value))) == []


def test_one_bad_event_does_not_spoil_its_frame() -> None:
    """It becomes a dead letter that a newer version can deliver; the others go on with their ids."""
    state = fresh()
    unknown = ["z", 1, 2]
    value = frame([(1, 1.0, 1.0), unknown, (2, 2.0, 2.0)], accepted=3, end=True)
    outputs = folded(state, (1, value), (2, value))
    (letter,) = letters_in(outputs)
    sent = decode_frame(next(o.value for o in outputs if isinstance(o, FrameOut)))
    alone = decode_frame(letter.payload)

    assert list(sent.indices) == [0, 2]
    assert letter.key == f"stream/{sent.event_id(1)}"
    assert (alone.seq, [r.index for r in alone.rejects], len(alone)) == (0, [1], 0)
    assert alone.rejects[0].raw == ENCODER.encode(unknown)
    assert (state.counts.events, state.counts.malformed) == (3, 1)
    assert only_emitter(state).lost == 0


@given(
    st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255), st.integers(-(2**63), 2**63)
)
@example(b"", 0, 0xC1, 0)
def test_no_record_stops_the_fold(junk: bytes, place: int, byte: int, timestamp: int) -> None:
    """Random bytes, and a good frame with one of its bytes changed."""
    good = bytearray(frame([(1, 1.0, 1.0), [1], (2, math.nan, [1.0, "x"])], seq=1, end=True))
    good[place % len(good)] = byte
    state = fresh()
    folded(state, (timestamp, junk), (5, bytes(good)), (60, bytes(good)))

    assert state.next == 3
    reread(state)


# --- remembering ----------------------------------------------------------------------------------


def emitters_after(*records: tuple[int, bytes]) -> set[bytes]:
    """Return who is remembered after these records and one of emitter 9."""
    state = fresh()
    folded(state, *records[:-1], (records[-1][0], frame([], emitter=9)))
    return {e.id for e in state.emitters()} - {named(9)}


NOTHING = b""


@pytest.mark.parametrize(
    ("records", "forgotten"),
    [
        ([(100, frame([])), (400, NOTHING)], False),
        ([(100, frame([])), (401, NOTHING)], True),
        ([(100, frame([(190, 1.0, 1.0)])), (490, NOTHING)], False),
        ([(100, frame([(190, 1.0, 1.0)])), (491, NOTHING)], True),
        ([(100, frame([], end=True)), (140, NOTHING)], False),
        ([(100, frame([], end=True)), (141, NOTHING)], True),
        ([(100, frame([(120, 1.0, 1.0)], end=True)), (160, NOTHING)], False),
        ([(100, frame([(120, 1.0, 1.0)], end=True)), (161, NOTHING)], True),
        ([(100, frame([], seq=1, end=True)), (400, NOTHING)], False),
        ([(100, frame([], seq=1, end=True)), (401, NOTHING)], True),
        ([(100, frame([], seq=1, end=True)), (120, frame([])), (161, NOTHING)], True),
        ([(100, frame([])), (350, frame([], seq=1)), (600, NOTHING)], False),
    ],
)
def test_emitters_are_forgotten_in_time(records: list[tuple[int, bytes]], forgotten: bool) -> None:
    """300 after it was heard and after its newest event; 40 if it ended without a gap."""
    assert emitters_after(*records) == (set() if forgotten else {named(0)})


def test_a_forgotten_emitter_starts_anew() -> None:
    """A frame that comes again after so long is routed again; its events are too old by then."""
    state = fresh()
    value = frame([(101, 1.0, 1.0)])
    outputs = folded(state, (100, value), (500, value))

    assert [type(o) for o in outputs if o.topic == "p.sink.sqlite.v1"] == [
        FrameOut,
        StatsOut,
        FrameOut,
    ]
    assert (state.counts.frames, state.counts.too_old) == (2, 1)


def test_there_is_a_bound_for_emitters() -> None:
    """The longest unheard is given up, its windows closed; that is counted."""
    config = StreamSettings(max_emitters=2)
    state = fresh(config)
    folded(state, (1, frame([(1, 1.0, 1.0)])), (2, frame([], emitter=1)))
    folded(state, (3, frame([], seq=1)))
    outputs = folded(state, (4, frame([], emitter=2)), (5, frame([], emitter=3)))

    assert [e.id for e in state.emitters()] == [named(2), named(3)]
    assert [(e, s.closed_by) for e, s in stats_in(outputs)] == [(named(0), "hold")] * 2
    assert state.counts.forgotten == 2


# --- where reading goes on ------------------------------------------------------------------------


def test_the_mark_is_of_the_last_record() -> None:
    """Its timestamp and the checksum of its value; it goes through a checkpoint."""
    state = fresh()
    assert state.mark is None
    folded(state, (1, frame([])), (7, b"last"))

    assert state.mark == Mark(7, zlib.crc32(b"last"))
    assert reread(state).mark == state.mark
    folded(state, (8, None))
    assert state.mark == Mark(8, 0)


def test_holes_that_stay_are_counted() -> None:
    """The offset says how much is missing; going back is a fault of the caller."""
    state = fresh()
    state.fold(0, 1, frame([]))
    state.fold(5, 2, frame([], seq=1))

    assert (state.next, state.missing) == (6, 4)
    with pytest.raises(ValueError, match="offset 5 was folded"):
        state.fold(5, 3, None)


@pytest.mark.parametrize(
    ("arguments", "incarnation", "lost"),
    [({"expired": 7}, 0, 7), ({"recreated": True}, 1, 0), ({}, 0, 0)],
)
def test_what_is_known_survives_another_start(
    arguments: dict[str, Any], incarnation: int, lost: int
) -> None:
    """Retention passed `next`, or the topic was made anew: what comes again is known."""
    state = fresh()
    value = frame([(1, 1.0, 1.0)])
    folded(state, (1, value))
    state.restart_at(8, **arguments)
    again = reread(state)

    assert (again.next, again.incarnation, again.lost_by_retention) == (8, incarnation, lost)
    assert again.mark is None
    assert folded(again, (2, value)) == []
    assert (again.next, again.missing) == (9, 0)


@pytest.mark.parametrize(
    "data", [b"", b"junk", b"\x90", ENCODER.encode([2] + [0] * 9), ENCODER.encode([2, [""]])]
)
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    """Starting without them is for the caller to decide."""
    with pytest.raises(DecodeError):
        PartitionState.decode(data, FAST, topics=Topics(), kind="observation", partition=0)


def test_a_newer_state_is_refused() -> None:
    """A version that is not known is not guessed at."""
    data = bytearray(fresh().encode())
    data[1] = 3

    with pytest.raises(DecodeError, match="version 3"):
        PartitionState.decode(bytes(data), FAST, topics=Topics(), kind="log", partition=0)


@pytest.mark.parametrize(
    "by", [("time:1min",), ("time:10ms", "field:step"), ("field:step/10",)], ids=str
)
def test_other_rules_for_windows_are_refused(by: tuple[str, ...]) -> None:
    """Half a window of one size is no window of another; the message says what to do."""
    with pytest.raises(ConfigError, match=f"by time:10ms; by says {', '.join(by)}; set it back"):
        reread(fresh(), StreamSettings(by=by))


def test_states_of_kinds_without_windows_do_not_mind_the_rules() -> None:
    """Nothing in them is cut by any."""
    data = fresh(kind="log").encode()
    other = StreamSettings(by=("field:step",))

    assert PartitionState.decode(data, other, topics=Topics("p"), kind="log", partition=3)


def test_other_limits_apply_to_an_old_state() -> None:
    """A shorter `hold` closes at once, a longer one keeps what was not closed yet."""
    state = fresh()
    folded(state, (100, frame([(101, 1.0, 1.0)])), (130, frame([], emitter=1)))
    shorter = StreamSettings(by=("time:10ms",), hold_s=0.01, keep_s=0.3)
    hasty = PartitionState.decode(
        state.encode(), shorter, topics=Topics("p"), kind="observation", partition=3
    )

    assert stats_in(folded(reread(state), (131, None))) == []
    assert [s.closed_by for _, s in stats_in(folded(hasty, (131, None)))] == ["hold", "hold"]


# --- against the plain rules ----------------------------------------------------------------------


WIDE = msgspec.structs.replace(
    FAST, by=("field:n/3", "time:10ms", "field:step", "time:7ms"), max_emitters=1000
)
"""Windows of two sizes over time, and over a field that is a tag or the step."""


class Sent(NamedTuple):
    """A frame of the property test; an event is (milliseconds, loss, lr, n)."""

    emitter: int
    seq: int
    events: tuple[tuple[int, Any, Any, Any], ...]
    closed: int
    end: bool

    def encoded(self) -> bytes:
        wire = [
            ENCODER.encode(("r", 0, ts * MS, ts, values, {"n": n}))
            for ts, *values, n in self.events
        ]
        return frame(wire, emitter=self.emitter, seq=self.seq, closed=self.closed, end=self.end)


class Plain:
    """The rules as they are written: unlimited memory, and a look at everybody at every record."""

    def __init__(self, *rules: tuple[str, int]) -> None:
        self.rules = rules
        self.log = 0
        self.late = self.late_by_field = 0
        self.emitters: dict[int, dict[str, Any]] = {}

    def fold(self, ts: int, sent: Sent | None) -> Iterator[tuple[Any, ...]]:
        self.log = max(self.log, ts)
        for name, e in list(self.emitters.items()):
            if self.log - e["heard"] > 40:
                yield from self.close(name, e, "hold", lambda *_: True)
            whole = e["end"] is not None and e["seen"] == set(range(e["end"] + 1))
            is_open = any(e["open"].values())
            if self.log - max(e["heard"], e["newest"]) > (40 if whole else 300) and not is_open:
                del self.emitters[name]
        if sent is None:
            yield ("dead letter",)
            return
        empty = {
            "seen": set(),
            "watermark": dict.fromkeys(self.rules, -math.inf),
            "newest": -math.inf,
            "open": {rule: {} for rule in self.rules},
            "end": None,
            "bad": set(),
        }
        e = self.emitters.pop(sent.emitter, empty)
        self.emitters[sent.emitter] = e
        e["heard"] = self.log
        if sent.seq in e["seen"]:
            return
        e["seen"].add(sent.seq)
        yield ("frame", sent.emitter, sent.seq)
        for event in sorted(self.take(e, sent), key=lambda event: event[0]):
            for field, found in zip(FIELDS, event[1:3], strict=True):
                numbers = found if isinstance(found, list) else [found]
                if field not in e["bad"] and any(n == math.inf or n != n for n in numbers):
                    e["bad"].add(field)
                    yield ("log", "warning", field, event[0])
        yield from self.close(sent.emitter, e, "watermark", lambda end, mark: end <= mark)
        if sent.end:
            e["end"] = sent.seq
            yield from self.close(sent.emitter, e, "end", lambda *_: True)

    def take(self, e: dict[str, Any], sent: Sent) -> Iterator[tuple[int, Any, Any, Any]]:
        """Put the events into windows; yield those whose time is right."""
        before = dict(e["watermark"])
        sizes = [size for by, size in self.rules if by == "time"]
        for event in sent.events:
            ts, *values, n = event
            late = {"time": False, "field": False}
            if any(ts // s * s + s <= before["time", s] for s in sizes):
                late["time"] = True
            if any(ts // s * s < self.log - 300 for s in sizes) or ts < self.log - 300:
                self.late += late["time"]
                continue
            if ts > min(sent.closed + 5, self.log + 100):
                self.late += late["time"]
                continue
            yield event
            for rule in self.rules:
                by, size = rule
                value = {"time": ts, "n": n, "step": ts}[by]
                if type(value) not in (int, float) or value != value // 1:
                    continue
                start = int(value) // size * size
                if start + size <= before[rule]:
                    late["time" if by == "time" else "field"] = True
                    continue
                e["newest"] = max(e["newest"], ts)
                mark = ts - 5 if by == "time" else start - size
                e["watermark"][rule] = max(e["watermark"][rule], mark)
                for field, found in zip(FIELDS, values, strict=True):
                    for number in found if isinstance(found, list) else [found]:
                        if isinstance(number, int | float) and not isinstance(number, bool):
                            fields = e["open"][rule].setdefault(start, {})
                            fields.setdefault(field, []).append((ts, sent.seq, number))
            self.late += late["time"]
            self.late_by_field += late["field"]

    def close(self, name: int, e: dict[str, Any], by: str, passed: Any) -> Iterator[Any]:
        for rule in self.rules:
            size = rule[1]
            for start in sorted(
                s for s in e["open"][rule] if passed(s + size, e["watermark"][rule])
            ):
                for field, samples in sorted(e["open"][rule].pop(start).items()):
                    yield ("stats", name, *rule, start, field, by, figures(samples))
                e["watermark"][rule] = max(e["watermark"][rule], start + size)


def figures(samples: list[tuple[int, int, float]]) -> tuple[Any, ...]:
    """Return what samples, (time, seq, number), come to."""
    good = [n for *_, n in samples if math.isfinite(n)]
    bad = [(ts, seq) for ts, seq, n in samples if not math.isfinite(n)]
    newest = max((s[:2] for s in samples if math.isfinite(s[2])), default=None)
    return (
        len(samples),
        len(good),
        float(np.min(good)) if good else None,
        float(np.max(good)) if good else None,
        float(np.median(good)) if good else None,
        round(float(np.mean(good)), 6) if good else None,
        min(bad)[0] if bad else None,
        {n for ts, seq, n in samples if (ts, seq) == newest},
    )


RULES = {
    FAST.by: (("time", 10),),
    WIDE.by: (("n", 3), ("time", 10), ("step", 1), ("time", 7)),
}


def order(stats: Stats) -> tuple[bool, int]:
    """Return where among the closed windows these Stats stand: those of a watermark are first."""
    size = stats.size if stats.by != "time" else stats.size // MS
    return stats.closed_by == "end", RULES[WIDE.by].index((stats.by, size))


def simplified(outputs: Iterable[Output]) -> Iterator[tuple[Any, ...]]:
    """Yield outputs as the plain fold says them."""
    for out in outputs:
        if isinstance(out, DeadLetterOut):
            yield ("dead letter",)
        elif isinstance(out, FrameOut):
            sent = decode_frame(out.value)
            if sent.kind == "log":
                ((_, line),) = sent.events()
                assert isinstance(line, Log)
                yield ("log", line.level, line.fields["field"], line.ts // MS)
            else:
                yield ("frame", sent.emitter[0], sent.seq)
        elif out.topic == "p.stats.v1":
            decoded = decode_stats(out.value)
            for s in sorted(decoded.stats, key=lambda s: (order(s), s.start, s.field)):
                ms = MS if s.by == "time" else 1
                yield (
                    "stats",
                    decoded.emitter[0],
                    s.by,
                    s.size // ms,
                    s.start // ms,
                    s.field,
                    s.closed_by,
                    (
                        s.revision,
                        s.count,
                        s.min,
                        s.max,
                        s.median,
                        None if s.mean is None else round(s.mean, 6),
                        s.first_nonfinite_step,
                        s.last_finite,
                    ),
                )


def same(found: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]]) -> bool:
    """Whether outputs are those of the plain fold; of several newest values any will do."""
    if len(found) != len(expected):
        return False
    for one, other in zip(found, expected, strict=True):
        if one[0] != "stats":
            if one != other:
                return False
            continue
        *rest, newest = one[-1]
        *others, any_of = other[-1]
        if one[:-1] != other[:-1] or rest != others:
            return False
        if newest is not None and newest not in any_of:
            return False
    return True


value = st.one_of(
    st.integers(-8, 8).map(float),
    st.integers(-8, 8),
    st.sampled_from([math.nan, math.inf, True, None, "x", [], [1.0, 2.0], [math.nan, 3]]),
)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, Sent | None]]:
    """Draw a log: frames of a few emitters, each any number of times in any order, and junk."""
    frames: list[Sent | None] = [None]
    for emitter in range(draw(st.integers(1, 3))):
        skew, last = draw(st.sampled_from([0, 0, 0, -150, 90])), draw(st.integers(1, 5))
        for seq in range(last + 1):
            around = skew + 20 * seq
            n = st.one_of(
                st.integers(2 * seq, 2 * seq + 4),
                st.sampled_from([None, True, "4", 3.0, 4.5, math.nan, 9]),
            )
            event = st.tuples(st.integers(around - 15, around + 25), value, value, n)
            events = draw(st.lists(event, max_size=4))
            closed = around + draw(st.sampled_from([30, 10]))
            frames.append(
                Sent(emitter, seq, tuple(events), closed, seq == last and draw(st.booleans()))
            )
    log, now = [], 0
    for k in draw(st.lists(st.integers(0, len(frames) - 1), min_size=1, max_size=40)):
        now += draw(st.sampled_from([0, 1, 3, 3, 10, 10, 38, 41, 120, 310]))
        log.append((now, frames[k]))
    return log


@pytest.mark.parametrize("config", [FAST, WIDE], ids=["default", "wide"])
@settings(max_examples=200)
@given(logs(), st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_the_fold_is_the_plain_rules(
    config: StreamSettings,
    log: list[tuple[int, Sent | None]],
    crashes: set[int],
    again_from: int,
) -> None:
    """Through checkpoints anywhere; folded again from any of them it puts out the same bytes."""
    state, plain = fresh(config), Plain(*RULES[config.by])
    checkpoint, put_out = state.encode(), list[list[Output]]()
    for k, (ts, sent) in enumerate(log):
        if k in crashes:
            state = reread(state, config)
        if k == again_from:
            checkpoint = state.encode()
        outputs = state.fold(k, ts, sent.encoded() if sent else b"junk")
        put_out.append(outputs)
        found, expected = list(simplified(outputs)), list(plain.fold(ts, sent))

        assert same(found, expected), (k, found, expected)
        assert [e.id[0] for e in state.emitters()] == list(plain.emitters)
    again = PartitionState.decode(
        checkpoint, config, topics=Topics("p"), kind="observation", partition=3
    )
    for k in range(again.next, len(log)):
        ts, sent = log[k]

        assert again.fold(k, ts, sent.encoded() if sent else b"junk") == put_out[k]
    assert again.encode() == state.encode()
    assert (state.counts.late, state.counts.late_by_field) == (plain.late, plain.late_by_field)
