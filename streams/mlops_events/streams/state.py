"""The state of one source partition: a fold over its log, and nothing but that."""

import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import msgspec

from mlops_events.schemas.errors import ConfigError, DecodeError
from mlops_events.schemas.events import Origin, RawKind, Stats
from mlops_events.schemas.frame import Frame, decode_frame
from mlops_events.schemas.topics import Topics
from mlops_events.streams.aggregate import NOTHING, EmitterWindows, Place, Rules, Taken
from mlops_events.streams.dedupe import SeqRuns
from mlops_events.streams.finiteness import Turn, tell
from mlops_events.streams.limits import Over
from mlops_events.streams.outputs import Output, OutputEncoder, StatsOut
from mlops_events.streams.settings import StreamSettings

__all__ = ["Counts", "Emitter", "Mark", "PartitionState", "Totals"]

VERSION: Final = 2
MAX_VALUE_BYTES: Final = 2_000_000
"""A frame is at most 1 MiB; its tagged copy must fit into a record of 2 MiB."""

_NS_PER_MS: Final = 1_000_000
_MAX_LOG_NS: Final = 2**62


class Mark(NamedTuple):
    """Tells the record at `next` - 1 from any other that may stand there."""

    timestamp_ms: int
    crc: int


class Counts(msgspec.Struct, array_like=True):
    """What was met, in events unless said otherwise; part of the state, so repeats never count."""

    frames: int = 0  # new ones
    events: int = 0  # in new frames, readable or not
    repeats: int = 0  # frames already seen
    late: int = 0  # routed, but their windows over time had closed
    too_old: int = 0
    ahead: int = 0
    malformed: int = 0  # events that could not be read
    late_by_field: int = 0  # routed, but their windows over a field had closed
    over_limit: int = 0  # dead letters, since windows would hold too much
    untold: int = 0  # samples that made series not finite, when too many were already

    def note(self, taken: Taken) -> None:
        """Count what became of a frame's events."""
        self.late += taken.refused.late
        self.too_old += taken.refused.too_old
        self.ahead += taken.refused.ahead
        self.late_by_field += taken.refused.late_by_field
        self.over_limit += len(taken.over)
        self.untold += taken.untold


class Totals(Counts, array_like=True):
    """The counts of all emitters, and what belongs to none."""

    undecodable: int = 0  # records
    stats: int = 0  # final Stats
    gaps_closed: int = 0  # gaps in seq that were given up to bound the memory
    forgotten: int = 0  # emitters that were given up to bound the memory


class Emitter(msgspec.Struct, array_like=True):
    """What is known of one emitter; `end` is the seq of its last frame, once that was seen."""

    id: bytes
    origin: Origin
    heard_ns: int
    seen: SeqRuns = msgspec.field(default_factory=SeqRuns)
    windows: EmitterWindows = msgspec.field(default_factory=EmitterWindows)
    counts: Counts = msgspec.field(default_factory=Counts)
    accepted: int = 0
    dropped: int = 0
    end: int | None = None

    @property
    def lost(self) -> int | None:
        """How many events it accepted that never came; None while its tail is unknown."""
        return None if self.end is None else self.accepted - self.counts.events


class _Version(msgspec.Struct, array_like=True):
    """What comes first in every state that is stored."""

    v: int


class _Packed(msgspec.Struct, array_like=True):
    """A state as it is stored; positions are only ever appended, with a default."""

    v: int
    by: list[str]
    incarnation: int
    next: int
    mark: Mark | None
    log_ns: int
    lost_by_retention: int
    missing: int
    counts: Totals
    emitters: list[Emitter]  # the longest unheard first


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Packed)
_VERSION = msgspec.msgpack.Decoder(_Version)


