"""Outputs on their way to Kafka: gathered per partition, bounded, acknowledged in order."""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.streams.logreader import TopicPartition
from mlops_events.streams.offsets import Ticket

__all__ = ["BatchBuilder", "BatchProducer", "DeliveryError", "Outbox"]

MAX_BYTES: Final = 32 << 20
"""Not yet acknowledged, over all partitions; whoever fills the outbox waits above it."""


class DeliveryError(MlopsEventsError):
    """Records could not be delivered: the message says to which topic, and why."""


class BatchBuilder(Protocol):
    """What is used of aiokafka's batch builder."""

    def append(
        self,
        *,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> object | None:
        """Add a record; return None if the batch is full."""
        ...

    def close(self) -> None:
        """Take no more records."""
        ...

    def size(self) -> int:
        """Return its bytes, uncompressed."""
        ...


class BatchProducer(Protocol):
    """What is used of aiokafka's producer."""

    def create_batch(self) -> Any:
        """Return a BatchBuilder."""
        ...

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> "asyncio.Future[Any]":
        """Send a batch; the future is done when it is acknowledged."""
        ...


class _Parcel:
    __slots__ = ("builder", "size", "tickets")

    def __init__(self, builder: BatchBuilder) -> None:
        self.builder = builder
        self.tickets: list[Ticket] = []
        self.size = 0


class _Lane:
    """One partition's batches: at most one under way, the last may still be filled."""

    __slots__ = ("busy", "parcels", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.parcels: deque[_Parcel] = deque()
        self.busy = False


class Outbox:
    """Sends what is put into it, in order for each partition.

    While a batch of a partition is under way the next one is filled, so batches grow with the
    load and nothing lingers without it. `run` does the sending. A batch that cannot be delivered
    ends `run` with the reason: nothing behind it may be called delivered.

    Args:
        producer: a started producer.
    """

    def __init__(self, producer: BatchProducer) -> None:
        self._producer = producer
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._failure: DeliveryError | None = None
        self.pending_bytes = 0

    @property
    def full(self) -> bool:
        """True while so much is under way that nothing should be added."""
        return self.pending_bytes > MAX_BYTES

    def put(
        self,
        tp: TopicPartition,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        ticket: Ticket | None = None,
    ) -> None:
        """Take a record; its ticket is acknowledged when it has arrived."""
        lane = self._lanes.get(tp)
        if lane is None:
            lane = self._lanes[tp] = _Lane(tp)
        parcel = lane.parcels[-1] if lane.parcels else self._parcel(lane)
        added = parcel.builder.append(timestamp=None, key=key, value=value, headers=headers)
        if added is None:  # full: the next one takes any size
            parcel = self._parcel(lane)
            parcel.builder.append(timestamp=None, key=key, value=value, headers=headers)
        size = parcel.builder.size()
        self.pending_bytes += size - parcel.size
        parcel.size = size
        if ticket is not None and (not parcel.tickets or parcel.tickets[-1] is not ticket):
            ticket.expect()
            parcel.tickets.append(ticket)

    async def run(self) -> None:
        """Send until cancelled.

        Raises:
            DeliveryError: a batch could not be delivered.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            while self._ready:
                lane = self._ready.popleft()
                parcel = lane.parcels.popleft()
                parcel.builder.close()
                try:
                    sent = await self._producer.send_batch(
                        parcel.builder, lane.tp.topic, partition=lane.tp.partition
                    )
                except Exception as error:  # whatever it is, it gets its topic's name
                    raise _undelivered(lane.tp, error) from error
                sent.add_done_callback(partial(self._arrived, lane, parcel))

    async def moved(self) -> None:
        """Wait until something has been acknowledged."""
        self._moved.clear()
        await self._moved.wait()

    def _parcel(self, lane: _Lane) -> _Parcel:
        parcel = _Parcel(self._producer.create_batch())
        lane.parcels.append(parcel)
        if not lane.busy:
            lane.busy = True
            self._ready.append(lane)
            self._wake.set()
        return parcel

    def _arrived(self, lane: _Lane, parcel: _Parcel, sent: "asyncio.Future[Any]") -> None:
        failure = asyncio.CancelledError() if sent.cancelled() else sent.exception()
        if failure is not None:
            self._failure = self._failure or _undelivered(lane.tp, failure)
            self._wake.set()
            return
        self.pending_bytes -= parcel.size
        for ticket in parcel.tickets:
            ticket.acknowledge()
        self._moved.set()
        lane.busy = bool(lane.parcels)
        if lane.busy:
            self._ready.append(lane)
            self._wake.set()


def _undelivered(tp: TopicPartition, cause: BaseException) -> DeliveryError:
    error = DeliveryError(
        f"{tp.topic}, partition {tp.partition}, does not take what belongs there: {cause!r}"
    )
    error.__cause__ = cause
    return error
