"""Sequence numbers as runs: the same answers as a set, in bounded memory."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.streams.dedupe import MAX_RUNS, SeqRuns


@pytest.mark.parametrize(
    ("numbers", "bounds"),
    [
        ([], []),
        ([0], [0, 1]),
        ([0, 1, 2], [0, 3]),
        ([2, 1, 0], [0, 3]),
        ([5], [5, 6]),
        ([0, 2], [0, 1, 2, 3]),
        ([0, 2, 1], [0, 3]),
        ([4, 0, 2], [0, 1, 2, 3, 4, 5]),
        ([4, 0, 2, 3], [0, 1, 2, 5]),
        ([2**63 - 1], [2**63 - 1, 2**63]),
    ],
)
def test_runs_join_where_they_touch(numbers: list[int], bounds: list[int]) -> None:
    """Each number is new once; neighbours become one run."""
    runs = SeqRuns()
    new = [runs.add(n) for n in numbers]
    again = [runs.add(n) for n in numbers]

    assert all(new)
    assert not any(again)
    assert runs.bounds == bounds


@given(st.lists(st.integers(0, 60)))
def test_a_number_is_new_once(numbers: list[int]) -> None:
    """As long as there are few gaps, runs say what a set says."""
    runs = SeqRuns()
    seen: set[int] = set()
    for n in numbers:
        new = n not in seen
        seen.add(n)

        assert runs.add(n) is new
    assert runs.bounds == sorted(runs.bounds)
    assert runs.gaps_closed == 0


@given(st.lists(st.integers(0, 1000), max_size=400))
def test_the_oldest_gaps_are_given_up(numbers: list[int]) -> None:
    """Never more than 64 runs; what is called new is new, and each gap given up is counted."""
    runs = SeqRuns()
    seen: set[int] = set()
    for n in numbers:
        if runs.add(n):
            assert n not in seen
        seen.add(n)

        assert len(runs.bounds) <= 2 * MAX_RUNS
        assert not runs.add(n)
    if runs.gaps_closed:
        below = runs.bounds[1]
        assert all(not runs.add(n) for n in range(min(seen), below))


def test_a_gap_given_up_counts_as_seen() -> None:
    """The 65th run closes the gap between the first two."""
    runs = SeqRuns()
    for n in range(0, 2 * MAX_RUNS + 2, 2):
        runs.add(n)

    assert runs.gaps_closed == 1
    assert not runs.add(1)
    assert runs.add(3)


@pytest.mark.parametrize(
    ("numbers", "last", "whole"),
    [
        ([0, 1, 2], 2, True),
        ([0, 2], 2, False),
        ([1, 2], 2, False),
        ([0, 1, 2], 1, False),
        ([0], 0, True),
    ],
)
def test_whole_means_no_gap_up_to_the_last(numbers: list[int], last: int, whole: bool) -> None:
    """It is what lets an emitter that ended be forgotten early."""
    runs = SeqRuns()
    for n in numbers:
        runs.add(n)

    assert runs.whole(last) is whole


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_runs_come_back_from_bytes(numbers: list[int]) -> None:
    """They are part of checkpoints."""
    runs = SeqRuns()
    for n in numbers:
        runs.add(n)
    data = msgspec.msgpack.encode(runs)

    assert msgspec.msgpack.decode(data, type=SeqRuns) == runs
