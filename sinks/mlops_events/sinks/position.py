"""Where in a partition's log a sink is: what to read next, and whether it is still the same log.

Values in, values out: the caller reads, seeks and knows the time.
"""

import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

__all__ = [
    "HOLE_WAIT_S",
    "READ_BACK_MS",
    "Admission",
    "Mark",
    "Place",
    "Position",
    "Positioned",
    "mark_after",
]

READ_BACK_MS: Final = 600_000
"""How much record time before its commit a sink reads again, to know what it has had."""

_READ_BACK_AT_LEAST: Final = 1_000
_READ_BACK_AT_MOST: Final = 100_000

HOLE_WAIT_S: Final = 2.0
"""How long a hole is read again before it is taken for one that stays."""

RETRY_S: Final = 0.5
"""How far apart an open hole is read again."""

SHORT_WAIT_S: Final = 5.0
"""How long a log must end before what was read of it to count as another log: a broker that took
over a moment ago may not know the end yet."""


class Positioned(Protocol):
    """A record, as far as its place and identity matter."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...

    @property
    def timestamp(self) -> int:
        """Its log time in milliseconds."""
        ...

    @property
    def value(self) -> bytes | None:
        """What it holds."""
        ...


class Mark(msgspec.Struct, frozen=True, kw_only=True, rename={"incarnation": "inc"}):
    """Names a place in a log so that another log cannot be mistaken for it.

    `next` is the first offset that was not handled; `timestamp_ms` and `crc` are those of the
    record before it. `incarnation` counts how often the log was made anew.
    """

    incarnation: int
    next: int
    timestamp_ms: int
    crc: int

    def encode(self) -> str:
        """Return its text, as it stands in a commit's metadata."""
        return _ENCODER.encode(self).decode()

    @staticmethod
    def decode(text: str) -> "Mark | None":
        """Return the mark that a text holds; None if it holds none."""
        try:
            return _DECODER.decode(text)
        except msgspec.MsgspecError:
            return None

    def describes(self, record: Positioned) -> bool:
        """Whether the record at `next - 1` is the one that was there."""
        return record.timestamp == self.timestamp_ms and _crc(record) == self.crc


