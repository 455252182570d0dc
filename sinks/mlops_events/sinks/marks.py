"""Marks in records of their own, for the embedded broker, which gives no commit metadata back.

They lie in the checkpoints topic, in the partition of the same number as the sink's.
"""

from collections.abc import Collection, Mapping
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

    async def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return where partitions end."""
        ...

    async def read(self, spans: Mapping[int, range]) -> dict[int, list[bytes | None]]:
        """Return the values of the records of these offsets, by partition."""
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
    left = {p: end for p, end in (await reader.ends(partitions)).items() if end > 0}
    look = _FIRST_LOOK
    while left:
        spans = {p: range(max(0, end - look), end) for p, end in left.items()}
        values = await reader.read(spans)
        for p in spans:
            decoded = (
                decode_mark(value, group=group, topic=topic, partition=p)
                for value in values.get(p, ())
            )
            marks = [mark for mark in decoded if mark is not None]
            if marks:
                found[p] = max(marks, key=lambda mark: (mark.incarnation, mark.next))
        left = {p: span.start for p, span in spans.items() if p not in found and span.start > 0}
        look *= 8
    return found


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_MarkRecord)
