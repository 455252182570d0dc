"""Checkpoints: the furthest complete one is found, whoever wrote it and wherever it lies."""

import os
from functools import cache
from typing import Any

import pytest

from mlops_events.streams.checkpoint import (
    CHUNK_BYTES,
    Assembly,
    Checkpoint,
    Resume,
    checkpoint_due,
    find_checkpoints,
    resume,
    split,
)
from mlops_events.streams.logreader import LogReader, Span, TopicPartition
from mlops_events.streams.state import Mark

SOURCE = TopicPartition("raw", 1)
OTHER = TopicPartition("other", 1)
PLACE = TopicPartition("checkpoints", 1)


def checkpoint(
    next: int = 10,  # noqa: A002
    *,
    source: TopicPartition = SOURCE,
    group: str = "g",
    incarnation: int = 0,
    state: bytes = b"state",
) -> Checkpoint:
    """Return a checkpoint."""
    return Checkpoint(
        group=group,
        topic=source.topic,
        partition=source.partition,
        partitions=4,
        incarnation=incarnation,
        next=next,
        state=state,
    )


@cache
def large_state(chunks: int) -> bytes:
    """Return a state that zstd cannot make smaller, and that fills so many chunks."""
    return os.urandom(CHUNK_BYTES * (chunks - 1) + 1000)


def assembled(*records: bytes) -> Checkpoint | None:
    """Return what an assembly makes of these records for SOURCE."""
    assembly = Assembly("g", {SOURCE})
    for record in records:
        assembly.add(record, written_ms=0)
    return assembly.furthest.get(SOURCE)


def test_a_checkpoint_comes_back_as_it_was() -> None:
    """One chunk holds a small state, also an empty one."""
    assert assembled(*split(checkpoint())) == checkpoint()
    assert assembled(*split(checkpoint(state=b""))) == checkpoint(state=b"")


def test_a_large_state_is_split_into_chunks_of_a_mebibyte() -> None:
    """All chunks are needed, in any order, and none is much larger than a mebibyte."""
    large = checkpoint(state=large_state(3))
    chunks = split(large)

    assert len(chunks) == 3
    assert max(map(len, chunks)) < CHUNK_BYTES + 1000
    assert assembled(*reversed(chunks)) == large
    assert assembled(*chunks[:2]) is None
    assert assembled(*chunks[1:]) is None


def test_torn_checkpoints_are_ignored() -> None:
    """One that misses a chunk does not hide an earlier one that is whole."""
    torn = split(checkpoint(20, state=large_state(2)))[:1]

    assert assembled(*split(checkpoint(10)), *torn) == checkpoint(10)


def test_chunks_of_two_writers_do_not_mix() -> None:
    """Halves of two checkpoints at the same place, in turn, are two halves."""
    one = split(checkpoint(state=large_state(2)))
    two = split(checkpoint(state=large_state(2)))

    assert assembled(one[0], two[1]) is None
    assert assembled(one[0], two[0], two[1], one[1]) == checkpoint(state=large_state(2))


def test_the_furthest_wins_by_incarnation_then_offset() -> None:
    """A zombie's later record does not win over a further one, nor a high offset of an old log."""
    records = [
        *split(checkpoint(50, incarnation=1)),
        *split(checkpoint(40, incarnation=1)),
        *split(checkpoint(900)),
    ]

    assert assembled(*records) == checkpoint(50, incarnation=1)


@pytest.mark.parametrize(
    "stray",
    [
        *split(checkpoint(99, group="another")),
        *split(checkpoint(99, source=OTHER)),
        b"",
        b"garbage",
        split(checkpoint(99))[0][:-3],
        split(checkpoint(99))[0].replace(b"\x28\xb5\x2f\xfd", b"\x00\x00\x00\x00"),
    ],
)
def test_strange_records_are_ignored(stray: bytes) -> None:
    """Another group's, another source's, none at all, garbage, a cut and a damaged one."""
    assert assembled(*split(checkpoint()), stray) == checkpoint()


async def test_the_newest_are_found_at_the_end(logs: Any) -> None:
    """A long history is not read when both sources have a checkpoint among the last records."""
    for i in range(500):
        source = SOURCE if i % 2 else OTHER
        for record in split(checkpoint(i, source=source)):
            logs.append(PLACE, record, timestamp=1000 + i)
    logs.fetched = 0

    found = await find_checkpoints(
        LogReader(logs, embedded=logs.embedded),
        topic="checkpoints",
        group="g",
        wanted={SOURCE, OTHER},
    )

    assert {source: c.next for source, c in found.items()} == {SOURCE: 499, OTHER: 498}
    assert found[SOURCE].written_ms == 1499
    assert logs.fetched < 100


async def test_an_idle_source_is_looked_for_further_back(logs: Any) -> None:
    """Its last checkpoint lies behind many of another source, its chunks across two looks."""
    idle = checkpoint(7, state=large_state(40))
    for record in split(idle):
        logs.append(PLACE, record)
    for i in range(300):
        for record in split(checkpoint(i, source=OTHER)):
            logs.append(PLACE, record)

    found = await find_checkpoints(
        LogReader(logs, embedded=logs.embedded),
        topic="checkpoints",
        group="g",
        wanted={SOURCE, OTHER, TopicPartition("raw", 2)},
    )

    assert found[SOURCE] == idle
    assert set(found) == {SOURCE, OTHER}


MARK, CHANGED = Mark(5, 1), Mark(5, 2)


@pytest.mark.parametrize(
    ("next", "mark", "log", "at_mark", "expected"),
    [
        (10, MARK, Span(0, 20), MARK, Resume(10)),
        (10, MARK, Span(0, 10), MARK, Resume(10)),
        (10, MARK, Span(10, 20), None, Resume(10)),
        (10, None, Span(0, 20), CHANGED, Resume(10)),
        (0, None, Span(0, 0), None, Resume(0)),
        (10, MARK, Span(15, 20), None, Resume(15, expired=5)),
        (10, MARK, Span(20, 20), None, Resume(20, expired=10)),
        (10, MARK, Span(0, 9), None, Resume(0, recreated=True)),
        (10, MARK, Span(0, 0), None, Resume(0, recreated=True)),
        (10, MARK, Span(2, 30), CHANGED, Resume(2, recreated=True)),
    ],
)
def test_reading_goes_on_where_the_log_allows(
    next: int,  # noqa: A002
    mark: Mark | None,
    log: Span,
    at_mark: Mark | None,
    expected: Resume,
) -> None:
    """Continued, shortened by retention, or another log: each is told from the other."""
    assert resume(next=next, mark=mark, log=log, at_mark=at_mark) == expected


@pytest.mark.parametrize(
    ("elapsed_s", "read_bytes", "size_bytes", "due"),
    [
        (9, 1000, 0, False),
        (10, 1000, 0, True),
        (10, 1000, 500, True),
        (10, 1000, 501, False),
        (59, 1000, 10_000, False),
        (60, 1000, 10_000, True),
        (3599, 0, 500, False),
        (3600, 0, 10_000, True),
    ],
)
def test_checkpoints_keep_their_pace(
    elapsed_s: float, read_bytes: int, size_bytes: int, due: bool
) -> None:
    """Every ten seconds, up to a minute apart to stay below half of what is read; hourly idle."""
    found = checkpoint_due(
        elapsed_s=elapsed_s, read_bytes=read_bytes, size_bytes=size_bytes, every_s=10
    )

    assert found is due
