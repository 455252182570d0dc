"""The frame codec: what it keeps, and what it survives."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlops_events.schemas import (
    DecodeError,
    EventId,
    FrameEncoder,
    Log,
    Observation,
    Origin,
    Profile,
    Run,
    Stats,
    decode_frame,
)
from mlops_events.schemas.events import StatsKey
from mlops_events.schemas.frame import (
    MAX_EVENTS,
    Free,
    Row,
    Series,
    StatsFrame,
    decode_stats,
    encode_stats,
)
from mlops_events.schemas.values import ENCODER

LOSS = Series(0, "training", ["loss", "lr"], {"phase": "train"})
ROW = Row(0, 10, 1, [0.5, 1e-4])

Encode = Callable[..., bytes]

times = st.integers(-(2**63), 2**63 - 1)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.text() | st.binary()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
mappings = st.dictionaries(st.text(), values, max_size=4)


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, NaN being equal to itself."""
    return ENCODER.encode(a) == ENCODER.encode(b)


class TestReading:
    """What a good frame says."""

    def test_header_is_read_back(self, encode: Encode, emitter: bytes, origin: Origin) -> None:
        """The header says who, which, when, and how much was accepted and dropped."""
        frame = decode_frame(encode("observation", [ROW], [LOSS]))

        assert (frame.version, frame.emitter, frame.kind, frame.seq) == (
            1,
            emitter,
            "observation",
            7,
        )
        assert frame.closed_ns == 1_767_225_600_000_000_000
        assert (frame.accepted, frame.dropped, frame.end) == (101, 3, False)
        assert frame.origin == origin
        assert frame.tags == {}

    def test_row_gets_its_names_and_tags_back(self, encode: Encode) -> None:
        """A row's own tags win over its series' tags."""
        row = Row(0, 11, 2, [0.4, 2e-4], {"phase": "eval", "window": 9})

        frame = decode_frame(encode("observation", [ROW, row], [LOSS]))

        assert list(frame.events()) == [
            (
                0,
                Observation(
                    ts=10,
                    name="training",
                    fields={"loss": 0.5, "lr": 1e-4},
                    step=1,
                    tags={"phase": "train"},
                ),
            ),
            (
                1,
                Observation(
                    ts=11,
                    name="training",
                    fields={"loss": 0.4, "lr": 2e-4},
                    step=2,
                    tags={"phase": "eval", "window": 9},
                ),
            ),
        ]

    def test_free_form_stands_beside_rows(self, encode: Encode) -> None:
        """An observation may bring its own names."""
        frame = decode_frame(
            encode("observation", [Free(12, None, "odd", {"a": [1, 2]}), ROW], [LOSS])
        )

        assert [event.name for _, event in frame.events() if isinstance(event, Observation)] == [
            "odd",
            "training",
        ]

    @pytest.mark.parametrize(
        ("kind", "event"),
        [
            ("run", Run(ts=1, state="start", config={"lr": 0.1, "deep": {"a": [1]}}, name="n")),
            ("run", Run(ts=2, state="end", status="crashed")),
            ("profile", Profile(ts=3, name="forward", duration_ns=5, step=1, failed=True)),
            ("log", Log(ts=4, level="info", message="ü\x00", fields={"k": None}, trace_id="t")),
        ],
    )
    def test_other_kinds_are_their_own_wire_form(
        self, encode: Encode, kind: str, event: Run | Profile | Log
    ) -> None:
        """Runs, profiles and logs come back as they were."""
        frame = decode_frame(encode(kind, [event]))

        assert list(frame.events()) == [(0, event)]

    def test_event_id_names_frame_and_position(self, encode: Encode, emitter: bytes) -> None:
        """An event's id is its frame's and its index."""
        frame = decode_frame(encode("observation", [ROW, ROW], [LOSS]))

        assert frame.event_id(1) == EventId(emitter, "observation", 7, 1)
        assert str(frame.event_id(1)) == f"{emitter.hex()}/observation/7/1"
        key = StatsKey(emitter, "observation", "training", "loss", "time", 20, 10)
        assert str(key) == f"{emitter.hex()}/observation/training/loss/time/20/10"

    def test_last_frame_may_be_empty(self, encode: Encode) -> None:
        """An end frame without events still carries the counts."""
        frame = decode_frame(encode("log", [], end=True))

        assert frame.end
        assert len(frame) == 0
        assert list(frame.events()) == []
        assert frame.accepted == 100

    def test_as_many_events_as_a_frame_may_hold(self, encode: Encode) -> None:
        """The largest frame is read back whole, whatever the length of its array header."""
        for count in (15, 16, 255, 256, MAX_EVENTS):
            assert len(decode_frame(encode("observation", [ROW] * count, [LOSS]))) == count

    def test_too_many_events_are_refused_on_both_sides(
        self, encode: Encode, emitter: bytes
    ) -> None:
        """Neither encoder nor decoder takes 4,096 events: an index would not fit."""
        events = [ENCODER.encode(ROW)] * (MAX_EVENTS + 1)
        by_hand = wire(emitter, e=[ROW] * (MAX_EVENTS + 1), s=[LOSS])

        with pytest.raises(ValueError, match="at most 4095"):
            encode("observation", events, [LOSS])
        with pytest.raises(DecodeError, match="at most 4095"):
            decode_frame(by_hand)


