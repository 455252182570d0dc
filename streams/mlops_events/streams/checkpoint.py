"""The state of source partitions to and from the checkpoint topic."""

import asyncio
import secrets
from collections.abc import Awaitable, Collection, Sequence
from typing import Final, NamedTuple, Protocol

import cramjam
import msgspec

from mlops_events.streams.logreader import LogReader, Span, TopicPartition
from mlops_events.streams.state import Mark

__all__ = [
    "Assembly",
    "Checkpoint",
    "ChunkProducer",
    "Resume",
    "checkpoint_due",
    "find_checkpoints",
    "resume",
    "split",
    "write_checkpoints",
]

CHUNK_BYTES: Final = 1 << 20
IDLE_S: Final = 3600.0
"""An idle partition's checkpoint is written again, so that retention never takes the last one and
a start never reads back further than this."""
AT_MOST_S: Final = 60.0
_FIRST_LOOK: Final = 32  # records
_LEVEL: Final = 3


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a source partition at an offset.

    `partitions` is how many the topic has: with another number a key means another partition.
    `written_ms` is the broker's, 0 until it has been read back.
    """

    group: str
    topic: str
    partition: int
    partitions: int
    incarnation: int
    next: int
    state: bytes
    written_ms: int = 0

    @property
    def source(self) -> TopicPartition:
        """The partition whose state it is."""
        return TopicPartition(self.topic, self.partition)


class _Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of a record of the checkpoint topic: part `i` of `n` of one checkpoint."""

    v: int = 1
    group: str
    topic: str
    partition: int
    partitions: int
    id: bytes
    i: int
    n: int
    incarnation: int
    next: int
    data: bytes


_ENCODER = msgspec.msgpack.Encoder()
_CHUNK = msgspec.msgpack.Decoder(_Chunk)


def split(checkpoint: Checkpoint) -> list[bytes]:
    """Return the records that hold a checkpoint, all of them needed to read it back."""
    packed = bytes(cramjam.zstd.compress(checkpoint.state, level=_LEVEL))
    name = secrets.token_bytes(16)
    starts = range(0, max(len(packed), 1), CHUNK_BYTES)
    return [
        _ENCODER.encode(
            _Chunk(
                group=checkpoint.group,
                topic=checkpoint.topic,
                partition=checkpoint.partition,
                partitions=checkpoint.partitions,
                id=name,
                i=i,
                n=len(starts),
                incarnation=checkpoint.incarnation,
                next=checkpoint.next,
                data=packed[start : start + CHUNK_BYTES],
            )
        )
        for i, start in enumerate(starts)
    ]


class Assembly:
    """Puts checkpoints together from records in any order, and keeps the furthest of each source.

    Who wrote it does not matter: that of a worker that was replaced is true too. One that misses
    a chunk is ignored, and so is what is no chunk.
    """

    def __init__(self, group: str, wanted: Collection[TopicPartition]) -> None:
        self._group = group
        self._wanted = frozenset(wanted)
        self._found: dict[TopicPartition, tuple[int, int]] = {}
        self._parts: dict[bytes, dict[int, _Chunk]] = {}
        self.furthest: dict[TopicPartition, Checkpoint] = {}

    def add(self, value: bytes | None, *, written_ms: int) -> None:
        """Take a record of the checkpoint topic."""
        try:
            chunk = _CHUNK.decode(value or b"")
        except msgspec.MsgspecError:
            return
        source = TopicPartition(chunk.topic, chunk.partition)
        place = (chunk.incarnation, chunk.next)
        if (
            chunk.group != self._group
            or source not in self._wanted
            or place <= self._found.get(source, (-1, -1))
        ):
            return
        parts = self._parts.setdefault(chunk.id, {})
        parts[chunk.i] = chunk
        if len(parts) < chunk.n:
            return
        del self._parts[chunk.id]
        packed = b"".join(parts[i].data for i in range(chunk.n))
        try:
            state = bytes(cramjam.zstd.decompress(packed))
        except cramjam.DecompressionError:
            return
        self._found[source] = place
        self.furthest[source] = Checkpoint(
            group=chunk.group,
            topic=chunk.topic,
            partition=chunk.partition,
            partitions=chunk.partitions,
            incarnation=chunk.incarnation,
            next=chunk.next,
            state=state,
            written_ms=written_ms,
        )


