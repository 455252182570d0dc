"""Offsets: the guard loses nothing, repeats nothing and always moves; commits stay in order."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlops_events.streams.offsets import (
    Admission,
    GuardCounts,
    InOrderCommits,
    OffsetGuard,
    Ticket,
)


class At(NamedTuple):
    """A record that is nothing but its offset."""

    offset: int


def run(*offsets: int) -> list[At]:
    """Return records at these offsets."""
    return [At(offset) for offset in offsets]


@pytest.fixture
def counts() -> GuardCounts:
    """Return counts at zero."""
    return GuardCounts()


def guard_at(start: int, counts: GuardCounts) -> OffsetGuard:
    """Return a guard that wants `start` at time 0."""
    return OffsetGuard(start, now=0.0, counts=counts)


def test_a_run_in_order_is_admitted_whole(counts: GuardCounts) -> None:
    """Records that follow one another pass."""
    guard = guard_at(5, counts)

    assert guard.offer(run(5, 6, 7), now=0) == Admission(0, 3)
    assert guard.offer(run(8), now=0) == Admission(0, 1)
    assert guard.next == 9
    assert counts == GuardCounts()


@pytest.mark.parametrize(
    ("offsets", "expected", "repeated"),
    [
        ((1, 2, 3), Admission(0, 0), 3),
        ((3, 4), Admission(0, 0), 2),
        ((3, 4, 5, 6), Admission(2, 4), 2),
        ((4, 5), Admission(1, 2), 1),
        ((1, 3, 6), Admission(0, 0, 5), 2),
    ],
)
def test_repeats_are_trimmed(
    counts: GuardCounts, offsets: Sequence[int], expected: Admission, repeated: int
) -> None:
    """What was read before is dropped and counted, the rest passes or is a hole."""
    guard = guard_at(5, counts)

    assert guard.offer(run(*offsets), now=0) == expected
    assert counts.repeated == repeated


def test_a_hole_at_the_head_is_read_again_once(counts: GuardCounts) -> None:
    """The first record behind a hole makes the caller seek back; the following do not."""
    guard = guard_at(5, counts)

    assert guard.offer(run(7, 8), now=0) == Admission(0, 0, 5)
    assert guard.offer(run(9), now=0.1) == Admission(0, 0)
    assert guard.offer(run(7, 8), now=0.2) == Admission(0, 0)
    assert guard.next == 5
    assert counts.holes == 1


def test_a_passing_hole_heals(counts: GuardCounts) -> None:
    """Records that were only late are admitted when they are read again."""
    guard = guard_at(5, counts)
    guard.offer(run(7), now=0)

    assert guard.offer(run(5, 6, 7), now=0.6) == Admission(0, 3)
    assert not guard.open_hole
    assert (counts.healed, counts.accepted) == (1, 0)


def test_a_lasting_hole_is_accepted_after_two_seconds(counts: GuardCounts) -> None:
    """The same record behind the same hole after two seconds: the hole stays."""
    guard = guard_at(5, counts)
    guard.offer(run(8), now=0)

    assert guard.offer(run(8, 9), now=1.9) == Admission(0, 0)
    assert guard.offer(run(8, 9), now=2.0) == Admission(0, 2)
    assert guard.next == 10
    assert (counts.accepted, counts.missing) == (1, 3)


def test_only_the_nearest_record_closes_a_hole(counts: GuardCounts) -> None:
    """A record further behind does not make a hole lasting, whatever the time."""
    guard = guard_at(5, counts)
    guard.offer(run(8), now=0)

    assert guard.offer(run(20), now=3) == Admission(0, 0)
    assert guard.offer(run(7), now=3) == Admission(0, 0)
    assert guard.offer(run(8), now=4) == Admission(0, 0)
    assert guard.offer(run(7), now=5) == Admission(0, 1)
    assert counts.missing == 2


def test_a_hole_inside_a_run_cuts_it(counts: GuardCounts) -> None:
    """What stands before the hole passes; what follows is read again."""
    guard = guard_at(5, counts)

    assert guard.offer(run(5, 6, 9, 10), now=0) == Admission(0, 2, 7)
    assert guard.offer(run(11), now=0.1) == Admission(0, 0)
    assert guard.offer(run(7, 8, 9, 10, 11), now=0.6) == Admission(0, 5)
    assert (counts.holes, counts.healed) == (1, 1)


def test_an_accepted_hole_may_be_followed_by_another(counts: GuardCounts) -> None:
    """Each hole gets its own two seconds."""
    guard = guard_at(0, counts)
    guard.offer(run(1, 3), now=0)

    assert guard.offer(run(1, 3), now=2) == Admission(0, 1, 2)
    assert guard.offer(run(3), now=3) == Admission(0, 0)
    assert guard.offer(run(3), now=4) == Admission(0, 1)
    assert counts.missing == 2


def test_an_open_hole_is_read_again_every_half_second(counts: GuardCounts) -> None:
    """The clock, not the refused batches, sets the pace: else a busy log would never settle."""
    guard = guard_at(5, counts)
    guard.offer(run(7), now=0)

    assert guard.tick(now=0.4) is None
    assert guard.tick(now=0.5) == 5
    assert guard.tick(now=0.6) is None
    assert guard.tick(now=1.0) == 5


def test_a_skipped_tail_is_read_again(counts: GuardCounts) -> None:
    """Nothing comes after a skipped tail, but the log's end tells of it."""
    guard = guard_at(5, counts)
    guard.offer(run(5), now=1)

    assert guard.tick(now=10.9, log_end=9) is None
    assert guard.tick(now=11, log_end=9) == 6
    assert guard.tick(now=11.5, log_end=9) is None
    assert guard.tick(now=21, log_end=9) == 6
    assert counts.nudges == 2


