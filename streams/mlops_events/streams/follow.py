"""Follows whole topics by assignment, and commits for a group that nobody else is in."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as KafkaPartition

from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import MAX_RECORD_BYTES
from mlops_events.streams.logreader import LogRecord, TopicPartition
from mlops_events.streams.offsets import GuardCounts, OffsetGuard

__all__ = ["Follower", "open_follower"]

_CALL_S: Final = 60.0  # a cluster makes the topic of the groups when it first needs it
_STOP_S: Final = 5.0


class Follower:
    """Reads on from given places, for as long as it is open: in order, and without silent jumps.

    Args:
        consumer: a started consumer of aiokafka that nobody else uses.
        clock: the time in seconds, never going back.
    """

    def __init__(self, consumer: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._consumer = consumer
        self._clock = clock
        self._guards: dict[TopicPartition, OffsetGuard] = {}
        self.counts = GuardCounts()

    async def since(
        self, partitions: Collection[TopicPartition], *, since_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each log from that time on; none where there is none.

        Raises:
            TimeoutError: the broker does not answer.
        """
        wanted = {KafkaPartition(*tp): since_ms for tp in partitions}
        found = await asyncio.wait_for(self._consumer.offsets_for_times(wanted), _CALL_S)
        return {TopicPartition(*tp): at.offset for tp, at in found.items() if at is not None}

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's commits, where there are any.

        Raises:
            TimeoutError: the broker does not answer.
        """
        async with asyncio.timeout(_CALL_S):
            found = {tp: await self._consumer.committed(KafkaPartition(*tp)) for tp in partitions}
        return {tp: offset for tp, offset in found.items() if offset is not None}

    def go(self, places: Mapping[TopicPartition, int]) -> None:
        """Follow these partitions from these offsets on."""
        now = self._clock()
        self._guards = {
            tp: OffsetGuard(at, now=now, counts=self.counts) for tp, at in places.items()
        }
        self._consumer.assign([KafkaPartition(*tp) for tp in places])
        for tp, offset in places.items():
            self._consumer.seek(KafkaPartition(*tp), offset)

    async def poll(self, *, timeout_s: float) -> list[tuple[TopicPartition, LogRecord]]:
        """Return what comes next, of all partitions in the order of the records' times.

        Raises:
            MlopsEventsError: a topic was made anew.
            TimeoutError: the client hangs.
            KafkaError: the logs cannot be read.
        """
        partitions = [KafkaPartition(*tp) for tp in self._guards]
        polled: Mapping[Any, Sequence[LogRecord]] = await asyncio.wait_for(
            self._consumer.getmany(*partitions, timeout_ms=round(timeout_s * 1000)),
            _CALL_S + timeout_s,
        )
        found: list[tuple[TopicPartition, LogRecord]] = []
        for tp, guard in self._guards.items():
            records = polled.get(KafkaPartition(*tp), ())
            found += [(tp, record) for record in self._admit(tp, guard, records)]
        found.sort(key=lambda one: (one[1].timestamp, one[0], one[1].offset))
        return found

    def behind(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether something below these offsets has not been read."""
        return any(self._guards[tp].next < end for tp, end in ends.items())

    def lag(self) -> int:
        """Return how many records are known to lie beyond those that were read."""
        ends = {tp: self._end(tp) for tp in self._guards}
        return sum(max(0, (ends[tp] or 0) - guard.next) for tp, guard in self._guards.items())

    def _admit(
        self, tp: TopicPartition, guard: OffsetGuard, records: Sequence[LogRecord]
    ) -> Sequence[LogRecord]:
        now, end = self._clock(), self._end(tp)
        if not records:
            seek, admitted = guard.tick(now=now, log_end=end), records
        elif end is not None and end < guard.next:
            raise MlopsEventsError(
                f"{tp.topic} ends at {end} in partition {tp.partition}, and was read up to "
                f"{guard.next}: it was made anew; start again"
            )
        else:
            admission = guard.offer(records, now=now)
            seek, admitted = admission.seek, records[admission.start : admission.stop]
        if seek is not None:
            self._consumer.seek(KafkaPartition(*tp), seek)
        return admitted

    def _end(self, tp: TopicPartition) -> int | None:
        end: int | None = self._consumer.highwater(KafkaPartition(*tp))
        return end

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit what was handled.

        Raises:
            TimeoutError: the broker does not answer.
            KafkaError: it refuses.
        """
        todo = {KafkaPartition(*tp): OffsetAndMetadata(at, "") for tp, at in offsets.items()}
        if todo:
            await asyncio.wait_for(self._consumer.commit(todo), _CALL_S)


@asynccontextmanager
async def open_follower(kafka: KafkaSettings, *, group: str) -> AsyncIterator[Follower]:
    """Connect a follower for as long as it is needed.

    Raises:
        ConfigError: there are no brokers, or the CA file cannot be read.
        KafkaError: no broker answers.
    """
    consumer = AIOKafkaConsumer(
        **kafka.client_options(),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=MAX_RECORD_BYTES,
        fetch_max_wait_ms=100,
    )
    await consumer.start()
    try:
        yield Follower(consumer)
    finally:
        with suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(consumer.stop(), _STOP_S)
