"""What an event's values are as fields: one number, truth or text for each name."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from mlops_events.sinks.jsontext import to_json

__all__ = ["Scalar", "flatten", "is_finite", "name_of_number"]

Scalar: TypeAlias = float | int | bool | str

_DEPTH: Final = 8
"""Mappings in mappings up to here have a field for each value; what lies deeper becomes text."""


def flatten(values: Iterable[tuple[str, Any]], depth: int = 0) -> Iterator[tuple[str, Scalar]]:
    """Yield fields and their values, NaN and the infinities among them.

    What a mapping holds is called `outer.inner`. A list of numbers has `_mean`, `_min`, `_max`
    and `_median` of those that are finite, as its field's name with these endings. None and what is
    empty is left out; whatever else becomes text.

    Raises:
        TypeError: there is no text for a value.
        RecursionError: one is nested too deeply.
    """
    for name, value in values:
        if isinstance(value, float | int | str):
            yield name, value
        elif isinstance(value, dict) and depth < _DEPTH:
            yield from flatten(((f"{name}.{k}", v) for k, v in value.items()), depth + 1)
        elif isinstance(value, list | tuple) and (numbers := _numbers(value)):
            yield from _summary(name, numbers)
        elif value is not None and value != [] and value != ():
            text = to_json(value)
            yield name, text[1:-1] if isinstance(value, bytes) else text


def is_finite(value: Scalar) -> bool:
    """False for NaN and the infinities."""
    return not isinstance(value, float) or math.isfinite(value)


def name_of_number(value: Scalar) -> str:
    """Return what a number that is not finite is called."""
    return "NaN" if value != value else f"{'-' if float(value) < 0 else ''}Infinity"


def _numbers(values: Sequence[Any]) -> list[float]:
    """Return the numbers of a list; none if it holds anything but numbers and None."""
    found: list[float] = []
    for value in values:
        if isinstance(value, float | int) and not isinstance(value, bool):
            found.append(float(value))
        elif value is not None:
            return []
    return found


def _summary(name: str, numbers: Sequence[float]) -> Iterator[tuple[str, Scalar]]:
    finite = [number for number in numbers if math.isfinite(number)]
    yield from ((name, number) for number in numbers if not math.isfinite(number))
    if finite:
        count = len(finite)
        yield f"{name}_mean", math.fsum(number / count for number in finite)
        yield f"{name}_min", min(finite)
        yield f"{name}_max", max(finite)
        ordered = sorted(finite)
        low, high = ordered[(count - 1) // 2], ordered[count // 2]
        yield f"{name}_median", low if low == high else low / 2 + high / 2  # the sum may overflow
