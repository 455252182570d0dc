"""The partitions that a worker holds: loaded, folded, sent on and checkpointed."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Protocol

from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.schemas.events import RAW_KINDS, RawKind
from mlops_events.schemas.health import Counters
from mlops_events.schemas.topics import Topics
from mlops_events.streams.checkpoint import ChunkProducer, write_checkpoints
from mlops_events.streams.logreader import LogReader, LogRecord, TopicPartition
from mlops_events.streams.offsets import Admission, GuardCounts, Ticket
from mlops_events.streams.outbox import Outbox
from mlops_events.streams.outputs import DeadLetterOut, FrameOut, Output, StatsOut
from mlops_events.streams.part import Part
from mlops_events.streams.provisional import Provisional
from mlops_events.streams.recovery import Recovery
from mlops_events.streams.route import Routes
from mlops_events.streams.settings import StreamSettings

__all__ = ["Source", "Worker"]

log = logging.getLogger(__name__)

TICK_S: Final = 0.25
PROVISIONAL_TICK_S: Final = 5.0
SAVE_TICK_S: Final = 1.0
IDLE_S: Final = 0.5
"""Without work for so long, a worker has read what there is."""
HUNGRY_S: Final = 1.0
"""How long a moment without work shows that no batch waits to be taken."""


class Source(Protocol):
    """What is asked of the consumer that delivers the records."""

    async def prepare(self) -> None:
        """Get ready to deliver; called after each assignment."""
        ...

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read on from these offsets, as far as their partitions are still held."""
        ...

    async def log_start(self, partition: TopicPartition) -> int:
        """Return where a log starts."""
        ...

    async def log_ends(self) -> Mapping[TopicPartition, int]:
        """Return where the logs of the partitions held end, as far as fetches have told."""
        ...

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the group's commits, where there are any."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit, as far as the partitions are still held."""
        ...


