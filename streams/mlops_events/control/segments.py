"""An append-only log of objects in segment files that survives kill -9 at any point.

A segment is a magic word and a random seed, then records: a header, a key, the object's bytes.
Both checksums of a record start from the seed, so neither a torn write nor bytes left over from
another file pass for a record. All segments but the newest are complete and on the disk.
"""

import mmap
import os
import struct
import zlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mlops_events.schemas.errors import MlopsEventsError

__all__ = ["DamagedStoreError", "Entry", "ObjectLog", "Segment"]

_MAGIC = b"mlevseg1"
_FILE_HEAD = struct.Struct("<8sI")
# header crc, data crc, data length, key length, operation, version, modified
_HEAD = struct.Struct("<IIIHBxQQ")
_PUT, _DELETE, _FLOOR = 0, 1, 2
_FLOOR_VERSION = struct.Struct("<Q")
_SYNC: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has fsync alone


class DamagedStoreError(MlopsEventsError):
    """A segment that was complete cannot be read; the message names it."""


class Segment:
    """One file of the log; `live` of its `size` bytes are still wanted."""

    def __init__(self, path: Path, fd: int, seed: int) -> None:
        self.path = path
        self.number = int(path.stem)
        self.fd = fd
        self.seed = seed
        self.size = _FILE_HEAD.size
        self.live = 0
        self.tombstones = 0


class Entry:
    """Where an object is; `version` rises with every write to the log and is never given again."""

    __slots__ = ("line", "modified_ms", "offset", "segment", "size", "version")

    def __init__(
        self, segment: Segment, *, offset: int, size: int, version: int, modified_ms: int
    ) -> None:
        self.segment = segment
        self.offset = offset
        self.size = size
        self.version = version
        self.modified_ms = modified_ms
        self.line = b""
        """What a listing shows of it: kept by the one who lists, since listings are frequent."""


