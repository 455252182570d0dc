"""How far behind groups are, and what checkpoints say was lost."""

from typing import Any

import msgspec
import pytest

from mlops_events.control.lag import (
    GroupLag,
    LagReport,
    Member,
    PartitionLag,
    TopicCounts,
    count_losses,
    partition_lag,
)
from mlops_events.control.lagtext import lag_text, loss_text
from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.topics import Topics
from mlops_events.streams.checkpoint import Checkpoint
from mlops_events.streams.logreader import Span
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("committed", "at_ms", "records", "expired", "behind_s"),
    [
        (30, NOW_MS - 5000, 20, 0, 5.0),  # the usual case
        (50, None, 0, 0, 0.0),  # all is handled
        (None, NOW_MS - 1500, 40, 0, 1.5),  # never committed
        (4, NOW_MS - 1500, 40, 6, 1.5),  # retention has passed the commit
        (30, None, 20, 0, None),  # the record cannot be read
        (30, NOW_MS + 99, 20, 0, 0.0),  # the broker's clock is ahead
        (60, None, 0, 0, 0.0),  # a topic made anew
    ],
)
def test_the_lag_of_a_partition(
    committed: int | None,
    at_ms: int | None,
    records: int,
    expired: int,
    behind_s: float | None,
) -> None:
    """Records to the end, the age of the first of them, and what is gone."""
    found = partition_lag(3, committed=committed, log=Span(10, 50), at_ms=at_ms, now_ms=NOW_MS)

    assert (found.records, found.expired, found.behind_s) == (records, expired, behind_s)


def checkpoint(partition: int, *, lost: int, bad: int = 0) -> Checkpoint:
    """Return the checkpoint of a state that lost records and met some that are no frames."""
    state = PartitionState(StreamSettings(), topics=Topics("p"), kind="log", partition=partition)
    for offset in range(bad):
        state.fold(offset, NOW_MS, b"garbage")
    state.restart_at(bad + lost, expired=lost)
    return Checkpoint(
        group="g",
        topic="p.log.v1",
        partition=partition,
        partitions=2,
        incarnation=0,
        next=state.next,
        state=state.encode(),
    )


def test_what_was_lost_is_added_up_over_partitions() -> None:
    """From the states that the stream itself wrote, whatever its settings are."""
    (found,) = count_losses([checkpoint(0, lost=7, bad=2), checkpoint(1, lost=5)])

    assert (found.topic, found.checkpoints) == ("p.log.v1", 2)
    assert (found.lost_by_retention, found.undecodable, found.late) == (12, 2, 0)


def test_a_state_that_cannot_be_read_is_named() -> None:
    """It is not taken for a state without losses."""
    broken = msgspec.structs.replace(checkpoint(0, lost=1), state=b"\x01")

    with pytest.raises(DecodeError, match="no state of a partition"):
        count_losses([broken])


def report(*, expired: int = 0, lost: int = 0) -> LagReport:
    """Return a report of one group and one topic."""
    part = PartitionLag(
        partition=0, committed=4, start=0, end=2004, records=2000, expired=expired, behind_s=7200.0
    )
    group = GroupLag(
        group="p.q.stream",
        topic="p.q.observation.v1",
        state="stable",
        members=[Member(id="m", client="c", host="h")],
        records=2000,
        behind_s=7200.0,
        expired=expired,
        partitions=[part],
    )
    counts: dict[str, Any] = dict.fromkeys(TopicCounts.__struct_fields__[1:], 0)
    counts |= {"lost_by_retention": lost, "late": 31}
    return LagReport(groups=[group], topics=[TopicCounts(topic="p.q.observation.v1", **counts)])


@pytest.mark.parametrize("width", [40, 80, 200])
def test_what_is_shown_fits_the_terminal(width: int) -> None:
    """A table where there is room; names without the prefix."""
    text = lag_text(report(), prefix="p.q", width=width)

    assert all(len(line) <= width for line in text.splitlines())
    assert ("MEMBERS" in text) == (width >= 80)
    assert "p.q" not in text
    for word in ("observation.v1", "stream", "2,000", "2.0 h", "31"):
        assert word in text


def test_losses_are_said_with_their_topics() -> None:
    """Those that were counted, and those that are to come."""
    assert loss_text(report()) == ""
    assert report().lost == 0
    assert loss_text(report(lost=3, expired=1000)) == (
        "1,003 records were deleted by retention before they were handled: "
        "p.q.observation.v1, p.q.observation.v1 (p.q.stream)"
    )
