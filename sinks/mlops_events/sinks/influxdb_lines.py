"""Turns events into line protocol; the same event always makes the same point."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from mlops_events.schemas.catalog import is_step_like
from mlops_events.schemas.events import Log, Origin, Profile, Run, Stats
from mlops_events.schemas.frame import Free, Row
from mlops_events.sinks.base import FrameRecord, Record, StatsRecord
from mlops_events.sinks.influxdb_fields import flatten, is_finite, name_of_number
from mlops_events.sinks.influxdb_text import (
    MAX_KEY,
    TooLongError,
    field_key,
    measurement_name,
    string,
    tag_pair,
)
from mlops_events.sinks.influxdb_types import ConflictError, FieldTypes, encode
from mlops_events.sinks.jsontext import to_json

__all__ = ["ORIGIN_TAGS", "Line", "Refuse", "Renderer", "point_time", "window_name"]

Line: TypeAlias = tuple[str, Record, int]
"""A line, the record that its event came in, and the event's place in it."""

Refuse: TypeAlias = Callable[[Record, int, str, str], None]
"""Told of an event that makes no line: where it stands, a word for metrics, a sentence."""

ORIGIN_TAGS: Final = (
    *("environment", "group", "job_type", "netuid", "node", "project"),
    *("rank", "role", "run", "uid", "version"),
)
"""What tells one emitter's points from another's."""

_TIMES: Final = range(-(2**63) + 2, 2**63 - 1)
_NS_PER_MS: Final = 1_000_000
_SECONDS: Final = "duration_s"
"""How long a section took; `duration` alone is a word of InfluxQL."""
_UNITS: Final = (
    ("h", 3600 * 10**9),
    ("min", 60 * 10**9),
    ("s", 10**9),
    ("ms", 10**6),
    ("us", 10**3),
    ("ns", 1),
)


def point_time(ts: int, *, seq: int, index: int) -> int:
    """Return the time of an event's point, which no other event of its series has.

    InfluxDB keeps one point of a series for each nanosecond. So the place of an event in the
    emitter's log stands in the digits below the microsecond: that keeps two whole frames of 500
    events of the same time apart, or two dozen small ones. An event's time without any digits below
    the millisecond, such as one that was read from a file, has room for a million.
    """
    if ts % _NS_PER_MS:
        return ts - ts % 1000 + (seq * 500 + (seq >> 1) * 37 + index) % 1000
    return ts + ((seq << 12) + index) % _NS_PER_MS


def window_name(stats: Stats) -> str:
    """Return the measurement of Stats: `training_10s`, `training_window_1`; `..._fleet` of all nodes."""
    if stats.by == "time":
        unit, ns = next((unit, ns) for unit, ns in _UNITS if stats.size % ns == 0)
        name = f"{stats.name}_{stats.size // ns}{unit}"
    else:
        name = f"{stats.name}_{stats.by}_{stats.size}"
    return name if stats.nodes is None else f"{name}_fleet"


class _Base(NamedTuple):
    """What all points of a record have in common: tags, fields, names that tags have taken."""

    tags: dict[str, object]
    fields: dict[str, Any]
    taken: frozenset[str]