class TestEncodingAgain:
    """What the streams do to a frame."""

    def test_tags_are_attached(self, encode: Encode) -> None:
        """A tagged frame is the same frame with tags."""
        frame = decode_frame(encode("observation", [ROW], [LOSS]))

        tagged = decode_frame(frame.encode(tags={"version": "1.4.0"}))

        assert tagged.tags == {"version": "1.4.0"}
        assert tagged.event_id(0) == frame.event_id(0)
        assert list(tagged.events()) == list(frame.events())

    def test_without_a_change_the_bytes_are_the_same(self, encode: Encode) -> None:
        """Encoding a decoded frame again gives the bytes it came from."""
        value = encode("observation", [ROW, Free(1, None, "n", {"a": 1})], [LOSS])

        assert decode_frame(value).encode() == value

    def test_what_is_kept_keeps_its_index(self, encode: Encode) -> None:
        """Filtering twice leaves every event its first index."""
        frame = decode_frame(
            encode("observation", [Row(0, t, t, [0.1, 0.2]) for t in range(5)], [LOSS])
        )

        once = decode_frame(frame.encode(only=[1, 3, 4]))
        twice = decode_frame(once.encode(only=[3, 4], tags={"a": "b"}))

        assert list(once.indices) == [1, 3, 4]
        assert list(twice.indices) == [3, 4]
        assert [event.ts for _, event in twice.events()] == [3, 4]
        assert decode_frame(twice.encode()).event_id(twice.indices[0]) == frame.event_id(3)

    def test_one_event_alone_is_small(self, encode: Encode) -> None:
        """It takes only its own names along, however many the frame has."""
        table = [Series(sid, f"name-{sid}", ["loss"]) for sid in range(1_000)]
        events = [*(Row(sid, sid, None, [0.5]) for sid in range(1_000)), Free(7, 1, "n", {"a": 1})]
        frame = decode_frame(encode("observation", events, table))
        all_of_it = dict(frame.events())

        for index in (0, 999, 1_000):
            alone = frame.encode(only=[index], tags={"a": "b"})
            again = decode_frame(alone)
            assert len(alone) < 300
            assert list(again.events()) == [(index, all_of_it[index])]
            assert again.event_id(index) == frame.event_id(index)
            assert again.tags == {"a": "b"}
        assert len(decode_frame(frame.encode(only=[1_001]))) == 0

    def test_unreadable_events_are_left_out(self, encode: Encode) -> None:
        """The frame encoded again holds the good events under their indices."""
        frame = decode_frame(encode("observation", [["future", 1], ROW], [LOSS]))

        again = decode_frame(frame.encode())

        assert list(again.indices) == [1]
        assert again.rejects == []


def wire(name: bytes, **changes: Any) -> bytes:
    """A frame as a newer or a faulty writer might make it."""
    header = {
        "v": 1,
        "emitter": name,
        "kind": "observation",
        "seq": 0,
        "closed_ns": 1,
        "origin": {"run": "r"},
        "accepted": 1,
        "s": [],
        "e": [],
    }
    merged = {**header, **changes}
    return ENCODER.encode({k: v for k, v in merged.items() if v is not ...})