@pytest.mark.parametrize("log_end", [None, 0, 5])
def test_a_partition_that_is_read_to_its_end_is_left_alone(
    counts: GuardCounts, log_end: int | None
) -> None:
    """An unknown end, an end that a broker under-reports and the right end are no reason."""
    guard = guard_at(5, counts)

    assert guard.tick(now=1000, log_end=log_end) is None


def test_what_retention_took_is_counted_and_passed(counts: GuardCounts) -> None:
    """The log's start lies behind what is next: there is nothing to wait for."""
    guard = guard_at(5, counts)
    guard.offer(run(9), now=0)

    assert guard.log_starts_at(4) == 0
    assert guard.log_starts_at(9) == 4
    assert guard.offer(run(9), now=0) == Admission(0, 1)
    assert (counts.expired, counts.accepted) == (4, 0)


class Broker:
    """A log with holes that pass and holes that stay, read through a lossy fetcher."""

    def __init__(self, lasting: set[int], passing: set[int], length: int) -> None:
        self.lasting = lasting
        self.passing = passing
        self.length = length
        self.position = 0

    def fetch(self, most: int, *, now: float) -> list[At]:
        """Return what a poll gets: passing holes are there for the first 1.5 s."""
        hidden = self.lasting | (self.passing if now < 1.5 else set())
        there = (At(o) for o in range(self.position, self.length) if o not in hidden)
        got = list(islice(there, most))
        if got:
            self.position = got[-1].offset + 1
        return got


@settings(max_examples=300, deadline=None)
@given(
    lasting=st.sets(st.integers(0, 38), max_size=6),
    passing=st.sets(st.integers(0, 38), max_size=6),
    polls=st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from(["give", "give", "drop", "double"])),
        min_size=1,
        max_size=40,
    ),
)
def test_everything_is_admitted_once_and_in_order(
    lasting: set[int], passing: set[int], polls: list[tuple[int, str]]
) -> None:
    """Whatever is dropped, doubled or late, the guard ends with every record, once and in order."""
    counts = GuardCounts()
    guard = guard_at(0, counts)
    broker = Broker(lasting, passing - lasting, 40)
    admitted: list[int] = []
    now = 0.0

    def offer(records: list[At]) -> None:
        admission = guard.offer(records, now=now)
        admitted.extend(r.offset for r in records[admission.start : admission.stop])
        if admission.seek is not None:
            broker.position = admission.seek

    for most, fate in [*polls, *[(12, "give")] * 600]:
        if guard.next == 40:
            break
        now += 0.1
        records = broker.fetch(most, now=now)
        if records and fate != "drop":
            offer(records)
        if records and fate == "double":
            offer(records)
        seek = guard.tick(now=now, log_end=broker.length)
        if seek is not None:
            broker.position = seek

    assert admitted == [o for o in range(40) if o not in lasting]
    assert guard.next == 40
    assert counts.missing == len(lasting)


@settings(max_examples=100, deadline=None)
@given(load=st.integers(1, 8), lasting=st.integers(1, 20))
def test_a_lasting_hole_does_not_lock_up_under_load(load: int, lasting: int) -> None:
    """With batches behind the hole queued all the time, reading goes on after 2 to 3 seconds."""
    counts = GuardCounts()
    guard = guard_at(0, counts)
    broker = Broker({lasting}, set(), 10_000)
    queue: list[list[At]] = []
    now = 0.0
    while guard.next <= lasting + 1:
        now += 0.05
        while len(queue) < load:
            queue.append(broker.fetch(5, now=now))
        admission = guard.offer(queue.pop(0), now=now)
        seek = admission.seek if admission.seek is not None else guard.tick(now=now)
        if seek is not None:
            broker.position = seek
        assert now < 4, "the guard never accepted the hole"

    assert counts.accepted == 1


def test_commits_follow_the_order_of_the_records() -> None:
    """A later acknowledgement moves nothing while an earlier one is missing."""
    commits = InOrderCommits(10)
    first, second = commits.open(20), commits.open(30)
    first.expect()
    first.acknowledge()
    second.acknowledge()

    assert commits.done == 10
    first.acknowledge()
    assert commits.done == 30


@settings(max_examples=200, deadline=None)
@given(data=st.data(), parts=st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_done_is_the_first_gap(data: st.DataObject, parts: list[int]) -> None:
    """In any order of acknowledgements `done` is where the first missing one begins."""
    commits = InOrderCommits(0)
    answers: list[Ticket] = []
    tickets: list[Ticket] = []
    for i, outputs in enumerate(parts):
        ticket = commits.open((i + 1) * 10)
        for _ in range(outputs):
            ticket.expect()
        tickets.append(ticket)
        answers += [ticket] * (outputs + 1)
    for ticket in data.draw(st.permutations(answers)):
        ticket.acknowledge()
        open_at = [i for i, t in enumerate(tickets) if t.waiting]
        assert commits.done == (open_at[0] if open_at else len(parts)) * 10
