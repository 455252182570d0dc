"""Types of fields: a field keeps the type of its first value, in InfluxDB and so here."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mlops_events.sinks.influxdb_text import string

__all__ = ["ConflictError", "FieldTypes", "conflicts", "encode", "escaped"]

_INT64: Final = range(-(2**63), 2**63)
_CONFLICT: Final = re.compile(
    r'input field "(?P<field>.*?)" on measurement "(?P<name>.*?)" '
    r"is type \w+, already exists as type (?P<type>float|integer|unsigned|string|boolean)"
)


class ConflictError(ValueError):
    """A value cannot be written as the type that its field has."""


class FieldTypes:
    """Remembers the types of fields, by measurement; names are as lines have them, escaped.

    Numbers are floats unless the server has integers already: a field that holds 1 now may hold 1.5
    later.

    Args:
        rules: types that are set beforehand, by FIELD or MEASUREMENT.FIELD.
    """

    def __init__(self, rules: Mapping[str, str] | None = None) -> None:
        self._rules = dict(rules or {})
        self._known: dict[str, dict[str, str]] = {}

    def of(self, measurement: str) -> dict[str, str]:
        """Return the types of a measurement's fields; what is found out is put into it."""
        return self._known.setdefault(measurement, {})

    def type_of(self, measurement: str, key: str, value: Any) -> str:
        """Return a field's type; that of this value if it has none yet."""
        types = self.of(measurement)
        kind = types.get(key)
        if kind is None:
            rule = self._rules.get(f"{measurement}.{key}") or self._rules.get(key)
            kind = types[key] = rule or _natural(value)
        return kind

    def learn(self, found: Iterable[tuple[str, str, str]]) -> bool:
        """Take over the server's types; return whether one of them was news.

        Args:
            found: measurement, field and type, as `conflicts` returns them.
        """
        news = False
        for measurement, key, kind in found:
            types = self.of(measurement)
            news = news or types.get(key) != kind
            types[key] = kind
        return news


def conflicts(message: str) -> list[tuple[str, str, str]]:
    """Return measurement, field and type of the fields that a refusal names."""
    return [
        escaped(match["name"], match["field"], match["type"])
        for match in _CONFLICT.finditer(message)
    ]


def escaped(name: str, field: str, kind: str) -> tuple[str, str, str]:
    """Return a measurement and a field as lines have them, and the type."""
    return _escaped(name, ", "), _escaped(field, ",= "), kind


def encode(value: Any, kind: str) -> str:
    """Return a value as a field of this type, if nothing of it is lost.

    Args:
        value: a finite number, a bool or a text.
        kind: the field's type.

    Raises:
        ConflictError: it cannot be.
    """
    if kind == "string":
        return string(value if isinstance(value, str) else str(value))
    if isinstance(value, str):
        raise ConflictError(f"a text where the field is {kind}")
    if kind == "float":
        return f"{float(value)!r}" if isinstance(value, bool | float) else _int_as_float(value)
    if kind == "boolean":
        if value in (0, 1):
            return "true" if value else "false"
        raise ConflictError(f"the number {value!r} where the field is boolean")
    if int(value) == value and int(value) in _INT64 and (kind == "integer" or value >= 0):
        return f"{int(value)}{'i' if kind == 'integer' else 'u'}"
    raise ConflictError(f"the number {value!r} where the field is {kind}")


def _int_as_float(value: int) -> str:
    return str(value) if value in _INT64 else repr(float(value))


def _natural(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "float"


def _escaped(text: str, special: str) -> str:
    return "".join(f"\\{char}" if char in special else char for char in text)
