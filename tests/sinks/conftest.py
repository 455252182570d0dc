"""Fixtures of the sinks' tests: a Kafka log and a sink in memory, and a delivery between them.

memory_log     a MemoryLog: .append(...), .frame(record), .stats(record), .committed, .sent
list_sink      a ListSink: .got, .outcomes, .refuse, .gate
deliver        async with deliver(sink, log) as delivery: it runs; it ends when the block does
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from mlops_events.schemas.frame import encode_stats
from mlops_events.schemas.health import Counters
from mlops_events.schemas.topics import frame_headers, stats_headers
from mlops_events.sinks.base import Batch, Envelope, FrameRecord, Rejected, StatsRecord
from mlops_events.sinks.deliver import Delivery
from mlops_events.sinks.intake import DeliverSettings
from mlops_events.sinks.log import LogError, OutRecord
from mlops_events.sinks.position import Mark, Place

TOPIC = "mlops.events.sink.list.v1"
DEAD = "mlops.events.dead-letters.v1"


class Rec(NamedTuple):
    """A record of a MemoryLog."""

    offset: int
    timestamp: int
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class MemoryLog:
    """A topic, its group and the dead letters' topic, in memory. Put words into `failing`
    (places, bounds, commit, send) to see what happens when Kafka does not answer."""

    def __init__(self, partitions: int = 1) -> None:
        self.topic = TOPIC
        self.revoke_s = 5.0
        self.records: dict[int, list[Rec]] = {p: [] for p in range(partitions)}
        self.starts = dict.fromkeys(range(partitions), 0)
        self.committed: dict[int, Mark] = {}
        self.sent: dict[str, list[OutRecord]] = {}
        self.failing: set[str] = set()
        self.hidden: set[int] = set()
        self.paused = False
        self.polls = 0
        self.closed = 0
        self._held: frozenset[int] = frozenset()
        self._at: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._news = asyncio.Event()
        self._on_revoked: Callable[[], Awaitable[None]] | None = None

    def append(
        self,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        *,
        partition: int = 0,
        timestamp: int | None = None,
    ) -> int:
        """Write a record; return its offset."""
        log = self.records[partition]
        offset = log[-1].offset + 1 if log else self.starts[partition]
        log.append(Rec(offset, 1_000 + offset if timestamp is None else timestamp, value, headers))
        self._news.set()
        return offset

    def frame(self, record: FrameRecord, *, partition: int = 0, redriven: int = 0) -> int:
        """Write a frame."""
        headers = frame_headers(record.frame)
        if redriven:
            headers.append(("redriven", b"%d" % redriven))
        return self.append(record.frame.encode(), headers, partition=partition)

    def stats(self, record: StatsRecord, *, partition: int = 0) -> int:
        """Write Stats."""
        return self.append(
            encode_stats(record.frame), stats_headers(record.frame), partition=partition
        )

    def make_anew(self, partition: int = 0) -> None:
        """Delete the log; a new one begins at 0."""
        self.records[partition] = []
        self.starts[partition] = 0

    def expire(self, before: int, partition: int = 0) -> None:
        """Delete the records before an offset."""
        self.starts[partition] = before
        self.records[partition] = [r for r in self.records[partition] if r.offset >= before]

    async def rebalance(self) -> None:
        """Take all partitions away and give them back."""
        self._held = frozenset()
        assert self._on_revoked is not None
        await self._on_revoked()
        self._assign()

    # --- the protocol ---

    async def start(self, on_revoked: Callable[[], Awaitable[None]]) -> None:
        self._on_revoked = on_revoked
        self._assign()

    def assigned(self) -> frozenset[int]:
        return self._held

    async def places(self, partitions: Collection[int]) -> dict[int, Place]:
        self._may_fail("places")
        return {
            p: Place(
                committed=self.committed[p].next if p in self.committed else None,
                mark=self.committed.get(p),
                log_start=self.starts[p],
            )
            for p in partitions
        }

    async def bounds(self, partition: int) -> tuple[int, int | None]:
        self._may_fail("bounds")
        return self.starts[partition], self._end(partition)

    def end(self, partition: int) -> int | None:
        return self._ends.get(partition)

    def seek(self, partition: int, offset: int) -> None:
        self._at[partition] = offset

    async def poll(self, *, timeout_s: float, max_records: int) -> Mapping[int, Sequence[Rec]]:
        self.polls += 1
        found = {} if self.paused else self._read(max_records)
        if found:
            await asyncio.sleep(0)
            return found
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), min(timeout_s, 0.02))
        return {}

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    async def commit(self, marks: Mapping[int, Mark]) -> None:
        self._may_fail("commit")
        self.committed.update(marks)

    async def send(self, topic: str, records: Sequence[OutRecord]) -> None:
        self._may_fail("send")
        self.sent.setdefault(topic, []).extend(records)

    async def close(self) -> None:
        self.closed += 1
        self._held = frozenset()

    def _assign(self) -> None:
        self._held = frozenset(self.records)
        self._at = dict(self.starts)
        self._ends = {}

    def _read(self, max_records: int) -> dict[int, list[Rec]]:
        found: dict[int, list[Rec]] = {}
        for p in self._held:
            at = self._at[p]
            end = self._ends[p] = self._end(p)
            if at > end or at < self.starts[p]:
                at = self._at[p] = self.starts[p]
            visible = [r for r in self.records[p] if r.offset >= at and r.offset not in self.hidden]
            if visible:
                found[p] = visible[:max_records]
                self._at[p] = found[p][-1].offset + 1
        return found

    def _end(self, partition: int) -> int:
        log = self.records[partition]
        return log[-1].offset + 1 if log else self.starts[partition]

    def _may_fail(self, call: str) -> None:
        if call in self.failing:
            raise LogError(f"{call} failed, as the test wants it")


class ListSink:
    """A destination that has an event twice if it came twice."""

    name = "list"

    def __init__(self) -> None:
        self.got: list[Envelope] = []
        self.batches: list[int] = []
        self.outcomes: list[BaseException | None] = []  # of the next calls, None is success
        self.open_outcomes: list[BaseException | None] = []
        self.refuse: Callable[[Envelope], bool] = lambda _: False
        self.gate: asyncio.Event | None = None
        self.writing = asyncio.Event()
        self.attempts = 0
        self.opened = 0
        self.closed = 0

    async def check(self) -> None: ...

    async def open(self) -> None:
        if self.open_outcomes and (outcome := self.open_outcomes.pop(0)) is not None:
            raise outcome
        self.opened += 1

    async def write(self, batch: Batch) -> list[Rejected]:
        self.attempts += 1
        self.writing.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.outcomes and (outcome := self.outcomes.pop(0)) is not None:
            raise outcome
        envelopes = list(batch)
        rejected = [
            Rejected(e, "unwanted", "the test refuses it") for e in envelopes if self.refuse(e)
        ]
        refused = {one.envelope.id for one in rejected}
        self.got += [e for e in envelopes if e.id not in refused]
        self.batches.append(len(envelopes))
        return rejected

    async def close(self) -> None:
        self.closed += 1


class Running(NamedTuple):
    """A delivery that runs."""

    delivery: Delivery
    counters: Counters
    stop: asyncio.Event
    task: "asyncio.Task[None]"


@pytest.fixture
async def memory_log() -> MemoryLog:
    """Return a topic of one partition in memory."""
    return MemoryLog()


@pytest.fixture
def new_memory_log() -> Callable[[int], MemoryLog]:
    """Return a function that makes topics in memory."""
    return MemoryLog


@pytest.fixture
async def list_sink() -> ListSink:
    """Return a sink in memory."""
    return ListSink()


@pytest.fixture
def deliver() -> Callable[..., Any]:
    """Return a context manager in which a delivery runs; what it raises is raised at the end."""

    @contextlib.asynccontextmanager
    async def running(sink: ListSink, log: MemoryLog, **settings: Any) -> AsyncIterator[Running]:
        counters = Counters("sink", sink=sink.name)
        delivery = Delivery(
            sink,
            log,
            dead_letters=DEAD,
            settings=DeliverSettings(**{"max_age_s": 0.01, **settings}),
            counters=counters,
            draw=lambda: 0.0,
        )
        stop = asyncio.Event()
        task = asyncio.ensure_future(delivery.run(stop))
        try:
            yield Running(delivery, counters, stop, task)
        finally:
            stop.set()
            await asyncio.wait({task}, timeout=10)
            task.cancel()
        task.result()

    return running