class TestBadFrames:
    """Values that are no frame, or a frame that this version cannot read."""

    @pytest.mark.parametrize("value", [None, b""])
    def test_no_value(self, value: bytes | None) -> None:
        """A record without a value is refused with a clear message."""
        with pytest.raises(DecodeError, match="no value"):
            decode_frame(value)

    @pytest.mark.parametrize(
        "value",
        [
            b"\x00",
            b"\xc1",
            b"\x80",
            b'{"json": true}',
            b"\xff" * 100,
            b"\x00" * 100_000,
            b"PK\x03\x04",
            "ünïcode".encode(),
        ],
        ids=range(8),
    )
    def test_garbage(self, value: bytes) -> None:
        """Bytes of another kind are refused."""
        with pytest.raises(DecodeError):
            decode_frame(value)

    @given(st.binary(max_size=200))
    def test_any_bytes(self, value: bytes) -> None:
        """No bytes raise anything but DecodeError."""
        with pytest.raises(DecodeError):
            decode_frame(value)

    def test_cut_at_every_byte(self, encode: Encode) -> None:
        """A frame that was cut anywhere is refused."""
        value = encode(
            "observation", [ROW, Free(1, 2, "n", {"k": "text", "d": {"x": [1]}})], [LOSS]
        )

        for length in range(len(value)):
            with pytest.raises(DecodeError):
                decode_frame(value[:length])

    def test_bytes_after_the_frame(self, encode: Encode) -> None:
        """Two frames in one record are refused, not half read."""
        value = encode("observation", [ROW], [LOSS])

        with pytest.raises(DecodeError):
            decode_frame(value + value)

    @given(data=st.data())
    def test_changed_bytes(self, data: st.DataObject) -> None:
        """A frame with flipped bytes raises DecodeError or reads as some frame that can go on."""
        encoder = FrameEncoder(emitter=bytes(16), kind="observation", origin=Origin(run="r"))
        events = [ENCODER.encode(e) for e in (ROW, Free(1, 2, "n", {"k": "ab", "d": {"x": [1.5]}}))]
        value = bytearray(
            encoder.encode(events, seq=1, closed_ns=5, accepted=2, dropped=0, series=[LOSS])
        )
        for _ in range(data.draw(st.integers(1, 4))):
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))

        try:
            frame = decode_frame(bytes(value))
        except DecodeError:
            return

        again = decode_frame(frame.encode(tags={"a": "b"}))
        assert same(list(again.events()), list(frame.events()))

    @pytest.mark.parametrize(
        "changes",
        [
            {"emitter": b"short"},
            {"emitter": "x" * 16},
            {"seq": -1},
            {"seq": 2**63},
            {"seq": "1"},
            {"closed_ns": 2**63},
            {"accepted": -1},
            {"origin": None},
            {"origin": ...},
            {"e": {"a": 1}},
            {"s": [["not a sid", "n", []]]},
            {"s": 3},
            {"i": [0]},
            {"i": [-1], "e": [["m", 1, None, "n", {}]]},
            {"i": [4095], "e": [["m", 1, None, "n", {}]]},
            {"v": ...},
        ],
        ids=str,
    )
    def test_faulty_header(self, emitter: bytes, changes: dict[str, Any]) -> None:
        """A header that breaks the rules is refused."""
        with pytest.raises(DecodeError):
            decode_frame(wire(emitter, **changes))

    def test_unknown_kind_is_named(self, emitter: bytes) -> None:
        """The message says which kind was found and which are known."""
        with pytest.raises(DecodeError, match=r"'checkpoint'.*run, observation, profile, log"):
            decode_frame(wire(emitter, kind="checkpoint"))

    @pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1k"], ids=["lists", "maps"])
    def test_nesting_without_end(self, encode: Encode, opener: bytes) -> None:
        """A hundred thousand levels overflow no stack."""
        deep = b"\x95\xa1m\x01\xc0\xa1n\x81\xa1k" + opener * 100_000 + b"\xc0"

        with pytest.raises(DecodeError):
            decode_frame(encode("observation", [deep]))

    def test_lengths_that_lie(self, emitter: bytes) -> None:
        """An array that claims four billion items takes no memory for them."""
        head = wire(emitter, e=...)
        value = bytes([head[0] + 1]) + head[1:] + b"\xa1e\xdd\xff\xff\xff\xff"

        with pytest.raises(DecodeError):
            decode_frame(value)


