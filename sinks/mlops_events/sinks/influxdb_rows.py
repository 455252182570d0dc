"""Makes fields of rows of one series, fast where they are plain numbers."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from mlops_events.schemas.frame import Row
from mlops_events.sinks.influxdb_points import Common
from mlops_events.sinks.influxdb_text import field_key, string

__all__ = ["RowPlan"]

_NUMERIC: Final = b"0123456789+-.eE,"

_encode = msgspec.json.Encoder().encode


class RowPlan:
    """How the rows of one series become lines.

    Args:
        measurement: their measurement, escaped.
        head: the beginning of their lines, without tags of single rows.
        names: of the fields.
        common: what the points of the record have in common.
        tags: of the series, those that are tags.
        constant: fields that all rows have.
        constant_text: the same as lines have them.
    """

    def __init__(
        self,
        measurement: str,
        *,
        head: str,
        names: Sequence[str],
        common: Common,
        tags: dict[str, Any],
        constant: dict[str, Any],
        constant_text: str,
    ) -> None:
        self.measurement = measurement
        self.head = head
        self.names = names
        self.tags = tags
        self.constant = constant
        self._tail = f",{constant_text}" if constant else ""
        self._keys = [field_key(name, common.taken) for name in names]
        self._unique = len({*self._keys, *constant, "step"}) == len(names) + len(constant) + 1
        self._kinds: list[str | None] = []
        self._template = ""
        self._stepped = False

    @property
    def settled(self) -> bool:
        """False until the types of all fields are known."""
        return None not in self._kinds

    def settle(self, types: dict[str, str]) -> None:
        """Take note of the types that the fields have by now."""
        self._kinds = [types.get(key) for key in self._keys]
        self._stepped = types.get("step", "float") == "float"
        self._template = ""
        if self._keys and self._kinds == ["float"] * len(self._keys):
            self._template = ",".join(f"{key.replace('%', '%%')}=%s" for key in self._keys)

    def text(self, row: Row) -> str:
        """Return a row's line without its time; nothing if that takes a closer look."""
        if row.tags or not self._unique or not self._stepped:
            return ""
        fields = self._numbers(row.values) if self._template else self._mixed(row.values)
        if not fields:
            return ""
        if row.step is None:
            return f"{self.head} {fields}{self._tail}"
        return f"{self.head} {fields}{self._tail},step={row.step}"

    def _numbers(self, values: Sequence[Any]) -> str:
        """Return fields of numbers; nothing if one is something else, or not finite."""
        # One call for all of them is several times faster than repr() for each.
        raw = _encode(values)[1:-1]
        if raw.translate(None, _NUMERIC):
            return self._mixed(values)
        return self._template % tuple(raw.decode().split(","))

    def _mixed(self, values: Sequence[Any]) -> str:
        parts: list[str] = []
        for value, key, kind in zip(values, self._keys, self._kinds, strict=True):
            cls = value.__class__
            if cls is float and kind == "float" and value - value == 0.0:
                parts.append(f"{key}={value!r}")
            elif cls is str and kind == "string":
                parts.append(f"{key}={string(value)}")
            elif cls is bool and kind == "boolean":
                parts.append(f"{key}={'true' if value else 'false'}")
            elif cls is int and kind == "float":
                parts.append(f"{key}={value}")
            elif value is not None:
                return ""
        return ",".join(parts)
