"""Marks in records of their own, for the embedded broker, which gives no commit metadata back.

They lie in the checkpoints topic, in the partition of the same number as the sink's.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from mlops_events.sinks.position import Mark

__all__ = ["MarkReader", "decode_mark", "encode_mark", "find_marks"]

_FIRST_LOOK = 50
"""Records of the topic's end that are read first; eight times as many each time that was not
enough."""


class _MarkRecord(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    group: str
    topic: str
    partition: int
    mark: Mark


class MarkReader(Protocol):
    """Reads the checkpoints topic."""

    async def end(self, partition: int) -> int:
        """Return where a partition ends."""
        ...

    async def read(self, partition: int, *, start: int, stop: int) -> Sequence[bytes | None]:
        """Return the values of the records in this range."""
        ...


def encode_mark(mark: Mark, *, group: str, topic: str, partition: int) -> bytes:
    """Return the value of the record that keeps a mark."""
    return _ENCODER.encode(_MarkRecord(group=group, topic=topic, partition=partition, mark=mark))


def decode_mark(value: bytes | None, *, group: str, topic: str, partition: int) -> Mark | None:
    """Return the mark in a record; None if it is somebody else's, or no mark."""
    try:
        record = _DECODER.decode(value or b"")
    except msgspec.MsgspecError:
        return None
    mine = (record.group, record.topic, record.partition) == (group, topic, partition)
    return record.mark if mine else None


async def find_marks(
    reader: MarkReader, *, group: str, topic: str, partitions: Collection[int]
) -> dict[int, Mark]:
    """Return the newest mark of each partition that has one, read back from the topic's end."""
    found: dict[int, Mark] = {}
    for partition in partitions:
        stop = await reader.end(partition)
        look = _FIRST_LOOK
        while stop > 0 and partition not in found:
            start = max(0, stop - look)
            marks = [
                mark
                for value in await reader.read(partition, start=start, stop=stop)
                if (mark := decode_mark(value, group=group, topic=topic, partition=partition))
            ]
            if marks:
                found[partition] = max(marks, key=lambda mark: (mark.incarnation, mark.next))
            stop, look = start, look * 8
    return found


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_MarkRecord)
