"""Keeps the SQLite store within its age and size: the oldest arrivals go first."""

import sqlite3

from mlops_events.sinks.sqlite_schema import INDEX_BITS

__all__ = ["prune_emitters", "shrink", "trim"]

_CHUNK = 500
"""Frames that one transaction deletes."""

_SPARE = 0.25
"""The share of unused pages from which the file is made smaller."""

_EVER = 2**63 - 1


def trim(db: sqlite3.Connection, *, before_ms: int, max_bytes: int) -> int:
    """Delete what was logged before a time, and more until the rest fits; return how many events.

    The newest frame stays: numbers of frames grow for ever.

    Raises:
        sqlite3.Error: the file cannot be written.
    """
    deleted = 0
    while True:
        too_big = _used_bytes(db) > max_bytes
        last, until_ms = _oldest_frames(db, before_ms=_EVER if too_big else before_ms)
        if last is None:  # no frames left to delete, but perhaps Stats
            until_ms = _tenth_of_stats(db) if too_big else before_ms
        db.execute("BEGIN IMMEDIATE")
        try:
            if last is not None:
                end = (last + 1) << INDEX_BITS
                deleted += db.execute("DELETE FROM event WHERE id < ?", (end,)).rowcount
                db.execute("DELETE FROM frames WHERE id <= ?", (last,))
            stats = db.execute("DELETE FROM stats WHERE logged_ms < ?", (until_ms,)).rowcount
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        if last is None and not (too_big and stats):
            return deleted


def prune_emitters(db: sqlite3.Connection) -> int:
    """Delete emitters of which nothing is left, and runs without emitters; return how many.

    Ids that a Writer remembers are wrong afterwards.

    Raises:
        sqlite3.Error: the file cannot be written.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute(
            "CREATE TEMP TABLE gone AS SELECT id FROM emitters WHERE id NOT IN "
            "(SELECT emitter FROM frames) AND id NOT IN (SELECT emitter FROM stats)"
        )
        db.execute("DELETE FROM series WHERE emitter IN (SELECT id FROM gone)")
        db.execute("DELETE FROM sent WHERE emitter IN (SELECT id FROM gone)")
        count = db.execute("DELETE FROM emitters WHERE id IN (SELECT id FROM gone)").rowcount
        db.execute("DELETE FROM runs WHERE run NOT IN (SELECT run FROM emitters)")
        db.execute("DROP TABLE temp.gone")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return count


def shrink(db: sqlite3.Connection, *, pages: int = 2000) -> None:
    """Give some unused pages back to the file system, if there are many.

    Raises:
        sqlite3.Error: the file cannot be written.
    """
    if _pragma(db, "freelist_count") > _SPARE * _pragma(db, "page_count"):
        db.executescript(f"PRAGMA incremental_vacuum({pages})")  # execute() frees one page only


def _oldest_frames(db: sqlite3.Connection, *, before_ms: int) -> tuple[int | None, int]:
    """The last of the oldest frames that were logged before a time, and when the newest was."""
    rows = db.execute("SELECT id, logged_ms FROM frames ORDER BY id LIMIT ?", (_CHUNK + 1,))
    last, until_ms = None, 0
    for number, logged_ms in rows.fetchall()[:-1]:
        if logged_ms >= before_ms:
            break
        last, until_ms = number, max(until_ms, logged_ms)
    return last, until_ms


def _tenth_of_stats(db: sqlite3.Connection) -> int:
    """A time before which about a tenth of the Stats were logged."""
    first, last = db.execute("SELECT min(logged_ms), max(logged_ms) FROM stats").fetchone()
    return 0 if first is None else int(first + (last - first) // 10 + 1)


def _used_bytes(db: sqlite3.Connection) -> int:
    pages = _pragma(db, "page_count") - _pragma(db, "freelist_count")
    return pages * _pragma(db, "page_size")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
