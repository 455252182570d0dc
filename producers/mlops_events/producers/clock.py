"""The emitter's time: wall clock at the start plus a clock that never goes back."""

from collections.abc import Callable
from time import monotonic_ns, time_ns

__all__ = ["Clock"]


class Clock:
    """Nanoseconds since the epoch that never go back.

    Args:
        raw: what moves the time on; an own clock replaces it and is then the time itself.
        wall: the wall clock that it follows, forward only.
    """

    __slots__ = ("_wall", "anchor", "raw")

    def __init__(
        self,
        raw: Callable[[], int] | None = None,
        *,
        wall: Callable[[], int] | None = None,
    ) -> None:
        self._wall = wall or (time_ns if raw is None else None)
        self.raw = raw or monotonic_ns
        self.anchor = 0
        if self._wall is not None:
            self.anchor = self._wall() - self.raw()

    def now(self) -> int:
        """Return the emitter's time."""
        return self.raw() + self.anchor

    def follow(self) -> None:
        """Catch up with a wall clock that is ahead, after a suspend or a correction."""
        if self._wall is not None:
            self.anchor = max(self.anchor, self._wall() - self.raw())