class Worker:
    """Holds partitions and turns what is read from them into outputs and checkpoints.

    The state of a partition is f(its log), so order is all that counts here: records are folded
    as the guard admits them, a checkpoint is cut between two slices and written when every output
    below it was acknowledged, and the group's commit follows it. Whatever goes wrong ends `run`,
    and with it the process; nothing is committed that was not delivered.

    Args:
        settings: of the stream.
        topics: the names of all topics.
        group: of the consumers; checkpoints belong to it.
        partitions: how many each topic has.
        place: names the partition of a topic that a key belongs to.
        source: delivers the records.
        producer: writes checkpoints.
        outbox: takes the outputs.
        reader: opens a reader of logs.
        counters: where to count.
    """

    def __init__(
        self,
        settings: StreamSettings,
        *,
        topics: Topics,
        group: str,
        partitions: Mapping[str, int],
        place: Callable[[str, bytes], TopicPartition],
        source: Source,
        producer: ChunkProducer,
        outbox: Outbox,
        reader: Callable[[], AbstractAsyncContextManager[LogReader]],
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._group = group
        self._partitions = partitions
        self._place = place
        self._source = source
        self._producer = producer
        self._outbox = outbox
        self._reader = reader
        self._counters = counters
        self._recovery = Recovery(
            settings,
            topics=topics,
            group=group,
            partitions=partitions,
            committed=source.committed,
            counters=counters,
        )
        self._kinds: Mapping[str, RawKind] = {topics.raw(kind): kind for kind in RAW_KINDS}
        self._guard_counts = GuardCounts()
        self._parts: dict[TopicPartition, Part] = {}
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._epoch = 0
        self._changed = asyncio.Event()
        self._loaded = asyncio.Event()
        self._saving = asyncio.Lock()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._free = asyncio.Event()
        self._free.set()
        self._free_since = self._hungry_at = time.monotonic()
        self._sent: Counter[type[Output]] = Counter()
        routes = Routes(topics, settings.sinks, settings.routes)
        self._unrouted: set[RawKind] = {kind for kind in RAW_KINDS if not routes.of(kind)}
        self._told_unrouted: set[RawKind] = set()
        self._lag = 0
        counters.gauge("lag_records", lambda: self._lag)
        counters.gauge("partitions", lambda: len(self._parts))
        counters.gauge(
            "lost_by_retention",
            lambda: sum(part.state.lost_by_retention for part in list(self._parts.values())),
        )
        counters.gauge("outbox_bytes", lambda: outbox.pending_bytes)
        for name in GuardCounts.__struct_fields__:
            counters.gauge(f"guard_{name}", partial(getattr, self._guard_counts, name))

    @property
    def ready(self) -> bool:
        """True while the state of all partitions held is loaded."""
        return self._loaded.is_set()

    # --- what the group says ------------------------------------------------------------------

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Hold these partitions from now on, and no others."""
        self._epoch += 1
        self._assigned = frozenset(partitions)
        self._parts = {}
        self._loaded.clear()
        self._changed.set()

    async def revoked(self, *, within_s: float) -> None:
        """Save what is held, then hold nothing; the whole group waits, so not for long."""
        self._epoch += 1
        await self._in_time(self._save_unsaved(), within_s)
        self._parts = {}
        self._loaded.clear()

    # --- the work -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Load, send, watch and save until cancelled.

        Raises:
            Exception: what must end the process.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outbox.run())
            tasks.create_task(self._load_assigned())
            tasks.create_task(self._watch())
            tasks.create_task(self._save_when_due())
            tasks.create_task(self._failure())

    async def take(self, tp: TopicPartition, records: Sequence[LogRecord]) -> None:
        """Take records in the order of their offsets, and return when there is room for more.

        Raises:
            BaseException: they could not be folded; `run` ends with the same.
        """
        now = time.monotonic()
        if now - self._free_since > IDLE_S / 10:
            self._hungry_at = now
        self._free.clear()
        try:
            await self._admit(tp, records)
        except BaseException as error:
            if not (self._closing or self._failed.done()):
                failure = MlopsEventsError(f"a batch of {tp} was not folded to its end: {error!r}")
                failure.__cause__ = error
                self._failed.set_exception(failure)
            raise
        finally:
            self._free_since = time.monotonic()
            self._free.set()

    async def drain(self, *, within_s: float) -> bool:
        """Take nothing more and save what was taken; return whether the time sufficed."""
        self._closing = True
        self._loaded.set()  # lets go a batch that waits for states

        async def save() -> None:
            await self._free.wait()
            await self._save_unsaved()

        return await self._in_time(save(), within_s)

    async def _in_time(self, saving: Awaitable[None], within_s: float) -> bool:
        try:
            await asyncio.wait_for(saving, within_s)
        except TimeoutError:
            log.warning("no time left for a checkpoint", extra={"within_s": within_s})
            self._counters.error("checkpoint_late")
            return False
        return True

    async def _admit(self, tp: TopicPartition, records: Sequence[LogRecord]) -> None:
        await self._loaded.wait()
        part = self._parts.get(tp)
        while part is not None and not self._closing:
            admission = part.guard.offer(records, now=time.monotonic())
            if not await self._fold(part, records, admission):
                return
            if admission.seek is None:
                if admission.start == admission.stop and not part.guard.open_hole:
                    await self._check_log(part)
                return
            start = await self._source.log_start(tp)
            if self._parts.get(tp) is not part:
                return
            expired = part.guard.log_starts_at(start)
            if not expired:
                await self._source.seek({tp: admission.seek})
                return
            log.error(
                "records lost to retention",
                extra={"topic": tp.topic, "partition": tp.partition, "count": expired},
            )
            self._counters.error("expired")
            part.restart_at(start, expired=expired)

    async def _fold(self, part: Part, records: Sequence[LogRecord], admission: Admission) -> bool:
        """Fold what was admitted, with breaks; return whether the partition is still held."""
        done = admission.start
        while done < admission.stop:
            done = part.fold(records, done, admission.stop, self._put)
            await asyncio.sleep(0)
            while self._outbox.full:
                await self._outbox.moved()
            if self._closing or self._parts.get(part.tp) is not part:
                return False
        return True

    def _put(self, output: Output, ticket: Ticket | None = None) -> None:
        self._sent[type(output)] += output.count
        if isinstance(output, DeadLetterOut):
            self._counters.dropped(f"dead_letter_{output.reason}")
        self._outbox.put(
            self._place(output.topic, output.key),
            key=output.key,
            value=output.value,
            headers=output.headers,
            ticket=ticket,
        )

    async def _check_log(self, part: Part) -> None:
        """Notice a log that was made anew: it ends before what was read, so all seems repeated.

        Raises:
            MlopsEventsError: it was; a start finds out where to go on.
        """
        end = (await self._source.log_ends()).get(part.tp)
        if end and end < part.state.next:
            raise MlopsEventsError(
                f"the log of {part.tp} ends at {end}, but {part.state.next} records were read: "
                "it was made anew under a running worker"
            )

    # --- states -------------------------------------------------------------------------------

    async def _load_assigned(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            assigned, epoch = self._assigned, self._epoch
            await self._source.prepare()
            async with self._reader() as reader:
                recovered = await self._recovery.recover(reader, assigned)
            if self._epoch != epoch:
                continue
            now = time.monotonic()
            parts = {
                tp: Part(
                    tp,
                    state,
                    saved=saved,
                    provisional=Provisional(self._settings),
                    counts=self._guard_counts,
                    now=now,
                    kind=self._kinds[tp.topic],
                )
                for tp, (state, saved) in recovered.items()
            }
            await self._source.seek({tp: part.state.next for tp, part in parts.items()})
            if self._epoch != epoch:
                continue
            self._parts = parts
            self._loaded.set()
            log.info("partitions loaded", extra={"count": len(parts)})

    async def _save_when_due(self) -> None:
        every_s = self._settings.checkpoint_s
        while True:
            await asyncio.sleep(min(SAVE_TICK_S, every_s / 4))
            now = time.monotonic()
            due = [part for part in self._parts.values() if part.due(now=now, every_s=every_s)]
            if due:
                await self._save(due)

    async def _save_unsaved(self) -> None:
        await self._save([part for part in self._parts.values() if part.unsaved])

    async def _save(self, parts: Sequence[Part]) -> None:
        """Write checkpoints once everything below them is delivered, then commit."""
        async with self._saving:
            cuts = [
                part.cut(
                    group=self._group,
                    partitions=self._partitions[part.tp.topic],
                    now=time.monotonic(),
                )
                for part in parts
            ]
            for part, cut in zip(parts, cuts, strict=True):
                while part.commits.done < cut.next:
                    await self._outbox.moved()
            sizes = await write_checkpoints(self._producer, self._topics.checkpoints, cuts)
            for part, size in zip(parts, sizes, strict=True):
                part.saved_bytes = size
            self._counters.add("checkpoints", len(cuts))
            self._counters.add("checkpoint_bytes", sum(sizes))
            await self._source.commit({cut.source: cut.next for cut in cuts})

    # --- watching -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Read again where records are missing, show what is open, count."""
        shown_at = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            if not self._loaded.is_set() or not self._parts:
                continue
            ends = await self._source.log_ends()
            parts, now = self._parts, time.monotonic()
            idle = self._free.is_set() and now - self._free_since > IDLE_S
            hungry = idle or now - self._hungry_at < HUNGRY_S
            back = {
                tp: place
                for tp, part in parts.items()
                if (place := part.guard.tick(now=now, log_end=ends.get(tp) if hungry else None))
                is not None
            }
            if back:
                await self._source.seek(back)
            behind = {tp: ends[tp] - part.state.next for tp, part in parts.items() if tp in ends}
            self._lag = sum(records for records in behind.values() if records > 0)
            self._count(parts.values())
            if idle and now - shown_at > PROVISIONAL_TICK_S:
                shown_at = now
                for tp, part in parts.items():
                    if behind.get(tp, 1) <= 0:
                        for stats in part.provisional.due(part.state, now=now):
                            self._put(stats)

    def _count(self, parts: Iterable[Part]) -> None:
        for part in parts:
            news = part.news()
            if part.kind in self._unrouted:
                self._count_unrouted(part.kind, news.get("events", 0) - news.get("malformed", 0))
            for name, count in news.items():
                if name == "events":
                    self._counters.received(part.kind, count)
                else:
                    self._counters.add(name, count, label="kind", value=part.kind)
        for output, count in self._sent.items():
            self._counters.sent(_SENT[output], count)
        self._sent.clear()

    def _count_unrouted(self, kind: RawKind, events: int) -> None:
        """Count events that go nowhere but into their raw topic, and say so once."""
        if events <= 0 or self._settings.unrouted != "count":
            return
        self._counters.dropped("no_route", events)
        if kind not in self._told_unrouted:
            self._told_unrouted.add(kind)
            log.warning("no sink takes events of this kind", extra={"kind": kind})

    async def _failure(self) -> None:
        await self._failed


_SENT: Final[Mapping[type[Output], str]] = {
    FrameOut: "events",
    StatsOut: "stats",
    DeadLetterOut: "dead_letters",
}