class _Plan:
    """How the rows of one series become lines."""

    __slots__ = ("fields", "head", "kinds", "measurement", "names", "prefixes", "stepped", "tags")

    def __init__(self, measurement: str, head: str, names: Sequence[str]) -> None:
        self.measurement = measurement
        self.head = head
        self.names = names
        self.prefixes: list[str] = []
        self.kinds: list[str | None] = []
        self.tags: dict[str, Any] = {}
        self.fields: dict[str, Any] = {}
        self.stepped = "step" in names


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
        self._tags = frozenset(tags)
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
        base = self._base(frame.origin, frame.tags)
        plans: dict[int, _Plan] = {}
        number = frame.seq << 12
        for position, (index, item) in enumerate(zip(frame.indices, frame.items, strict=True)):
            if only is not None and position not in only:
                continue
            if sampled and (number + index) * 2_654_435_761 % 2**32 >= self._share:
                continue
            ts = point_time(item.ts, seq=frame.seq, index=index)
            try:
                if isinstance(item, Row):
                    plan = plans.get(item.sid)
                    if plan is None:
                        entry = frame.series[item.sid]
                        plan = self._plan(base, entry.name, entry.fields, entry.tags)
                        plans[item.sid] = plan
                    text = self._row(plan, item, base)
                else:
                    text = self._other(item, base)
                lines.append((_at(text, ts), record, position))
            except _BAD as error:
                self._refuse(record, position, _reason(error), str(error))

    def _plan(
        self, base: _Base, name: str, fields: Sequence[str], tags: dict[str, Any] | None
    ) -> _Plan:
        tagged, more = self._split(tags)
        measurement = measurement_name(name)
        plan = _Plan(measurement, _head(measurement, {**base.tags, **tagged}), fields)
        plan.tags, plan.fields = tagged, {**base.fields, **more}
        plan.prefixes = [f"{field_key(field, base.taken)}=" for field in fields]
        self._fill(plan)
        return plan

    def _fill(self, plan: _Plan) -> None:
        """Note the types of the fields, so that plain rows need no look at each."""
        types = self._types.of(plan.measurement)
        plan.kinds = [types.get(prefix[:-1]) for prefix in plan.prefixes]
        if types.get("step", "float") != "float" or plan.fields or "step" in plan.names:
            plan.stepped = True

    def _row(self, plan: _Plan, row: Row, base: _Base) -> str:
        """Return a row's line without its time, fast if it is plain numbers."""
        if row.tags is None and not plan.stepped and (found := _plain(plan, row.values)):
            step = row.step
            return f"{plan.head} {found}" if step is None else f"{plan.head} {found},step={step}"
        values = dict(zip(plan.names, row.values, strict=True))
        head, fields = plan.head, plan.fields
        if row.tags:
            tagged, more = self._split(row.tags)
            head = _head(plan.measurement, {**base.tags, **plan.tags, **tagged})
            fields = {**fields, **more}
        text = self._fields(plan.measurement, {**_step(row.step), **fields, **values}, base.taken)
        if None in plan.kinds:
            self._fill(plan)
        return f"{head} {text}"

    def _other(self, item: Free | Run | Profile | Log, base: _Base) -> str:
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
            name, base = "log", base._replace(tags={**base.tags, "level": item.level})
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
        tagged, more = self._split(tags)
        measurement = measurement_name(name)
        text = self._fields(measurement, {**base.fields, **more, **fields}, base.taken)
        return f"{_head(measurement, {**base.tags, **tagged})} {text}"

    # --- Stats ---

    def _stats(self, record: StatsRecord, only: frozenset[int] | None, lines: list[Line]) -> None:
        frame = record.frame
        base = self._base(frame.origin, frame.tags)
        spread = crc32(frame.emitter) % _NS_PER_MS
        heads: dict[str, str] = {}
        for position, stats in enumerate(frame.stats):
            if only is not None and position not in only:
                continue
            try:
                name = window_name(stats)
                measurement = measurement_name(name)
                if name not in heads:
                    heads[name] = _head(measurement, base.tags)
                fields = {**base.fields, **_figures(stats)}
                # A window over a field has no time: its start is written as milliseconds since 1970.
                start = stats.start if stats.by == "time" else stats.start * _NS_PER_MS
                text = f"{heads[name]} {self._fields(measurement, fields, base.taken)}"
                lines.append((_at(text, start + spread), record, position))
            except _BAD as error:
                self._refuse(record, position, _reason(error), str(error))

    # --- parts ---

    def _base(self, origin: Origin, attached: dict[str, str]) -> _Base:
        tags: dict[str, object] = {name: getattr(origin, name) for name in ORIGIN_TAGS}
        fields: dict[str, Any] = {"hotkey": origin.hotkey} if origin.hotkey else {}
        for name, value in origin.tags.items():
            (tags if name in self._tags else fields)[name] = value
        for name, value in attached.items():  # the operator's own, so there are few values
            (fields if is_step_like(name) else tags)[name] = value
        taken = frozenset(field_key(name) for name in (*ORIGIN_TAGS, *self._tags, *attached))
        return _Base(tags, fields, taken)

    def _split(self, tags: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an event's tags that are tags here, and those that are fields."""
        if not tags:
            return {}, {}
        allowed = self._tags
        return (
            {name: value for name, value in tags.items() if name in allowed},
            {name: value for name, value in tags.items() if name not in allowed},
        )

    def _fields(self, measurement: str, values: dict[str, Any], taken: frozenset[str]) -> str:
        """Return fields as a line has them.

        Raises:
            ConflictError: a value does not fit the type of its field.
        """
        found: dict[str, str] = {}
        odd: list[str] = []
        for name, value in flatten(values.items()):
            if not is_finite(value):
                odd.append(f"{name}={name_of_number(value)}")
                continue
            key = field_key(name, taken)
            while key in found:
                key += "_"
            kind = self._types.type_of(measurement, key, value)
            try:
                found[key] = encode(value, kind)
            except ConflictError as error:
                raise ConflictError(f"field {name!r} of {measurement!r}: {error}") from error
        if odd:
            found["non_finite"] = string(" ".join(odd))
        if not found:
            found["empty"] = "true"  # a point needs a field
        return ",".join(f"{key}={text}" for key, text in found.items())


_BAD: Final = (ConflictError, TooLongError, TypeError, RecursionError, OverflowError)


def _reason(error: Exception) -> str:
    if isinstance(error, ConflictError):
        return "type_conflict"
    if isinstance(error, TooLongError):
        return "name_too_long"
    return "time_out_of_range" if isinstance(error, OverflowError) else "unencodable"


def _plain(plan: _Plan, values: Sequence[Any]) -> str:
    """Return fields that are finite numbers or texts of the right types; nothing if one is not."""
    parts: list[str] = []
    for value, prefix, kind in zip(values, plan.prefixes, plan.kinds, strict=True):
        cls = value.__class__
        if kind == "float" and ((cls is float and value - value == 0.0) or cls is int):
            parts.append(f"{prefix}{value!r}")
        elif kind == "string" and cls is str:
            parts.append(prefix + string(value))
        else:
            return ""
    return ",".join(parts)


def _head(measurement: str, tags: dict[str, object]) -> str:
    pairs = "".join([tag_pair(name, tags[name]) for name in sorted(tags)])
    head = f"{measurement}{pairs}"
    if len(head) > MAX_KEY // 4 and len(head.encode(errors="replace")) > MAX_KEY:
        raise TooLongError(f"name and tags are too long together; at most {MAX_KEY} bytes fit")
    return head


def _at(text: str, ts: int) -> str:
    if ts not in _TIMES:
        raise OverflowError(
            f"the time {ts} ns; InfluxDB takes those of 64 bits, but for the last ones"
        )
    return f"{text} {ts}"


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
