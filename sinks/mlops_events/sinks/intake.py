"""From the partitions that a sink's process holds to the batches that it writes."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec

from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import DeadLetter
from mlops_events.schemas.frame import decode_frame, decode_stats
from mlops_events.schemas.health import Counters
from mlops_events.schemas.topics import RecordHeaders, read_headers
from mlops_events.sinks.base import Batch, FrameRecord, Record, StatsRecord
from mlops_events.sinks.deadletters import letter_of_reject, letter_of_value
from mlops_events.sinks.log import Log, LogRecord
from mlops_events.sinks.position import Mark, Place, Position, mark_after
from mlops_events.sinks.repeats import Repeats

__all__ = ["DeliverSettings", "Intake", "Pending"]

log = logging.getLogger(__name__)

_POLL_S = 0.5
_POLL_RECORDS = 500
_ASK_S = 1.0
"""How far apart the ends of a log that looks wrong are asked for."""


class DeliverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a sink's process delivers; read with the prefix "sink".

    A batch is written when it holds `max_events` or `max_bytes`, or is `max_age_s` old. A write
    that takes longer than `write_timeout_s` ends the process. `instance_id` is a name under which
    the group keeps the partitions while the process restarts; no other process may have it.
    """

    max_events: Annotated[int, msgspec.Meta(ge=1)] = 5_000
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 1 << 20
    max_age_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    write_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    instance_id: str = ""
    health_port: int | None = None


class _Part:
    """A partition for as long as it is held."""

    def __init__(self, number: int, position: Position, *, log_start: int) -> None:
        self.number = number
        self.position = position
        self.log_start = log_start
        self.repeats = Repeats()
        self.asked = 0.0


class Pending:
    """A batch that was gathered, and what is to be kept once it is written.

    What belongs to partitions that were given up meanwhile is left out of all answers: whoever
    holds them now reads it again.

    Args:
        holds: whether a partition is still the one it was.
    """

    def __init__(self, holds: Callable[[_Part], bool]) -> None:
        self._holds = holds
        self._records: list[tuple[_Part, Record]] = []
        self._letters: list[tuple[_Part, DeadLetter]] = []
        self._last: dict[_Part, LogRecord] = {}
        self.events = 0
        self.bytes = 0
        self.since: float | None = None

    def __bool__(self) -> bool:
        return any(map(self._holds, self._last))

    def batch(self) -> Batch:
        """What is to be written."""
        return Batch([record for part, record in self._records if self._holds(part)])

    def letters(self) -> list[DeadLetter]:
        """What could not be read."""
        return [letter for part, letter in self._letters if self._holds(part)]

    def marks(self) -> dict[int, Mark]:
        """Up to where everything is handled once batch and letters are written."""
        return {
            part.number: mark_after(record, incarnation=part.position.incarnation)
            for part, record in self._last.items()
            if self._holds(part)
        }

    def read(self, part: _Part, record: LogRecord, *, now: float) -> None:
        """Note that a record is handled with this batch."""
        self._last[part] = record
        self.bytes += len(record.value or b"")
        if self.since is None:
            self.since = now

    def add(self, part: _Part, record: Record) -> None:
        """Put a record into the batch."""
        self._records.append((part, record))
        self.events += record.count

    def bury(self, part: _Part, letter: DeadLetter) -> None:
        """Add a dead letter."""
        self._letters.append((part, letter))


