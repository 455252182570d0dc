"""Closed frames that wait for their acknowledgement, in memory."""

from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from mlops_events.producers.transport import OutRecord

__all__ = ["MemoryBacklog", "Sealed"]


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """A closed frame: its bytes are the same in every re-send."""

    seq: int
    count: int
    record: OutRecord


if TYPE_CHECKING:

    class Backlog(Protocol):
        """Closed frames of one kind, oldest first."""

        @property
        def bytes(self) -> int:
            """What waits in memory."""
            ...

        @property
        def events(self) -> int:
            """What waits in memory."""
            ...

        @property
        def kept(self) -> int:
            """Events that outlive the process."""
            ...

        @property
        def lost(self) -> int:
            """Events that were given up to make room, or could not be read back."""
            ...

        def append(self, frame: Sealed) -> None:
            """Add the newest."""
            ...

        def first(self) -> Sealed | None:
            """Return the oldest, None if there is none."""
            ...

        def remove_first(self) -> Sealed:
            """Forget the oldest, which `first` has returned."""
            ...

        def give_up(self) -> int:
            """Forget what does not outlive the process and return its events."""
            ...


class MemoryBacklog:
    """Closed frames in memory; they end with the process."""

    kept = 0
    lost = 0

    def __init__(self) -> None:
        self._frames: deque[Sealed] = deque()
        self.bytes = 0
        self.events = 0

    def append(self, frame: Sealed) -> None:
        """Add the newest."""
        self._frames.append(frame)
        self.bytes += len(frame.record.value)
        self.events += frame.count

    def first(self) -> Sealed | None:
        """Return the oldest, None if there is none."""
        return self._frames[0] if self._frames else None

    def remove_first(self) -> Sealed:
        """Forget the oldest."""
        frame = self._frames.popleft()
        self.bytes -= len(frame.record.value)
        self.events -= frame.count
        return frame

    def give_up(self) -> int:
        """Forget everything and return its events."""
        events, self.bytes, self.events = self.events, 0, 0
        self._frames.clear()
        return events
