"""Following partitions: in order of time, over passing holes, and not into another topic."""

from typing import Any

import pytest

from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.streams.follow import Follower
from mlops_events.streams.logreader import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Clock:
    """A clock that stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def follower(logs: Any, clock: Clock) -> Follower:
    """Return a follower of two partitions in memory."""
    made = Follower(logs, clock=clock)
    made.go({A: 0, B: 0})
    return made


async def values(follower: Follower) -> list[bytes | None]:
    return [record.value for _, record in await follower.poll(timeout_s=0)]


async def test_records_come_in_the_order_of_their_times(logs: Any, follower: Follower) -> None:
    """Whatever partition they are in; each once."""
    for tp, value, timestamp in ((A, b"1", 10), (B, b"2", 20), (A, b"3", 30), (B, b"4", 40)):
        logs.append(tp, value, timestamp=timestamp)

    assert follower.behind({A: 2, B: 2})
    assert await values(follower) == [b"1", b"2", b"3", b"4"]
    assert not follower.behind({A: 2, B: 2})
    assert (follower.lag(), await values(follower)) == (0, [])


async def test_a_passing_hole_is_read_again(logs: Any, follower: Follower, clock: Clock) -> None:
    """What lies behind it waits."""
    for value in (b"1", b"2", b"3"):
        logs.append(A, value)
    hidden = logs.records[A].pop(1)
    first = await values(follower)
    behind = await values(follower)
    logs.records[A].insert(1, hidden)
    clock.now = 1.0
    await follower.poll(timeout_s=0)

    assert (first, behind) == ([b"1"], [])
    assert await values(follower) == [b"2", b"3"]
    assert follower.counts.healed == 1


async def test_a_hole_that_stays_is_accepted(logs: Any, follower: Follower, clock: Clock) -> None:
    """After two seconds, and counted."""
    for value in (b"1", b"2", b"3"):
        logs.append(A, value)
    logs.records[A].pop(1)
    found: list[bytes | None] = []
    for _ in range(12):
        found += await values(follower)
        clock.now += 0.5

    assert found == [b"1", b"3"]
    assert (follower.counts.accepted, follower.counts.missing) == (1, 1)


async def test_a_topic_that_was_made_anew_ends_it(logs: Any, follower: Follower) -> None:
    """Its records are other ones, though their offsets were read before."""
    for value in (b"1", b"2"):
        logs.append(A, value)
    await follower.poll(timeout_s=0)
    logs.records[A], logs.ends[A] = [], 0
    logs.append(A, b"new")
    logs.seek(A, 0)

    with pytest.raises(MlopsEventsError, match="t ends at 1 in partition 0, and was read up to 2"):
        await follower.poll(timeout_s=0)
