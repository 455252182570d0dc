"""What people write as text (durations, sizes, lists, switches), turned into typed values."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

__all__ = ["duration_ns", "parse", "size_bytes"]

_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "min": 60 * 1_000_000_000,
    "h": 3_600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
    "w": 7 * 86_400 * 1_000_000_000,
}
_BYTES = {
    "B": 1,
    "kB": 1_000,
    "KB": 1_000,
    "MB": 1_000**2,
    "GB": 1_000**3,
    "TB": 1_000**4,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_SWITCH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_OF_TIME = ("ns", "us", "ms", "s")


def duration_ns(text: str) -> int:
    """Return the nanoseconds in a text such as "12ms", "3.5s" or "7d".

    Raises:
        ValueError: it is none.
    """
    number, unit = _split(text)
    if unit not in _NS:
        raise ValueError(f"{text!r} is no duration; write one such as 12ms, 3.5s, 10min, 6h or 7d")
    return _times(number, _NS[unit])


def size_bytes(text: str) -> int:
    """Return the bytes in a text such as "2MiB" or "500MB".

    Raises:
        ValueError: it is none.
    """
    number, unit = _split(text)
    if unit not in _BYTES:
        raise ValueError(f"{text!r} is no size; write one such as 64KiB, 2MiB or 10GB")
    return round(_times(number, _BYTES[unit]))


def parse(text: str, kind: Any, *, name: str = "") -> Any:
    """Return the value of type `kind` that a text stands for.

    A number whose name ends in a unit (`window_s`, `linger_ms`, `max_bytes`) may carry one of its
    own: "10min" is 600 for `window_s`. Lists are separated by commas, mappings are written
    `key=value,key=value`; both may be JSON.

    Raises:
        ValueError: the text stands for no such value; the message says what would.
    """
    text = text.strip()
    kind = _bare(kind)
    origin = get_origin(kind)
    if origin is Literal:
        return _choice(text, get_args(kind))
    if origin in (Union, UnionType):
        return _member(text, get_args(kind), name)
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise ValueError(f"{text!r} is neither true nor false")
        return _SWITCH[text.lower()]
    if kind is int or kind is float:
        return _number(text, kind, name)
    if (origin or kind) in (list, tuple, set, frozenset):
        item = (get_args(kind) or (str,))[0]
        parts = _json(text, list) or [p for p in text.split(",") if p.strip()]
        return (origin or kind)(parse(p, item) if isinstance(p, str) else p for p in parts)
    if (origin or kind) is dict:
        return _mapping(text, (get_args(kind) or (str, str))[1])
    return text


def _bare(kind: Any) -> Any:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind


def _choice(text: str, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if str(choice).casefold() == text.casefold():
            return choice
    raise ValueError(f"{text!r} is none of {', '.join(str(c) for c in choices)}")


def _member(text: str, kinds: tuple[Any, ...], name: str) -> Any:
    kinds = tuple(_bare(kind) for kind in kinds)
    nones = ("none",) if str in kinds or bool in kinds else ("none", "off")
    if NoneType in kinds and text.lower() in nones:
        return None
    order = sorted((k for k in kinds if k is not NoneType), key=lambda k: k is str)
    for kind in order[:-1]:
        try:
            return parse(text, kind, name=name)
        except ValueError:
            continue
    return parse(text, order[-1], name=name)


def _number(text: str, kind: type, name: str) -> int | float:
    unit = name.rpartition("_")[2]
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        pass
    if unit in _OF_TIME:
        base, value = _NS[unit], duration_ns(text)
    elif unit == "bytes":
        base, value = 1, size_bytes(text)
    else:
        what = "whole number" if kind is int else "number"
        raise ValueError(f"{text!r} is no {what}")
    if kind is float:
        return value / base
    if value % base:
        raise ValueError(f"{text!r} is no whole number of {unit}")
    return value // base


def _mapping(text: str, kind: Any) -> dict[str, Any]:
    found = _json(text, dict)
    if found is not None:
        return {k: parse(v, kind) if isinstance(v, str) else v for k, v in found.items()}
    nested = get_origin(_bare(kind)) in (list, tuple, set, frozenset)
    result: dict[str, Any] = {}
    for part in text.split(";" if nested else ","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part.strip()!r} has no '='; write key=value")
        result[key.strip()] = parse(value, kind)
    return result


def _json(text: str, kind: type) -> Any:
    """The value of a text that is JSON of this type; None if it does not look like it."""
    if not text.startswith("[" if kind is list else "{"):
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{text!r} is no JSON: {error}") from error


def _split(text: str) -> tuple[str, str]:
    text = text.strip().replace("µ", "u")
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return number.strip(), text[len(number) :]


def _times(number: str, unit: int) -> int:
    try:
        return int(number) * unit
    except ValueError:
        pass
    try:
        return round(float(number) * unit)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{number!r} is no number") from error
