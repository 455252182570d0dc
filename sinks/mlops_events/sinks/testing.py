"""The tests that every sink passes, ours and anybody else's.

    class TestMySink(SinkContract):
        def make_sink(self) -> Sink:
            return MySink(MySettings(...))

pytest runs them as they are; they need no plugin.
"""

# ruff: noqa: S101 - these are tests

import asyncio
import math
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mlops_events.schemas.events import EventId, Log, Origin, Profile, RawKind, Run, Stats, StatsKey
from mlops_events.schemas.frame import (
    FrameEncoder,
    Free,
    Row,
    Series,
    StatsFrame,
    decode_frame,
)
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import (
    Batch,
    FrameRecord,
    Rejected,
    Sink,
    SinkError,
    StatsRecord,
)

__all__ = ["SinkContract", "frame_record", "sample_batch", "stats_record"]

Id = EventId | StatsKey

_TS = 1_700_000_000_000_000_000
_TOPIC = "mlops.events.sink.contract.v1"
_ORIGIN = Origin(
    run="contract", role="miner", uid=7, rank=0, version="1.2.3", tags={"site": "Zürich"}
)


def frame_record(
    events: Sequence[Row | Free | Run | Profile | Log],
    *,
    kind: RawKind = "observation",
    emitter: bytes = bytes(range(16)),
    seq: int = 0,
    offset: int = 0,
    origin: Origin = _ORIGIN,
    series: Sequence[Series] = (),
    accepted: int | None = None,
    end: bool = False,
    timestamp_ms: int = _TS // 1_000_000,
    redriven: int = 0,
) -> FrameRecord:
    """Return a record that holds a frame of these events."""
    encoder = FrameEncoder(emitter=emitter, kind=kind, origin=origin)
    value = encoder.encode(
        [ENCODER.encode(event) for event in events],
        seq=seq,
        closed_ns=_TS + seq * 1_000_000_000,
        accepted=len(events) if accepted is None else accepted,
        dropped=0,
        series=series,
        end=end,
    )
    return FrameRecord(
        frame=decode_frame(value),
        topic=_TOPIC,
        partition=0,
        offset=offset,
        timestamp_ms=timestamp_ms,
        redriven=redriven,
    )


def stats_record(
    stats: Sequence[Stats],
    *,
    emitter: bytes = bytes(range(16)),
    offset: int = 0,
    origin: Origin = _ORIGIN,
    timestamp_ms: int = _TS // 1_000_000,
) -> StatsRecord:
    """Return a record that holds these Stats."""
    return StatsRecord(
        frame=StatsFrame(emitter=emitter, origin=origin, stats=list(stats), tags={"v": "1.2.3"}),
        topic=_TOPIC,
        partition=0,
        offset=offset,
        timestamp_ms=timestamp_ms,
    )


def sample_batch(*, seq: int = 0, emitter: bytes = bytes(range(16))) -> Batch:
    """Return a batch of every kind of event, as trainers send them.

    Args:
        seq: the number of its frames; other numbers are other events.
        emitter: who sent them.
    """
    ts = _TS + seq * 1_000_000_000
    series = [Series(0, "training", ["loss", "lr", "losses"], {"phase": "train"})]
    rows = [
        Row(0, ts + k, seq * 10 + k, [1.5 - k, 1e-4, [0.5, 0.25]], {"shard": k}) for k in range(3)
    ]
    free = Free(ts + 3, None, "evaluation", {"accuracy": 0.5, "passed": True, "note": None})
    window = Stats(
        kind="observation",
        name="training",
        field="loss",
        start=ts,
        size=10_000_000_000,
        revision=3,
        final=True,
        count=3,
        mean=0.5,
        min=-0.5,
        max=1.5,
        median=0.5,
        last_finite=-0.5,
        closed_by="watermark",
    )
    run = Run(ts=ts, state="start", config={"lr": 1e-4, "layers": [1, 2]}, project="p", name="n")
    log = Log(ts=ts, level="warning", message="slow", logger="train", fields={"seconds": 3.5})
    profile = Profile(ts=ts, name="forward", duration_ns=1_500_000, step=seq, tags={"gpu": 0})
    at: dict[str, Any] = {"seq": seq, "emitter": emitter}
    at_offset = 5 * seq
    return Batch(
        [
            frame_record([run], kind="run", offset=at_offset, **at),
            frame_record(
                [*rows, free], kind="observation", offset=at_offset + 1, series=series, **at
            ),
            frame_record([profile], kind="profile", offset=at_offset + 2, **at),
            frame_record([log], kind="log", offset=at_offset + 3, **at),
            stats_record([window], emitter=emitter, offset=at_offset + 4),
        ]
    )


