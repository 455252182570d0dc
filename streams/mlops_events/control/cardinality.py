"""Counts how many different values tags and fields have, which is what metrics stores suffer from."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from mlops_events.schemas.catalog import is_step_like
from mlops_events.schemas.events import Log, Observation, Origin, Profile, Run
from mlops_events.schemas.frame import Frame

__all__ = ["ALLOWED_TAGS", "Cardinality", "CardinalityReport", "Distinct", "Spread"]

ALLOWED_TAGS: Final = (
    "run",
    "project",
    "role",
    "uid",
    "rank",
    "version",
    "environment",
    "group",
    "job_type",
    "netuid",
)
"""The tags that metrics stores are given, beside those that settings add; others become fields."""

EXACT: Final = 100_000
"""So many different values are told apart."""

ROOM: Final = 4_000_000
"""So many different values are told apart in all, about 400 MB."""

MANY: Final = 1_000
"""More values of a tag, or more names, are too many for a metrics store."""

_MAX_THINGS: Final = 20_000
_EXAMPLE: Final = 60
_ORIGIN_FIELDS: Final = tuple(name for name in Origin.__struct_fields__ if name != "tags")
_POINTS: Final = ("window", "step", "epoch", "block", "batch_id", "trace_id", "span_id")

Place: TypeAlias = Literal["origin", "origin tag", "event tag", "field", "names", "fields"]
"""Where values stand: origin, its free tags, an event's tags, a field of an event; or the names of
events, or of the fields that one event name has."""


class Distinct:
    """How many different values there were.

    Beyond 100,000, or where there is no more room, only that there were more.

    Args:
        room: how many more values all of them together may hold; shared.
    """

    __slots__ = ("_hashes", "_room", "count", "more")

    def __init__(self, room: list[int]) -> None:
        self._hashes: set[int] = set()
        self._room = room
        self.count = 0
        self.more = False

    def add(self, value: Any) -> None:
        """Take a value."""
        if self.more:
            return
        mark = _mark(value)
        if mark in self._hashes:
            return
        if self.count >= EXACT or self._room[0] <= 0:
            self.more = True
            self._room[0] += self.count
            self._hashes.clear()
            return
        self._hashes.add(mark)
        self._room[0] -= 1
        self.count += 1


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How many different values something has; `more` if there were more than `distinct`.

    `name` is the tag or the event name, `field` the event's field; `events` is how often there was
    one. `hurts` says why that is too
    much for a metrics store, "" if it is not.
    """

    place: Place
    name: str
    field: str
    distinct: int
    more: bool
    events: int
    example: str
    hurts: str


class CardinalityReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a stretch of the topics, the worst first, fields of numbers last.

    A series is a field of an event name of one place in a run: (run, role, uid, rank, name, field).
    `left_out` is how often there was no room for one more name or field.
    """

    frames: int
    events: int
    series: int
    series_more: bool
    undecodable: int
    left_out: int
    spreads: list[Spread]


class _Seen:
    """One thing and its values; `numbers` if they are measured, so that they hurt nobody."""

    __slots__ = ("distinct", "events", "example", "numbers")

    def __init__(self, room: list[int], *, numbers: bool) -> None:
        self.distinct = Distinct(room)
        self.numbers = numbers
        self.events = 0
        self.example: Any = None

    def add(self, value: Any, events: int) -> None:
        if self.example is None:
            self.example = value
        self.events += events
        self.distinct.add(value)


class Cardinality:
    """Counts over frames.

    Args:
        room: how many different values may be held in all.
    """

    def __init__(self, *, room: int = ROOM) -> None:
        self._room = [room]
        self._seen: dict[tuple[Place, str, str], _Seen] = {}
        self._series = Distinct(self._room)
        self._frames = 0
        self._events = 0
        self._left_out = 0
        self.undecodable = 0

    def add(self, frame: Frame) -> None:
        """Take a frame."""
        count = len(frame)
        self._frames += 1
        self._events += count
        origin = frame.origin
        for name in _ORIGIN_FIELDS:
            value = getattr(origin, name)
            if value not in ("", None):
                self._count("origin", name, "", value, count)
        for name, value in origin.tags.items():
            self._count("origin tag", name, "", value, count)
        sampled: set[tuple[str, str]] = set()
        for _, event in frame.events():
            self._event(event, sampled)
        for name, field in sampled:
            if not is_step_like(field):
                self._series.add((origin.run, origin.role, origin.uid, origin.rank, name, field))

    def report(self) -> CardinalityReport:
        """Return what was found so far, the worst first."""
        values: Counter[str] = Counter()
        for (place, name, _), seen in self._seen.items():
            values[name] += seen.events if place == "field" else 0
        spreads = [
            Spread(
                place=place,
                name=name,
                field=field,
                distinct=seen.distinct.count,
                more=seen.distinct.more,
                events=values[name] if place == "fields" else seen.events,
                example=str(seen.example)[:_EXAMPLE],
                hurts=_hurts(place, name, seen.distinct),
            )
            for (place, name, field), seen in self._seen.items()
        ]
        spreads.sort(key=self._order)
        return CardinalityReport(
            frames=self._frames,
            events=self._events,
            series=self._series.count,
            series_more=self._series.more,
            undecodable=self.undecodable,
            left_out=self._left_out,
            spreads=spreads,
        )

    def _order(self, spread: Spread) -> tuple[Any, ...]:
        numbers = self._seen[spread.place, spread.name, spread.field].numbers
        place = (spread.place, spread.name, spread.field)
        return (not spread.hurts, numbers, -spread.distinct, -spread.events, place)

    def _event(
        self, event: Run | Observation | Profile | Log, sampled: set[tuple[str, str]]
    ) -> None:
        """Count an event, and name those of its fields that hold numbers."""
        name, fields, tags = _parts(event)
        self._count("names", type(event).__name__.lower(), "", name, 1)
        for tag, value in tags.items():
            self._count("event tag", tag, "", value, 1)
        for field, value in _flat(fields):
            known = self._seen.get(("field", name, field))
            if known is not None:
                known.add(value, 1)
            else:
                self._count("fields", name, "", field, 0)
                self._count("field", name, field, value, 1)
        for field, value in fields.items():
            if (name, field) not in sampled and _is_sample(value):
                sampled.add((name, field))

    def _count(self, place: Place, name: str, field: str, value: Any, events: int) -> None:
        key = (place, name, field)
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= _MAX_THINGS:
                self._left_out += events
                return
            measured = place == "field" and _is_sample(value)
            seen = self._seen[key] = _Seen(self._room, numbers=measured)
        seen.add(value, events)


def _parts(
    event: Run | Observation | Profile | Log,
) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """Return an event's name, fields and tags."""
    if isinstance(event, Observation):
        return event.name, event.fields, event.tags
    if isinstance(event, Profile):
        return event.name, {"duration": event.duration_ns / 1e9}, event.tags or {}
    if isinstance(event, Log):
        return event.logger or "log", event.fields, {"level": event.level}
    return "run", {"state": event.state}, {}


def _flat(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield fields and values, those of mappings behind a dot."""
    for name, value in fields.items():
        if type(value) is not dict:
            yield name, value
            continue
        for below, member in _flat(value):
            yield f"{name}.{below}", member


def _is_sample(value: Any) -> bool:
    if type(value) is list:
        return any(type(member) in (int, float) for member in value)
    return type(value) in (int, float)


def _mark(value: Any) -> int:
    """Return what tells a value from others, 1 from "1" and True too."""
    if type(value) is str or type(value) is float:
        return hash(value)
    try:
        return hash((type(value), value))
    except TypeError:  # a list
        return hash(repr(value))


def _hurts(place: Place, name: str, distinct: Distinct) -> str:
    many = distinct.more or distinct.count > MANY
    if place == "event tag" and (name in _POINTS or is_step_like(name)):
        return "no tag: each point has its own value; sinks make it a field"
    if place == "origin" and name in ALLOWED_TAGS and many:
        return "each value is a series of its own"
    if place in ("event tag", "origin tag") and name in ALLOWED_TAGS and many:
        return "each value is a series of its own"
    if place == "names" and many:
        return "names are made of values: put these into fields"
    if place == "fields" and many:
        return "names of fields are made of values"
    return ""
