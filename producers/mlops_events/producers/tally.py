"""Counts by name that any thread may add to."""

from threading import RLock

__all__ = ["Tally"]

_MAX_NAMES = 256
_OTHERS = "..."


class Tally:
    """Exact counts by name; beyond 256 names the others share one, so that it cannot grow."""

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._lock = RLock()  # reentrant: a signal handler may count while its thread counts
        self._counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Add to the count of a name."""
        with self._lock:
            try:
                self._counts[name] += count
            except KeyError:
                if len(self._counts) >= _MAX_NAMES:
                    name = _OTHERS
                self._counts[name] = self._counts.get(name, 0) + count

    def total(self) -> int:
        """Return the sum of all counts."""
        with self._lock:
            return sum(self._counts.values())

    def counts(self) -> dict[str, int]:
        """Return the counts."""
        with self._lock:
            return dict(self._counts)
