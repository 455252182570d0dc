"""Which events would make windows hold too much: too many samples of a series, too many series."""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from mlops_events.streams.by import By
from mlops_events.streams.sampling import Group, Window

__all__ = ["Held", "Limits", "Over", "Part", "find_over", "may_be_over"]


class Limits(NamedTuple):
    """How much is held in memory: samples of a series in a window, series in open windows."""

    max_samples: int
    max_series: int


class Held(NamedTuple):
    """How many series are in open windows: of the partition, and of the emitter.

    `live` is how many emitters have spoken lately.
    """

    total: int = 0
    own: int = 0
    live: int = 1

    def room(self, max_series: int) -> int:
        """Return how many more series the emitter may have.

        Where the partition is full, an emitter may still have its share, `max_series` / `live`, so
        that one that has too many takes nothing from the others. The partition never has more
        than twice `max_series`.
        """
        share = max_series // max(1, self.live)
        spare = min(share - self.own, 2 * max_series - self.total)
        return max(max_series - self.total, spare, 0)


class Part(NamedTuple):
    """Samples that are to go into a window; `windows` holds it from then on if there are any."""

    windows: dict[int, Window]
    by: By
    start: int
    window: Window
    groups: Sequence[Group]

    def without(self, events: Container[int]) -> "Part":
        """Return what is left without these events, by the id of the object."""
        return self._replace(groups=[group.without(events) for group in self.groups])

    def add(self, seq: int) -> int:
        """Put the samples in; return how many series there were not in the window before."""
        new = 0
        for group in self.groups:
            new += group.add_to(self.window, seq)
        if self.window:
            self.windows[self.start] = self.window
        return new


class Over(NamedTuple):
    """An event of a frame that went into no window, since there would be too much in it."""

    event: Any
    reason: str
    message: str


class _Series(NamedTuple):
    by: By
    start: int
    name: str
    field: str


def may_be_over(parts: Sequence[Part], limits: Limits, total: int) -> bool:
    """Say whether a limit can be hurt, by a bound that needs no look at single events.

    Args:
        parts: what of a frame goes into which windows.
        limits: what may be held.
        total: how many series the partition holds before.
    """
    series = 0
    for part in parts:
        samples = 0
        for group in part.groups:
            cell = part.window.get(group.name)
            samples += group.most
            if samples + (0 if cell is None else cell.most) > limits.max_samples:
                return True
            series += group.width
    return total + series > limits.max_series


def find_over(
    parts: Iterable[Part], items: Sequence[Any], limits: Limits, held: Held
) -> list[Over]:
    """Return the events that hurt a limit, in the order of the frame.

    An event goes in as a whole, into every window, or not at all; what comes behind one that does
    not may still go in.

    Args:
        parts: what of a frame goes into which windows.
        items: the frame's events, in its order.
        limits: what may be held.
        held: what is held before the frame.
    """
    wanted: defaultdict[int, list[tuple[_Series, int]]] = defaultdict(list)
    counts: dict[_Series, int] = {}
    for _, by, start, window, groups in parts:
        for group in groups:
            cell = window.get(group.name)
            for event, field, numbers in group.samples():
                series = _Series(by, start, group.name, field)
                if series not in counts:
                    counts[series] = 0 if cell is None else cell.count(field)
                wanted[id(event)].append((series, len(numbers)))
    room = held.room(limits.max_series)
    over: list[Over] = []
    for item in items:
        wants = wanted.get(id(item), ())
        full = next((s for s, n in wants if counts[s] + n > limits.max_samples), None)
        new = [series for series, _ in wants if not counts[series]]
        if full is not None:
            over.append(Over(item, "series_limit", _is_full(full, counts[full], limits)))
        elif len(new) > room:
            over.append(Over(item, "cardinality", _is_one_too_many(new[0], limits, held)))
        else:
            room -= len(new)
            for series, n in wants:
                counts[series] += n
    return over


def _is_full(series: _Series, count: int, limits: Limits) -> str:
    by, start, name, field = series
    return (
        f"{name}.{field} has {count} samples in its window {by.label} at {start}; "
        f"max_samples is {limits.max_samples}"
    )


def _is_one_too_many(series: _Series, limits: Limits, held: Held) -> str:
    return (
        f"{series.name}.{series.field} is one series too many: {held.total} are in open windows of "
        f"the partition, {held.own} of them of this emitter; max_series is {limits.max_series}, "
        f"shared by {held.live} live emitters"
    )
