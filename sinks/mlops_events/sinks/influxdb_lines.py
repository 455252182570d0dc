"""Turns events into line protocol; the same event always makes the same point."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias
from zlib import crc32

from mlops_events.schemas.events import Log, Profile, Run, Stats
from mlops_events.schemas.frame import Free, Row
from mlops_events.sinks.base import FrameRecord, Record, StatsRecord
from mlops_events.sinks.influxdb_fields import flatten, is_finite, name_of_number
from mlops_events.sinks.influxdb_points import (
    Common,
    TagRules,
    at,
    head,
    point_time,
    window_name,
)
from mlops_events.sinks.influxdb_rows import RowPlan
from mlops_events.sinks.influxdb_text import TooLongError, field_key, measurement_name, string
from mlops_events.sinks.influxdb_types import ConflictError, FieldTypes, encode
from mlops_events.sinks.jsontext import to_json

__all__ = ["Line", "Refuse", "Renderer"]

Line: TypeAlias = tuple[str, Record, int]
"""A line, the record that its event came in, and the event's place in it."""

Refuse: TypeAlias = Callable[[Record, int, str, str], None]
"""Told of an event that makes no line: where it stands, a word for metrics, a sentence."""

_NS_PER_MS: Final = 1_000_000
_SECONDS: Final = "duration_s"
"""How long a section took; `duration` alone is a word of InfluxQL."""


class Renderer:
    """Makes lines.

    Args:
        types: of the fields.
        tags: names of tags of events and origins that become tags here.
        share: of raw observations and profiles that are written, 0 to 1.
        refuse: is told of events that make no line.
    """

    def __init__(
        self, types: FieldTypes, *, tags: Sequence[str], share: float, refuse: Refuse
    ) -> None:
        self._types = types
        self._tags = TagRules(tags)
        self._share = round(share * 2**32)
        self._refuse = refuse

    def lines(self, record: Record, only: frozenset[int] | None = None) -> list[Line]:
        """Return the lines of a record's events.

        Args:
            record: of the events.
            only: places of the events that are wanted; all if None.
        """
        lines: list[Line] = []
        if isinstance(record, StatsRecord):
            self._stats(record, only, lines)
        else:
            self._frame(record, only, lines)
        return lines

    # --- frames ---

    def _frame(self, record: FrameRecord, only: frozenset[int] | None, lines: list[Line]) -> None:
        frame = record.frame
        sampled = frame.kind in ("observation", "profile") and self._share < 2**32
        if not frame.items or (sampled and not self._share):
            return
        common = self._tags.common(frame.origin, frame.tags)
        plans: dict[int, RowPlan] = {}
        seq = frame.seq
        for position, (index, item) in enumerate(zip(frame.indices, frame.items, strict=True)):
            if only is not None and position not in only:
                continue
            if sampled and ((seq << 12) + index) * 2_654_435_761 % 2**32 >= self._share:
                continue
            try:
                if isinstance(item, Row):
                    plan = plans.get(item.sid)
                    if plan is None:
                        entry = frame.series[item.sid]
                        plan = self._plan(common, entry.name, entry.fields, entry.tags)
                        plans[item.sid] = plan
                    text = plan.text(item) or self._row(plan, item, common)
                else:
                    text = self._other(item, common)
                ts = point_time(item.ts, seq=seq, index=index)
                lines.append((at(text, ts), record, position))
            except _BAD as error:
                self._refuse(record, position, _reason(error), str(error))

    def _plan(
        self, common: Common, name: str, names: Sequence[str], tags: dict[str, Any] | None
    ) -> RowPlan:
        tagged, more = self._tags.split(tags)
        constant = {**common.fields, **more}
        measurement = measurement_name(name)
        plan = RowPlan(
            measurement,
            head=head(measurement, {**common.tags, **tagged}),
            names=names,
            common=common,
            tags=tagged,
            constant=constant,
            constant_text=self._fields(measurement, constant, common.taken),
        )
        plan.settle(self._types.of(measurement))
        return plan

    def _row(self, plan: RowPlan, row: Row, common: Common) -> str:
        """Return the line of a row that is not plain, without its time."""
        values = dict(zip(plan.names, row.values, strict=True))
        beginning, fields = plan.head, plan.constant
        if row.tags:
            tagged, more = self._tags.split(row.tags)
            beginning = head(plan.measurement, {**common.tags, **plan.tags, **tagged})
            fields = {**fields, **more}
        fields = {**_step(row.step), **fields, **values}
        text = self._fields(plan.measurement, fields, common.taken)
        if not plan.settled:
            plan.settle(self._types.of(plan.measurement))
        return f"{beginning} {text}"

    def _other(self, item: Free | Run | Profile | Log, common: Common) -> str:
        """Return the line of any other event, without its time."""
        tags: dict[str, Any] | None = None
        fields: dict[str, Any]
        if isinstance(item, Free):
            name, fields, tags = item.name, {**_step(item.step), **item.fields}, item.tags
        elif isinstance(item, Profile):
            name, tags = item.name, item.tags
            fields = {**_step(item.step), _SECONDS: item.duration_ns / 1e9}
            if item.failed:
                fields["failed"] = True
        elif isinstance(item, Log):
            name, common = "log", common._replace(tags={**common.tags, "level": item.level})
            fields = {**_step(item.step), **item.fields, "message": item.message}
            for key in ("logger", "trace_id", "span_id"):
                fields |= {key: getattr(item, key)} if getattr(item, key) else {}
        else:
            name, fields = (
                "run",
                {"state": item.state, "config": to_json(item.config) if item.config else None},
            )
            for key in ("status", "name"):
                fields |= {key: getattr(item, key)} if getattr(item, key) else {}
        tagged, more = self._tags.split(tags)
        measurement = measurement_name(name)
        text = self._fields(measurement, {**common.fields, **more, **fields}, common.taken)
        return f"{head(measurement, {**common.tags, **tagged})} {text}"

    # --- Stats ---

    def _stats(self, record: StatsRecord, only: frozenset[int] | None, lines: list[Line]) -> None:
        frame = record.frame
        common = self._tags.common(frame.origin, frame.tags)
        spread = crc32(frame.emitter) % _NS_PER_MS
        known: dict[tuple[str, str, int, bool], tuple[str, str]] = {}
        for position, stats in enumerate(frame.stats):
            if only is not None and position not in only:
                continue
            try:
                windows = (stats.name, stats.by, stats.size, stats.nodes is None)
                if windows not in known:
                    measurement = measurement_name(window_name(stats))
                    known[windows] = measurement, head(measurement, common.tags)
                measurement, beginning = known[windows]
                fields = {**common.fields, **_figures(stats)}
                # A window over a field has no time: its start is written as milliseconds since 1970.
                start = stats.start if stats.by == "time" else stats.start * _NS_PER_MS
                text = f"{beginning} {self._fields(measurement, fields, common.taken)}"
                lines.append((at(text, start + spread), record, position))
            except _BAD as error:
                self._refuse(record, position, _reason(error), str(error))

    # --- parts ---

    def _fields(self, measurement: str, values: dict[str, Any], taken: frozenset[str]) -> str:
        """Return fields as a line has them.

        Raises:
            ConflictError: a value does not fit the type of its field.
        """
        found: dict[str, str] = {}
        odd: list[str] = []
        types = self._types.of(measurement)
        for name, value in values.items():
            cls = value.__class__
            if (cls is float and value - value == 0.0) or cls is int:
                key = field_key(name, taken)
                if types.get(key) == "float" and key not in found:
                    found[key] = repr(value)
                    continue
            self._add(measurement, name, value, taken, found, odd)
        if odd:
            found["non_finite"] = string(" ".join(odd))
        if not found:
            found["empty"] = "true"  # a point needs a field
        return ",".join(f"{key}={text}" for key, text in found.items())

    def _add(
        self,
        measurement: str,
        name: str,
        value: Any,
        taken: frozenset[str],
        found: dict[str, str],
        odd: list[str],
    ) -> None:
        """Add the fields that any value is, and what is not finite in it."""
        for inner, scalar in flatten(((name, value),)):
            if not is_finite(scalar):
                odd.append(f"{inner}={name_of_number(scalar)}")
                continue
            key = field_key(inner, taken)
            while key in found:
                key += "_"
            kind = self._types.type_of(measurement, key, scalar)
            try:
                found[key] = encode(scalar, kind)
            except ConflictError as error:
                raise ConflictError(f"field {inner!r} of {measurement!r}: {error}") from error