class ObjectLog:
    """Objects by key, in segment files below one folder.

    What a method has written when it returns survives the death of this process; a power cut
    takes at most what was written since the last `sync`, always the newest writes and never one
    of the middle. One process at a time may have a folder open. Not for use by several threads,
    except `sync`.

    Raises:
        DamagedStoreError: a segment other than the newest cannot be read.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = 16 << 20) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._entries: dict[str, Entry] = {}
        self._floors: dict[str, Entry] = {}
        self._names: dict[str, list[str]] = {}
        self._segments: dict[int, Segment] = {}
        self._version = 0
        self.torn_bytes = 0
        """Bytes of an unfinished write that were found behind the last record, and cut off."""
        folder.mkdir(parents=True, exist_ok=True)
        self._load()
        newest = max(self._segments, default=0)
        self._active = self._segments[newest] if newest else self._new_segment()

    @property
    def live_bytes(self) -> int:
        """Bytes of the records that are still wanted."""
        return sum(segment.live for segment in self._segments.values())

    @property
    def disk_bytes(self) -> int:
        """Bytes of all segment files."""
        return sum(segment.size for segment in self._segments.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def get(self, key: str) -> Entry | None:
        """Where the object is, None if there is none."""
        return self._entries.get(key)

    def read(self, entry: Entry, start: int = 0, stop: int | None = None) -> bytes:
        """Return an object's bytes, or those from `start` to before `stop`."""
        end = entry.size if stop is None else min(stop, entry.size)
        return os.pread(entry.segment.fd, max(0, end - start), entry.offset + start)

    def folders(self) -> list[str]:
        """The folders that hold objects, each with its closing slash."""
        return [folder for folder, names in self._names.items() if names]

    def keys(self, folder: str) -> Sequence[str]:
        """The keys directly in a folder, in order."""
        return self._names.get(folder, ())

    def scan(self, prefix: str, *, after: str = "") -> Iterator[tuple[str, Entry]]:
        """Yield the objects whose key starts with `prefix` and lies behind `after`, in order."""
        names = self._names.get(prefix)
        if names is None or any(f.startswith(prefix) and f != prefix for f in self._names):
            names = sorted(
                key
                for folder, keys in self._names.items()
                if folder.startswith(prefix) or prefix.startswith(folder)
                for key in keys
                if key.startswith(prefix)
            )
        entries = self._entries
        for index in range(bisect_left(names, after + "\0") if after else 0, len(names)):
            yield names[index], entries[names[index]]

    def put(self, key: str, data: bytes, *, modified_ms: int) -> Entry:
        """Write an object, in place of the one that was there.

        Raises:
            OSError: it was not written, the one that was there is still there.
        """
        self._version += 1
        entry = self._append(_PUT, key, data, version=self._version, modified_ms=modified_ms)
        self._set(key, entry)
        return entry

    def delete(self, key: str) -> bool:
        """Delete an object; false if there was none.

        Raises:
            OSError: nothing was deleted.
        """
        if key not in self._entries:
            return False
        self._version += 1
        self._append(_DELETE, key, b"", version=self._version, modified_ms=0)
        self._active.tombstones += 1
        self._unset(key)
        return True

    def drop_oldest(self, folder: str, count: int) -> int:
        """Delete the first `count` objects of a folder by one record; return how many went.

        An object that was written after one that stays is kept for now, so that the record needs
        to name nothing but the oldest version that stays.

        Raises:
            OSError: nothing was deleted.
        """
        names = self._names.get(folder, [])
        floor = min((self._entries[k].version for k in names[count:]), default=self._version + 1)
        dead = [key for key in names[:count] if self._entries[key].version < floor]
        if dead:
            self._version += 1
            data = _FLOOR_VERSION.pack(floor)
            entry = self._append(_FLOOR, folder, data, version=self._version, modified_ms=0)
            self._move(self._floors, folder, entry)
            for key in dead:
                self._unset(key)
        return len(dead)

    def sync(self) -> None:
        """Put on the disk what was written before this call."""
        _SYNC(self._active.fd)

    def victim(self) -> Segment | None:
        """The segment most worth giving up; None while at least half of each is wanted."""
        oldest = min(self._segments)
        best: Segment | None = None
        for number, segment in self._segments.items():
            keep = segment.live + (0 if number == oldest else segment.tombstones * _HEAD.size)
            if segment is not self._active and keep * 2 < segment.size:
                best = segment if best is None or segment.live < best.live else best
        return best

    def rewrite(self, segment: Segment) -> None:
        """Write what is wanted of a segment again behind the newest record.

        Raises:
            OSError: some of it was not written, the segment must stay.
        """
        oldest = segment.number == min(self._segments)
        for op, key, entry in self._records(segment, whole=False):
            index = self._floors if op == _FLOOR else self._entries
            known = index.get(key)
            if op == _DELETE:
                # Older writes of the key may lie in older segments, where this one hides them.
                if known is None and not oldest:
                    self._append(op, key, b"", version=entry.version, modified_ms=0)
                    self._active.tombstones += 1
            elif known is not None and known.segment is segment and known.offset == entry.offset:
                copy = self._append(
                    op,
                    key,
                    self.read(entry),
                    version=entry.version,
                    modified_ms=entry.modified_ms,
                )
                copy.line = known.line
                self._move(index, key, copy)

    def remove(self, segment: Segment) -> None:
        """Delete the file of a segment that was rewritten; `sync` must have come between."""
        del self._segments[segment.number]
        segment.path.unlink()
        os.close(segment.fd)

    def close(self) -> None:
        """Put everything on the disk; the log cannot be used afterwards."""
        if self._segments:
            self.sync()
        for segment in self._segments.values():
            os.close(segment.fd)
        self._segments.clear()

    # --- writing ---------------------------------------------------------------------------

    def _append(self, op: int, key: str, data: bytes, *, version: int, modified_ms: int) -> Entry:
        name = key.encode()
        length = _HEAD.size + len(name) + len(data)
        if self._active.size + length > self._segment_bytes and self._active.size > _FILE_HEAD.size:
            self.sync()
            self._active = self._new_segment()
        active = self._active
        seed = active.seed
        head = _HEAD.pack(
            0, zlib.crc32(data, seed), len(data), len(name), op, version, modified_ms
        )[4:]
        crc = zlib.crc32(name, zlib.crc32(head, seed)).to_bytes(4, "little")
        try:
            written = os.writev(active.fd, (crc, head, name, data))
            if written != length:
                rest = memoryview(b"".join((crc, head, name, data)))[written:]
                while rest:
                    rest = rest[os.write(active.fd, rest) :]
        except OSError:
            os.ftruncate(active.fd, active.size)
            raise
        entry = Entry(
            active,
            offset=active.size + length - len(data),
            size=len(data),
            version=version,
            modified_ms=modified_ms,
        )
        active.size += length
        return entry

    def _new_segment(self) -> Segment:
        number = max(self._segments, default=0) + 1
        path = self._folder / f"{number:010d}.seg"
        seed = int.from_bytes(os.urandom(4), "little")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            os.write(fd, _FILE_HEAD.pack(_MAGIC, seed))
            _sync_folder(self._folder)
        except OSError:
            os.close(fd)
            raise
        segment = Segment(path, fd, seed)
        self._segments[number] = segment
        return segment

    # --- the index -------------------------------------------------------------------------

    def _set(self, key: str, entry: Entry) -> None:
        old = self._entries.get(key)
        if old is None:
            names = self._names.setdefault(_folder(key), [])
            if not names or key > names[-1]:
                names.append(key)
            else:
                insort(names, key)
        self._move(self._entries, key, entry)

    def _move(self, index: dict[str, Entry], key: str, entry: Entry) -> None:
        old = index.get(key)
        if old is not None:
            old.segment.live -= _length(key, old)
        index[key] = entry
        entry.segment.live += _length(key, entry)

    def _unset(self, key: str) -> None:
        entry = self._entries.pop(key)
        entry.segment.live -= _length(key, entry)
        names = self._names[_folder(key)]
        del names[bisect_left(names, key)]

    # --- reading it all at the start -------------------------------------------------------

    def _load(self) -> None:
        paths = sorted(self._folder.glob("*.seg"))
        for path in paths:
            newest = path is paths[-1]
            segment = self._open(path, newest=newest)
            if segment is None:
                continue
            self._segments[segment.number] = segment
            for op, key, entry in self._records(segment, whole=newest):
                self._version = max(self._version, entry.version)
                if op == _PUT:
                    self._set(key, entry)
                elif op == _FLOOR:
                    self._move(self._floors, key, entry)
                else:
                    segment.tombstones += 1
                    if key in self._entries:
                        self._unset(key)
        for folder, mark in self._floors.items():
            (floor,) = _FLOOR_VERSION.unpack(self.read(mark))
            for key in [k for k in self.keys(folder) if self._entries[k].version < floor]:
                self._unset(key)

    def _open(self, path: Path, *, newest: bool) -> Segment | None:
        fd = os.open(path, os.O_RDWR | os.O_APPEND)
        head = os.pread(fd, _FILE_HEAD.size, 0)
        if len(head) == _FILE_HEAD.size:
            magic, seed = _FILE_HEAD.unpack(head)
            if magic == _MAGIC:
                return Segment(path, fd, seed)
        os.close(fd)
        if not newest:
            raise DamagedStoreError(
                f"{path} is no segment of the object store; move it away to go on"
            )
        path.unlink()
        return None

    def _records(self, segment: Segment, *, whole: bool) -> Iterator[tuple[int, str, Entry]]:
        """Yield a segment's records; with `whole`, check their data and cut off a torn end."""
        with mmap.mmap(segment.fd, 0, access=mmap.ACCESS_READ) as content:
            file_size = len(content)
            at = _FILE_HEAD.size
            while at < file_size:
                record = _parse(content, at, segment, whole=whole)
                if record is None:
                    break
                yield record
                at = record[2].offset + record[2].size
        if at < file_size:
            if not whole:
                raise DamagedStoreError(
                    f"{segment.path} is damaged at byte {at}; move it away to go on without it"
                )
            self.torn_bytes += file_size - at
            os.ftruncate(segment.fd, at)
        segment.size = at


def _parse(
    content: mmap.mmap, at: int, segment: Segment, *, whole: bool
) -> tuple[int, str, Entry] | None:
    if at + _HEAD.size > len(content):
        return None
    crc, data_crc, size, name_size, op, version, modified_ms = _HEAD.unpack_from(content, at)
    start = at + _HEAD.size + name_size
    if start + size > len(content):
        return None
    if zlib.crc32(content[at + 4 : start], segment.seed) != crc:
        return None
    if whole and zlib.crc32(content[start : start + size], segment.seed) != data_crc:
        return None
    key = content[at + _HEAD.size : start].decode()
    entry = Entry(segment, offset=start, size=size, version=version, modified_ms=modified_ms)
    return op, key, entry


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _folder(key: str) -> str:
    return key[: key.rfind("/") + 1]


def _length(key: str, entry: Entry) -> int:
    return _HEAD.size + len(key.encode()) + entry.size
