"""Takes the samples out of events: which values of which fields the Stats are made of."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from mlops_events.schemas.catalog import is_step_like
from mlops_events.schemas.events import Profile
from mlops_events.schemas.frame import Frame, Free, Row
from mlops_events.streams.nonfinite import all_finite
from mlops_events.streams.samples import Cell

__all__ = ["PROFILE_FIELD", "Window", "add_observations", "add_profiles"]

PROFILE_FIELD: Final = "duration"
"""The field that profiles have: seconds."""

Window: TypeAlias = dict[str, Cell]
"""The samples of a window by event name."""

_NUMBERS: Final = frozenset((float, int))


def add_profiles(window: Window, profiles: Sequence[Profile], seq: int) -> None:
    """Add how long sections took."""
    groups: defaultdict[str, list[Profile]] = defaultdict(list)
    for event in profiles:
        groups[event.name].append(event)
    for name, events in groups.items():
        values = [[event.duration_ns / 1e9] for event in events]
        _add(window, name, [PROFILE_FIELD], values, events, seq)


def add_observations(window: Window, items: Sequence[Any], frame: Frame) -> None:
    """Add the numbers of observations, and of lists in them.

    Bools, text, None, mappings and what says where training stands are no samples.
    """
    groups: dict[int, Sequence[Row]]
    if len(frame.series) == 1 and set(map(type, items)) == {Row}:
        groups = {items[0].sid: items}
    else:
        groups = _by_series(items)
        for item in items:
            if isinstance(item, Free):
                fields = list(item.fields)
                _add(window, item.name, fields, [list(item.fields.values())], [item], frame.seq)
    for sid, rows in groups.items():
        table = frame.series[sid]
        _add(window, table.name, table.fields, [row.values for row in rows], rows, frame.seq)


def _by_series(items: Sequence[Any]) -> dict[int, Sequence[Row]]:
    groups: defaultdict[int, list[Row]] = defaultdict(list)
    for item in items:
        if isinstance(item, Row):
            groups[item.sid].append(item)
    return dict(groups)


def _add(
    window: Window,
    name: str,
    fields: list[str],
    values: Sequence[list[Any]],
    events: Sequence[Row | Free | Profile],
    seq: int,
) -> None:
    """Add the values of events that have the same name and fields.

    Numbers in every field go into a table at once. A table that is there already has no fields
    but sampled ones, so they need no second look.
    """
    flat = list(chain.from_iterable(values))
    plain = _are_finite_numbers(flat)
    cell = window.get(name)
    table = cell.table(fields) if plain and cell is not None else None
    if table is None:
        columns = _sampled_columns(fields, values)
        if not columns:
            return
        if cell is None:
            cell = window[name] = Cell()
        flat = list(chain.from_iterable(zip(*columns.values(), strict=True)))
        if not plain and not _are_finite_numbers(flat):
            _add_loose(cell, columns, events, seq)
            return
        fields = list(columns)
        table = cell.table(fields)
        if table is None:
            table = cell.add_table(fields)
    times = [event.ts for event in events]
    newest = max(times)
    last = len(times) - 1
    while times[last] != newest:
        last -= 1
    table.add(flat, newest=last, at=(newest, seq))


def _add_loose(
    cell: Cell, columns: dict[str, Any], events: Sequence[Row | Free | Profile], seq: int
) -> None:
    """Add columns in which there are lists, or numbers that are not finite."""
    for field, column in columns.items():
        for event, value in zip(events, column, strict=True):
            numbers = _numbers(value)
            if numbers:
                cell.add(field, numbers, at=(event.ts, seq), step=event.step)


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
