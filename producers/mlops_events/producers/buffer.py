"""Bounded, encoded events of one kind, from any thread to the worker."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from mlops_events.producers.tally import Tally

__all__ = ["CLOSED", "FULL", "MALFORMED", "WAKE_BYTES", "Buffer", "Event"]

FULL = "full"
CLOSED = "closed"
MALFORMED = "malformed"

WAKE_BYTES = 256 << 10
"""The worker is woken early when so much has gathered since its last visit."""

Event: TypeAlias = bytes | tuple[int, int | None, Any, bytes]
"""An event in wire form, or with a series: the series' id, then the clock's reading, the step as
it was given and the encoded values; or then None, None and the whole row."""


class Buffer:
    """Takes encoded events without a lock and counts what it drops: the newest, when it is full.

    `Emitter.observe` is `put` written out, since a call costs as much as its body. `room` is taken
    from by threads that do not wait for each other, so one of them might undo another's taking; it
    is put right whenever the worker finds the buffer empty. Everything else is exact.

    Args:
        limit: bytes that may wait, here and in closed frames.
        wake: starts the worker, or wakes it before its time.
    """

    __slots__ = (
        "_closed",
        "_held",
        "_limit",
        "_mark",
        "_queue",
        "_wake",
        "append",
        "dropped",
        "room",
    )

    def __init__(self, *, limit: int, wake: Callable[[], None]) -> None:
        self._queue: deque[Event] = deque()
        self._limit = limit
        self._wake = wake
        self._closed = False
        self._held = 0
        self._mark = 0
        self.append = self._queue.append
        self.dropped = Tally()
        self.room = 0  # the first event starts the worker
        """Bytes that may still come before `put` must look closer."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def size(self) -> int:
        """Bytes in use, here and in closed frames."""
        return self._mark - self.room

    def put(self, event: Event) -> None:
        """Take an event, or drop and count it."""
        self.room = room = self.room - _length(event)
        if room < 0:
            self.crowded(event)
        else:
            self.append(event)

    def crowded(self, event: Event) -> None:
        """Take an event that there was no room for: wake the worker, or drop it."""
        size = self._mark - self.room
        if self._closed or size > self._limit:
            self.room += _length(event)
            self.dropped.add(CLOSED if self._closed else FULL)
            return
        self.append(event)
        self._mark_at(size)
        self._wake()

    def take(self, most: int) -> list[Event]:
        """Return up to `most` of the oldest events; only the worker may call it."""
        pop = self._queue.popleft
        return [pop() for _ in range(min(most, len(self._queue)))]

    def settle(self, held: int, *, taken: int = 0) -> None:
        """Say how many bytes of taken events wait for their acknowledgement.

        Args:
            held: bytes of all events that were taken and still wait.
            taken: bytes of the events that were taken since the last call.
        """
        size = self.size + held - self._held - taken if self._queue else held
        self._held = held
        if not self._closed:
            self._mark_at(size)

    def close(self) -> None:
        """Drop and count what comes from now on."""
        self._closed = True
        self.room = -1

    def _mark_at(self, size: int) -> None:
        self._mark = min(self._limit, size + WAKE_BYTES)
        self.room = self._mark - size


def _length(event: Event) -> int:
    return len(event) if isinstance(event, bytes) else len(event[3])