def mark_after(record: Positioned, *, incarnation: int) -> Mark:
    """Return the mark of the place after a record."""
    return Mark(
        incarnation=incarnation,
        next=record.offset + 1,
        timestamp_ms=record.timestamp,
        crc=_crc(record),
    )


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a partition when it is taken over.

    Args:
        committed: the group's commit.
        mark: the newest mark that was kept of it.
        log_start: the first offset there is.
        by_time: the first offset of the last ten minutes before the commit, if there is one.
    """

    committed: int | None = None
    mark: Mark | None = None
    log_start: int = 0
    by_time: int | None = None


class Admission(NamedTuple):
    """`records[start:stop]` come next; `seek` is where to read again, if anywhere."""

    start: int
    stop: int
    seek: int | None = None


_NOTHING = Admission(0, 0)


class Position:
    """The reading of one partition from its take-over until it is given up.

    It begins before `start`, up to which everything was handled by whoever committed: these
    records are only to be remembered. Records come in order and without silent jumps. A hole is
    read again; one that is still there after two seconds stays and is accepted.

    Args:
        start: the first offset that was not handled.
        read_from: where reading begins.
        incarnation: how often the log was made anew.
        mark: what was known of the record before `start`.
    """

    def __init__(
        self, start: int, *, read_from: int, incarnation: int, mark: Mark | None = None
    ) -> None:
        self.start = start
        self.next = read_from
        self.incarnation = incarnation
        self.expired = 0
        self.holes = 0
        self.suspect = False
        self._mark = mark
        self._hole: tuple[int, float, float] | None = None  # what follows it, since, last asked
        self._short_since: float | None = None

    @classmethod
    def take_over(cls, place: Place) -> "Position":
        """Return where to begin in a partition that was just assigned."""
        mark, start = place.mark, place.committed
        if start is None and mark is not None:
            start = mark.next  # a commit can be lost with its topic, a mark of its own cannot
        incarnation = mark.incarnation if mark is not None else 0
        if start is None:
            return cls(place.log_start, read_from=place.log_start, incarnation=incarnation)
        if start < place.log_start:
            position = cls(place.log_start, read_from=place.log_start, incarnation=incarnation)
            position.expired = place.log_start - start
            return position
        if mark is not None and mark.next > start:
            mark = None
        return cls(
            start,
            read_from=_read_back(place, start, mark),
            incarnation=incarnation,
            mark=mark,
        )

    @classmethod
    def made_anew(cls, before: "Position", *, log_start: int) -> "Position":
        """Return where to begin in a log that replaced the one of `before`."""
        return cls(log_start, read_from=log_start, incarnation=before.incarnation + 1)

    @property
    def hole(self) -> bool:
        """True while records are refused because earlier ones are missing."""
        return self._hole is not None

    def admit(self, records: Sequence[Positioned], *, now: float) -> Admission:
        """Say which of these records come next; they count as read from here on.

        Args:
            records: at least one, in the order of their offsets.
            now: the time, in seconds of a clock that never goes back; so in all methods.
        """
        first = records[0].offset
        if first < self.next:  # the client went back on its own: the log is not what it was
            self.suspect = True
            return _NOTHING
        if first > self._wanted and not self._stays(first, now):
            return self._missed(first, now)
        self.holes += first > self._wanted
        self._hole = None
        stop = self._end_of_run(records)
        self.next = records[stop - 1].offset + 1
        if stop < len(records):
            return Admission(0, stop, self._missed(records[stop].offset, now).seek)
        return Admission(0, stop)

    def contradicts(self, record: Positioned) -> bool:
        """Whether a record from before `start` shows that this is another log."""
        mark = self._mark
        return mark is not None and record.offset == mark.next - 1 and not mark.describes(record)

    def tick(self, *, now: float) -> int | None:
        """Say from where to read again, if anywhere; to be asked a few times a second."""
        if self._hole is None or now - self._hole[2] < RETRY_S:
            return None
        self._hole = (self._hole[0], self._hole[1], now)
        return self.next

    def log_starts_at(self, offset: int) -> int:
        """Go on at the log's start if retention has passed what is next; return what it took."""
        expired = max(0, offset - self._wanted)
        if offset > self.next:
            self.next = offset
            self.start = max(self.start, offset)
            self._hole = None
        return expired

    def too_short(self, log_end: int) -> bool:
        """Whether a log that ends there lacks what was read of it."""
        return log_end < self._wanted

    def is_another(self, log_end: int, *, now: float) -> bool:
        """Whether the log has been too short for so long that it must be another one."""
        if not self.too_short(log_end):
            self._short_since = None
            return False
        if self._short_since is None:
            self._short_since = now
        return now - self._short_since >= SHORT_WAIT_S

    @property
    def _wanted(self) -> int:
        """The first offset that nobody handled and that was not read yet."""
        return max(self.next, self.start)

    def _stays(self, first: int, now: float) -> bool:
        hole = self._hole
        return hole is not None and first == hole[0] and now - hole[1] >= HOLE_WAIT_S

    def _missed(self, first: int, now: float) -> Admission:
        if self._hole is None:
            self._hole = (first, now, now)
            return Admission(0, 0, self.next)
        self._hole = (min(self._hole[0], first), *self._hole[1:])
        return _NOTHING

    def _end_of_run(self, records: Sequence[Positioned]) -> int:
        """The index behind the last record that follows without a hole, known ones aside."""
        if records[-1].offset - records[0].offset == len(records) - 1:
            return len(records)
        for index in range(1, len(records)):
            offset = records[index].offset
            if offset != records[index - 1].offset + 1 and offset > self.start:
                return index
        return len(records)


def _read_back(place: Place, start: int, mark: Mark | None) -> int:
    back = start - _READ_BACK_AT_LEAST
    if place.by_time is not None:
        back = min(back, place.by_time)
    if mark is not None:
        back = min(back, mark.next - 1)
    return max(back, start - _READ_BACK_AT_MOST, place.log_start, 0)


def _crc(record: Positioned) -> int:
    return zlib.crc32(record.value or b"")


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Mark)
