"""What finite numbers come to: mean, smallest, largest and middle one."""

from collections.abc import Sequence
from math import fsum, isinf
from typing import NamedTuple

__all__ = ["Figures", "summarise"]


class Figures(NamedTuple):
    """None where there is no number."""

    mean: float | None = None
    min: float | None = None
    max: float | None = None
    median: float | None = None


def summarise(numbers: Sequence[float]) -> Figures:
    """Return the figures of finite numbers; they do not depend on the order."""
    if not numbers:
        return Figures()
    ordered = sorted(numbers)
    n = len(ordered)
    # + 0.0 makes -0.0, which is equal to 0.0 and may stand on either side of it, the same.
    low, high = ordered[0] + 0.0, ordered[-1] + 0.0
    return Figures(
        mean=min(max(_mean(ordered), low), high),
        min=low,
        max=high,
        median=_midpoint(ordered[(n - 1) // 2], ordered[n // 2]) + 0.0,
    )


def _mean(numbers: Sequence[float]) -> float:
    try:
        return fsum(numbers) / len(numbers)
    except OverflowError:  # finite numbers whose sum is not
        return fsum(number * 2.0**-64 for number in numbers) / len(numbers) * 2.0**64


def _midpoint(low: float, high: float) -> float:
    middle = (low + high) / 2
    return low / 2 + high / 2 if isinf(middle) else middle
