"""The SQLite store with what the streams say of a whole fleet."""

from pathlib import Path

import pytest

from mlops_events.schemas.events import Log, Origin, Stats
from mlops_events.sinks.base import Batch
from mlops_events.sinks.sqlite import SQLiteSettings, SQLiteSink, SQLiteStore
from mlops_events.sinks.testing import frame_record, stats_record

SECOND = 1_000_000_000
FLEET = bytes([9] * 16)
ORIGIN = Origin(run="r", role="miner", version="1.4.0")
NODE = Origin(run="r", role="miner", uid=1, version="1.4.0")


def window(start: int, *, nodes: int | None = 3, missing: int = 0, field: str = "loss") -> Stats:
    """A window of a fleet, or of one node."""
    return Stats(
        kind="observation",
        name="training",
        field=field,
        start=start,
        size=10 * SECOND,
        revision=9,
        final=not missing,
        count=9,
        mean=2.0,
        nodes=nodes,
        nodes_missing=None if nodes is None else missing,
        median_of_medians=None if nodes is None else 2.25,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "events.db"


async def write(path: Path, *batches: Batch) -> None:
    """Write batches."""
    sink = SQLiteSink(SQLiteSettings(path=path))
    await sink.open()
    try:
        for batch in batches:
            assert not await sink.write(batch)
    finally:
        await sink.close()


async def test_stats_of_a_fleet_come_back_as_they_were(path: Path) -> None:
    """Apart from those of nodes."""
    ours, theirs = window(0, missing=1), window(0, nodes=None)
    await write(
        path,
        Batch([stats_record([ours], emitter=FLEET, origin=ORIGIN)]),
        Batch([stats_record([theirs], origin=NODE)]),
    )

    with SQLiteStore(path) as store:
        assert [w.stats for w in store.windows(fleet=True)] == [ours]
        assert [w.stats for w in store.windows()] == [theirs]
        assert [w.stats for w in store.newest_windows(limit=5)] == [theirs]
        assert [w.origin for w in store.fleet()] == [ORIGIN]


async def test_the_newest_window_of_each_series_is_the_fleets_state(path: Path) -> None:
    """The newest that all have reported; a node with a fast clock reports some before the others."""
    fast = [window(n * 10 * SECOND, nodes=1, missing=2) for n in (5, 6)]
    stats = [*(window(n * 10 * SECOND) for n in range(5)), *fast]
    lame = [window(n * 10 * SECOND, nodes=1, missing=2, field="lr") for n in range(9)]
    other = Origin(run="other", role="miner", version="1.4.0")
    await write(
        path,
        Batch([stats_record([*stats, *lame], emitter=FLEET, origin=ORIGIN)]),
        Batch([stats_record([window(0)], emitter=bytes([8] * 16), origin=other)]),
    )

    with SQLiteStore(path) as store:
        found = {w.stats.field: w.stats.start // SECOND for w in store.fleet(run="r")}
        assert found == {"loss": 40, "lr": 80}
        assert len(store.fleet()) == 3


async def test_what_the_streams_made_up_is_no_node(path: Path) -> None:
    """Neither the fleet nor a line of log of ours is among the emitters; the line is in the log."""
    ours = Log(ts=1, level="info", message="version 1 first appears", logger="mlops_events.fleet")
    theirs = Log(ts=2, level="info", message="hello", logger="miner.sync")
    records = [
        stats_record([window(0)], emitter=FLEET, origin=ORIGIN),
        frame_record(
            [ours], kind="log", emitter=bytes([7] * 16), origin=ORIGIN, accepted=1, end=True
        ),
        frame_record([theirs], kind="log", origin=NODE, accepted=1, end=True),
    ]
    await write(path, Batch(records))

    with SQLiteStore(path) as store:
        assert [e.origin for e in store.emitters()] == [NODE]
        assert [run.emitters for run in store.runs()] == [1]
        assert [line.message for _, line in store.logs()] == [ours.message, theirs.message]
        assert store.counts() == {"log": 2, "stats": 1}