class SinkContract:
    """Inherit it and say how a sink is made.

    Every test makes its sinks with `make_sink`, all of one test for the same destination.
    """

    repeats = False
    """True for a sink whose destination has an event twice if it came twice."""

    def make_sink(self) -> Sink:
        """Make a sink for this test's destination; a second one continues the first one's work."""
        raise NotImplementedError

    async def stored(self) -> Sequence[Id] | None:
        """Return the ids of what this test's destination holds; None if it cannot be asked."""
        return None

    def test_is_a_sink(self) -> None:
        """A sink has a name that can be part of a topic's."""
        sink = self.make_sink()

        assert isinstance(sink, Sink), f"{sink!r} lacks a part of the protocol"
        assert re.fullmatch(r"[A-Za-z0-9_-]+", sink.name), f"{sink.name!r} cannot be in a topic"

    def test_can_be_checked_before_and_after_it_is_opened(self) -> None:
        """A check neither needs an open sink nor harms one."""

        async def check(sink: Sink) -> None:
            await sink.check()
            await sink.open()
            await sink.check()
            await self._all_there(sink, sample_batch())

        self._run(check)

    def test_may_be_opened_and_closed_twice(self) -> None:
        """Opening and closing again changes nothing."""

        async def twice(sink: Sink) -> None:
            await sink.open()
            await sink.open()
            await self._all_there(sink, sample_batch())
            await sink.close()
            await sink.close()

        self._run(twice)

    def test_may_be_closed_without_having_been_opened(self) -> None:
        """A process that stops before it began closes its sink too."""
        self._run(lambda sink: sink.close())

    def test_writes_on_after_it_was_closed_and_opened_again(self) -> None:
        """What was written before stays, what comes after is added."""

        async def reopen(sink: Sink) -> None:
            await sink.open()
            await self._all_there(sink, sample_batch(seq=0))
            await sink.close()
            await sink.open()
            await self._all_there(sink, sample_batch(seq=1))

        self._run(reopen)

    def test_refuses_to_write_once_closed(self) -> None:
        """A batch that cannot be written is never taken in silence."""

        async def write_closed(sink: Sink) -> None:
            await sink.open()
            await sink.close()
            try:
                await sink.write(sample_batch())
            except SinkError:
                return
            raise AssertionError("a closed sink took a batch")

        self._run(write_closed)

    def test_takes_an_empty_batch(self) -> None:
        """Nothing to write is no mistake."""

        async def empty(sink: Sink) -> None:
            await sink.open()

            assert not await sink.write(Batch()), "an event was refused that is not there"

        self._run(empty)

    def test_takes_a_frame_without_events(self) -> None:
        """The last frame of an emitter may be empty, and says that no more will come."""

        async def end(sink: Sink) -> None:
            await sink.open()

            empty = Batch([frame_record([], accepted=3, seq=1, end=True)])

            assert not await sink.write(empty), "an event was refused that is not there"

        self._run(end)

    def test_bears_the_same_batch_again(self) -> None:
        """What was written before a crash comes again after it."""

        async def again(sink: Sink) -> None:
            await sink.open()
            batch = sample_batch()
            first = await sink.write(batch)
            second = await sink.write(batch)

            assert _ids(second) == _ids(first), "an event is refused because it is known"
            await self._stored_with(batch, first)

        self._run(again)

    def test_bears_known_events_among_new_ones(self) -> None:
        """A batch after a crash may be cut at other places."""

        async def overlap(sink: Sink) -> None:
            await sink.open()
            old, new = sample_batch(seq=0), sample_batch(seq=1)
            await sink.write(old)
            both = Batch([*old.records, *new.records])
            await self._all_there(sink, both)

        self._run(overlap)

    def test_keeps_every_event_or_names_it(self) -> None:
        """Whatever the values are, an event is written or named with a reason, and its
        neighbours are written."""

        async def values(sink: Sink) -> None:
            await sink.open()
            plain = Batch([frame_record([Free(_TS, 0, "plain", {"value": 1.0})])])
            refused = await sink.write(plain)
            await self._stored_with(plain, refused)
            if refused:
                return  # it takes no observations
            for number, fields in enumerate(_ODD_VALUES, 1):
                odd = Free(_TS + number, number, "odd", fields)
                good = [Free(_TS + number + k, number, "good", {"value": 1.0}) for k in (1, 2)]
                batch = Batch([frame_record([good[0], odd, good[1]], seq=number, offset=number)])
                rejected = await sink.write(batch)

                envelopes = list(batch)
                assert _ids(rejected) <= {envelopes[1].id}, f"{fields} cost a neighbour"
                await self._stored_with(batch, rejected)

        self._run(values)

    def test_keeps_odd_names_or_names_their_events(self) -> None:
        """Whatever an event is called, it is written or named with a reason."""

        async def names(sink: Sink) -> None:
            await sink.open()
            events = [Free(_TS + k, k, name, {name: 1.0}) for k, name in enumerate(_ODD_TEXTS)]
            logs = [Log(ts=_TS, level="info", message=text, logger=text) for text in _ODD_TEXTS]
            for record in (frame_record(events), frame_record(logs, kind="log", offset=1)):
                batch = Batch([record])
                rejected = await sink.write(batch)

                assert _ids(rejected) <= {e.id for e in batch}, "another batch's event refused"
                await self._stored_with(batch, rejected)

        self._run(names)

    def test_takes_times_of_any_size(self) -> None:
        """A clock that is wrong costs at most its own events."""

        async def times(sink: Sink) -> None:
            await sink.open()
            ages = (0, 1, -1, 2**63 - 1, -(2**63), _TS - 10**18)
            batch = Batch([frame_record([Free(ts, ts, "odd", {"value": 1.0}) for ts in ages])])
            await self._stored_with(batch, await sink.write(batch))

        self._run(times)

    def test_gives_reasons_for_what_it_refuses(self) -> None:
        """A dead letter says why, in a word for metrics and a sentence for people."""

        async def reasons(sink: Sink) -> None:
            await sink.open()
            odd = [Free(_TS + k, k, "odd", fields) for k, fields in enumerate(_ODD_VALUES)]
            for one in await sink.write(Batch([frame_record(odd)])):
                assert re.fullmatch(r"[a-z0-9_]+", one.reason), f"{one.reason!r} is no word"
                assert one.message, f"{one.envelope.id} is refused without a message"

        self._run(reasons)

    def test_may_be_cancelled_while_it_writes(self) -> None:
        """A write that was given up can be tried again."""

        async def cancel(sink: Sink) -> None:
            await sink.open()
            batch = sample_batch()
            writing = asyncio.ensure_future(sink.write(batch))
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait({writing})
            await self._all_there(sink, batch)

        self._run(cancel)

    def test_continues_in_a_new_process(self) -> None:
        """A second sink of the same destination bears what the first one wrote."""

        async def first(sink: Sink) -> None:
            await sink.open()
            await self._all_there(sink, sample_batch(seq=0))

        async def second(sink: Sink) -> None:
            await sink.open()
            both = [*sample_batch(seq=0).records, *sample_batch(seq=1).records]
            await self._all_there(sink, Batch(both))

        self._run(first)
        self._run(second)

    async def _all_there(self, sink: Sink, batch: Batch) -> None:
        """Write a batch of which nothing may be refused, unless a sink takes no such kind."""
        rejected = await sink.write(batch)
        kinds = {type(one.envelope.event) for one in rejected}
        refused = {e.id for e in batch if type(e.event) in kinds}

        assert _ids(rejected) == refused, "a sink refuses whole kinds, or no plain event"
        await self._stored_with(batch, rejected)

    async def _stored_with(self, batch: Batch, rejected: Sequence[Rejected]) -> None:
        stored = await self.stored()
        if stored is None:
            return
        wanted = {envelope.id for envelope in batch} - _ids(rejected)

        assert wanted <= set(stored), "an event is neither stored nor refused"
        assert not _ids(rejected) & set(stored), "a refused event is stored all the same"
        assert self.repeats or len(stored) == len(set(stored)), "an event is stored twice"

    def _run(self, test: Callable[[Sink], Coroutine[Any, Any, None]]) -> None:
        async def limited() -> None:
            sink = self.make_sink()
            try:
                await asyncio.wait_for(test(sink), 60)
            finally:
                await sink.close()

        asyncio.run(limited())


