"""One kind's way from its buffer to the transport: closed frames, in order, one in flight."""

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mlops_events.producers.backlog import MemoryBacklog, Sealed
from mlops_events.producers.buffer import MALFORMED, Buffer
from mlops_events.producers.clock import Clock
from mlops_events.producers.mend import shorten, whole
from mlops_events.producers.series import SeriesTable
from mlops_events.producers.stats import KindStats
from mlops_events.producers.tally import Tally
from mlops_events.producers.transport import OutRecord
from mlops_events.schemas.events import Origin, RawKind
from mlops_events.schemas.frame import MAX_EVENT_BYTES, FrameEncoder, Series
from mlops_events.schemas.topics import Topics, origin_key, raw_headers
from mlops_events.schemas.values import ENCODER

if TYPE_CHECKING:
    from mlops_events.producers.backlog import Backlog
    from mlops_events.producers.scrub import Scrubber

__all__ = ["Lane"]

_encode = ENCODER.encode
_ROW = b"\x95"  # an array of five: the start, which is one of four, and the values


class Lane:
    """Turns what its buffer took into frames and keeps their account.

    All but `stats` is called by the worker alone.

    Args:
        wake: starts the worker, or wakes it before its time.
        limit: bytes that may wait.
        most_events: events that close a frame.
        most_bytes: bytes of events that close a frame.
        bad: counts values that cannot be encoded, by name.
    """

    def __init__(
        self,
        kind: RawKind,
        *,
        emitter: bytes,
        origin: Origin,
        topics: Topics,
        clock: Clock,
        wake: Callable[[], None],
        limit: int,
        most_events: int,
        most_bytes: int,
        bad: Tally,
    ) -> None:
        self.kind: RawKind = kind
        self.buffer = Buffer(limit=limit, wake=wake)
        self.backlog: Backlog = MemoryBacklog()
        self.seq = 0
        self.cut = 0
        self.scrubber: Scrubber | None = None
        """Masks secrets in what is no plain row of numbers."""
        self._emitter = emitter
        self._origin = origin
        self._topic = topics.raw(kind)
        self._key = origin_key(origin)
        self._encoder = FrameEncoder(emitter=emitter, kind=kind, origin=origin)
        self.table = SeriesTable(clock=clock.raw, buffer=self.buffer)
        self._clock = clock
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._bad = bad
        self._lock = RLock()
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._sids: dict[int, None] = {}
        self._accepted = 0
        self._sent = 0
        self._lost = 0

    @property
    def used(self) -> bool:
        """Whether the emitter had anything of this kind."""
        return self.seq > 0 or self.buffer.dropped.total() > 0

    @property
    def oldest(self) -> int:
        """The number of the oldest frame that is neither acknowledged nor given up."""
        first = self.backlog.first()
        return self.seq if first is None else first.seq

    @property
    def lost(self) -> int:
        """Events that were given up after they had an id."""
        return self._lost + self.backlog.lost

    def gather(self) -> int:
        """Put up to a frame's worth of the buffer's events into frames; return how many."""
        with self._lock:
            events = self.buffer.take(self._most_events)
            anchor = self._clock.anchor
            taken = 0
            for event in events:
                try:
                    if isinstance(event, bytes):
                        taken += len(event)
                        self._add(event, -1)
                        continue
                    sid, raw, step, values = event
                    taken += len(values)
                    if raw is not None:
                        if step is not None and not -(2**63) <= step < 2**63:
                            step = whole(step, "step", self._bad)
                        start = _encode(("r", sid, raw + anchor, step))
                        values = _ROW + start[1:] + values
                    self._add(values, sid)
                except Exception:  # values may be anybody's objects
                    self.buffer.dropped.add(MALFORMED)
            self._settle(taken)
        return len(events)

    def seal(self, *, end: bool = False) -> None:
        """Close the open frame, if it holds anything or is the last."""
        events = self._open
        if not events and not end:
            return
        with self._lock:
            self._accepted += len(events)
            value = self._encoder.encode(
                events,
                seq=self.seq,
                closed_ns=self._clock.now(),
                accepted=self._accepted,
                dropped=self.buffer.dropped.total(),
                series=[self._series(sid) for sid in self._sids],
                end=end,
            )
            self.backlog.append(self.sealed(self.seq, len(events), value))
            self.seq += 1
            self._open = []
            self._open_bytes = 0
            self._sids = {}
            self._settle()

    def sealed(self, seq: int, count: int, value: bytes) -> Sealed:
        """Return a closed frame, as it is sent."""
        headers = raw_headers(
            self._origin, kind=self.kind, emitter=self._emitter, seq=seq, count=count
        )
        record = OutRecord(topic=self._topic, key=self._key, headers=headers, value=value)
        return Sealed(seq=seq, count=count, record=record)

    def done(self, *, sent: bool) -> None:
        """Take the oldest frame off: acknowledged, or given up."""
        with self._lock:
            frame = self.backlog.remove_first()
            if sent:
                self._sent += frame.count
            else:
                self._lost += frame.count
            self._settle()

    def give_up(self) -> None:
        """Count every frame as lost that does not outlive the process."""
        with self._lock:
            self._lost += self.backlog.give_up()
            self._settle()

    def stats(self) -> KindStats:
        """Return the account of this kind."""
        with self._lock:
            buffered = len(self.buffer) + len(self._open) + self.backlog.events
            dropped = self.buffer.dropped.counts()
            spooled, lost = self.backlog.kept, self.lost
            return KindStats(
                emitted=self._sent + buffered + spooled + lost + sum(dropped.values()),
                accepted=self._accepted,
                sent=self._sent,
                buffered=buffered,
                spooled=spooled,
                lost=lost,
                dropped=dropped,
            )

    def _add(self, event: bytes, sid: int) -> None:
        """Put an event into the open frame, with its series if it has one."""
        if self.scrubber is not None and event[:1] != _ROW:
            event = self.scrubber.event(event)
        size = len(event)
        if size > MAX_EVENT_BYTES:
            series = self.table.registered[sid] if sid >= 0 else None
            event = shorten(event, self._bad, series)
            size = len(event)
            sid = -1
            self.cut += 1
        if self._open_bytes + size > self._most_bytes or len(self._open) >= self._most_events:
            self.seal()
        if sid >= 0:
            self._sids[sid] = None
        self._open.append(event)
        self._open_bytes += size

    def _series(self, sid: int) -> Series:
        """Return a series as it is sent."""
        series = self.table.registered[sid]
        if self.scrubber is None or not series.tags:
            return series
        return replace(series, tags=self.scrubber.mapping(series.tags))

    def _settle(self, taken: int = 0) -> None:
        self.buffer.settle(self._open_bytes + self.backlog.bytes, taken=taken)
