"""Closed frames that wait on disk, and in memory while the disk takes none."""

from collections.abc import Callable

from mlops_events.producers.backlog import MemoryBacklog, Sealed
from mlops_events.producers.spool import Queue, Stored

__all__ = ["SpooledBacklog"]


class SpooledBacklog:
    """The frames of one kind: each is written before it is first sent, and leaves with its ack.

    What the disk refuses waits in memory, and so do its successors until memory is empty again:
    the order stays.

    Args:
        queue: the frames on disk.
        restore: makes a closed frame of what was stored.
        complain: is told why a frame could not be stored.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        restore: Callable[[Stored], Sealed],
        complain: Callable[[OSError], None],
    ) -> None:
        self._queue = queue
        self._restore = restore
        self._complain = complain
        self._memory = MemoryBacklog()
        self._first: Sealed | None = None

    @property
    def bytes(self) -> int:
        """What waits in memory."""
        return self._memory.bytes

    @property
    def events(self) -> int:
        """What waits in memory."""
        return self._memory.events

    @property
    def kept(self) -> int:
        """Events on disk."""
        return self._queue.events

    @property
    def lost(self) -> int:
        """Events that were dropped from the disk to make room, or could not be read back."""
        return self._queue.lost

    def append(self, frame: Sealed) -> None:
        """Add the newest."""
        if self._memory.first() is None:
            try:
                self._queue.append(Stored(frame.seq, frame.count, frame.record.value))
            except OSError as error:
                self._complain(error)
            else:
                if len(self._queue) == 1:
                    self._first = frame
                return
        self._memory.append(frame)

    def first(self) -> Sealed | None:
        """Return the oldest, None if there is none."""
        if self._first is None:
            stored = self._queue.first()
            self._first = None if stored is None else self._restore(stored)
        return self._first or self._memory.first()

    def remove_first(self) -> Sealed:
        """Forget the oldest, which `first` has returned."""
        frame = self._first
        if frame is None:
            return self._memory.remove_first()
        self._first = None
        self._queue.remove(Stored(frame.seq, frame.count, frame.record.value))
        return frame

    def give_up(self) -> int:
        """Forget what waits in memory and return its events."""
        return self._memory.give_up()
