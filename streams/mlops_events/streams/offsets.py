"""Which records of a partition come next, and below which offset everything is acknowledged.

Values in, values out: the caller reads, seeks, commits and knows the time.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

__all__ = ["Admission", "GuardCounts", "InOrderCommits", "OffsetGuard", "Positioned", "Ticket"]

HOLE_WAIT_S: Final = 2.0
"""How long a hole is read again before it is taken for one that stays."""
RETRY_S: Final = 0.5
"""How far apart an open hole is read again: a seek per refused batch would never let it close."""
STALE_S: Final = 10.0
"""How long nothing may come, though the log goes on, before the place is read again."""


class Positioned(Protocol):
    """A record, as far as its place matters."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...


class Admission(NamedTuple):
    """`records[start:stop]` come next; `seek` is where to read again, if anywhere."""

    start: int
    stop: int
    seek: int | None = None


class GuardCounts(msgspec.Struct):
    """What guards met, in records unless said otherwise."""

    repeated: int = 0  # delivered again and dropped
    holes: int = 0  # times that a record was not followed by the next one
    healed: int = 0  # holes that a second reading filled
    accepted: int = 0  # holes that stayed
    missing: int = 0  # offsets in holes that stayed
    expired: int = 0  # offsets that retention removed before they were read
    nudges: int = 0  # times that a tail was read again because nothing came


class _Hole:
    """`after` is the nearest record that was seen behind it."""

    __slots__ = ("after", "asked", "since")

    def __init__(self, after: int, now: float) -> None:
        self.after = after
        self.since = now
        self.asked = now


class OffsetGuard:
    """Admits the records of one partition in order, without repeats and without silent jumps.

    A hole is read again. One that is still there after two seconds, with the same record behind
    it, stays and is accepted: a broker that was killed can leave offsets that never exist, and a
    log with transactions or compaction has them by design.

    Args:
        start: the first offset that is wanted.
        now: the time, in seconds of a clock that never goes back; so in all methods.
        counts: where to count.
    """

    def __init__(self, start: int, *, now: float, counts: GuardCounts) -> None:
        self.next = start
        self._counts = counts
        self._hole: _Hole | None = None
        self._heard = now

    @property
    def open_hole(self) -> bool:
        """True while records are refused because earlier ones are missing."""
        return self._hole is not None

    def offer(self, records: Sequence[Positioned], *, now: float) -> Admission:
        """Say which of these records come next; they count as read from here on.

        Args:
            records: at least one, in the order of their offsets.
            now: the time.
        """
        start = bisect_left(records, self.next, key=_offset)
        self._counts.repeated += start
        if start == len(records):
            return Admission(0, 0)
        first = records[start].offset
        if first > self.next and not self._stays(first, now):
            return Admission(0, 0, self._missed(first, now))
        self._close_hole(first)
        stop = _end_of_run(records, start)
        self.next = records[stop - 1].offset + 1
        self._heard = now
        if stop == len(records):
            return Admission(start, stop)
        return Admission(start, stop, self._missed(records[stop].offset, now))

    def log_starts_at(self, offset: int) -> int:
        """Go on at the log's start if retention has passed what is next; return what it took."""
        expired = max(0, offset - self.next)
        if expired:
            self._counts.expired += expired
            self.next = offset
            self._hole = None
        return expired

    def tick(self, *, now: float, log_end: int | None = None) -> int | None:
        """Say from where to read again, if anywhere; to be asked a few times a second.

        Args:
            now: the time.
            log_end: where the log ends, if it is known and the caller has nothing left to offer:
                a skipped tail has no later record that would betray it.
        """
        if self._hole is not None:
            if now - self._hole.asked < RETRY_S:
                return None
            self._hole.asked = now
            return self.next
        if log_end is not None and log_end > self.next and now - self._heard >= STALE_S:
            self._heard = now
            self._counts.nudges += 1
            return self.next
        return None

    def _stays(self, first: int, now: float) -> bool:
        hole = self._hole
        return hole is not None and first == hole.after and now - hole.since >= HOLE_WAIT_S

    def _missed(self, first: int, now: float) -> int | None:
        """Note that records before `first` are missing; return where to seek, once per hole."""
        if self._hole is None:
            self._hole = _Hole(first, now)
            self._counts.holes += 1
            return self.next
        self._hole.after = min(self._hole.after, first)
        return None

    def _close_hole(self, first: int) -> None:
        if self._hole is None:
            return
        if first > self.next:
            self._counts.accepted += 1
            self._counts.missing += first - self.next
        else:
            self._counts.healed += 1
        self._hole = None


def _offset(record: Positioned) -> int:
    return record.offset


def _end_of_run(records: Sequence[Positioned], start: int) -> int:
    """Return the index behind the last record that follows without a hole."""
    shift = records[start].offset - start
    if records[-1].offset - shift == len(records) - 1:
        return len(records)
    return bisect_left(
        range(len(records)), True, lo=start, key=lambda i: records[i].offset - i > shift
    )


class Ticket:
    """Outputs of the records below `next` that are under way, one part for each who answers."""

    __slots__ = ("_owner", "next", "waiting")

    def __init__(self, owner: "InOrderCommits", next: int) -> None:  # noqa: A002 - the word here
        self._owner = owner
        self.next = next
        self.waiting = 1

    def expect(self) -> None:
        """Wait for one more acknowledgement."""
        self.waiting += 1

    def acknowledge(self) -> None:
        """Note that one part has arrived."""
        self.waiting -= 1
        if self.waiting == 0:
            self._owner.advance()


class InOrderCommits:
    """Knows below which offset of one partition everything is acknowledged.

    Args:
        start: the offset below which nothing is under way.
    """

    def __init__(self, start: int) -> None:
        self.done = start
        self._tickets: deque[Ticket] = deque()

    def open(self, next: int) -> Ticket:  # noqa: A002
        """Return a ticket for the records up to `next`; whoever opens it acknowledges once."""
        ticket = Ticket(self, next)
        self._tickets.append(ticket)
        return ticket

    def advance(self) -> None:
        """Move `done` over all tickets at the head that wait for nothing."""
        tickets = self._tickets
        while tickets and tickets[0].waiting == 0:
            self.done = tickets.popleft().next
