"""The sqlite sink: every event and window in one local file, written once however often it comes."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from mlops_events.schemas.events import EventId
from mlops_events.schemas.settings import load
from mlops_events.sinks.base import Batch, Rejected, SinkBroken, SinkError, SinkUnavailable
from mlops_events.sinks.filelock import FileLock
from mlops_events.sinks.sqlite_retention import prune_emitters, shrink, trim
from mlops_events.sinks.sqlite_schema import connect_writer
from mlops_events.sinks.sqlite_store import SQLiteStore
from mlops_events.sinks.sqlite_writer import Writer

__all__ = ["SQLiteSettings", "SQLiteSink", "SQLiteStore"]

T = TypeVar("T")

_TRIM_S = 10.0
_PRUNE_S = 3600.0

_PASSING = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    )
)
"""Errors that go away when a disk has room again or another process lets go."""


class SQLiteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the file is and how much it keeps; read with the prefix "sqlite".

    What arrived more than `keep_s` ago is deleted, and the oldest when the file would grow beyond
    `max_bytes`; 0 keeps everything.
    """

    path: Path = Path("mlops-events.db")
    keep_s: Annotated[float, msgspec.Meta(ge=0)] = 7 * 86_400.0
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 4 << 30


class SQLiteSink:
    """Writes to one SQLite file; all work on it happens in one thread.

    The file's lock is held by the process that delivers live traffic: it alone deletes what is too
    old. A replay writes beside it without the lock and deletes nothing.

    Args:
        settings: from the environment if None.
        now: the time in seconds, for retention.
        busy_s: how long to wait for somebody else's lock.
    """

    name = "sqlite"

    def __init__(
        self,
        settings: SQLiteSettings | None = None,
        *,
        now: Callable[[], float] = time.time,
        busy_s: float = 5.0,
    ) -> None:
        self._settings = settings if settings is not None else load(SQLiteSettings, "sqlite")
        self._now = now
        self._busy_s = busy_s
        self._keeps = True
        self._thread: ThreadPoolExecutor | None = None
        self._file: _File | None = None

    def expect_replay(self, replay: str) -> None:
        """Write beside the process that delivers live traffic, if there is one."""
        self._keeps = False

    async def check(self) -> None:
        """See that the file can be written, and is ours."""
        await self.open()

    async def open(self) -> None:
        """Open the file, made if there is none, and keep a second such process out."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        await self._run(self._open)

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Write a batch in one transaction."""
        return await self._run(lambda: self._write(batch))

    async def find(self, id: EventId) -> bool:  # noqa: A002 - what it is
        """Say whether the file has an event."""
        return await self._run(lambda: self._find(id))

    async def close(self) -> None:
        """Close the file after what is being written."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.submit(self._close)
            await asyncio.to_thread(thread.shutdown)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            raise SinkBroken("the sqlite sink is closed; open it first")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guard, work)

    def _guard(self, work: Callable[[], T]) -> T:
        path = self._settings.path
        try:
            return work()
        except sqlite3.Error as error:
            # The low byte is the kind of error; misuse of the module itself carries no code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF
            kind: type[SinkError] = SinkUnavailable if code in _PASSING else SinkBroken
            raise kind(f"{path}: {error}") from error
        except OSError as error:
            raise SinkUnavailable(f"{path}: {error}") from error

    def _open(self) -> None:
        if self._file is None:
            self._file = _File(self._settings, self._now, self._busy_s, keeps=self._keeps)

    def _write(self, batch: Batch) -> list[Rejected]:
        if self._file is None:
            raise SinkBroken("the sqlite sink is closed; open it first")
        return self._file.write(batch)

    def _find(self, id: EventId) -> bool:  # noqa: A002 - what it is
        if self._file is None:
            raise SinkBroken("the sqlite sink is closed; open it first")
        return self._file.find(id)

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


class _File:
    """The open file, as its thread sees it.

    Args:
        settings: where it is.
        now: the time in seconds.
        busy_s: how long to wait for somebody else's lock.
        keeps: whether to hold the file's lock, and to delete what is too old or too much.
    """

    def __init__(
        self, settings: SQLiteSettings, now: Callable[[], float], busy_s: float, *, keeps: bool
    ) -> None:
        self._settings = settings
        self._now = now
        self._trimmed = self._pruned = now()
        settings.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock: FileLock | None = None
        if keeps:
            self._lock = FileLock(settings.path.with_name(settings.path.name + ".lock"))
        try:
            self._db = connect_writer(settings.path, busy_s=busy_s)
            self._writer = Writer(self._db)
            self._inode = settings.path.stat().st_ino
        except BaseException:
            self._unlock()
            raise

    def write(self, batch: Batch) -> list[Rejected]:
        if not self._is_there():
            raise SinkBroken(f"{self._settings.path} was removed or replaced while it was open")
        rejected = self._writer.write(batch)
        if self._lock is not None:
            self._keep()
        return rejected

    def find(self, id: EventId) -> bool:  # noqa: A002 - what it is
        found = self._db.execute(
            "SELECT 1 FROM events WHERE emitter = ? AND kind = ? AND seq = ? AND idx = ?",
            (id.emitter, id.kind, id.seq, id.index),
        )
        return found.fetchone() is not None

    def close(self) -> None:
        try:
            self._db.close()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _is_there(self) -> bool:
        try:
            return self._settings.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _keep(self) -> None:
        """Delete what is too old or too much, now and then."""
        now = self._now()
        if now - self._trimmed < _TRIM_S:
            return
        self._trimmed = now
        keep_s, max_bytes = self._settings.keep_s, self._settings.max_bytes
        deleted = trim(
            self._db,
            before_ms=int((now - keep_s) * 1000) if keep_s else 0,
            max_bytes=max_bytes or 2**63,
        )
        if deleted:
            shrink(self._db)
        if now - self._pruned >= _PRUNE_S:
            self._pruned = now
            if prune_emitters(self._db):
                self._writer.forget()
