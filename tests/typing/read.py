"""Programs that read frames from Kafka, and what the SQLite sink stored."""

from pathlib import Path
from typing import Any, assert_type

from mlops_events.schemas import (
    DecodeError,
    EventId,
    Frame,
    Log,
    Observation,
    Origin,
    Profile,
    Run,
    Stats,
    decode_frame,
)
from mlops_events.sinks.sqlite_store import SQLiteStore, StoredEvent

__all__ = ["losses", "stored"]


def losses(value: bytes) -> dict[EventId, Any]:
    """Take one figure out of a record of a raw topic."""
    try:
        frame = assert_type(decode_frame(value), Frame)
    except DecodeError as error:
        raise SystemExit(str(error)) from error
    assert_type(frame.origin, Origin)
    found = {}
    for index, event in frame.events():
        assert_type(event, Run | Observation | Profile | Log)
        if isinstance(event, Observation):
            found[frame.event_id(index)] = event.fields["loss"]
    return found


def stored(path: Path) -> None:
    """Ask every question that a page can ask."""
    with SQLiteStore(path) as store:
        assert_type(store.counts(run="demo"), dict[str, int])
        for run in store.runs():
            print(run.run, run.name, run.started_ns, run.ended_ns, run.emitters)
        for emitter in store.emitters(run="demo"):
            print(emitter.last_ns, {k: (s.missing, s.first_ns) for k, s in emitter.sent.items()})
        for series in store.series(run="demo"):
            points = store.points(run="demo", name=series.name, field=series.field, since_ns=0)
            print(series.kind, [p.value for p in points])
        for window in store.windows(run="demo", name="training", field="loss", final=True):
            assert_type(window.stats, Stats)
        for line, log in store.logs(run="demo", levels=["error"], limit=10):
            print(line.cursor, log.message)
        assert_type(store.latest(run="demo", kind="profile", name="forward"), list[StoredEvent])
        for event in store.events(run="demo", kinds=["run"], after=store.last_cursor(), limit=1):
            assert_type(event, StoredEvent)
