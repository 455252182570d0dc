"""Events as rows of a run's history."""

import base64
import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from mlops_events.schemas.catalog import BARE_NAME
from mlops_events.schemas.events import EventId, Observation, Profile, Stats
from mlops_events.sinks.base import Envelope, Rejected

__all__ = ["PER_RECORD", "Row", "Unfit", "clean", "finite_step", "row_of", "values_of"]

PER_RECORD: Final = 4096
"""Positions that one record has; a frame holds fewer events."""

VersionPrefix = Literal["both", "latest", "none"]

_LONGEST_KEY: Final = 1024
_RESERVED: Final = frozenset(
    ("", "_step", "_runtime", "_timestamp", "_wandb", "sink/pos", "sink/inc", "sink/id")
)
_FLOAT_FROM: Final = 2**63


class Row(NamedTuple):
    """An event's row; `pos` is its place in the topic, `inc` the topic's incarnation.

    `version` is that of the program; `values` are the metrics by their plain names.
    """

    envelope: Envelope
    inc: int
    pos: int
    step: int | None
    ts: int
    version: str
    values: dict[str, Any]


class Unfit(ValueError):  # noqa: N818 - it is about the event
    """An event that W&B has no row for."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def row_of(envelope: Envelope) -> Row | Rejected | None:
    """Return an event's row, why it has none, or None for Stats that are not final yet."""
    event = envelope.event
    step: int | None = None
    try:
        if isinstance(event, Observation):
            ts, step = event.ts, event.step
            tags = dict(_pairs(event.name, event.tags)) if event.tags else {}
            values = {**tags, **dict(_pairs(event.name, event.fields))}
        elif isinstance(event, Profile):
            ts, step = event.ts, event.step
            section = f"section/{event.name}"
            values = dict(_pairs(section, event.tags or {}))
            values[f"{section}/seconds"] = event.duration_ns / 1e9
            if event.failed:
                values[f"{section}/failed"] = 1
        elif isinstance(event, Stats):
            if not event.final and event.nodes is None:
                return None
            ts = event.start + event.size if event.by == "time" else 0
            values = dict(_figures(event))
        else:
            raise Unfit("unwanted", f"a {type(event).__name__} has no form in a run's history")
        values = _on_rank(envelope.origin.rank, values)
        _check(values)
    except Unfit as error:
        return Rejected(envelope, error.reason, str(error))
    return Row(
        envelope=envelope,
        inc=envelope.incarnation,
        pos=envelope.offset * PER_RECORD + _place(envelope),
        step=step,
        ts=ts,
        version=envelope.tags.get("version") or envelope.origin.version,
        values=values,
    )


def values_of(row: Row, *, prefix: VersionPrefix, step: int) -> dict[str, Any]:
    """Return what a row logs, under the names that the setting asks for.

    Args:
        row: the row.
        prefix: see the settings.
        step: the training step to show it at.
    """
    values = row.values
    if prefix != "none":
        named = {f"latest/{key}": value for key, value in values.items()}
        if prefix == "both":
            version = f"v{row.version.removeprefix('v') or '0'}"
            named |= {f"{version}/{key}": value for key, value in values.items()}
            named[f"{version}/step"] = step
        values = named
    own: dict[str, Any] = {"global_step": step, "sink/pos": row.pos, "sink/inc": row.inc}
    if row.ts:
        own["_timestamp"] = row.ts / 1e9
    return {**values, **own}


def clean(value: Any) -> Any:
    """Return a value as W&B can hold it: numbers, texts, lists and mappings by text.

    Raises:
        Unfit: there is something in it that has no such form.
    """
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd") if "\x00" in value else value
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -_FLOAT_FROM <= value < _FLOAT_FROM else float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(str(key)): clean(item) for key, item in value.items()}
    raise Unfit("unencodable", f"W&B has no form for a {type(value).__name__}")


def _pairs(name: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield metrics by name; what is nested gets names with dots."""
    before = f"{name}/" if name and name != BARE_NAME else ""
    for key, value in values.items():
        if key.__class__ is not str:
            key = str(key)
        full = before + key
        if value.__class__ is float:
            yield full, value
        elif isinstance(value, dict):
            yield from _nested(full, value, depth=0)
        else:
            yield full, clean(value)


def _nested(name: str, values: dict[Any, Any], *, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > 50:
        raise Unfit("unencodable", "a value is nested more than 50 deep")
    for key, value in values.items():
        full = f"{name}.{key}"
        if isinstance(value, dict):
            yield from _nested(full, value, depth=depth + 1)
        else:
            yield full, clean(value)


def _figures(stats: Stats) -> Iterator[tuple[str, Any]]:
    size = f"{stats.size / 1e9:g}s" if stats.by == "time" else f"{stats.size}{stats.by}"
    fleet = "fleet/" if stats.nodes is not None else ""
    name = f"{fleet}{stats.name}_{size}/{stats.field}"
    for figure in ("mean", "min", "max", "median", "median_of_medians", "count", "nodes"):
        value = getattr(stats, figure)
        if value is not None:
            yield f"{name}/{figure}", value
    if stats.nonfinite:
        yield f"{name}/nonfinite", stats.nonfinite
    if stats.nodes_missing:
        yield f"{name}/nodes_missing", stats.nodes_missing
    if stats.by != "time":
        yield f"{name}/{stats.by}", stats.start


def _on_rank(rank: int | None, values: dict[str, Any]) -> dict[str, Any]:
    """Keep the ranks of a node apart, whose rows share its run; the first has the plain names."""
    if not rank:
        return values
    return {f"rank{rank}/{key}": value for key, value in values.items()}


def _check(values: dict[str, Any]) -> None:
    for key in values:
        if key in _RESERVED:
            raise Unfit("reserved_name", f"W&B keeps the name {key!r} for itself")
        if len(key) > _LONGEST_KEY or "\x00" in key:
            raise Unfit("bad_name", f"W&B cannot have a metric called {key[:40]!r}...")


def _place(envelope: Envelope) -> int:
    if isinstance(envelope.id, EventId):
        return envelope.id.index
    return envelope.position % PER_RECORD


def finite_step(value: Any) -> int | None:
    """Return a training step that was read back, None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value)