class PartitionState:
    """What a worker knows of one source partition.

    It depends on the records folded and on nothing else: no clock, no worker, no restart. Two
    workers that fold the same records have the same state and put out the same bytes.

    `next` is the offset of the next record; `log_ns` is log time, the highest timestamp so far;
    `incarnation` is how often the log was made anew. `lost_by_retention` counts records that were
    deleted before they were read, `missing` offsets in holes of the log that stayed.

    Args:
        settings: windows, routes and tags.
        topics: the names of the topics that outputs go to.
        kind: of the raw topic.
        partition: its number.
    """

    def __init__(
        self, settings: StreamSettings, *, topics: Topics, kind: RawKind, partition: int
    ) -> None:
        self.incarnation = 0
        self.next = 0
        self.log_ns = 0
        self.lost_by_retention = 0
        self.missing = 0
        self.counts = Totals()
        self._kind = kind
        self._rules = Rules.of(settings, kind)
        self._hold_ns = settings.hold_ns
        self._max_emitters = settings.max_emitters
        self._encode = OutputEncoder(settings, topics=topics, kind=kind, partition=partition)
        self._encode_log = OutputEncoder(settings, topics=topics, kind="log", partition=partition)
        self._series = 0
        self._mark: Mark | None = None
        self._unmarked: tuple[int, bytes | None] | None = None
        # Every emitter is in one of the two, the longest unheard first. Those in `_silent` were
        # unheard for longer than `hold` and have no open windows; `_forgettable` holds when to
        # forget them, with entries that no longer count because the emitter spoke again.
        self._live: OrderedDict[bytes, Emitter] = OrderedDict()
        self._silent: OrderedDict[bytes, Emitter] = OrderedDict()
        self._forgettable: list[tuple[int, bytes]] = []

    @classmethod
    def decode(
        cls,
        data: bytes,
        settings: StreamSettings,
        *,
        topics: Topics,
        kind: RawKind,
        partition: int,
    ) -> "PartitionState":
        """Read a state back.

        Raises:
            DecodeError: the bytes are no state that this version can read.
            ConfigError: its windows are cut by other rules than the settings say.
        """
        try:
            version = _VERSION.decode(data).v
            if version != VERSION:
                raise DecodeError(f"a state of version {version}; this version reads {VERSION}")
            packed = _DECODER.decode(data)
        except msgspec.MsgspecError as error:
            raise DecodeError(f"{len(data)} bytes are no state of a partition: {error}") from error
        self = cls(settings, topics=topics, kind=kind, partition=partition)
        rules = [by.label for by in self._rules.by]
        if packed.by != rules:
            raise ConfigError(
                f"the state of partition {partition} of {topics.raw(kind)} has windows by "
                f"{', '.join(packed.by)}; by says {', '.join(rules)}; "
                "set it back, or give the stream another group to start anew"
            )
        self.incarnation = packed.incarnation
        self.next = packed.next
        self.log_ns = packed.log_ns
        self.lost_by_retention = packed.lost_by_retention
        self.missing = packed.missing
        self.counts = packed.counts
        self._mark = packed.mark
        for emitter in packed.emitters:
            self._series += emitter.windows.series
            if emitter.windows.are_open or not self._is_silent(emitter):
                self._live[emitter.id] = emitter
            else:
                self._silence(emitter)
        return self

    def encode(self) -> bytes:
        """Return the whole state, open windows with all their samples."""
        return _ENCODER.encode(
            _Packed(
                v=VERSION,
                by=[by.label for by in self._rules.by],
                incarnation=self.incarnation,
                next=self.next,
                mark=self.mark,
                log_ns=self.log_ns,
                lost_by_retention=self.lost_by_retention,
                missing=self.missing,
                counts=self.counts,
                emitters=list(self.emitters()),
            )
        )

    @property
    def mark(self) -> Mark | None:
        """The mark of the record at `next` - 1; None if that was not folded."""
        if self._unmarked is not None:
            timestamp_ms, value = self._unmarked
            self._mark = Mark(timestamp_ms, zlib.crc32(value or b""))
            self._unmarked = None
        return self._mark

    def emitters(self) -> Iterator[Emitter]:
        """Yield the emitters that are remembered, the longest unheard first."""
        yield from self._silent.values()
        yield from self._live.values()

    def fold(self, offset: int, timestamp_ms: int, value: bytes | None) -> list[Output]:
        """Take the next record and return what it puts out; bad bytes become dead letters.

        Args:
            offset: `next`, or above it behind a hole that stays, which is counted in `missing`.
            timestamp_ms: the record's.
            value: the record's.

        Raises:
            ValueError: the offset is below `next`: the caller's guard has a fault.
        """
        if offset < self.next:
            raise ValueError(f"offset {offset} was folded before; expected {self.next}")
        self.missing += offset - self.next
        self.next = offset + 1
        self._unmarked = (timestamp_ms, value)
        outputs: list[Output] = []
        self._pass_time(timestamp_ms, outputs)
        frame = self._read(value, offset, outputs)
        if frame is None:
            return outputs
        emitter = self._hear(frame, outputs)
        gaps_closed = emitter.seen.gaps_closed
        if not emitter.seen.add(frame.seq):
            emitter.counts.repeats += 1
            self.counts.repeats += 1
            return outputs
        self.counts.gaps_closed += emitter.seen.gaps_closed - gaps_closed
        outputs += [
            self._encode.reject(frame, reject, offset=offset, log_ns=self.log_ns)
            for reject in frame.rejects
        ]
        windows, total = emitter.windows, self._series
        self._series -= windows.series
        taken = windows.take(
            frame, log_ns=self.log_ns, rules=self._rules, total=total, live=len(self._live)
        )
        only = self._leave_out(frame, taken.over, offset, outputs) if taken.over else None
        outputs += self._encode.frame(frame, only=only) or self._encode.unrouted(
            frame, offset=offset, log_ns=self.log_ns, only=only
        )
        for counts in (emitter.counts, self.counts):
            counts.frames += 1
            counts.events += len(frame) + len(frame.rejects)
            counts.malformed += len(frame.rejects)
            if taken is not NOTHING:
                counts.note(taken)
        if taken.turns:
            self._tell(frame, taken.turns, outputs)
        emitter.accepted = max(emitter.accepted, frame.accepted)
        emitter.dropped = max(emitter.dropped, frame.dropped)
        stats = windows.close_passed(self._rules)
        if frame.end:
            emitter.end = frame.seq
            stats += windows.close_all(self._rules, closed_by="end")
        self._series += windows.series
        self._publish(emitter, stats, outputs)
        return outputs

    def show(self, emitter: Emitter, places: Sequence[Place]) -> list[StatsOut]:
        """Return open windows of an emitter as they are now; changes nothing."""
        stats = [s for place in places for s in emitter.windows.show(place, self._rules)]
        return list(self._encode.stats(emitter.id, emitter.origin, stats))

    def restart_at(self, offset: int, *, expired: int = 0, recreated: bool = False) -> None:
        """Go on at this offset with all that is known.

        Args:
            offset: the log's start.
            expired: records that retention took.
            recreated: the log is another one, which continues the old one.
        """
        self.lost_by_retention += expired
        self.incarnation += recreated
        self.next = offset
        self._mark = None
        self._unmarked = None

    def _pass_time(self, timestamp_ms: int, outputs: list[Output]) -> None:
        """Move log time on; close what was silent for too long and forget what is long gone."""
        now = self.log_ns = max(self.log_ns, min(timestamp_ms * _NS_PER_MS, _MAX_LOG_NS))
        while self._live:
            emitter = next(iter(self._live.values()))
            if not self._is_silent(emitter):
                break
            del self._live[emitter.id]
            self._close(emitter, outputs)
            self._silence(emitter)
        while self._forgettable and self._forgettable[0][0] < now:
            _, name = heappop(self._forgettable)
            silent = self._silent.get(name)
            if silent is not None and self._remembered_until(silent) < now:
                del self._silent[name]

    def _read(self, value: bytes | None, offset: int, outputs: list[Output]) -> Frame | None:
        reason, message = "undecodable", ""
        try:
            frame = decode_frame(value)
            size = len(value or b"")
            if frame.kind == self._kind and size <= MAX_VALUE_BYTES:
                return frame
            if size > MAX_VALUE_BYTES:
                reason, message = "too_large", f"{size} bytes; a frame has at most 1 MiB"
            else:
                reason = "wrong_kind"
                message = f"a frame of kind {frame.kind!r} in a topic of kind {self._kind!r}"
        except DecodeError as error:
            message = str(error)
        self.counts.undecodable += 1
        outputs.append(
            self._encode.undecodable(
                value, offset=offset, log_ns=self.log_ns, reason=reason, message=message
            )
        )
        return None

    def _hear(self, frame: Frame, outputs: list[Output]) -> Emitter:
        """Return the emitter of a frame, heard now."""
        name = frame.emitter
        emitter = self._live.get(name) or self._silent.pop(name, None)
        if emitter is None:
            if len(self._live) + len(self._silent) >= self._max_emitters:
                self._make_room(outputs)
            emitter = Emitter(id=name, origin=frame.origin, heard_ns=self.log_ns)
        emitter.heard_ns = self.log_ns
        self._live[name] = emitter
        self._live.move_to_end(name)
        return emitter

    def _leave_out(
        self, frame: Frame, over: Sequence[Over], offset: int, outputs: list[Output]
    ) -> list[int]:
        """Put out dead letters of events that are too much; return the indices of the others."""
        places = {id(e): i for i, e in zip(frame.indices, frame.items, strict=True)}
        for reason in dict.fromkeys(one.reason for one in over):
            some = [one for one in over if one.reason == reason]
            outputs.append(
                self._encode.over(
                    frame,
                    [places.pop(id(one.event)) for one in some],
                    offset=offset,
                    log_ns=self.log_ns,
                    reason=reason,
                    message=some[0].message,
                )
            )
        return list(places.values())

    def _tell(self, frame: Frame, turns: Sequence[Turn], outputs: list[Output]) -> None:
        """Put out a line of log for each series that is not finite any more, or is again."""
        places = {id(e): i for i, e in zip(frame.indices, frame.items, strict=True)}
        for turn in turns:
            said = tell(turn, frame, places[id(turn.event)])
            outputs += self._encode_log.frame(said.frame())

    def _make_room(self, outputs: list[Output]) -> None:
        """Forget the emitter that was unheard for longest."""
        _, emitter = (self._silent or self._live).popitem(last=False)
        self._close(emitter, outputs)
        self.counts.forgotten += 1

    def _close(self, emitter: Emitter, outputs: list[Output]) -> None:
        self._series -= emitter.windows.series
        stats = emitter.windows.close_all(self._rules, closed_by="hold")
        self._publish(emitter, stats, outputs)

    def _publish(self, emitter: Emitter, stats: list[Stats], outputs: list[Output]) -> None:
        if stats:
            self.counts.stats += len(stats)
            outputs += self._encode.stats(emitter.id, emitter.origin, stats)

    def _silence(self, emitter: Emitter) -> None:
        self._silent[emitter.id] = emitter
        heappush(self._forgettable, (self._remembered_until(emitter), emitter.id))
        if len(self._forgettable) > 2 * len(self._silent) + 1000:
            self._forgettable = [(self._remembered_until(e), e.id) for e in self._silent.values()]
            heapify(self._forgettable)

    def _is_silent(self, emitter: Emitter) -> bool:
        return self.log_ns - emitter.heard_ns > self._hold_ns

    def _remembered_until(self, emitter: Emitter) -> int:
        ended = emitter.end is not None and emitter.seen.whole(emitter.end)
        keep = self._hold_ns if ended else self._rules.keep
        return max(emitter.heard_ns, emitter.windows.newest) + keep
