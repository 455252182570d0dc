"""Tells lines of code that log too often."""

from collections.abc import Callable
from typing import Final

__all__ = ["Floods"]

_PLACES: Final = 2_000
_PERIOD_S: Final = 1.0


class Floods:
    """Passes so many records a second from each line of code.

    Threads may call it at once: a count may then be off by a few.

    Args:
        burst: records of a second; 0 sets no bound.
        clock: seconds that never go back.
    """

    def __init__(self, burst: int, *, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._clock = clock
        self._places: dict[tuple[str, int], list[float]] = {}

    def pass_(self, path: str, line: int) -> int | None:
        """Return how many records were left out before this one; None if this one is left out."""
        if not self._burst:
            return 0
        place = (path, line)
        now = self._clock()
        state = self._places.get(place)
        if state is None:
            if len(self._places) >= _PLACES:
                self._places.clear()
            self._places[place] = [now, 1, 0]
            return 0
        if now - state[0] >= _PERIOD_S:
            left_out = int(state[2])
            state[:] = [now, 1, 0]
            return left_out
        state[1] += 1
        if state[1] <= self._burst:
            return 0
        state[2] += 1
        return None
