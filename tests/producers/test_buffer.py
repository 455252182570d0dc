"""The buffer between the threads that emit and the worker."""

from typing import Any

import pytest

from mlops_events.producers.buffer import CLOSED, FULL, WAKE_BYTES, Buffer

LIMIT = 1 << 20
EVENT = b"x" * 1_000


class Worker:
    """Counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


@pytest.fixture
def worker() -> Worker:
    """Return what a buffer wakes."""
    return Worker()


@pytest.fixture
def buffer(worker: Worker) -> Buffer:
    """Return a buffer of 1 MiB."""
    return Buffer(limit=LIMIT, wake=worker.wake)


def fill(buffer: Buffer) -> int:
    """Put events until one is dropped; return how many were taken."""
    count = 0
    while not buffer.dropped.total():
        buffer.put(EVENT)
        count += 1
    return count - 1


def test_events_come_out_in_the_order_in_which_they_came(buffer: Buffer) -> None:
    """Oldest first, at most as many as are asked for."""
    for event in (b"1", b"2", b"3"):
        buffer.put(event)

    assert (buffer.take(2), buffer.take(2), buffer.take(2)) == ([b"1", b"2"], [b"3"], [])


def test_the_worker_is_woken_by_the_first_event_and_then_by_bytes(
    buffer: Buffer, worker: Worker
) -> None:
    """Never for each event: once at the start, then for every 256 KiB."""
    buffer.put(EVENT)
    first = worker.woken
    for _ in range(WAKE_BYTES // len(EVENT)):
        buffer.put(EVENT)
    before = worker.woken
    buffer.put(EVENT)

    assert (first, before, worker.woken) == (1, 1, 2)


@pytest.mark.parametrize("event", [EVENT, (3, 5, None, EVENT)])
def test_a_full_buffer_drops_the_newest(buffer: Buffer, event: Any) -> None:
    """It holds its limit, whichever form events have, and counts the rest."""
    for _ in range(2_000):
        buffer.put(event)

    assert len(buffer) == LIMIT // len(EVENT)
    assert buffer.dropped.counts() == {FULL: 2_000 - len(buffer)}
    assert buffer.size <= LIMIT


def test_taken_events_take_room_until_they_are_acknowledged(buffer: Buffer) -> None:
    """What waits in frames counts; what is gone makes room."""
    count = fill(buffer)
    taken = buffer.take(count)
    held = sum(map(len, taken))
    buffer.settle(held, taken=held)
    buffer.put(EVENT)
    still_full = buffer.dropped.counts()[FULL]
    buffer.settle(0)
    buffer.put(EVENT)

    assert still_full == 2
    assert buffer.take(10) == [EVENT]
    assert buffer.dropped.counts() == {FULL: 2}


def test_a_visit_that_takes_a_part_counts_the_rest(buffer: Buffer) -> None:
    """What is left in the buffer keeps its room."""
    count = fill(buffer)
    taken = sum(map(len, buffer.take(count // 2)))
    buffer.settle(0, taken=taken)

    assert buffer.size == len(buffer) * len(EVENT)


def test_an_event_larger_than_the_buffer_is_dropped(buffer: Buffer) -> None:
    """Not even an empty buffer takes it, and smaller ones still fit."""
    buffer.put(b"x" * (LIMIT + 1))
    buffer.put(EVENT)

    assert buffer.dropped.counts() == {FULL: 1}
    assert buffer.take(10) == [EVENT]


def test_a_closed_buffer_drops_everything(buffer: Buffer, worker: Worker) -> None:
    """What it holds can still be taken; settling does not open it again."""
    buffer.put(EVENT)
    buffer.close()
    buffer.put(EVENT)
    buffer.settle(0)
    buffer.put(EVENT)

    assert buffer.take(10) == [EVENT]
    assert buffer.dropped.counts() == {CLOSED: 2}
    assert worker.woken == 1
