"""Samples that are no number: how many, and where the first of them stood."""

from collections.abc import Sequence
from math import isfinite

import msgspec

__all__ = ["At", "NonFinite", "all_finite"]

At = tuple[int, int]
"""Where a sample stands among its series: event time, then the seq of its frame."""


class NonFinite(msgspec.Struct, array_like=True):
    """The NaN and infinite samples of a series in a window."""

    count: int
    first_at: At
    first_step: int | None

    def note(self, count: int, *, at: At, step: int | None) -> None:
        """Take some more, all of one event."""
        self.count += count
        if at < self.first_at:
            self.first_at = at
            self.first_step = step


def all_finite(numbers: Sequence[float]) -> bool:
    """Whether none is NaN or infinite; False also for finite ones whose sum is not."""
    return isfinite(sum(numbers))
