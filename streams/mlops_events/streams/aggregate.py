"""Tumbling windows of one emitter: over event time, and over whole-numbered fields."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from mlops_events.schemas.events import RawKind, Stats
from mlops_events.schemas.frame import Frame
from mlops_events.streams.by import TIME, By
from mlops_events.streams.fieldvalue import reader_of
from mlops_events.streams.figures import summarise
from mlops_events.streams.finiteness import Bad, SeriesName, Turn, find_turns
from mlops_events.streams.limits import Held, Limits, Over, Part, find_over, may_be_over
from mlops_events.streams.sampling import Group, Window, group_events
from mlops_events.streams.settings import StreamSettings

__all__ = ["NOTHING", "EmitterWindows", "Place", "Refused", "Rules", "Taken", "Windows"]

_NEVER: Final = -(2**63)

Place: TypeAlias = tuple[int, int]
"""Where an open window is: the number of its rule, and its start."""


class Rules(NamedTuple):
    """What decides whether an event goes into a window; times in nanoseconds."""

    kind: RawKind
    by: tuple[By, ...]
    lateness: int
    keep: int
    ahead: int
    limits: Limits = Limits(2**63, 2**63)

    @classmethod
    def of(cls, settings: StreamSettings, kind: RawKind) -> "Rules":
        """Return the rules for events of a kind; those of runs and logs have no windows."""
        return cls(
            kind=kind,
            by=settings.rules if kind in ("observation", "profile") else (),
            lateness=settings.lateness_ns,
            keep=settings.keep_ns,
            ahead=settings.ahead_ns,
            limits=Limits(settings.max_samples, settings.max_series),
        )


class Refused(NamedTuple):
    """How many events of a frame were kept out of windows, and why.

    Those that are `too_old` or `ahead` went into none. Of `late` ones a window over time had
    closed, of `late_by_field` ones one over a field; they went into the others.
    """

    late: int = 0
    too_old: int = 0
    ahead: int = 0
    late_by_field: int = 0


class Taken(NamedTuple):
    """What became of a frame's events: those `refused` are routed all the same, `over` ones not.

    `turns` are series that became NaN or infinite, or finite again; `untold` others did, too.
    """

    refused: Refused = Refused()
    over: Sequence[Over] = ()
    turns: Sequence[Turn] = ()
    untold: int = 0


NOTHING: Final = Taken()
"""All events went into their windows, and nothing else happened."""


class Windows(msgspec.Struct, array_like=True):
    """The open windows of an emitter by one rule, by their start.

    `watermark` is what has closed: a window that ends at or before it takes nothing more. It
    never goes back.
    """

    watermark: int = _NEVER
    open: dict[int, Window] = msgspec.field(default_factory=dict)

    def sort_by_time(
        self, groups: Sequence[Group], first: int, last: int, *, by: By, lateness: int
    ) -> list[Part]:
        """Return which samples go into which windows over time, and move the watermark.

        Args:
            groups: of the events of a frame, whose times lie between `first` and `last`.
            first: the lowest time.
            last: the highest time.
            by: the rule.
            lateness: how far the watermark stays behind.
        """
        size = by.size
        opens = self.watermark // size * size
        self.watermark = max(self.watermark, last - lateness)
        start = first // size * size
        if first >= opens and last < start + size:
            return [Part(self.open, by, start, self.open.get(start, {}), groups)]
        return self._split(groups, by, lambda e: e.ts // size * size if e.ts >= opens else None)

    def sort_by_field(
        self, groups: Sequence[Group], items: Sequence[Any], frame: Frame, *, by: By, late: set[int]
    ) -> tuple[list[Part], int]:
        """Return which samples go into which windows over a field, and move the watermark.

        The windows that lie two or more below the highest one are passed.

        Args:
            groups: of the events.
            items: the events, some of them without samples.
            frame: of the events.
            by: the rule.
            late: takes the ids of the objects that came when their windows had closed.

        Returns:
            Also the newest time of an event that goes into a window.
        """
        size = by.size
        opens = self.watermark // size * size
        read = reader_of(frame, by.name)
        starts: dict[int, int] = {}
        newest = _NEVER
        for item in items:
            value = read(item)
            if value is None or (start := value // size * size) < _NEVER:
                continue
            if start < opens:
                late.add(id(item))
                continue
            starts[id(item)] = start
            newest = max(newest, item.ts)
            self.watermark = max(self.watermark, start - size)
        return self._split(groups, by, lambda e: starts.get(id(e))), newest

    def _split(
        self, groups: Sequence[Group], by: By, start_of: Callable[[Any], int | None]
    ) -> list[Part]:
        """Return the parts of groups by the start of their window; None is in no window."""
        split: defaultdict[int, list[Group]] = defaultdict(list)
        for group in groups:
            places: defaultdict[int, list[int]] = defaultdict(list)
            for k, event in enumerate(group.events):
                start = start_of(event)
                if start is not None:
                    places[start].append(k)
            for start, some in places.items():
                split[start].append(group.part(some))
        return [
            Part(self.open, by, start, self.open.get(start, {}), some)
            for start, some in split.items()
        ]

    def close_passed(self, by: By, kind: RawKind) -> list[Stats]:
        """Close those that the watermark has passed and return their final Stats."""
        passed = [start for start in self.open if start + by.size <= self.watermark]
        return self._close(passed, by, kind, "watermark") if passed else []

    def close_all(self, by: By, kind: RawKind, *, closed_by: str) -> list[Stats]:
        """Close all of them, whether passed or not, and return their final Stats."""
        return self._close(self.open, by, kind, closed_by) if self.open else []

    def _close(
        self, starts: Sequence[int] | dict[int, Window], by: By, kind: RawKind, closed_by: str
    ) -> list[Stats]:
        stats: list[Stats] = []
        for start in sorted(starts):
            stats += _stats(self.open.pop(start), start, by, kind, closed_by)
            self.watermark = max(self.watermark, start + by.size)
        return stats


class EmitterWindows(msgspec.Struct, array_like=True):
    """The windows of an emitter, `each` by one rule.

    `newest` is the highest event time in them, `series` how many series are in open ones, `bad`
    those series that are not finite.
    """

    newest: int = _NEVER
    each: list[Windows] = msgspec.field(default_factory=list)
    series: int = 0
    bad: dict[SeriesName, Bad] = msgspec.field(default_factory=dict)

    @property
    def are_open(self) -> bool:
        """True if a window is open."""
        return any(windows.open for windows in self.each)

    def take(
        self, frame: Frame, *, log_ns: int, rules: Rules, total: int = 0, live: int = 1
    ) -> Taken:
        """Put the events of a new frame into their windows.

        The watermarks from before the frame decide about all of it, so the order of events in a
        frame means nothing for them. An event that hurts a limit goes into no window, but moves
        the watermarks, so that full windows close.

        Args:
            frame: observations or profiles; events of other kinds have no windows.
            log_ns: log time.
            rules: of the partition.
            total: how many series are in open windows of the partition before the frame.
            live: how many emitters have spoken lately.
        """
        items: Sequence[Any] = frame.items
        if not items or not rules.by:
            return NOTHING
        if not self.each:
            self.each = [Windows() for _ in rules.by]
        refused = NOTHING.refused
        not_late, not_old = _NEVER, log_ns - rules.keep
        for windows, by in zip(self.each, rules.by, strict=True):
            if by.name == TIME:
                not_late = max(not_late, windows.watermark // by.size * by.size)
                not_old = max(not_old, -((rules.keep - log_ns) // by.size) * by.size)
        limit = min(frame.closed_ns + rules.lateness, log_ns + rules.ahead)
        times = [item.ts for item in items]
        first, last = min(times), max(times)
        if first < not_late or first < not_old or last > limit:
            refused = _count_refused(times, not_late, not_old, limit)
            items = [item for item in items if not_old <= item.ts <= limit]
            if not items:
                return Taken(refused)
            times = [item.ts for item in items]
            first, last = min(times), max(times)
        groups = group_events(items, frame, rules.kind)
        if refused is NOTHING.refused and self._take_table(
            groups, first, last, frame, rules, total
        ):
            return NOTHING
        late: set[int] = set()
        parts = self._sort(groups, items, frame, (first, last), rules, late)
        over, turns, untold = NOTHING.over, NOTHING.turns, 0
        if may_be_over(parts, rules.limits, total):
            over = find_over(parts, items, rules.limits, Held(total, self.series, live))
            if over:
                ids = {id(one.event) for one in over}
                late -= ids
                parts = [part.without(ids) for part in parts]
                groups = [group.without(ids) for group in groups]
        if self.bad or [True for group in groups if group.loose]:
            turns, untold = find_turns(
                groups,
                self.bad,
                places=lambda: {id(item): k for k, item in enumerate(items)},
                last_finite=self._last_finite,
            )
        for part in parts:
            self.series += part.add(frame.seq)
        if late:
            refused = refused._replace(late_by_field=len(late))
        if over or turns or untold or refused is not NOTHING.refused:
            return Taken(refused, over, turns, untold)
        return NOTHING

    def _take_table(
        self,
        groups: Sequence[Group],
        first: int,
        last: int,
        frame: Frame,
        rules: Rules,
        total: int,
    ) -> bool:
        """Take what nearly all frames are, a table for one open window; return whether it was so."""
        if len(groups) != 1 or len(rules.by) != 1 or self.bad:
            return False
        (by,), (group,), (windows,) = rules.by, groups, self.each
        start = first // by.size * by.size
        window = windows.open.get(start)
        cell = None if window is None else window.get(group.name)
        if (
            window is None
            or cell is None
            or by.name != TIME
            or group.loose is not None
            or last >= start + by.size
            or cell.most + len(group.events) > rules.limits.max_samples
            or total + group.width > rules.limits.max_series
        ):
            return False
        self.series += group.add_to(window, frame.seq)
        self.newest = max(self.newest, last)
        windows.watermark = max(windows.watermark, last - rules.lateness)
        return True

    def _sort(
        self,
        groups: Sequence[Group],
        items: Sequence[Any],
        frame: Frame,
        span: tuple[int, int],
        rules: Rules,
        late: set[int],
    ) -> list[Part]:
        """Return which samples go into which windows, and move what has closed on."""
        first, last = span
        parts: list[Part] = []
        for windows, by in zip(self.each, rules.by, strict=True):
            if by.name == TIME:
                newest = last if last >= windows.watermark // by.size * by.size else _NEVER
                parts += windows.sort_by_time(groups, first, last, by=by, lateness=rules.lateness)
            else:
                some, newest = windows.sort_by_field(groups, items, frame, by=by, late=late)
                parts += some
            self.newest = max(self.newest, newest)
        return parts

    def _last_finite(self, series: SeriesName, until: int) -> float | None:
        """Return the newest finite sample of a series in the open windows, up to a time."""
        name, field = series
        found = [
            last
            for windows in self.each
            for window in windows.open.values()
            if name in window and (last := window[name].last_finite(field)) is not None
        ]
        at, value = max(found, default=((until + 1, 0), 0.0))
        return value if at[0] <= until else None

    def close_passed(self, rules: Rules) -> list[Stats]:
        """Close the windows that a watermark has passed and return their final Stats."""
        stats: list[Stats] = []
        for windows, by in zip(self.each, rules.by, strict=False):
            stats += windows.close_passed(by, rules.kind)
        self.series -= len(stats)
        return stats

    def close_all(self, rules: Rules, *, closed_by: str) -> list[Stats]:
        """Close all windows, whether passed or not, and return their final Stats."""
        stats: list[Stats] = []
        for windows, by in zip(self.each, rules.by, strict=False):
            stats += windows.close_all(by, rules.kind, closed_by=closed_by)
        self.series -= len(stats)
        return stats

    def revisions(self) -> dict[Place, int]:
        """Return how many samples each open window has."""
        return {
            (number, start): sum(cell.revision for cell in window.values())
            for number, windows in enumerate(self.each)
            for start, window in windows.open.items()
        }

    def show(self, place: Place, rules: Rules) -> list[Stats]:
        """Return the Stats of an open window as it is now."""
        number, start = place
        window = self.each[number].open[start]
        return list(_stats(window, start, rules.by[number], rules.kind, ""))


def _count_refused(times: Sequence[int], not_late: int, not_old: int, limit: int) -> Refused:
    late = sum(ts < not_late for ts in times)
    too_old = sum(not_late <= ts < not_old for ts in times)
    ahead = sum(ts > limit and ts >= not_late and ts >= not_old for ts in times)
    return Refused(late, too_old, ahead)


def _stats(window: Window, start: int, by: By, kind: RawKind, closed_by: str) -> Iterator[Stats]:
    for name, cell in window.items():
        for field, series in cell.series().items():
            count = len(series.numbers)
            figures = summarise(series.numbers)
            bad = series.bad
            yield Stats(
                kind=kind,
                name=name,
                field=field,
                start=start,
                size=by.size,
                revision=count + (bad.count if bad else 0),
                final=bool(closed_by),
                count=count,
                mean=figures.mean,
                min=figures.min,
                max=figures.max,
                median=figures.median,
                nonfinite=bad.count if bad else 0,
                first_nonfinite_step=bad.first_step if bad else None,
                last_finite=series.last,
                by=by.name,
                closed_by=closed_by,
            )
