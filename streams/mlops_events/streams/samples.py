"""The samples of one event name in one window, all of them."""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Final

import msgspec

from mlops_events.streams.nonfinite import At, NonFinite, all_finite

__all__ = ["Cell", "Loose", "Series", "Table"]

_NUMBER_BYTES: Final = 8
_ONE: Final = struct.Struct("d")
_NEVER: Final = (-(2**63), -1)


class Series(msgspec.Struct):
    """The samples of one field: the finite ones, the newest of them, and what is said of others."""

    numbers: tuple[float, ...] = ()
    last: float | None = None
    last_at: At = _NEVER
    bad: NonFinite | None = None

    def extend(self, numbers: tuple[float, ...], *, last: float | None, at: At) -> None:
        """Take some more; `last` is the newest of them."""
        self.numbers = self.numbers + numbers if self.numbers else numbers
        if at >= self.last_at:
            self.last = last
            self.last_at = at


class Table(msgspec.Struct, array_like=True):
    """Samples of fields that come together, finite numbers in every row: the fast way.

    `packed` holds the rows as doubles, little-endian on every platform this runs on.
    """

    fields: list[str]
    packed: bytearray = msgspec.field(default_factory=bytearray)
    newest: int = 0
    newest_at: At = _NEVER

    def add(self, numbers: Sequence[float], *, newest: int, at: At) -> None:
        """Take rows, one after the other; number `newest` of them, at `at`, is the latest."""
        if at >= self.newest_at:
            self.newest = len(self.packed) // _NUMBER_BYTES + newest * len(self.fields)
            self.newest_at = at
        self.packed += _packer(len(numbers))(*numbers)

    def last(self, field: str) -> float:
        """Return the latest sample of one of the fields."""
        place = self.newest + self.fields.index(field)
        number: float = _ONE.unpack_from(self.packed, place * _NUMBER_BYTES)[0]
        return number

    def gather(self, into: dict[str, Series]) -> None:
        """Put the columns with those of the same field."""
        numbers = _unpack(self.packed)
        width = len(self.fields)
        for i, field in enumerate(self.fields):
            series = into.get(field) or into.setdefault(field, Series())
            series.extend(numbers[i::width], last=numbers[self.newest + i], at=self.newest_at)


class Loose(msgspec.Struct, array_like=True):
    """Samples of one field that come in any number and may be no finite numbers."""

    packed: bytearray = msgspec.field(default_factory=bytearray)
    last: float | None = None
    last_at: At = _NEVER
    bad: NonFinite | None = None

    def add(self, numbers: Sequence[float], *, at: At, step: int | None) -> None:
        """Take the numbers of one event."""
        finite = numbers if all_finite(numbers) else [n for n in numbers if isfinite(n)]
        if finite:
            self.packed += _packer(len(finite))(*finite)
            if at >= self.last_at:
                self.last = float(finite[-1])
                self.last_at = at
        count = len(numbers) - len(finite)
        if count and self.bad is None:
            self.bad = NonFinite(count, at, step)
        elif count and self.bad is not None:
            self.bad.note(count, at=at, step=step)

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.packed) // _NUMBER_BYTES + (self.bad.count if self.bad else 0)

    def gather(self, field: str, into: dict[str, Series]) -> None:
        """Put them with those of the same field."""
        series = into.get(field) or into.setdefault(field, Series())
        series.extend(_unpack(self.packed), last=self.last, at=self.last_at)
        series.bad = self.bad


class Cell(msgspec.Struct, array_like=True):
    """All samples of one event name in one window.

    Nothing in it depends on the order in which events came, but for the order of its fields. No
    series of it has more than `most` samples, most have about as many.
    """

    tables: list[Table] = msgspec.field(default_factory=list)
    loose: dict[str, Loose] = msgspec.field(default_factory=dict)
    most: int = 0

    def table(self, fields: list[str]) -> Table | None:
        """Return the table of these fields, if there is one."""
        for table in self.tables:
            if table.fields == fields:
                return table
        return None

    def add_table(self, fields: list[str]) -> Table:
        """Return a new table of these fields."""
        table = Table(fields)
        self.tables.append(table)
        return table

    def add(self, field: str, numbers: Sequence[float], *, at: At, step: int | None) -> None:
        """Take the numbers of one field of one event, finite or not."""
        loose = self.loose.get(field)
        if loose is None:
            loose = self.loose[field] = Loose()
        loose.add(numbers, at=at, step=step)

    def has(self, field: str) -> bool:
        """Whether there are samples of a field."""
        return field in self.loose or any(field in table.fields for table in self.tables)

    def count(self, field: str) -> int:
        """How many samples there are of a field."""
        rows = sum(
            len(table.packed) // (_NUMBER_BYTES * len(table.fields))
            for table in self.tables
            if field in table.fields
        )
        loose = self.loose.get(field)
        return rows if loose is None else rows + loose.count

    def last_finite(self, field: str) -> tuple[At, float] | None:
        """Return where the latest finite sample of a field stands, and the sample."""
        found = [(t.newest_at, t.last(field)) for t in self.tables if field in t.fields]
        loose = self.loose.get(field)
        if loose is not None and loose.last is not None:
            found.append((loose.last_at, loose.last))
        return max(found, default=None)

    def series(self) -> dict[str, Series]:
        """Return the samples by field."""
        gathered: dict[str, Series] = {}
        for table in self.tables:
            table.gather(gathered)
        for field, loose in self.loose.items():
            loose.gather(field, gathered)
        return gathered

    @property
    def revision(self) -> int:
        """How many samples there are, of all fields."""
        packed = sum(len(table.packed) for table in self.tables)
        return packed // _NUMBER_BYTES + sum(one.count for one in self.loose.values())


@lru_cache(maxsize=4096)
def _packer(count: int) -> Callable[..., Any]:
    return struct.Struct(f"{count}d").pack


def _unpack(packed: bytearray) -> tuple[float, ...]:
    return struct.unpack(f"{len(packed) // _NUMBER_BYTES}d", packed)
