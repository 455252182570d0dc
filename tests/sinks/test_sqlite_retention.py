"""How the SQLite store keeps to its age and size."""

import sqlite3
from pathlib import Path

import pytest

from mlops_events.schemas.events import Stats
from mlops_events.schemas.frame import Free
from mlops_events.sinks.base import Batch, FrameRecord, StatsRecord
from mlops_events.sinks.sqlite import SQLiteSettings, SQLiteSink, SQLiteStore
from mlops_events.sinks.testing import frame_record, stats_record

DAY_S = 86_400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "events.db"


class Clock:
    """A time that the test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 1_000 * DAY_S

    def __call__(self) -> float:
        return self.now

    @property
    def ms(self) -> int:
        """The same in milliseconds."""
        return int(self.now * 1000)


def frame(seq: int, *, at_ms: int, emitter: int = 1, size: int = 10) -> FrameRecord:
    """A frame that was logged at some time."""
    return frame_record(
        [Free(k, None, "a", {"text": "x" * size}) for k in range(10)],
        seq=seq,
        emitter=bytes([emitter]) * 16,
        timestamp_ms=at_ms,
    )


def file_bytes(path: Path) -> int:
    """How large the file is."""
    return path.stat().st_size


def window(start: int, *, at_ms: int, emitter: int = 1) -> StatsRecord:
    """Stats that were logged at some time."""
    stats = Stats(
        kind="observation",
        name="a",
        field="b" * 100,
        start=start,
        size=1,
        revision=1,
        final=True,
        count=1,
    )
    return stats_record([stats], emitter=bytes([emitter]) * 16, timestamp_ms=at_ms)


async def test_what_is_too_old_is_deleted(path: Path) -> None:
    """Age counts from the arrival: a wrong clock of an emitter changes nothing."""
    clock = Clock()
    sink = SQLiteSink(SQLiteSettings(path=path, keep_s=DAY_S, max_bytes=0), now=clock)
    await sink.open()
    for seq in range(4):
        await sink.write(Batch([frame(seq, at_ms=clock.ms), window(seq, at_ms=clock.ms)]))
        clock.now += DAY_S * 0.6
    await sink.close()

    with SQLiteStore(path) as store:
        assert {stored.id.seq for stored in store.events()} == {2, 3}
        assert {w.stats.start for w in store.windows()} == {2, 3}
        assert store.emitters()[0].sent["observation"].stored == 40


async def test_the_file_does_not_grow_beyond_its_size(path: Path) -> None:
    """The oldest arrivals make room, and the newest stay."""
    clock, limit = Clock(), 2 << 20
    sink = SQLiteSink(SQLiteSettings(path=path, keep_s=0, max_bytes=limit), now=clock)
    await sink.open()
    for seq in range(0, 2_000, 20):
        records = [frame(s, at_ms=clock.ms, size=400) for s in range(seq, seq + 20)]
        await sink.write(Batch(records))
        clock.now += 11
    await sink.close()

    with SQLiteStore(path) as store:
        kept = [stored.id.seq for stored in store.events()]
    assert file_bytes(path) < 1.5 * limit
    assert kept[-1] == 1_999
    assert kept == sorted(kept)
    assert len(kept) > 1_000


async def test_stats_alone_are_bounded_too(path: Path) -> None:
    """A store that is routed nothing but Stats keeps to its size."""
    clock, limit = Clock(), 1 << 20
    sink = SQLiteSink(SQLiteSettings(path=path, keep_s=0, max_bytes=limit), now=clock)
    await sink.open()
    for start in range(0, 20_000, 500):
        await sink.write(Batch([window(s, at_ms=clock.ms) for s in range(start, start + 500)]))
        clock.now += 11
    await sink.close()

    with SQLiteStore(path) as store:
        starts = [w.stats.start for w in store.windows()]
    assert file_bytes(path) < 1.5 * limit
    assert max(starts) == 19_999
    assert len(starts) > 1_000


async def test_freed_pages_go_back_to_the_file_system(path: Path) -> None:
    """After a busy day the file gets smaller again."""
    clock = Clock()
    sink = SQLiteSink(SQLiteSettings(path=path, keep_s=DAY_S, max_bytes=0), now=clock)
    await sink.open()
    await sink.write(Batch([frame(s, at_ms=clock.ms, size=2_000) for s in range(200)]))
    clock.now += 2 * DAY_S
    for seq in range(200, 210):
        await sink.write(Batch([frame(seq, at_ms=clock.ms)]))
        clock.now += 11
    await sink.close()

    assert file_bytes(path) < 500_000


async def test_emitters_of_which_nothing_is_left_are_forgotten(path: Path) -> None:
    """Short-lived processes leave no rows behind, and one that comes back is stored again."""
    clock = Clock()
    sink = SQLiteSink(SQLiteSettings(path=path, keep_s=DAY_S, max_bytes=0), now=clock)
    await sink.open()
    for emitter in range(1, 50):
        await sink.write(Batch([frame(0, at_ms=clock.ms, emitter=emitter)]))
    clock.now += 3 * DAY_S
    for seq in range(3):
        await sink.write(Batch([frame(seq, at_ms=clock.ms, emitter=99)]))
        clock.now += 3_700
    await sink.write(Batch([frame(1, at_ms=clock.ms, emitter=5)]))
    await sink.close()

    with SQLiteStore(path) as store:
        assert {e.emitter[0] for e in store.emitters()} == {99, 5}
        assert len(list(store.events())) == 40
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(DISTINCT emitter) FROM series").fetchone() == (2,)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()
