"""Reads where a group is in its logs, and what stands there, without being a member."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition as KafkaPartition

from mlops_events.control.topics import TopicError
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.logreader import LogReader, Span, TopicPartition

__all__ = ["GroupLogs", "open_logs"]

_CALL_S: Final = 30.0
_STOP_S: Final = 10.0
_FETCH_WAIT_MS: Final = 20
_RETRY_MS: Final = 20


class GroupLogs:
    """Answers about logs, as one group sees them.

    Args:
        consumer: a started consumer of aiokafka that nobody else uses.
        embedded: whether it reads from the embedded broker.
    """

    def __init__(self, consumer: Any, *, embedded: bool) -> None:
        self._consumer = consumer
        self._reader = LogReader(consumer, embedded=embedded)

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's commits, where there are any."""
        async with asyncio.timeout(_CALL_S):
            found = {tp: await self._consumer.committed(KafkaPartition(*tp)) for tp in partitions}
        return {tp: offset for tp, offset in found.items() if offset is not None}

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Span]:
        """Return where each log starts and ends."""
        return await self._reader.bounds(partitions)

    async def times(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the time of the record at each place in milliseconds, where there is one."""
        found = await self._reader.at(places)
        return {tp: record.timestamp for tp, record in found.items()}

    async def oldest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the time of the first record of each log in milliseconds, where there is one."""
        asked = {KafkaPartition(*tp): 0 for tp in partitions}
        async with asyncio.timeout(_CALL_S):
            found = await self._consumer.offsets_for_times(asked)
        return {TopicPartition(*tp): at.timestamp for tp, at in found.items() if at is not None}


@asynccontextmanager
async def open_logs(kafka: KafkaSettings, *, group: str | None = None) -> AsyncIterator[GroupLogs]:
    """Connect for as long as it is needed; the group does not notice.

    Args:
        kafka: where.
        group: whose commits are asked for, if any are.

    Raises:
        TopicError: Kafka failed.
    """
    consumer = AIOKafkaConsumer(
        **kafka.client_options(),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=_FETCH_WAIT_MS,
        retry_backoff_ms=_RETRY_MS,
        max_partition_fetch_bytes=1,  # one batch comes all the same, and more is not looked at
    )
    try:
        await asyncio.wait_for(consumer.start(), _CALL_S)
        yield GroupLogs(consumer, embedded=kafka.embedded)
    except (KafkaError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise TopicError(f"Kafka at {kafka.brokers} failed: {reason}") from error
    finally:
        try:
            await asyncio.wait_for(consumer.stop(), _STOP_S)
        except asyncio.CancelledError:  # of a task of aiokafka's own, which had not begun yet
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
