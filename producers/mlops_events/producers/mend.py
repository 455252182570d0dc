"""Saves what can be saved of events that are not as they should be: wrong types, too large."""

from collections.abc import Mapping
from typing import Any

import msgspec

from mlops_events.producers.tally import Tally
from mlops_events.schemas.events import Log, Profile, Run
from mlops_events.schemas.frame import Free, Row, Series
from mlops_events.schemas.values import ENCODER, clean

__all__ = ["KEPT_BYTES", "TEXT_BYTES", "TRUNCATED", "save", "shorten", "text", "whole"]

TRUNCATED = "truncated"
"""The tag (log: field, run: entry of the config) that is true on a cut event."""

TEXT_BYTES = 16 << 10
KEPT_BYTES = 192 << 10
_NAME_LENGTH = 256


def text(value: Any) -> str:
    """Return a text that can be encoded."""
    return str(value).encode("utf-8", "replace").decode()


def whole(value: Any, name: str, bad: Tally) -> int | None:
    """Return a whole number of 64 bits; else None, counted unless it was None."""
    if value is None:
        return None
    try:
        if not getattr(value, "is_cuda", False):  # reading one would wait for the GPU
            number = int(value)
            if number == value and -(2**63) <= number < 2**63:
                return number
    except Exception:  # noqa: S110 - foreign objects may raise anything
        pass
    bad.add(name)
    return None


def save(values: Any, bad: Tally, *, what: str = "fields") -> dict[str, Any]:
    """Return the values that can be encoded; the others, or all as `what`, are counted."""
    if not isinstance(values, Mapping):
        if values is not None:
            bad.add(what)
        return {}
    good, names = clean(values)
    for name in names:
        bad.add(name)
    return good


def shorten(event: bytes, bad: Tally, series: Series | None = None) -> bytes:
    """Return an encoded event that is too large in part, flagged; `series` is that of a row."""
    found = _WIRE.decode(event)
    flag = {TRUNCATED: True}
    if isinstance(found, Row) and series is not None:
        fields = dict(zip(series.fields, found.values, strict=True))
        tags = {**(series.tags or {}), **(found.tags or {})}
        found = Free(found.ts, found.step, series.name, fields, tags)
    if isinstance(found, Free):
        found.name = found.name[:_NAME_LENGTH]
        found.fields = _part(found.fields, KEPT_BYTES, bad)
        found.tags = {**_part(found.tags or {}, TEXT_BYTES, bad), **flag}
    elif isinstance(found, Log):
        found = msgspec.structs.replace(
            found,
            level=found.level[:_NAME_LENGTH],
            message=_cut(found.message),
            logger=found.logger[:_NAME_LENGTH],
            fields={**_part(found.fields, KEPT_BYTES, bad), **flag},
        )
    elif isinstance(found, Profile):
        found = msgspec.structs.replace(
            found,
            name=found.name[:_NAME_LENGTH],
            tags={**_part(found.tags or {}, KEPT_BYTES, bad), **flag},
        )
    elif isinstance(found, Run):
        config = {**_part(found.config, KEPT_BYTES, bad), **flag}
        found = msgspec.structs.replace(found, config=config)
    return ENCODER.encode(found)


def _part(values: dict[str, Any], most: int, bad: Tally) -> dict[str, Any]:
    """Return the values with long texts cut, in their order while they fit."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        short = _short(value)
        size = len(ENCODER.encode({name: short}))
        if size > most:
            bad.add(name[:_NAME_LENGTH])
            continue
        most -= size
        kept[name] = short
    return kept


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, dict):
        return {name: _short(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_short(inner) for inner in value]
    return value


def _cut(value: str) -> str:
    if len(value) * 4 <= TEXT_BYTES:
        return value
    return value.encode()[:TEXT_BYTES].decode(errors="ignore")


_WIRE = msgspec.msgpack.Decoder(Row | Free | Log | Profile | Run)
