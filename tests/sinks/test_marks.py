"""Marks in records of their own."""

from collections.abc import Collection, Mapping, Sequence

import pytest

from mlops_events.sinks.marks import decode_mark, encode_mark, find_marks
from mlops_events.sinks.position import Mark

WHOSE = {"group": "g", "topic": "t"}


def mark(next: int, incarnation: int = 0) -> Mark:  # noqa: A002 - the word here
    """A mark at an offset."""
    return Mark(incarnation=incarnation, next=next, timestamp_ms=1, crc=2)


class Reader:
    """A checkpoints topic of one partition in memory."""

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self.values = values
        self.read_records = 0

    async def ends(self, partitions: Collection[int]) -> dict[int, int]:
        return {p: len(self.values) if p == 0 else 0 for p in partitions}

    async def read(self, spans: Mapping[int, range]) -> dict[int, list[bytes | None]]:
        assert list(spans) == [0]
        self.read_records += len(spans[0])
        return {0: list(self.values[spans[0].start : spans[0].stop])}


@pytest.mark.parametrize("value", [None, b"", b"garbage", b"\x80", b"\x81\xa1v\x01"])
def test_what_is_no_mark_is_ignored(value: bytes | None) -> None:
    """The topic holds the checkpoints of the streams too."""
    assert decode_mark(value, partition=0, **WHOSE) is None


def test_somebody_elses_mark_is_ignored() -> None:
    """Other sinks and prefixes may keep theirs in the same topic."""
    value = encode_mark(mark(5), partition=1, **WHOSE)

    assert decode_mark(value, partition=1, **WHOSE) == mark(5)
    assert decode_mark(value, partition=0, **WHOSE) is None
    assert decode_mark(value, partition=1, group="another", topic="t") is None


@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 40), (0, 5_000), (700, 3)])
async def test_the_newest_mark_is_found_from_the_end(before: int, after: int) -> None:
    """However many other records follow it, and without reading what lies long before."""
    marks = [encode_mark(mark(n), partition=0, **WHOSE) for n in (7, 9, 8)]
    reader = Reader([b"x"] * before + marks + [b"x"] * after)

    assert await find_marks(reader, partitions=[0, 1], **WHOSE) == {0: mark(9)}
    assert reader.read_records <= max(100, 10 * (after + 3))


async def test_a_higher_incarnation_wins() -> None:
    """After a topic was made anew its offsets are lower."""
    values = [encode_mark(m, partition=0, **WHOSE) for m in (mark(100), mark(3, 1))]

    assert await find_marks(Reader([*values]), partitions=[0], **WHOSE) == {0: mark(3, 1)}


async def test_there_may_be_none() -> None:
    """A fresh folder has no marks."""
    assert await find_marks(Reader([]), partitions=[0, 1], **WHOSE) == {}
    assert await find_marks(Reader([b"x"] * 60), partitions=[0], **WHOSE) == {}