class TestNewerWriters:
    """Frames of a later version that this one can still read."""

    def test_unknown_keys_are_skipped(self, emitter: bytes) -> None:
        """New keys in the header and the origin change nothing."""
        value = wire(
            emitter,
            v=2,
            origin={"run": "r", "planet": "mars"},
            signature=b"x" * 64,
            more={"a": [1]},
            s=[LOSS],
            e=[ROW],
        )

        frame = decode_frame(value)

        assert frame.version == 2
        assert frame.origin == Origin(run="r")
        assert len(frame) == 1

    def test_longer_arrays_are_cut(self, emitter: bytes) -> None:
        """Positions appended to a series or an event are skipped."""
        value = wire(
            emitter,
            s=[[0, "training", ["loss"], None, "unit"]],
            e=[["r", 0, 10, 1, [0.5], None, "appended", {"x": 1}]],
        )

        frame = decode_frame(value)

        assert list(frame.events()) == [
            (0, Observation(ts=10, name="training", fields={"loss": 0.5}, step=1))
        ]

    def test_shorter_arrays_get_defaults(self, emitter: bytes) -> None:
        """An older writer that knows fewer positions is read."""
        value = wire(emitter, kind="log", e=[["l", 1, "info", "hello"]])

        frame = decode_frame(value)

        assert list(frame.events()) == [(0, Log(ts=1, level="info", message="hello"))]

    @pytest.mark.parametrize(
        "bad",
        [
            ["future", 1, {"a": 2}],
            [7, 1],
            {"a": 1},
            None,
            ["r", 0, 10],
            ["r", 5, 10, 1, [0.5, 0.1]],
            ["r", 0, 10, 1, [0.5]],
            ["r", 0, 2**63, 1, [0.5, 0.1]],
            ["m", 1, None, "n", {1: 2}],
            b"\x95\xa1m\x01\xc0\xa1n\x81\xa1k\xa2\xff\xfe",
            b"\x95\xa1m\x01\xc0\xa1n\x81\xa1k\x81\x81\x01\x02\x01",
            b"\x95\xa1m\x01\xc0\xa1n\x81\xa1k\xc7\x0c\xff\x00\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff",
        ],
        ids=[
            "unknown tag",
            "number as tag",
            "map",
            "nil",
            "too short",
            "series not in the table",
            "too few values",
            "time beyond 64 bits",
            "number as key",
            "text that is not UTF-8",
            "map as key",
            "time out of range",
        ],
    )
    def test_one_bad_event_spoils_no_other(self, encode: Encode, bad: Any) -> None:
        """The known events are kept under their own indices, the bad one under its own."""
        raw = bad if isinstance(bad, bytes) else ENCODER.encode(bad)

        frame = decode_frame(encode("observation", [ROW, raw, ROW], [LOSS]))

        assert list(frame.indices) == [0, 2]
        assert frame.items == [ROW, ROW]
        assert [(r.index, r.reason, r.raw) for r in frame.rejects] == [(1, "unreadable_event", raw)]
        assert frame.rejects[0].message

    def test_indices_stay_right_in_a_filtered_frame(self, emitter: bytes) -> None:
        """With an index column, good and bad events have the indices it names."""
        value = wire(emitter, s=[LOSS], e=[ROW, ["future"], ROW], i=[4, 9, 11])

        frame = decode_frame(value)

        assert list(frame.indices) == [4, 11]
        assert [r.index for r in frame.rejects] == [9]
        assert [index for index, _ in frame.events()] == [4, 11]


class TestSizes:
    """Large values pass."""

    def test_three_megabytes(self, encode: Encode) -> None:
        """A record of 3 MB, larger than any an emitter sends, is read whole."""
        events = [Log(ts=k, level="info", message="x" * 1_000_000) for k in range(3)]

        frame = decode_frame(encode("log", events))

        assert [event for _, event in frame.events()] == events

    def test_huge_text(self, encode: Encode) -> None:
        """A text of 20 million characters is read back."""
        event = Log(ts=1, level="info", message="é" * 20_000_000)

        assert list(decode_frame(encode("log", [event])).events()) == [(0, event)]

    def test_time_extension(self, encode: Encode) -> None:
        """A datetime with a zone travels as msgpack's timestamp."""
        when = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)

        frame = decode_frame(encode("observation", [Row(0, 1, 1, [when, 1])], [LOSS]))

        (_, event), *_ = frame.events()
        assert isinstance(event, Observation)
        assert event.fields["loss"] == when


