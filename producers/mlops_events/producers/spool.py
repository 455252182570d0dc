"""A process's frames on disk: queues of segment files in a folder that only this process holds.

A frame is in the file system before it is first sent, so it survives the process, however that
ends. With `sync` it survives a power cut too.
"""

import os
import re
import shutil
import struct
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

__all__ = ["Leftover", "Queue", "Spool", "Stored", "Waiting", "leftovers", "waiting"]

SEGMENT_BYTES: Final = 4 << 20
_HEAD = struct.Struct("<IIIQ")  # length, checksum, events, seq
_SEED: Final = 0x5F00D5  # so that zeros are no valid record
_NAME = re.compile(r"[0-9a-f]{32}\Z")
_SEGMENT = re.compile(r"(\d{12})-([a-z]+)\.seg\Z")
_LOCK: Final = "lock"


class Stored(NamedTuple):
    """A frame on disk: its number, its events and its bytes."""

    seq: int
    events: int
    value: bytes


class _Segment:
    """A file of frames; `read` is where the oldest that waits begins, `waiting` their numbers."""

    def __init__(self, path: Path, queue: "Queue") -> None:
        self.path = path
        self.queue = queue
        self.file = -1
        self.size = 0
        self.read = 0
        self.waiting: deque[int] = deque()
        self.events = 0

    def finish(self) -> None:
        """Append no more."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def remove(self) -> None:
        """Delete the file."""
        self.finish()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


class Spool:
    """The folder of one emitter below the spool's, locked while its process lives.

    Nothing is done on disk before the first frame.

    Args:
        root: the spool, which all processes of a machine may share.
        name: the emitter's id in hex.
        limit: bytes that this emitter may keep.
        drops: what is dropped beyond: the oldest segments; or nothing, and newer frames wait in
            memory, where the newest events are dropped.
        sync: whether each frame is on the disk before it counts.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        limit: int,
        drops: Literal["oldest", "newest"],
        sync: bool,
    ) -> None:
        self._root = root
        self._folder = root / name
        self._limit = limit
        self._drops = drops
        self._sync = sync
        self._segment_bytes = min(SEGMENT_BYTES, max(1, limit // 8))
        self._lock = -1
        self._number = 0
        self._segments: list[_Segment] = []
        self._bytes = 0

    def queue(self, kind: str) -> "Queue":
        """Return the queue of a kind."""
        return Queue(self, kind)

    def close(self) -> None:
        """Let go; what waits is for the next process, and an empty folder is removed."""
        for segment in self._segments:
            segment.finish()
        if self._lock >= 0:
            if not self._segments:
                shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def abandon(self) -> None:
        """Let go in a forked child: the folder is its parent's."""
        for segment in self._segments:
            segment.finish()
        if self._lock >= 0:
            os.close(self._lock)  # the parent's descriptor still holds the lock
            self._lock = -1

    # Called by the queues.

    def store(self, queue: "Queue", frame: Stored) -> None:
        """Write a frame behind the others of its queue.

        Raises:
            OSError: it cannot be written, or there is no room for it.
        """
        self._take_folder()
        record = _HEAD.pack(len(frame.value), _sum(frame), frame.events, frame.seq) + frame.value
        self._make_room(len(record))
        segment = queue.segments[-1] if queue.segments else None
        if segment is None or segment.file < 0 or segment.size >= self._segment_bytes:
            if segment is not None:
                segment.finish()
            segment = self._new_segment(queue)
        try:
            _write(segment.file, record)
            if self._sync:
                _sync(segment.file)
        except OSError:
            try:
                os.ftruncate(segment.file, segment.size)
            except OSError:
                segment.finish()
            if not segment.waiting:
                self.forget(segment)
            raise
        segment.size += len(record)
        segment.waiting.append(frame.seq)
        segment.events += frame.events
        self._bytes += len(record)

    def forget(self, segment: _Segment) -> None:
        """Delete a segment, read or not."""
        segment.remove()
        self._segments.remove(segment)
        segment.queue.segments.remove(segment)
        self._bytes -= segment.size

    def _take_folder(self) -> None:
        """Make the folder and hold it, before anybody else can see it."""
        if self._lock >= 0:
            return
        self._root.mkdir(parents=True, exist_ok=True)
        new = self._root / f".{self._folder.name}"
        new.mkdir(mode=0o700, exist_ok=True)
        lock = _try_lock(new / _LOCK)
        if lock is None:
            raise OSError(f"{new} is held by another process")
        try:
            new.rename(self._folder)
        except OSError:
            os.close(lock)
            raise
        self._lock = lock

    def _new_segment(self, queue: "Queue") -> _Segment:
        path = self._folder / f"{self._number:012d}-{queue.kind}.seg"
        segment = _Segment(path, queue)
        segment.file = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | _CLOEXEC, 0o600
        )
        self._number += 1
        self._segments.append(segment)
        queue.segments.append(segment)
        return segment

    def _make_room(self, size: int) -> None:
        while self._segments and self._bytes + size > self._limit:
            if self._drops == "newest":
                raise OSError(f"the spool holds its {self._limit} bytes")
            oldest = self._segments[0]
            oldest.queue.lost += oldest.events
            self.forget(oldest)


class Queue:
    """The frames of one kind, oldest first."""

    def __init__(self, spool: Spool, kind: str) -> None:
        self.kind = kind
        self.segments: list[_Segment] = []
        self.lost = 0
        """Events that were dropped to make room, or could not be read back."""
        self._spool = spool

    def __len__(self) -> int:
        return sum(len(segment.waiting) for segment in self.segments)

    @property
    def events(self) -> int:
        """The events of all frames."""
        return sum(segment.events for segment in self.segments)

    def append(self, frame: Stored) -> None:
        """Add the newest.

        Raises:
            OSError: it cannot be kept; the queue is as it was.
        """
        self._spool.store(self, frame)

    def first(self) -> Stored | None:
        """Return the oldest, None if there is none; what cannot be read is lost."""
        while self.segments:
            segment = self.segments[0]
            try:
                found = _read(segment.path, segment.read)
            except OSError:
                found = None
            if found is not None:
                return found
            self.lost += segment.events
            self._spool.forget(segment)
        return None

    def remove(self, frame: Stored) -> None:
        """Forget a frame that was the first; a segment goes with its last one."""
        segment = self.segments[0] if self.segments else None
        if segment is None or segment.waiting[0] != frame.seq:
            self.lost -= frame.events  # it was dropped to make room, while it was being sent
            return
        segment.read += _HEAD.size + len(frame.value)
        segment.waiting.popleft()
        segment.events -= frame.events
        if not segment.waiting:
            self._spool.forget(segment)


class Leftover:
    """The folder of a process that is gone, held by this one."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock = lock

    def frames(self) -> Iterator[Stored]:
        """Yield all frames in the order in which they were written; delete each file behind them.

        A frame is given up only by asking for the next one.
        """
        for path in sorted(p for p in self.folder.iterdir() if _SEGMENT.match(p.name)):
            at = 0
            while (frame := _read(path, at)) is not None:
                yield frame
                at += _HEAD.size + len(frame.value)
            path.unlink(missing_ok=True)

    def close(self, *, done: bool) -> None:
        """Let go; remove the folder if everything in it was sent."""
        if done:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def leftovers(root: Path) -> Iterator[Leftover]:
    """Yield what processes that are gone have left, oldest first; the caller closes each."""
    try:
        folders = [p for p in root.iterdir() if _NAME.match(p.name)]
        folders.sort(key=_changed)
    except OSError:
        return
    for folder in folders:
        try:
            lock = _try_lock(folder / _LOCK)
        except OSError:
            continue
        if lock is not None:
            yield Leftover(folder, lock)


class Waiting(msgspec.Struct, frozen=True):
    """What waits in a folder of the spool: frames, events and bytes of a kind, since when.

    `live` says that a process holds it, which sends it by itself.
    """

    emitter: str
    live: bool
    kind: str
    frames: int
    events: int
    bytes: int
    since_ns: int


def waiting(root: Path) -> list[Waiting]:
    """Return what waits, oldest first; nothing is changed, and no process is waited for.

    Raises:
        OSError: the folder cannot be read.
    """
    found: list[Waiting] = []
    for folder in sorted((p for p in root.iterdir() if _NAME.match(p.name)), key=_changed):
        live = _is_held(folder / _LOCK)
        kinds: dict[str, list[tuple[int, int, int, int]]] = {}
        for path in folder.iterdir():
            match = _SEGMENT.match(path.name)
            counted = _count(path) if match else None
            if match and counted:
                kinds.setdefault(match[2], []).append(counted)
        for kind, segments in sorted(kinds.items()):
            frames, events, size, since_ns = zip(*segments, strict=True)
            found.append(
                Waiting(folder.name, live, kind, sum(frames), sum(events), sum(size), min(since_ns))
            )
    return found


def _is_held(path: Path) -> bool:
    try:
        lock = _try_lock(path)
    except OSError:
        return False
    if lock is None:
        return True
    os.close(lock)
    return False


def _count(path: Path) -> tuple[int, int, int, int] | None:
    """Return frames, events and bytes of a segment, and since when; None if it is gone or empty."""
    frames = events = at = 0
    try:
        since_ns = path.stat().st_mtime_ns
        while (frame := _read(path, at)) is not None:
            frames += 1
            events += frame.events
            at += _HEAD.size + len(frame.value)
    except OSError:
        return None
    return (frames, events, at, since_ns) if frames else None


def _changed(folder: Path) -> float:
    """Return when a folder was changed last; any time for one that is gone meanwhile."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path, at: int) -> Stored | None:
    """Return the frame at a place of a file; None if there is none that is whole."""
    with path.open("rb") as file:
        file.seek(at)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        length, checksum, count, seq = _HEAD.unpack(head)
        value = file.read(length)
    frame = Stored(seq, count, value)
    return frame if length and len(value) == length and _sum(frame) == checksum else None


def _sum(frame: Stored) -> int:
    return zlib.crc32(frame.value, _SEED ^ frame.events ^ (frame.seq & 0xFFFFFFFF))


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def _sync(file: int) -> None:
        os.fsync(file)
else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _sync(file: int) -> None:
        os.fdatasync(file) if hasattr(os, "fdatasync") else os.fsync(file)


def _try_lock(path: Path) -> int | None:
    """Return the descriptor of a lock file; None if another process holds it.

    Raises:
        OSError: there can be no such file.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | _CLOEXEC, 0o600)
    try:
        _lock(file)
    except OSError:
        os.close(file)
        return None
    return file
