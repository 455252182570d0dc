"""What people write on the command line, turned into the values of an event."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.schemas.text import duration_ns

__all__ = ["LEVELS", "ArgumentError", "duration", "fields", "level", "tags"]

LEVELS = ("debug", "info", "warning", "error", "critical")

_ALIASES = {"warn": "warning", "err": "error", "fatal": "critical"}
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?(([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][+-]?[0-9]+)?|nan|inf|infinity)",
    re.ASCII | re.IGNORECASE,
)


class ArgumentError(MlopsEventsError):
    """The command line says something that cannot be done; the message says what would do."""


def fields(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of FIELD=VALUE texts.

    A value is an integer, a float (also nan and inf), true or false, or a JSON list if it is
    written like one, and text otherwise.

    Raises:
        ArgumentError: a text is no FIELD=VALUE, or a field is given twice.
    """
    return {
        name: _value(name, text) for name, text in _pairs(texts, "FIELD=VALUE, such as loss=0.5")
    }


def tags(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of KEY=VALUE texts, as text.

    Raises:
        ArgumentError: a text is no KEY=VALUE, or a key is given twice.
    """
    return dict(_pairs(texts, "KEY=VALUE, such as phase=train"))


def level(text: str) -> str:
    """Return a log level's name.

    Raises:
        ArgumentError: there is no such level.
    """
    name = text.lower()
    name = _ALIASES.get(name, name)
    if name not in LEVELS:
        raise ArgumentError(f"no log level {text!r}; levels: {', '.join(LEVELS)}")
    return name


def duration(text: str) -> int:
    """Return the nanoseconds of a duration with its unit, such as 12ms.

    Raises:
        ArgumentError: it is none, or below zero.
    """
    try:
        found = duration_ns(text)
    except ValueError as error:
        raise ArgumentError(f"{text!r} is no duration; write one such as 12ms or 3.5s") from error
    if not 0 <= found < 2**63:
        raise ArgumentError(f"{text!r} is no duration from 0 to 292 years")
    return found


def _pairs(texts: Sequence[str], wanted: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ArgumentError(f"{text!r} is not {wanted}")
        if name in found:
            raise ArgumentError(f"{name!r} is given twice")
        found[name] = value
    return list(found.items())


def _value(name: str, text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.startswith("["):
        try:
            return msgspec.json.decode(text, type=list[Any])
        except msgspec.DecodeError as error:
            raise ArgumentError(
                f"{name}={text} is no JSON list such as [0.1,0.2]: {error}"
            ) from error
    return text
