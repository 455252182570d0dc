"""Event values as JSON text that loses neither NaN nor the infinities.

JSON has no such numbers. They are written as the texts "NaN", "Infinity" and "-Infinity"; a text
that reads like one of them gets a "~" in front, and so does one that only differs by "~" already.
"""

import math
from typing import Any

import msgspec

__all__ = ["from_json", "to_json"]

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def to_json(value: Any) -> str:
    """Return the JSON text of a value.

    Raises:
        TypeError: there is something in it that JSON has no form for.
        RecursionError: it is nested too deeply.
    """
    text = _encode(value)
    # msgspec writes null for the numbers that JSON lacks. Plain numbers hold neither letter, and
    # looking for one letter is nearly free.
    if (b"N" in text or b"n" in text) and (b"null" in text or b"NaN" in text or b"nity" in text):
        return _encode(_named(value)).decode()
    return text.decode()


def from_json(text: str) -> Any:
    """Return the value that `to_json` wrote.

    Raises:
        msgspec.DecodeError: the text is no JSON.
    """
    value = _decode(text)
    if "NaN" in text or "nity" in text:
        return _numbers(value)
    return value


def _named(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return f"~{value}" if value.lstrip("~") in _NAMES else value
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_named(item) for item in value]
    return value


def _numbers(value: Any) -> Any:
    if isinstance(value, str):
        bare = value.lstrip("~")
        if bare not in _NAMES:
            return value
        return _NAMES[value] if bare == value else value[1:]
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return value
