"""Takes the samples out of events: which values of which fields the Stats are made of."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

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


class Sample(NamedTuple):
    """The numbers of one field of one event."""

    event: Any
    field: str
    numbers: Sequence[float]


class Group:
    """Events that have the same name and fields, with their samples.

    Numbers in every field are a table, which is taken at once: `flat` holds its rows, one after the
    other. Otherwise `loose` holds the samples of each event: lists, or numbers that are not finite.
    """

    __slots__ = ("_fields", "_flat", "events", "loose", "name")

    def __init__(
        self,
        name: str,
        events: Sequence[Any],
        *,
        fields: list[str],
        flat: list[Any],
        loose: Sequence[Sequence[Sample]] | None = None,
    ) -> None:
        self.name = name
        self.events = events
        self._fields = fields
        self._flat = flat
        self.loose = loose

    def part(self, places: Sequence[int]) -> "Group":
        """Return the group of some of its events."""
        events = [self.events[k] for k in places]
        if self.loose is not None:
            loose = [self.loose[k] for k in places]
            return Group(self.name, events, fields=[], flat=[], loose=loose)
        width = len(self._fields)
        rows = (self._flat[k * width : (k + 1) * width] for k in places)
        flat = list(chain.from_iterable(rows))
        return Group(self.name, events, fields=self._fields, flat=flat)

    def samples(self) -> Iterator[Sequence[Sample]]:
        """Yield the samples of each event."""
        if self.loose is not None:
            yield from self.loose
            return
        self._narrow()
        flat, width = self._flat, len(self._fields)
        for k, event in enumerate(self.events):
            row = flat[k * width : (k + 1) * width]
            yield [Sample(event, f, (n,)) for f, n in zip(self._fields, row, strict=True)]

    def not_finite(self) -> Iterator[Sample]:
        """Yield the samples with a number that is NaN or infinite."""
        for samples in self.loose or ():
            for sample in samples:
                if not all(map(isfinite, sample.numbers)):
                    yield sample

    def add_to(self, window: Window, seq: int) -> None:
        """Put the samples into a window.

        A table that is there already has no fields but sampled ones, so they need no second look.
        """
        cell = window.get(self.name)
        if self.loose is not None:
            for sample in chain.from_iterable(self.loose):
                event = sample.event
                cell = cell or window.setdefault(self.name, Cell())
                cell.add(sample.field, sample.numbers, at=(event.ts, seq), step=event.step)
            return
        table = None if cell is None else cell.table(self._fields)
        if table is None:
            self._narrow()
            if not self._fields:
                return
            if cell is None:
                cell = window[self.name] = Cell()
            table = cell.table(self._fields) or cell.add_table(self._fields)
        times = [event.ts for event in self.events]
        newest = max(times)
        last = len(times) - 1
        while times[last] != newest:
            last -= 1
        table.add(self._flat, newest=last, at=(newest, seq))

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
            Sample(event, field, numbers)
            for field, column in columns.items()
            if (numbers := _numbers(column[k]))
        ]
        for k, event in enumerate(events)
    ]
    return (Group(name, events, fields=[], flat=[], loose=loose),)


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