class TestRoundTrips:
    """Whatever is put in comes out."""

    @given(
        ts=times, step=st.none() | times, name=st.text(), fields=mappings, tags=mappings | st.none()
    )
    def test_free_form(
        self, ts: int, step: int | None, name: str, fields: dict[str, Any], tags: Any
    ) -> None:
        """Observations with names of their own."""
        event = Free(ts, step, name, fields, tags)

        frame = decode_frame(framed("observation", [event]))

        assert same(frame.items, [event])
        assert not frame.rejects

    @given(
        rows=st.lists(
            st.tuples(times, st.none() | times, st.lists(values, min_size=3, max_size=3)),
            max_size=5,
        ),
        names=st.lists(st.text(), min_size=3, max_size=3, unique=True),
    )
    def test_rows(self, rows: list[tuple[int, int | None, list[Any]]], names: list[str]) -> None:
        """Observations against the table."""
        events = [Row(3, ts, step, list(row)) for ts, step, row in rows]

        frame = decode_frame(framed("observation", events, [Series(3, "n", names)]))

        want = [
            (k, Observation(ts=ts, name="n", fields=dict(zip(names, row, strict=True)), step=step))
            for k, (ts, step, row) in enumerate(rows)
        ]
        assert same(list(frame.events()), want)

    @given(
        st.builds(
            Log,
            ts=times,
            level=st.text(),
            message=st.text(),
            logger=st.text(),
            fields=mappings,
            step=st.none() | times,
            trace_id=st.text(),
            span_id=st.text(),
        )
    )
    def test_logs(self, event: Log) -> None:
        """Lines of log."""
        frame = decode_frame(framed("log", [event]))

        assert same([event], [e for _, e in frame.events()])

    @given(
        st.builds(
            Origin,
            run=st.text(),
            role=st.text(),
            uid=st.none() | st.integers(0, 2**63 - 1) | st.text(),
            rank=st.none() | st.integers(0, 2**31),
            netuid=st.none() | st.integers(0, 2**16),
            tags=st.dictionaries(st.text(), st.text(), max_size=3),
        ),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.booleans(),
    )
    def test_headers(self, origin: Origin, seq: int, count: int, end: bool) -> None:
        """Every header value that the rules allow."""
        value = FrameEncoder(emitter=bytes(16), kind="run", origin=origin).encode(
            [], seq=seq, closed_ns=count, accepted=count, dropped=count, end=end
        )

        frame = decode_frame(value)

        assert (frame.origin, frame.seq, frame.end) == (origin, seq, end)
        assert (frame.closed_ns, frame.accepted, frame.dropped) == (count, count, count)


def framed(kind: Any, events: list[Any], series: list[Series] | None = None) -> bytes:
    """A frame around events; hypothesis does not like function-scoped fixtures."""
    return FrameEncoder(emitter=bytes(16), kind=kind, origin=Origin(run="r")).encode(
        [ENCODER.encode(e) for e in events],
        seq=0,
        closed_ns=1,
        accepted=len(events),
        dropped=0,
        series=series or (),
    )


class TestStats:
    """Records of kind stats."""

    STATS = Stats(
        kind="observation",
        name="training",
        field="loss",
        start=0,
        size=10_000_000_000,
        revision=3,
        final=True,
        count=2,
        mean=0.5,
        min=0.25,
        max=0.75,
        median=0.5,
        nonfinite=1,
        first_nonfinite_step=17,
        last_finite=0.75,
        closed_by="watermark",
    )

    def test_read_back(self, emitter: bytes, origin: Origin) -> None:
        """A record may hold several Stats of one emitter."""
        frame = StatsFrame(
            emitter=emitter, origin=origin, stats=[self.STATS, self.STATS], tags={"version": "1"}
        )

        assert decode_stats(encode_stats(frame)) == frame

    def test_natural_key(self, emitter: bytes) -> None:
        """The key leaves out what changes from revision to revision."""
        newer = msgspec.structs.replace(self.STATS, revision=4, count=3, final=False)

        assert newer.key(emitter) == self.STATS.key(emitter)

    @settings(max_examples=50)
    @given(st.binary(max_size=100))
    def test_any_bytes(self, value: bytes) -> None:
        """No bytes raise anything but DecodeError."""
        with pytest.raises(DecodeError):
            decode_stats(value)

    def test_cut_at_every_byte(self, emitter: bytes, origin: Origin) -> None:
        """Stats that were cut anywhere are refused."""
        value = encode_stats(StatsFrame(emitter=emitter, origin=origin, stats=[self.STATS]))

        for length in range(len(value)):
            with pytest.raises(DecodeError):
                decode_stats(value[:length])

    def test_newer_writer(self, emitter: bytes) -> None:
        """Unknown keys and appended positions are skipped."""
        array = [*msgspec.to_builtins(self.STATS), "appended"]
        value = ENCODER.encode(
            {"v": 2, "emitter": emitter, "origin": {}, "stats": [array], "new": 1}
        )

        assert decode_stats(value).stats == [self.STATS]

    def test_no_finite_sample(self) -> None:
        """Without a finite sample there is no mean, and none is made up."""
        empty = msgspec.structs.replace(self.STATS, count=0, mean=None, min=None, max=None)

        assert empty.mean is None
        assert not math.isnan(empty.count)