def _ids(rejected: Sequence[Rejected]) -> set[Id]:
    return {one.envelope.id for one in rejected}


_ODD_TEXTS = (
    "",
    " ",
    "time",
    "_step",
    "a,b=c d",
    "trailing\\",
    "two\nlines\r\n",
    "quote\"s'",
    "nul\x00inside",
    "\x1b[31mred",
    "\u6f22\u5b57 \U0001f680 \u00e9",
    "\u202eright to left",
    "x" * 300_000,
)

_ODD_VALUES: tuple[dict[str, Any], ...] = (
    {},
    {"value": None},
    {"value": math.nan},
    {"value": math.inf, "other": -math.inf},
    {"values": [1.0, math.nan, None]},
    {"value": 2**63},
    {"value": 2**64 - 1},
    {"value": -(2**63)},
    {"value": -0.0, "tiny": 5e-324, "huge": 1.7976931348623157e308},
    {"value": True},
    {"value": "NaN", "other": "~Infinity"},
    {"value": b"\x00\xff"},
    {"nested": {"a": {"b": [1, {"c": math.nan}]}}},
    {"value": [], "other": {}},
    {"value": "x" * 200_000},
    {"": 1.0, "time": 2.0, "_step": 3},
    {f"field_{k}": float(k) for k in range(2_000)},
    *({"value": text} for text in _ODD_TEXTS),
)
