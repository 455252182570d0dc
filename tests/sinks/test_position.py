"""Where a sink is in a partition's log."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.sinks.position import Mark, Place, Position, mark_after


class Rec(NamedTuple):
    """A record."""

    offset: int
    timestamp: int = 1_000
    value: bytes | None = b"x"


def records(*offsets: int) -> list[Rec]:
    """Records at these offsets."""
    return [Rec(offset) for offset in offsets]


def at(start: int, *, read_from: int | None = None) -> Position:
    """A position whose first unhandled offset is `start`."""
    return Position(start, read_from=start if read_from is None else read_from, incarnation=0)


MARK = mark_after(Rec(4_999, 7_000, b"last"), incarnation=2)


@pytest.mark.parametrize(
    ("place", "start", "read_from", "expired"),
    [
        (Place(log_start=30), 30, 30, 0),
        (Place(committed=5_000, mark=MARK), 5_000, 4_000, 0),
        (Place(committed=5_000, mark=MARK, by_time=2_500), 5_000, 2_500, 0),
        (Place(committed=5_000, mark=MARK, by_time=4_900), 5_000, 4_000, 0),
        (Place(committed=5_000, mark=MARK, log_start=4_500), 5_000, 4_500, 0),
        (Place(committed=5_000, mark=MARK, log_start=5_600), 5_600, 5_600, 600),
        (Place(committed=500_000, by_time=5), 500_000, 400_000, 0),
        (Place(committed=10), 10, 0, 0),
        (Place(mark=MARK), 5_000, 4_000, 0),
        (Place(committed=9_000, mark=MARK), 9_000, 4_999, 0),
    ],
)
def test_reading_begins_before_the_commit(
    place: Place, start: int, read_from: int, expired: int
) -> None:
    """Ten minutes, at least 1,000 and at most 100,000 records, never before the log's start."""
    position = Position.take_over(place)

    assert (position.start, position.next, position.expired) == (start, read_from, expired)


@pytest.mark.parametrize(
    ("place", "incarnation"),
    [
        (Place(), 0),
        (Place(committed=5_000), 0),
        (Place(committed=5_000, mark=MARK), 2),
        (Place(mark=MARK), 2),
    ],
)
def test_the_incarnation_is_kept_in_the_mark(place: Place, incarnation: int) -> None:
    """A process that starts knows how often the log was made anew."""
    assert Position.take_over(place).incarnation == incarnation


def test_a_log_that_was_made_anew_is_read_from_its_start() -> None:
    """The next incarnation begins with nothing known."""
    anew = Position.made_anew(Position.take_over(Place(committed=5_000, mark=MARK)), log_start=3)

    assert (anew.incarnation, anew.start, anew.next) == (3, 3, 3)


@pytest.mark.parametrize(
    ("record", "another"),
    [
        (Rec(4_999, 7_000, b"last"), False),
        (Rec(4_999, 7_000, b"other"), True),
        (Rec(4_999, 7_001, b"last"), True),
        (Rec(4_998, 1, b"any"), False),
    ],
)
def test_the_record_before_the_commit_tells_logs_apart(record: Rec, another: bool) -> None:
    """Another record at its place means another log."""
    position = Position.take_over(Place(committed=5_000, mark=MARK))

    assert position.contradicts(record) == another


def test_a_mark_survives_its_text() -> None:
    """What stands in a commit's metadata is read back; anything else is no mark."""
    assert Mark.decode(MARK.encode()) == MARK
    assert Mark.decode("") is None
    assert Mark.decode('{"inc": "x"}') is None


def test_records_in_order_are_admitted() -> None:
    """Nothing special happens most of the time."""
    position = at(0)

    assert position.admit(records(0, 1, 2), now=0) == (0, 3, None)
    assert position.admit(records(3), now=0) == (0, 1, None)
    assert position.next == 4