class Intake:
    """Reads partitions in order, drops repeats, and gathers what is left into batches.

    Args:
        sink: the sink's name.
        topic: the log to read.
        settings: the sizes of batches.
        counters: counts what passes.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        sink: str,
        topic: Log,
        *,
        settings: DeliverSettings,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._sink = sink
        self._log = topic
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._parts: dict[int, _Part] = {}
        self._backlog: deque[tuple[_Part, LogRecord]] = deque()
        self._assignment = 0

    @property
    def partitions(self) -> int:
        """How many partitions are held."""
        return len(self._parts)

    def lag(self) -> int:
        """How many records lie unread in the partitions that are held."""
        ends = [(self._log.end(n), part.position.next) for n, part in self._parts.items()]
        return sum(max(0, end - at) for end, at in ends if end is not None)

    def give_up(self) -> None:
        """Forget all partitions: somebody else may hold them from now on."""
        self._assignment += 1
        self._parts.clear()
        self._backlog.clear()

    async def take_over(self) -> None:
        """Begin with partitions that came.

        Raises:
            LogError: Kafka does not say where to begin.
        """
        new = self._log.assigned().difference(self._parts)
        if not new:
            return
        assignment = self._assignment
        places = await self._log.places(new)
        if self._assignment != assignment:
            return
        for number, place in places.items():
            self._begin(number, place)
        log.info("partitions taken over", extra={"sink": self._sink, "partitions": sorted(places)})

    async def watch_logs(self) -> None:
        """Find out about logs that lost their start, were made anew, or have holes.

        Raises:
            LogError: Kafka does not say where a log starts and ends.
        """
        for part in list(self._parts.values()):
            now = self._clock()
            position = part.position
            again = position.tick(now=now)
            end = self._log.end(part.number)
            odd = position.suspect or (end is not None and position.too_short(end))
            if again is None and not (odd and now - part.asked >= _ASK_S):
                continue
            part.asked = now
            start, end = await self._log.bounds(part.number)
            if not self._holds(part):
                continue
            self._count_expired(part, position.log_starts_at(start))
            if end is not None and position.is_another(end, now=now):
                self._begin_anew(part, log_start=start)
            elif end is None or not position.too_short(end):
                position.suspect = False
                self._log.seek(part.number, position.next)

    async def gather(self, stopping: Callable[[], bool]) -> Pending:
        """Return a batch that is full or old enough; an empty one if nothing comes for a while.

        Args:
            stopping: whether to return what there is.
        """
        pending = Pending(self._holds)
        while not stopping():
            if self._fill(pending):
                return pending
            left_s = _POLL_S
            if pending.since is not None:
                left_s = min(left_s, pending.since + self._settings.max_age_s - self._clock())
                if left_s <= 0:
                    return pending
            self._receive(await self._log.poll(timeout_s=left_s, max_records=_POLL_RECORDS))
            if not self._backlog and pending.since is None:
                return pending
        return pending

    def _holds(self, part: _Part) -> bool:
        return self._parts.get(part.number) is part

    def _begin(self, number: int, place: Place) -> None:
        position = Position.take_over(place)
        part = self._parts[number] = _Part(number, position, log_start=place.log_start)
        self._count_expired(part, position.expired)
        self._log.seek(number, position.next)

    def _begin_anew(self, part: _Part, *, log_start: int) -> None:
        """Go on with the log that replaced a partition's old one."""
        position = Position.made_anew(part.position, log_start=log_start)
        log.error(
            "the topic was made anew; its log is read from the start",
            extra={"partition": part.number, "incarnation": position.incarnation},
        )
        self._counters.error("made_anew")
        self._parts[part.number] = _Part(part.number, position, log_start=log_start)
        self._log.seek(part.number, position.next)

    def _count_expired(self, part: _Part, expired: int) -> None:
        if expired:
            self._counters.dropped("expired_records", expired)
            log.error(
                "records expired before they were delivered",
                extra={"partition": part.number, "records": expired},
            )

    def _receive(self, polled: Mapping[int, Sequence[LogRecord]]) -> None:
        now = self._clock()
        for number, records in polled.items():
            part = self._parts.get(number)
            if part is None or not records:
                continue
            start, stop, seek = part.position.admit(records, now=now)
            self._backlog.extend((part, record) for record in records[start:stop])
            if seek is not None:
                self._counters.add("holes")
                self._log.seek(number, seek)

    def _fill(self, pending: Pending) -> bool:
        """Move records from the backlog into a batch; return whether it is full."""
        while self._backlog:
            part, record = self._backlog[0]
            size = len(record.value or b"")
            if pending.bytes and pending.bytes + size > self._settings.max_bytes:
                return True
            self._backlog.popleft()
            if self._holds(part):
                self._take(part, record, pending)
            if pending.events >= self._settings.max_events:
                return True
        return False

    def _take(self, part: _Part, record: LogRecord, pending: Pending) -> None:
        """Put one record into the batch, unless it is known."""
        if record.offset < part.position.start:
            self._remember(part, record)
            return
        pending.read(part, record, now=self._clock())
        try:
            headers = read_headers(record.headers)
            self._counters.received(headers.kind, headers.count)
            if headers.kind == "stats":
                taken = self._stats(part, record, headers)
            else:
                taken = self._frame(part, record, headers)
        except DecodeError as error:
            letter = letter_of_value(
                record,
                sink=self._sink,
                topic=self._log.topic,
                partition=part.number,
                message=str(error),
            )
            pending.bury(part, letter)
            return
        if taken is None:
            self._counters.dropped("repeat", headers.count)
            return
        pending.add(part, taken)
        if isinstance(taken, FrameRecord):
            for reject in taken.frame.rejects:
                pending.bury(part, letter_of_reject(taken, reject, sink=self._sink))

    def _frame(self, part: _Part, record: LogRecord, headers: RecordHeaders) -> Record | None:
        """Return a record's frame; None if it is a repeat."""
        frames = part.repeats.frames
        name = (headers.emitter, headers.kind, headers.seq)
        if not headers.redriven and name in frames:
            return None
        frame = decode_frame(record.value)
        if (frame.emitter, frame.kind, frame.seq) != name:
            raise DecodeError("the record's headers name another frame than it holds")
        if not headers.redriven:
            frames.add(*name)
        return FrameRecord(
            frame=frame,
            topic=self._log.topic,
            partition=part.number,
            offset=record.offset,
            incarnation=part.position.incarnation,
            timestamp_ms=record.timestamp,
            redriven=headers.redriven,
        )

    def _stats(self, part: _Part, record: LogRecord, headers: RecordHeaders) -> Record | None:
        """Return those of a record's Stats that are no repeats; None if all are."""
        frame = decode_stats(record.value)
        if not headers.redriven:
            new = part.repeats.new_stats(frame.emitter, frame.stats)
            if not new:
                return None
            if len(new) < len(frame.stats):
                self._counters.dropped("repeat", len(frame.stats) - len(new))
                frame = msgspec.structs.replace(frame, stats=new)
        return StatsRecord(
            frame=frame,
            topic=self._log.topic,
            partition=part.number,
            offset=record.offset,
            incarnation=part.position.incarnation,
            timestamp_ms=record.timestamp,
            redriven=headers.redriven,
        )

    def _remember(self, part: _Part, record: LogRecord) -> None:
        """Know a record again that was delivered before."""
        if part.position.contradicts(record):
            self._begin_anew(part, log_start=part.log_start)
            return
        try:
            headers = read_headers(record.headers)
            if headers.kind == "stats":
                frame = decode_stats(record.value)
                part.repeats.new_stats(frame.emitter, frame.stats)
            else:
                part.repeats.frames.add(headers.emitter, headers.kind, headers.seq)
        except DecodeError:
            return  # it has its dead letter