class ChunkProducer(Protocol):
    """What is used of aiokafka's producer."""

    async def send(
        self, topic: str, *, value: bytes, key: bytes, partition: int
    ) -> Awaitable[object]:
        """Send a record; the result is done when it is acknowledged."""
        ...


async def find_checkpoints(
    reader: LogReader, *, topic: str, group: str, wanted: Collection[TopicPartition]
) -> dict[TopicPartition, Checkpoint]:
    """Read the checkpoint topic back from its end until every wanted partition has one.

    The source's partitions have their checkpoints in the partition of the same number. A source
    without one makes this read to the log's start.

    Raises:
        TimeoutError: the broker does not answer.
    """
    places = {TopicPartition(topic, source.partition) for source in wanted}
    logs = await reader.bounds(places)
    assembly = Assembly(group, wanted)
    spans = {tp: Span(max(log.start, log.end - _FIRST_LOOK), log.end) for tp, log in logs.items()}
    while spans:
        async for _, record in reader.read(spans):
            assembly.add(record.value, written_ms=record.timestamp)
        missing = {source.partition for source in wanted if source not in assembly.furthest}
        spans = {
            tp: Span(max(logs[tp].start, span.start - 4 * (span.end - span.start)), span.start)
            for tp, span in spans.items()
            if tp.partition in missing and span.start > logs[tp].start
        }
    return assembly.furthest


class Resume(NamedTuple):
    """Where reading goes on, and what happened to the log since the checkpoint."""

    offset: int
    expired: int = 0
    recreated: bool = False


def resume(*, next: int, mark: Mark | None, log: Span, at_mark: Mark | None) -> Resume:  # noqa: A002
    """Say where to go on after a checkpoint.

    Args:
        next: the checkpoint's.
        mark: the checkpoint's, None if it stands behind no record.
        log: where the source's log starts and ends.
        at_mark: of the record at `next` - 1, None if there is none.
    """
    replaced = mark is not None and at_mark is not None and mark != at_mark
    if log.end < next or replaced:
        return Resume(log.start, recreated=True)
    if log.start > next:
        return Resume(log.start, expired=log.start - next)
    return Resume(next)


async def write_checkpoints(
    producer: ChunkProducer, topic: str, checkpoints: Sequence[Checkpoint]
) -> list[int]:
    """Write checkpoints, and return the bytes of each, when all have arrived.

    Raises:
        Exception: one could not be delivered.
    """
    sizes: list[int] = []
    arriving: list[Awaitable[object]] = []
    for checkpoint in checkpoints:
        chunks = await asyncio.to_thread(split, checkpoint)
        sizes.append(sum(map(len, chunks)))
        key = f"{checkpoint.group}/{checkpoint.topic}/{checkpoint.partition}".encode()
        arriving += [
            await producer.send(topic, value=chunk, key=key, partition=checkpoint.partition)
            for chunk in chunks
        ]
    await asyncio.gather(*arriving)
    return sizes


def checkpoint_due(*, elapsed_s: float, read_bytes: int, size_bytes: int, every_s: float) -> bool:
    """Say whether a partition's checkpoint is to be written now.

    Args:
        elapsed_s: since the last one.
        read_bytes: from the source since then.
        size_bytes: of the last one.
        every_s: how often while there is something to read; up to a minute where checkpoints
            would otherwise come to more than half of what is read.
    """
    if not read_bytes:
        return elapsed_s >= IDLE_S
    if 2 * size_bytes <= read_bytes:
        return elapsed_s >= every_s
    return elapsed_s >= max(every_s, AT_MOST_S)
