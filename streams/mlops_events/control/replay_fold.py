"""One source partition of a replay: which of its events are wanted, and which windows they fill."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from mlops_events.control.replay_account import Account
from mlops_events.control.replay_request import WINDOWED, ReplayRequest
from mlops_events.control.replay_windows import Closed, EmitterWindows, OpenWindow, ReplayWindows
from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import RawKind, Stats
from mlops_events.schemas.frame import Frame, StatsFrame, decode_frame
from mlops_events.sinks.base import FrameRecord, Record, StatsRecord
from mlops_events.streams.by import By
from mlops_events.streams.dedupe import SeqRuns
from mlops_events.streams.logreader import LogRecord, TopicPartition
from mlops_events.streams.tag import normalise_version, tag

__all__ = ["Plan", "ReplayFold", "Source"]

_NS_PER_MS = 1_000_000
_STATS_IN_RECORD = 500


class Source(msgspec.Struct, kw_only=True):
    """A source partition as it is saved: what is left to read, and what is known so far."""

    kind: RawKind
    topic: str
    partition: int
    start: int
    next: int
    end: int
    arrived_ns: int = 0
    seen: dict[bytes, SeqRuns] = msgspec.field(default_factory=dict)
    emitters: list[EmitterWindows] = msgspec.field(default_factory=list)

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class Plan(NamedTuple):
    """What a replay writes: these kinds, in windows by these rules, with these tags."""

    request: ReplayRequest
    kinds: frozenset[str]
    rules: Sequence[By]
    tags: dict[str, str]
    still_open: Collection[OpenWindow] = ()


class ReplayFold:
    """Reads one source partition in the order of its log.

    Args:
        source: where it stands; kept up to date, but for its windows.
        plan: what is written.
        account: counts what is filtered; what is written is counted by whoever writes.
    """

    def __init__(self, source: Source, plan: Plan, account: Account) -> None:
        self.source = source
        self._request = plan.request
        self._tags = plan.tags
        self._routed = source.kind in plan.kinds
        self._account = account
        self._windows: ReplayWindows | None = None
        if "stats" in plan.kinds and source.kind in WINDOWED:
            self._windows = ReplayWindows(
                plan.rules,
                kind=source.kind,
                request=plan.request,
                still_open=plan.still_open,
                emitters=source.emitters,
            )

    def save(self) -> Source:
        """Return all that is known, windows included."""
        if self._windows is not None:
            self.source.emitters = self._windows.emitters()
        return self.source

    def take(self, record: LogRecord, *, now_ms: int) -> list[Record]:
        """Read the next record; return what is to be written.

        Args:
            record: at `next` or, where the log has a hole, above it.
            now_ms: the time that sinks are told as that of the records.
        """
        source = self.source
        source.next = record.offset + 1
        source.arrived_ns = max(source.arrived_ns, record.timestamp * _NS_PER_MS)
        frame = self._read(record)
        chosen = None if frame is None else self._choose(frame)
        records: list[Record] = []
        if chosen is not None:
            records.append(
                FrameRecord(
                    frame=chosen,
                    topic=source.topic,
                    partition=source.partition,
                    offset=record.offset,
                    timestamp_ms=now_ms,
                )
            )
        if self._windows is not None:
            records += self._put_out(self._windows.pass_time(source.arrived_ns), now_ms=now_ms)
        return records

    def finish(self, *, now_ms: int) -> list[Record]:
        """Return what is left to be written when everything was read."""
        self.source.next = self.source.end
        windows, self._windows = self._windows, None
        records = [] if windows is None else self._put_out(windows.finish(), now_ms=now_ms)
        self.source.emitters = []
        self.source.seen = {}
        return records

    def _read(self, record: LogRecord) -> Frame | None:
        try:
            frame = decode_frame(record.value)
        except DecodeError:
            frame = None
        if frame is None or frame.kind != self.source.kind:
            self._account.read += 1
            self._account.filtered.unreadable += 1
            return None
        return frame

    def _choose(self, frame: Frame) -> Frame | None:
        """Put a frame's events into windows, and return what is wanted of it, tagged."""
        request, filtered = self._request, self._account.filtered
        size = len(frame) + len(frame.rejects)
        self._account.read += size
        if request.run is not None and frame.origin.run != request.run:
            filtered.other_run += size
            return None
        if request.version not in (None, normalise_version(frame.origin.version)):
            filtered.other_version += size
            return None
        seen = self.source.seen.get(frame.emitter)
        if seen is None:
            seen = self.source.seen[frame.emitter] = SeqRuns()
        if not seen.add(frame.seq):
            filtered.repeat += size
            return None
        filtered.unreadable += len(frame.rejects)
        if self._windows is not None:
            self._account.beyond_slack += self._windows.take(
                frame, arrived_ns=self.source.arrived_ns
            )
        indices = self._inside(frame)
        filtered.other_time += len(frame) - len(indices)
        if not self._routed:
            filtered.not_routed += len(indices)
            return None
        if not indices and not self._is_empty_inside(frame):
            return None
        only = None if len(indices) == len(frame) else indices
        return decode_frame(frame.encode(tags=tag(frame.origin, self._tags), only=only))

    def _inside(self, frame: Frame) -> Sequence[int]:
        since, until = self._request.since_ns, self._request.until_ns
        items: Sequence[Any] = frame.items
        return [i for i, item in zip(frame.indices, items, strict=True) if since <= item.ts < until]

    def _is_empty_inside(self, frame: Frame) -> bool:
        """Whether it is a frame without events, such as the last one of an emitter, of the range."""
        request = self._request
        return not len(frame) and request.since_ns <= frame.closed_ns < request.until_ns

    def _put_out(self, closed: Iterable[Closed], *, now_ms: int) -> list[Record]:
        records: list[Record] = []
        for window in closed:
            if window.cut:
                self._account.note_cut(window.cut)
            stats = window.stats
            records += [
                self._record(window, stats[start : start + _STATS_IN_RECORD], now_ms)
                for start in range(0, len(stats), _STATS_IN_RECORD)
            ]
        return records

    def _record(self, window: Closed, stats: list[Stats], now_ms: int) -> StatsRecord:
        source = self.source
        return StatsRecord(
            frame=StatsFrame(
                emitter=window.emitter,
                origin=window.origin,
                stats=stats,
                tags=tag(window.origin, self._tags),
            ),
            topic=source.topic,
            partition=source.partition,
            offset=source.next - 1,
            timestamp_ms=now_ms,
        )
