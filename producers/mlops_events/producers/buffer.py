"""Bounded, encoded events of one kind, from any thread to the worker."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from mlops_events.producers.tally import Tally

__all__ = ["CLOSED", "FULL", "MALFORMED", "WAKE_BYTES", "Buffer", "Event"]

Event: TypeAlias = bytes | tuple[int, int | None, Any, bytes]
"""An event in wire form, or with a series: the series' id, then the clock's reading, the step as
it was given and the encoded values; or then None, None and the whole row."""

FULL = "full"
CLOSED = "closed"
MALFORMED = "malformed"

WAKE_BYTES = 256 << 10
"""The worker is woken early when so much has gathered since its last visit."""


class Buffer:
    """Takes encoded events without a lock and counts what it drops: the newest, when it is full.

    `Emitter.observe` is `put` written out, since a call costs as much as its body. `size` is added
    to by threads that do not wait for each other, so one of them might undo another's addition; it
    is put right whenever the worker finds the buffer empty. Everything else is exact.

    Args:
        limit: bytes that may wait, here and in closed frames.
        wake: starts the worker, or wakes it before its time.
    """

    __slots__ = (
        "_closed",
        "_held",
        "_limit",
        "_queue",
        "_wake",
        "append",
        "dropped",
        "size",
        "soft",
    )

    def __init__(self, *, limit: int, wake: Callable[[], None]) -> None:
        self._queue: deque[Event] = deque()
        self._limit = limit
        self._wake = wake
        self._closed = False
        self._held = 0
        self.append = self._queue.append
        self.dropped = Tally()
        self.size = 0
        self.soft = -1  # the first event starts the worker
        """Where `put` must look closer."""

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, event: Event) -> None:
        """Take an event, or drop and count it."""
        length = len(event if isinstance(event, bytes) else event[3])
        self.size = size = self.size + length
        if size > self.soft:
            self.crowded(event, length)
        else:
            self.append(event)

    def crowded(self, event: Event, length: int) -> None:
        """Take an event that went beyond `soft`: wake the worker, or drop it."""
        if self._closed or self.size > self._limit:
            self.size -= length
            self.dropped.add(CLOSED if self._closed else FULL)
            return
        self.append(event)
        self.soft = min(self._limit, self.size + WAKE_BYTES)
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
        if self._queue:
            self.size += held - self._held - taken
        else:
            self.size = held
        self._held = held
        if not self._closed:
            self.soft = min(self._limit, self.size + WAKE_BYTES)

    def close(self) -> None:
        """Drop and count what comes from now on."""
        self._closed = True
        self.soft = -1
