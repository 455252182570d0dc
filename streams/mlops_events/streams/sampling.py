"""Takes the samples out of events: which values of which fields the Stats are made of."""

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from itertools import chain
from math import isfinite
from typing import Any, Final, TypeAlias

from mlops_events.schemas.catalog import is_step_like
from mlops_events.schemas.events import Profile, RawKind
from mlops_events.schemas.frame import Frame, Free, Row
from mlops_events.streams.nonfinite import all_finite
from mlops_events.streams.samples import Cell

__all__ = ["PROFILE_FIELD", "Group", "Sample", "Window", "group_events"]

PROFILE_FIELD: Final = "duration"
"""The field that profiles have: seconds."""

Window: TypeAlias = dict[str, Cell]
"""The samples of a window by event name."""

_NUMBERS: Final = frozenset((float, int))


Sample: TypeAlias = tuple[Any, str, Sequence[float]]
"""An event, one of its fields, and the numbers in it; a plain tuple, since there are many."""


class Group:
    """Events that have the same name and fields, with their samples.

    Numbers in every field are a table, which is taken at once: `flat` holds its rows, one after the
    other. Otherwise `loose` holds the samples of each event: lists, or numbers that are not finite.
    """

    __slots__ = ("_fields", "_flat", "_most", "events", "loose", "name")

    def __init__(
        self,
        name: str,
        events: Sequence[Any],
        *,
        fields: list[str],
        flat: list[Any] | None = None,
        loose: Sequence[Sequence[Sample]] | None = None,
    ) -> None:
        self.name = name
        self.events = events
        self.loose = loose
        self._fields = fields
        self._flat: list[Any] = [] if flat is None else flat
        self._most = -1

    def without(self, events: Container[int]) -> "Group":
        """Return the group without some events, by the id of the object."""
        return self.part([k for k, event in enumerate(self.events) if id(event) not in events])

    def part(self, places: Sequence[int]) -> "Group":
        """Return the group of some of its events."""
        if len(places) == len(self.events):
            return self
        events = [self.events[k] for k in places]
        if self.loose is not None:
            loose = [self.loose[k] for k in places]
            return Group(self.name, events, fields=self._fields, loose=loose)
        width = len(self._fields)
        rows = (self._flat[k * width : (k + 1) * width] for k in places)
        flat = list(chain.from_iterable(rows))
        return Group(self.name, events, fields=self._fields, flat=flat)

    @property
    def width(self) -> int:
        """How many series there are, or a few more."""
        return len(self._fields)

    @property
    def most(self) -> int:
        """No series has more samples than that."""
        if self.loose is None:
            return len(self.events)
        if self._most < 0:
            self._most = sum(
                max([len(numbers) for _, _, numbers in one], default=0) for one in self.loose
            )
        return self._most

    def series(self) -> list[tuple[str, str]]:
        """Return the names of the event and of the fields."""
        if self.loose is None:
            self._narrow()
        return [(self.name, field) for field in self._fields]

    def column(self, field: str) -> Iterator[Sample]:
        """Yield the samples of one of the fields."""
        if self.loose is not None:
            yield from (s for s in chain.from_iterable(self.loose) if s[1] == field)
            return
        numbers = self._flat[self._fields.index(field) :: len(self._fields)]
        for event, number in zip(self.events, numbers, strict=True):
            yield event, field, (number,)

    def samples(self) -> Iterator[Sample]:
        """Yield all samples."""
        for _, field in self.series():
            yield from self.column(field)

    def not_finite(self) -> Iterator[Sample]:
        """Yield the samples with a number that is NaN or infinite."""
        if self.loose is None:
            return
        if all_finite([n for one in self.loose for _, _, numbers in one for n in numbers]):
            return
        for sample in chain.from_iterable(self.loose):
            if not all(map(isfinite, sample[2])):
                yield sample

    def add_to(self, window: Window, seq: int) -> int:
        """Put the samples into a window; return how many series there were not in it before.

        A table that is there already has no fields but sampled ones, so they need no second look.
        """
        if not self.events:
            return 0
        cell = window.get(self.name)
        if self.loose is not None:
            return self._add_loose(cell, window, seq)
        new = 0
        table = None if cell is None else cell.table(self._fields)
        if table is None:
            self._narrow()
            if not self._fields:
                return 0
            if cell is None:
                cell = window[self.name] = Cell()
            table = cell.table(self._fields)
            if table is None:
                new = sum(not cell.has(field) for field in self._fields)
                table = cell.add_table(self._fields)
        times = [event.ts for event in self.events]
        newest = max(times)
        last = len(times) - 1
        while times[last] != newest:
            last -= 1
        table.add(self._flat, newest=last, at=(newest, seq))
        window[self.name].most += len(times)
        return new

    def _add_loose(self, cell: Cell | None, window: Window, seq: int) -> int:
        absent = [f for f in self._fields if cell is None or not cell.has(f)]
        for event, field, numbers in chain.from_iterable(self.loose or ()):
            if cell is None:
                cell = window[self.name] = Cell()
            cell.add(field, numbers, at=(event.ts, seq), step=event.step)
        if cell is None:
            return 0
        cell.most += self.most
        return sum(map(cell.has, absent))

    def _narrow(self) -> None:
        """Leave out the columns that say where training stands."""
        keep = [k for k, field in enumerate(self._fields) if not is_step_like(field)]
        width = len(self._fields)
        if len(keep) < width:
            columns = [self._flat[k::width] for k in keep]
            self._fields = [self._fields[k] for k in keep]
            self._flat = list(chain.from_iterable(zip(*columns, strict=True)))