def test_a_hole_is_read_again_and_heals() -> None:
    """Records that become visible late are not skipped."""
    position = at(0)

    assert position.admit(records(0, 1, 4), now=0) == (0, 2, 2)
    assert position.admit(records(4), now=0.1) == (0, 0, None)
    assert position.tick(now=0.2) is None
    assert position.tick(now=0.6) == 2
    assert position.admit(records(2, 3, 4), now=0.7) == (0, 3, None)
    assert position.tick(now=5) is None
    assert position.holes == 0


def test_a_hole_that_stays_is_accepted_after_a_while() -> None:
    """Offsets that never existed hold nothing up for long."""
    position = at(0)

    assert position.admit(records(3, 4), now=0) == (0, 0, 0)
    assert position.admit(records(3, 4), now=1.9) == (0, 0, None)
    assert position.admit(records(3, 4), now=2.0) == (0, 2, None)
    assert (position.next, position.holes) == (5, 1)


def test_a_hole_that_shrinks_waits_for_what_is_left() -> None:
    """What follows a hole must be seen again before it counts as its end."""
    position = at(0)
    position.admit(records(5), now=0)

    assert position.admit(records(3, 4, 5), now=2.5) == (0, 0, None)
    assert position.admit(records(3, 4, 5), now=3.0) == (0, 3, None)


def test_holes_among_known_records_are_of_no_interest() -> None:
    """Reading back is for remembering: what is gone is gone."""
    position = at(100, read_from=50)

    assert position.admit(records(60, 61, 80, 99, 100, 101), now=0) == (0, 6, None)
    assert position.admit(records(103), now=0).seek == 102


def test_a_hole_over_the_commit_is_one() -> None:
    """A silent jump beyond what was handled would lose records."""
    position = at(100, read_from=50)

    assert position.admit(records(102), now=0) == (0, 0, 50)


def test_going_back_makes_a_log_suspect() -> None:
    """A client that starts over on its own found its place missing."""
    position = at(100)

    assert position.admit(records(0, 1), now=0) == (0, 0, None)
    assert position.suspect


def test_a_short_log_is_another_one_only_after_a_while() -> None:
    """A broker that has just taken over may not know the end yet."""
    position = at(100)

    assert not position.is_another(40, now=0)
    assert not position.is_another(40, now=4.9)
    assert position.is_another(40, now=5.0)


def test_a_log_that_was_short_for_a_moment_is_the_same() -> None:
    """The clock starts again when the end is back."""
    position = at(100)
    position.is_another(40, now=0)
    position.is_another(100, now=3)

    assert not position.is_another(40, now=6)


def test_retention_moves_the_position_on() -> None:
    """What expired before it was read is counted, what was known is not."""
    position = at(100, read_from=50)

    assert position.log_starts_at(40) == 0
    assert position.log_starts_at(70) == 0
    assert position.next == 70
    assert position.log_starts_at(130) == 30
    assert position.admit(records(130), now=0) == (0, 1, None)


@given(st.data())
def test_every_record_is_admitted_once_and_in_order(data: st.DataObject) -> None:
    """However a log is delivered, late records included, none is left out and none comes twice."""
    log = data.draw(st.sets(st.integers(0, 60), min_size=1).map(sorted))
    late = data.draw(st.sets(st.sampled_from(log)))
    position, got, cursor, now = at(0), list[int](), 0, 0.0
    while position.next <= log[-1]:
        now += data.draw(st.sampled_from([0.1, 0.4, 1.0]))
        if data.draw(st.booleans()) or now > 1.5:
            late = set()
        visible = [offset for offset in log if offset >= cursor and offset not in late]
        polled = records(*visible[: data.draw(st.integers(1, 20))])
        if polled:
            cursor = polled[-1].offset + 1
            start, stop, seek = position.admit(polled, now=now)
            got += [record.offset for record in polled[start:stop]]
            cursor = cursor if seek is None else seek
        again = position.tick(now=now)
        cursor = cursor if again is None else again

    assert got == log
