"""The public API of the sinks as users write it; read by mypy and pyright, never run."""

from collections.abc import Sequence
from pathlib import Path
from typing import assert_type

from mlops_events.schemas import AnyEvent, EventId, Observation, StatsKey
from mlops_events.sinks import (
    Batch,
    Rejected,
    Sink,
    SinkBroken,
    SinkUnavailable,
    load_sink,
)
from mlops_events.sinks.sqlite import SQLiteSettings, SQLiteSink, SQLiteStore
from mlops_events.sinks.sqlite_store import StoredStats
from mlops_events.sinks.testing import SinkContract

__all__ = ["PrintingSink", "TestPrintingSink", "use"]


class PrintingSink:
    """Somebody's own sink."""

    name = "printing"

    async def check(self) -> None:
        """Ask whether the destination is there."""
        raise SinkUnavailable("not yet", retry_after=3.0)

    async def open(self) -> None:
        """Connect."""
        raise SinkBroken("never")

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Write a batch."""
        rejected = []
        for envelope in batch:
            assert_type(envelope.event, AnyEvent)
            assert_type(envelope.id, EventId | StatsKey)
            if isinstance(envelope.event, Observation):
                print(envelope.origin.run, envelope.event.fields)
            else:
                rejected.append(Rejected(envelope, "unwanted", "only observations are printed"))
        return rejected

    async def close(self) -> None:
        """Let go."""


class TestPrintingSink(SinkContract):
    """It passes the tests of every sink."""

    def make_sink(self) -> Sink:
        """Make one."""
        return PrintingSink()


async def use() -> None:
    """Make sinks, and read what the sqlite sink wrote."""
    assert_type(load_sink("sqlite"), Sink)
    sink: Sink = SQLiteSink(SQLiteSettings(path=Path("events.db")))
    assert_type(await sink.write(Batch()), Sequence[Rejected])
    with SQLiteStore("events.db") as store:
        for stored in store.events(run="demo", kinds=["observation"]):
            assert_type(stored.event, AnyEvent)
        for point in store.points(run="demo", name="training", field="loss"):
            assert_type(point.ts, int)
        for fleet in store.fleet(run="demo"):
            assert_type(fleet, StoredStats)
            assert_type(fleet.stats.nodes_missing, int | None)
        for window in store.windows(run="demo", final=True):
            assert_type(window.stats.mean, float | None)
        assert_type(store.counts(), dict[str, int])
