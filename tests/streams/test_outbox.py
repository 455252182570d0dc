"""Outbox: in order for each partition, one batch of each under way, nothing acknowledged early."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from mlops_events.streams.logreader import TopicPartition
from mlops_events.streams.offsets import InOrderCommits
from mlops_events.streams.outbox import MAX_BYTES, DeliveryError, Outbox

A, B = TopicPartition("sink", 0), TopicPartition("sink", 1)


class Builder:
    """A batch of at most three records, or one of any size."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.closed = False

    def append(
        self,
        *,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> object | None:
        """Take a record while there is room."""
        assert not self.closed
        if len(self.values) == 3:
            return None
        self.values.append(value or b"")
        return self

    def close(self) -> None:
        """Take no more."""
        self.closed = True

    def size(self) -> int:
        """Return the bytes of all values."""
        return sum(map(len, self.values))


class Producer:
    """Keeps every batch until the test answers it."""

    def __init__(self) -> None:
        self.sent: list[tuple[TopicPartition, list[bytes], asyncio.Future[None]]] = []
        self.arrived = asyncio.Event()
        self.unknown: set[str] = set()

    def create_batch(self) -> Builder:
        """Return an empty batch."""
        return Builder()

    async def send_batch(
        self, batch: Builder, topic: str, *, partition: int
    ) -> "asyncio.Future[None]":
        """Take a batch, if there is such a topic."""
        if topic in self.unknown:
            raise LookupError("unknown")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent.append((TopicPartition(topic, partition), batch.values, answer))
        self.arrived.set()
        return answer

    async def until(self, batches: int) -> None:
        """Wait until so many batches have come."""
        async with asyncio.timeout(5):
            while len(self.sent) < batches:
                self.arrived.clear()
                await self.arrived.wait()

    def batches(self, tp: TopicPartition) -> list[list[bytes]]:
        """Return what has come for a partition."""
        return [values for at, values, _ in self.sent if at == tp]


@pytest.fixture
async def producer() -> Producer:
    """Return a producer that has sent nothing."""
    return Producer()


@pytest.fixture
async def outbox(producer: Producer) -> AsyncIterator[Outbox]:
    """Yield an outbox that is sending."""
    outbox = Outbox(producer)
    running = asyncio.create_task(outbox.run())
    yield outbox
    running.cancel()
    await asyncio.wait([running])


def put(outbox: Outbox, tp: TopicPartition, *values: bytes) -> None:
    """Put records without a ticket."""
    for value in values:
        outbox.put(tp, key=None, value=value, headers=())


async def test_records_wait_for_the_batch_before_them(producer: Producer, outbox: Outbox) -> None:
    """What comes while a batch is under way goes together; other partitions do not wait."""
    put(outbox, A, b"1")
    await producer.until(1)
    put(outbox, A, b"2", b"3")
    put(outbox, B, b"4")
    await producer.until(2)
    producer.sent[0][2].set_result(None)
    await producer.until(3)

    assert producer.batches(A) == [[b"1"], [b"2", b"3"]]
    assert producer.batches(B) == [[b"4"]]


async def test_full_batches_keep_their_order(producer: Producer, outbox: Outbox) -> None:
    """More records than a batch takes go out in several, one after the other."""
    put(outbox, A, *(b"%d" % i for i in range(8)))
    for i in range(3):
        await producer.until(i + 1)
        assert len(producer.sent) == i + 1
        producer.sent[i][2].set_result(None)

    assert producer.batches(A) == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6", b"7"]]


async def test_a_ticket_waits_for_all_its_batches(producer: Producer, outbox: Outbox) -> None:
    """Outputs of one record in two topics: both must have arrived."""
    commits = InOrderCommits(0)
    ticket = commits.open(1)
    for tp in (A, A, B):
        outbox.put(tp, key=None, value=b"x", headers=(), ticket=ticket)
    ticket.acknowledge()
    await producer.until(2)
    producer.sent[0][2].set_result(None)
    await outbox.moved()

    assert commits.done == 0
    producer.sent[1][2].set_result(None)
    await outbox.moved()
    assert commits.done == 1
    assert outbox.pending_bytes == 0


async def test_a_full_outbox_says_so(producer: Producer, outbox: Outbox) -> None:
    """Bytes count until they are acknowledged."""
    put(outbox, A, bytes(MAX_BYTES), b"more")

    assert outbox.full
    await producer.until(1)
    assert outbox.full
    producer.sent[0][2].set_result(None)
    await outbox.moved()
    assert not outbox.full


async def test_a_failed_batch_ends_the_outbox(producer: Producer) -> None:
    """The reason comes out of `run`, and the ticket stays open."""
    outbox = Outbox(producer)
    running = asyncio.create_task(outbox.run())
    commits = InOrderCommits(0)
    ticket = commits.open(1)
    outbox.put(A, key=None, value=b"x", headers=(), ticket=ticket)
    ticket.acknowledge()
    await producer.until(1)
    producer.sent[0][2].set_exception(RuntimeError("refused"))

    with pytest.raises(DeliveryError, match=r"sink, partition 0.*refused"):
        await running
    assert commits.done == 0


async def test_a_topic_that_is_not_there_ends_the_outbox_with_its_name(producer: Producer) -> None:
    """Whoever reads the log knows which one to create."""
    outbox = Outbox(producer)
    producer.unknown.add(A.topic)
    put(outbox, A, b"x")

    with pytest.raises(DeliveryError, match=r"sink, partition 0.*unknown"):
        await outbox.run()
