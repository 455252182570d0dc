"""LogReader: stretches of partitions come whole and in order, from either kind of broker."""

from typing import Any

from mlops_events.streams.logreader import LogReader, Span, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def filled(logs: Any) -> LogReader:
    """Fill A with 25 records, of which retention took three, and return a reader."""
    for i in range(25):
        logs.append(A, b"%d" % i)
    logs.records[A] = logs.records[A][3:]
    logs.starts[A] = 3
    return LogReader(logs, embedded=logs.embedded)


async def test_bounds_are_where_the_logs_start_and_end(logs: Any) -> None:
    """The embedded broker's ends are right too, though it tells them only after a fetch."""
    reader = filled(logs)

    assert await reader.bounds({A, B}) == {A: Span(3, 25), B: Span(0, 0)}
    assert await reader.bounds(()) == {}


async def test_a_span_is_read_whole_and_no_further(logs: Any) -> None:
    """Records at and behind the end stay out, also when a fetch brings them."""
    reader = filled(logs)

    got = [(tp, r.offset) async for tp, r in reader.read({A: Span(4, 17), B: Span(0, 0)})]

    assert got == [(A, offset) for offset in range(4, 17)]


async def test_single_records_are_found_by_their_place(logs: Any) -> None:
    """A place without a record is left out."""
    reader = filled(logs)

    found = await reader.at({A: 7})

    assert {tp: r.value for tp, r in found.items()} == {A: b"7"}


async def test_a_span_may_end_in_a_hole(logs: Any) -> None:
    """The broker claims offsets that never exist: reading ends all the same."""
    reader = filled(logs)
    if not logs.embedded:
        logs.records[A].append(logs.records[A][-1]._replace(offset=30))
    logs.ends[A] = 30

    got = [r.offset async for _, r in reader.read({A: Span(20, 30)})]

    assert got == [20, 21, 22, 23, 24]
