"""Kafka records for a Faust agent in batches: one stream event is a run of records of one partition.

Faust spends four asyncio tasks and three loop turns on every message, whatever its size. Here a
message is a whole run of records, by two documented settings: `ConsumerScheduler` gets every poll
and decides what becomes a message, `Schema` decides what its value is. Group, rebalances, flow
control, agents and shutdown stay Faust's own.

Such an app has no tables, all its topics say `acks=False`, and it has one source and one agent:
a full buffer holds back every partition.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import faust
from aiokafka.structs import ConsumerRecord
from faust.transport.utils import DefaultSchedulingStrategy
from faust.types import TP, AppT, Message
from mode.utils.queues import ThrowableQueue

__all__ = [
    "MAX_RECORDS",
    "SETTINGS",
    "Batch",
    "BatchApp",
    "BatchScheduler",
    "BatchSchema",
    "BlockingQueue",
    "Record",
]

MAX_RECORDS: Final = 2000
"""Records in one batch: bounds the memory of a full buffer."""


class Record(Protocol):
    """What is used of a Kafka record."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch: the broker's clock, or the producer's on some brokers."""
        ...

    @property
    def value(self) -> bytes | None:
        """The frame."""
        ...


class Batch:
    """Records of one partition in the order of their offsets, at least one."""

    __slots__ = ("records", "tp")

    def __init__(self, tp: TP, records: Sequence[Record]) -> None:
        self.tp = tp
        self.records = records

    def __len__(self) -> int:
        return len(self.records)


class BatchScheduler(DefaultSchedulingStrategy):
    """Turns each poll into one message per run of records, the partitions taking turns."""

    def iterate(self, records: Mapping[TP, list[Any]]) -> Iterator[tuple[TP, Any]]:
        """Yield the messages of a poll."""
        return super().iterate({tp: list(_runs(tp, polled)) for tp, polled in records.items()})


def _runs(tp: TP, records: list[Any]) -> Iterator[ConsumerRecord]:
    tp = TP(tp.topic, tp.partition)
    for i in range(0, len(records), MAX_RECORDS):
        run = records[i : i + MAX_RECORDS]
        yield ConsumerRecord(
            topic=tp.topic,
            partition=tp.partition,
            offset=run[0].offset,
            timestamp=run[-1].timestamp,
            timestamp_type=run[-1].timestamp_type,
            key=None,
            value=Batch(tp, run),
            checksum=None,
            serialized_key_size=-1,
            serialized_value_size=-1,
            headers=(),
        )


class BatchSchema(faust.Schema[Any, Any]):
    """A message's value is its batch: whoever reads it decodes the records."""

    def loads_key(self, app: AppT, message: Message, **_: Any) -> Any:
        """Return nothing: a batch has no key."""
        return None

    def loads_value(self, app: AppT, message: Message, **_: Any) -> Any:
        """Return the batch."""
        return message.value


class BlockingQueue(ThrowableQueue[Any]):
    """A queue that holds the fetcher back when it is full, and never pauses a partition.

    With all partitions paused Faust's fetcher sleeps for a whole second.
    """

    def in_pressure_high_state(self, callback: Any) -> bool:
        """Say that there is room, which keeps Faust from pausing partitions."""
        return False


class BatchApp(faust.App):
    """A Faust app whose agent gets batches; to be made with `SETTINGS`."""

    def FlowControlQueue(  # noqa: N802 - Faust's name
        self, maxsize: int | None = None, *, clear_on_resume: bool = False
    ) -> BlockingQueue:
        """Return the buffer of a stream."""
        return BlockingQueue(
            maxsize=maxsize or 0, flow_control=self.flow_control, clear_on_resume=clear_on_resume
        )

    async def on_first_start(self) -> None:
        """Make no folders: there are no tables to keep in them."""


SETTINGS: Final[Mapping[str, Any]] = {
    "ConsumerScheduler": BatchScheduler,
    "Schema": BatchSchema,
    "stream_buffer_maxsize": 4,  # batches
    "broker_max_poll_records": 8000,
    # A full buffer stops polling; with a limit aiokafka would leave the group and never return.
    "broker_max_poll_interval": 1e6,
}
