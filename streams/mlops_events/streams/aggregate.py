"""Tumbling windows of one emitter, in event time."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from mlops_events.schemas.events import RawKind, Stats
from mlops_events.schemas.frame import Frame
from mlops_events.streams.figures import summarise
from mlops_events.streams.sampling import Window, add_observations, add_profiles
from mlops_events.streams.settings import StreamSettings

__all__ = ["Refused", "Rules", "Windows"]

_NEVER: Final = -(2**63)


class Rules(NamedTuple):
    """What decides whether an event goes into a window; times in nanoseconds."""

    kind: RawKind
    size: int
    lateness: int
    keep: int
    ahead: int

    @classmethod
    def of(cls, settings: StreamSettings, kind: RawKind) -> "Rules":
        """Return the rules for events of a kind."""
        return cls(
            kind=kind,
            size=settings.window_ns,
            lateness=settings.lateness_ns,
            keep=settings.keep_ns,
            ahead=settings.ahead_ns,
        )


class Refused(NamedTuple):
    """How many events of a frame went into no window, and why."""

    late: int = 0
    too_old: int = 0
    ahead: int = 0


_NONE: Final = Refused()


class Windows(msgspec.Struct, array_like=True):
    """The open windows of an emitter by their start.

    `watermark` is what has closed: a window that ends at or before it takes nothing more. It
    never goes back. `newest` is the highest event time that went in.
    """

    watermark: int = _NEVER
    newest: int = _NEVER
    open: dict[int, Window] = msgspec.field(default_factory=dict)

    def take(self, frame: Frame, *, log_ns: int, rules: Rules) -> Refused:
        """Put the events of a new frame into their windows.

        The watermark from before the frame decides about all of it, so the order of events in a
        frame means nothing.

        Args:
            frame: observations or profiles; events of other kinds have no windows.
            log_ns: log time.
            rules: of the partition.
        """
        items: Sequence[Any] = frame.items
        if not items or rules.kind not in ("observation", "profile"):
            return _NONE
        size = rules.size
        refused = _NONE
        times = [item.ts for item in items]
        first, last = min(times), max(times)
        not_late = self.watermark // size * size
        not_old = -((rules.keep - log_ns) // size) * size
        limit = min(frame.closed_ns + rules.lateness, log_ns + rules.ahead)
        if first < not_late or first < not_old or last > limit:
            refused = _count_refused(times, not_late, not_old, limit)
            low = max(not_late, not_old)
            items = [item for item in items if low <= item.ts <= limit]
            if not items:
                return refused
            times = [item.ts for item in items]
            first, last = min(times), max(times)
        for start, batch in _by_window(items, first, last, size):
            window = self.open.get(start, {})
            if rules.kind == "profile":
                add_profiles(window, batch, frame.seq)
            else:
                add_observations(window, batch, frame)
            if window:
                self.open[start] = window
        self.newest = max(self.newest, last)
        self.watermark = max(self.watermark, last - rules.lateness)
        return refused

    def close_passed(self, rules: Rules) -> list[Stats]:
        """Close the windows that the watermark has passed and return their final Stats."""
        passed = [start for start in self.open if start + rules.size <= self.watermark]
        return self._close(passed, rules, "watermark") if passed else []

    def close_all(self, rules: Rules, *, closed_by: str) -> list[Stats]:
        """Close all windows, whether passed or not, and return their final Stats."""
        return self._close(self.open, rules, closed_by) if self.open else []

    def revisions(self) -> dict[int, int]:
        """Return how many samples each open window has."""
        return {
            start: sum(cell.revision for cell in window.values())
            for start, window in self.open.items()
        }

    def show(self, start: int, rules: Rules) -> list[Stats]:
        """Return the Stats of an open window as it is now."""
        return list(_stats(self.open[start], start, rules, ""))

    def _close(
        self, starts: Sequence[int] | dict[int, Window], rules: Rules, closed_by: str
    ) -> list[Stats]:
        stats: list[Stats] = []
        for start in sorted(starts):
            stats += _stats(self.open.pop(start), start, rules, closed_by)
            self.watermark = max(self.watermark, start + rules.size)
        return stats


def _count_refused(times: Sequence[int], not_late: int, not_old: int, limit: int) -> Refused:
    late = sum(ts < not_late for ts in times)
    too_old = sum(not_late <= ts < not_old for ts in times)
    ahead = sum(ts > limit and ts >= not_late and ts >= not_old for ts in times)
    return Refused(late, too_old, ahead)


def _by_window(
    items: Sequence[Any], first: int, last: int, size: int
) -> Iterator[tuple[int, Sequence[Any]]]:
    if first // size == last // size:
        yield first // size * size, items
        return
    batches: defaultdict[int, list[Any]] = defaultdict(list)
    for item in items:
        batches[item.ts // size].append(item)
    for number, batch in batches.items():
        yield number * size, batch


def _stats(window: Window, start: int, rules: Rules, closed_by: str) -> Iterator[Stats]:
    for name, cell in window.items():
        for field, series in cell.series().items():
            count = len(series.numbers)
            figures = summarise(series.numbers)
            bad = series.bad
            yield Stats(
                kind=rules.kind,
                name=name,
                field=field,
                start=start,
                size=rules.size,
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
                closed_by=closed_by,
            )