_BAD: Final = (ConflictError, TooLongError, TypeError, RecursionError, OverflowError)


def _reason(error: Exception) -> str:
    if isinstance(error, ConflictError):
        return "type_conflict"
    if isinstance(error, TooLongError):
        return "name_too_long"
    return "time_out_of_range" if isinstance(error, OverflowError) else "unencodable"


def _step(step: int | None) -> dict[str, Any]:
    return {} if step is None else {"step": step}


@lru_cache(maxsize=8192)
def _figure_names(field: str) -> tuple[str, ...]:
    return tuple(f"{field}_{figure}" for figure in _FIGURES)


_FIGURES: Final = (
    *("count", "mean", "min", "max", "median", "last", "final"),
    *("nonfinite", "nonfinite_step", "nodes", "nodes_missing", "median_of_medians"),
)


def _figures(stats: Stats) -> dict[str, Any]:
    """Return what Stats say, by field names; what they do not say is left out."""
    values: Iterable[Any] = (
        *(stats.count, stats.mean, stats.min, stats.max, stats.median, stats.last_finite),
        stats.final if stats.nodes is None else None,
        stats.nonfinite or None,
        stats.first_nonfinite_step,
        *(stats.nodes, stats.nodes_missing, stats.median_of_medians),
    )
    names = _figure_names(_SECONDS if stats.kind == "profile" else stats.field)
    found = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    if stats.by != "time":
        found[stats.by] = stats.start
    return found
