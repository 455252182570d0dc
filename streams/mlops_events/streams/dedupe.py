"""Which sequence numbers of an emitter were seen."""

from bisect import bisect_right
from typing import Final

import msgspec

__all__ = ["MAX_RUNS", "SeqRuns"]

MAX_RUNS: Final = 64
"""Runs kept; beyond that the oldest gap counts as seen."""


class SeqRuns(msgspec.Struct, array_like=True):
    """Sequence numbers as sorted disjoint runs.

    `bounds` holds the start of each run and the number after its end, in turn, so a number is
    seen if an odd number of bounds is not above it.
    """

    bounds: list[int] = []
    gaps_closed: int = 0

    def add(self, seq: int) -> bool:
        """Note a number; return whether it is new."""
        bounds = self.bounds
        if bounds and seq == bounds[-1]:
            bounds[-1] += 1
            return True
        i = bisect_right(bounds, seq)
        if i & 1:
            return False
        joins_left = i > 0 and bounds[i - 1] == seq
        joins_right = i < len(bounds) and bounds[i] == seq + 1
        if joins_left and joins_right:
            del bounds[i - 1 : i + 1]
        elif joins_left:
            bounds[i - 1] += 1
        elif joins_right:
            bounds[i] -= 1
        else:
            bounds[i:i] = (seq, seq + 1)
            if len(bounds) > 2 * MAX_RUNS:
                del bounds[1:3]
                self.gaps_closed += 1
        return True

    def whole(self, last: int) -> bool:
        """Whether everything from 0 to `last` was seen, and nothing above."""
        return self.bounds == [0, last + 1]
