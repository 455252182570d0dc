"""Reads stretches of partitions by assignment, outside any group."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from aiokafka.structs import TopicPartition as KafkaPartition

__all__ = ["LogConsumer", "LogReader", "LogRecord", "Span", "TopicPartition"]

_POLL_MS: Final = 200
_PATIENCE_S: Final = 30.0
_HOLE_WAIT_S: Final = 2.0
_FIRST_WAIT_S: Final = 10.0


class TopicPartition(NamedTuple):
    """A partition of a topic; equal to the tuples of the same name that Kafka clients use."""

    topic: str
    partition: int


class Span(NamedTuple):
    """Offsets from `start` up to but without `end`."""

    start: int
    end: int


class LogRecord(Protocol):
    """What is used of a record."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch."""
        ...

    @property
    def key(self) -> bytes | None:
        """Its key."""
        ...

    @property
    def value(self) -> bytes | None:
        """Its content."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """What is said about it."""
        ...


class LogConsumer(Protocol):
    """What is used of aiokafka's consumer."""

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Take these partitions and no others."""
        ...

    def pause(self, *partitions: Any) -> None:
        """Fetch nothing more from these partitions."""
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from this offset."""
        ...

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the log's end as the last fetch told it."""
        ...

    async def getmany(
        self, *partitions: Any, timeout_ms: int = 0
    ) -> Mapping[Any, Sequence[LogRecord]]:
        """Return what has been fetched."""
        ...

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset that is read next."""
        ...

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs start."""
        ...

    async def end_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs end."""
        ...

    async def offsets_for_times(self, timestamps: Mapping[Any, int]) -> Mapping[Any, Any]:
        """Return the first record of each log that is not older than a time, None if none is."""
        ...


class LogReader:
    """Reads stretches of partitions.

    Args:
        consumer: a started consumer that nobody else uses.
        embedded: the embedded broker, which knows its logs' ends only after a fetch, and may have
            holes there that stay.
    """

    def __init__(self, consumer: LogConsumer, *, embedded: bool) -> None:
        self._consumer = consumer
        self._embedded = embedded

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Span]:
        """Return where each log starts and ends.

        Raises:
            TimeoutError: the broker does not say.
        """
        if not partitions:
            return {}
        async with asyncio.timeout(_PATIENCE_S):
            starts = await self._consumer.beginning_offsets(partitions)
            ends = (
                await self._fetched_ends(starts)
                if self._embedded
                else await self._consumer.end_offsets(partitions)
            )
        return {tp: Span(starts[tp], max(ends[tp], starts[tp])) for tp in partitions}

    async def since(
        self, partitions: Collection[TopicPartition], *, timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record in each log that is not older; None if none is.

        Raises:
            TimeoutError: the broker does not say.
        """
        if not partitions:
            return {}
        asked = dict.fromkeys(_kafkas(partitions), timestamp_ms)
        async with asyncio.timeout(_PATIENCE_S):
            found = await self._consumer.offsets_for_times(asked)
        # The embedded broker answers with the log's start, of time 0, where Kafka says None.
        return {
            tp: place.offset
            if (place := found.get(tp)) and place.timestamp >= timestamp_ms
            else None
            for tp in partitions
        }

    async def read(
        self, spans: Mapping[TopicPartition, Span]
    ) -> AsyncGenerator[tuple[TopicPartition, LogRecord], None]:
        """Yield the records of each span in the order of their offsets.

        Raises:
            TimeoutError: a span's records do not come.
        """
        spans = {tp: span for tp, span in spans.items() if span.start < span.end}
        if not spans:
            return
        self._take({tp: span.start for tp, span in spans.items()})
        try:
            async for found in self._read({tp: span.end for tp, span in spans.items()}):
                yield found
        finally:
            self._rest(spans)

    async def _read(
        self, left: dict[TopicPartition, int]
    ) -> AsyncIterator[tuple[TopicPartition, LogRecord]]:
        patience_s = _FIRST_WAIT_S if self._embedded else _PATIENCE_S
        heard = time.monotonic()
        while left:
            polled = await self._poll(left)
            if polled:
                heard = time.monotonic()
                patience_s = _HOLE_WAIT_S if self._embedded else _PATIENCE_S
            for tp, records in polled.items():
                end = left[tp]
                for record in records:
                    if record.offset < end:
                        yield tp, record
            for tp in list(left):
                if await self._consumer.position(tp) >= left[tp]:
                    del left[tp]
            if left and time.monotonic() - heard > patience_s:
                if self._embedded:
                    return
                raise TimeoutError(f"nothing more to read from {sorted(left)}")

    async def at(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogRecord]:
        """Return the record at each place, where there is one.

        Raises:
            TimeoutError: the broker does not answer.
        """
        spans = {tp: Span(offset, offset + 1) for tp, offset in places.items()}
        return {tp: record async for tp, record in self.read(spans)}

    async def _fetched_ends(
        self, starts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        self._take(starts)
        ends: dict[TopicPartition, int] = {}
        while len(ends) < len(starts):
            waiting = [tp for tp in starts if tp not in ends]
            await self._poll(waiting)
            for tp in waiting:
                end = self._consumer.highwater(tp)
                if end is not None:
                    ends[tp] = end
        self._rest(starts)
        return ends

    async def _poll(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, Sequence[LogRecord]]:
        return await self._consumer.getmany(*_kafkas(partitions), timeout_ms=_POLL_MS)

    def _take(self, positions: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign(list(positions))
        for tp, offset in positions.items():
            self._consumer.seek(tp, offset)

    def _rest(self, partitions: Iterable[TopicPartition]) -> None:
        # A fetch that waits at a log's end holds up whatever is asked next.
        self._consumer.pause(*_kafkas(partitions))


def _kafkas(partitions: Iterable[TopicPartition]) -> list[Any]:
    """Return aiokafka's own class, on which some of its calls insist though the tuples are equal."""
    return [KafkaPartition(*tp) for tp in partitions]
