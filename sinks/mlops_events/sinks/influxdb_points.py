"""What tells a point from all others: its measurement, its tags, its time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mlops_events.schemas.catalog import is_step_like
from mlops_events.schemas.events import Origin, Stats
from mlops_events.sinks.influxdb_text import MAX_KEY, TooLongError, field_key, tag_pair

__all__ = ["ORIGIN_TAGS", "Common", "TagRules", "at", "head", "point_time", "window_name"]

ORIGIN_TAGS: Final = (
    *("environment", "group", "job_type", "netuid", "node", "project"),
    *("rank", "role", "run", "uid", "version"),
)
"""What of an origin becomes tags."""

_TIMES: Final = range(-(2**63) + 2, 2**63 - 1)
_NS_PER_MS: Final = 1_000_000
_UNITS: Final = (
    ("h", 3600 * 10**9),
    ("min", 60 * 10**9),
    ("s", 10**9),
    ("ms", 10**6),
    ("us", 10**3),
    ("ns", 1),
)


class Common(NamedTuple):
    """What all points of a record have in common: tags, fields, names that tags have taken."""

    tags: dict[str, object]
    fields: dict[str, Any]
    taken: frozenset[str]


class TagRules:
    """Decides which tags of events and origins are tags of points; the others are fields.

    InfluxDB has a series for each combination of tags, so only what has few values may be one.

    Args:
        tags: names that become tags beside those of `ORIGIN_TAGS`.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = frozenset(tags)

    def common(self, origin: Origin, attached: Mapping[str, str]) -> Common:
        """Return what the points of an emitter have in common.

        Args:
            origin: of the emitter.
            attached: tags that the streams attached: the version and the operator's own.
        """
        tags: dict[str, object] = {name: getattr(origin, name) for name in ORIGIN_TAGS}
        fields: dict[str, Any] = {"hotkey": origin.hotkey} if origin.hotkey else {}
        for name, value in origin.tags.items():
            (tags if name in self._tags else fields)[name] = value
        for name, value in attached.items():
            (fields if is_step_like(name) else tags)[name] = value
        taken = frozenset(field_key(name) for name in (*ORIGIN_TAGS, *self._tags, *attached))
        return Common(tags, fields, taken)

    def split(self, tags: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an event's tags that are tags of its point, and those that are fields."""
        if not tags:
            return {}, {}
        allowed = self._tags
        return (
            {name: value for name, value in tags.items() if name in allowed},
            {name: value for name, value in tags.items() if name not in allowed},
        )


def head(measurement: str, tags: Mapping[str, object]) -> str:
    """Return a line's beginning: its measurement, escaped, and its tags.

    Raises:
        TooLongError: it is.
    """
    pairs = "".join([tag_pair(name, tags[name]) for name in sorted(tags)])
    text = f"{measurement}{pairs}"
    if len(text) > MAX_KEY // 4 and len(text.encode(errors="replace")) > MAX_KEY:
        raise TooLongError(f"name and tags are too long together; at most {MAX_KEY} bytes fit")
    return text


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


def at(text: str, ts: int) -> str:
    """Return a whole line.

    Raises:
        OverflowError: InfluxDB has no such time.
    """
    if ts not in _TIMES:
        raise OverflowError(f"the time {ts} ns; InfluxDB takes those of 64 bits but the last ones")
    return f"{text} {ts}"


def window_name(stats: Stats) -> str:
    """Return what Stats are measured as: `training_10s`, `training_window_1`, `..._fleet` of all nodes."""
    if stats.by == "time":
        unit, ns = next((unit, ns) for unit, ns in _UNITS if stats.size % ns == 0)
        name = f"{stats.name}_{stats.size // ns}{unit}"
    else:
        name = f"{stats.name}_{stats.by}_{stats.size}"
    return name if stats.nodes is None else f"{name}_fleet"