def group_events(items: Sequence[Any], frame: Frame, kind: RawKind) -> list[Group]:
    """Return the samples of a frame's events: how long profiles took, the numbers of observations.

    Bools, text, None, mappings and what says where training stands are no samples; numbers in lists
    are. Events without any sample are in no group.
    """
    if kind == "profile":
        return _group_profiles(items)
    groups: list[Group] = []
    rows_by_sid: dict[int, Sequence[Row]]
    if len(frame.series) == 1 and set(map(type, items)) == {Row}:
        rows_by_sid = {items[0].sid: items}
    else:
        rows_by_sid = _by_series(items)
        for item in items:
            if isinstance(item, Free):
                groups += _grouped(
                    item.name, list(item.fields), [list(item.fields.values())], [item]
                )
    for sid, rows in rows_by_sid.items():
        table = frame.series[sid]
        groups += _grouped(table.name, table.fields, [row.values for row in rows], rows)
    return groups


def _group_profiles(profiles: Sequence[Profile]) -> list[Group]:
    by_name: defaultdict[str, list[Profile]] = defaultdict(list)
    for event in profiles:
        by_name[event.name].append(event)
    return [
        Group(
            name,
            events,
            fields=[PROFILE_FIELD],
            flat=[event.duration_ns / 1e9 for event in events],
        )
        for name, events in by_name.items()
    ]


def _by_series(items: Sequence[Any]) -> dict[int, Sequence[Row]]:
    rows: defaultdict[int, list[Row]] = defaultdict(list)
    for item in items:
        if isinstance(item, Row):
            rows[item.sid].append(item)
    return dict(rows)


def _grouped(
    name: str, fields: list[str], values: Sequence[list[Any]], events: Sequence[Row | Free]
) -> tuple[Group] | tuple[()]:
    """Return the group of events that have the same name and fields, if they have samples."""
    flat = list(chain.from_iterable(values))
    if _are_finite_numbers(flat):
        return (Group(name, events, fields=fields, flat=flat),)
    columns = _sampled_columns(fields, values)
    if not columns:
        return ()
    flat = list(chain.from_iterable(zip(*columns.values(), strict=True)))
    if _are_finite_numbers(flat):
        return (Group(name, events, fields=list(columns), flat=flat),)
    loose = [
        [
            (event, field, numbers)
            for field, column in columns.items()
            if (numbers := _numbers(column[k]))
        ]
        for k, event in enumerate(events)
    ]
    return (Group(name, events, fields=list(columns), loose=loose),)


def _sampled_columns(fields: Sequence[str], values: Sequence[list[Any]]) -> dict[str, Any]:
    """Return the columns that hold samples, by field."""
    return {
        field: column
        for field, column in zip(fields, zip(*values, strict=True), strict=True)
        if not is_step_like(field) and any(map(_numbers, column))
    }


def _are_finite_numbers(values: list[Any]) -> bool:
    return _NUMBERS.issuperset(map(type, values)) and all_finite(values)


def _numbers(value: Any) -> Sequence[float]:
    """Return the numbers that a value stands for: itself, or the members of a list."""
    if type(value) in _NUMBERS:
        return (value,)
    if type(value) is list:
        return [member for member in value if type(member) in _NUMBERS]
    return ()
