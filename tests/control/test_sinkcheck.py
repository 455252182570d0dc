"""What `sinks check` finds out."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlops_events.control.sinkcheck import PROBE_RUN, check_sink
from mlops_events.schemas.events import EventId
from mlops_events.sinks.base import Batch, Rejected, SinkUnavailable
from mlops_events.sinks.loki import LokiSink
from mlops_events.sinks.loki_settings import LokiSettings
from mlops_events.sinks.sqlite import SQLiteSettings, SQLiteSink
from mlops_events.sinks.sqlite_store import SQLiteStore


class Picky:
    """Somebody else's sink: takes what a test says, and tells what a test says of it."""

    name = "picky"

    def __init__(self, *, refuses: Sequence[str] = (), has: bool = True, away: str = "") -> None:
        self._refuses = refuses
        self._has = has
        self._away = away

    async def check(self) -> None:
        if self._away == "check":
            raise SinkUnavailable("nobody is there")

    async def open(self) -> None:
        if self._away == "open":
            raise SinkUnavailable("nobody opens")

    async def write(self, batch: Batch) -> list[Rejected]:
        if self._away == "write":
            raise SinkUnavailable("the disk is full")
        return [
            Rejected(e, "unwanted", f"no {e.id.kind}") for e in batch if e.id.kind in self._refuses
        ]

    async def find(self, id: EventId) -> bool:  # noqa: A002 - the protocol's name
        return self._has

    async def close(self) -> None: ...


async def test_a_probe_is_written_and_read_back(tmp_path: Path) -> None:
    """And it can be told from data."""
    path = tmp_path / "events.db"
    report = await check_sink(SQLiteSink(SQLiteSettings(path=path)), write=True)

    assert report.ok
    assert [step.name for step in report.steps] == [
        "answers", "opens", "takes events", "has them",
    ]  # fmt: skip
    with SQLiteStore(path) as store:
        assert {stored.origin.run for stored in store.events()} == {PROBE_RUN}


async def test_without_write_nothing_is_written(tmp_path: Path) -> None:
    """A check alone leaves no trace among the events."""
    path = tmp_path / "events.db"
    report = await check_sink(SQLiteSink(SQLiteSettings(path=path)), write=False)

    assert [step.name for step in report.steps] == ["answers"]
    with SQLiteStore(path) as store:
        assert list(store.events()) == []


@pytest.mark.parametrize(
    ("away", "failed", "says"),
    [
        ("check", "answers", "nobody is there"),
        ("open", "opens", "nobody opens"),
        ("write", "takes events", "the disk is full"),
    ],
)
async def test_the_first_step_that_fails_is_the_last(away: str, failed: str, says: str) -> None:
    """With the sink's own words."""
    report = await check_sink(Picky(away=away), write=True)

    assert not report.ok
    assert (report.steps[-1].name, report.steps[-1].message) == (failed, says)


async def test_a_sink_that_takes_some_kinds_is_fine() -> None:
    """Loki wants logs, others numbers."""
    report = await check_sink(Picky(refuses=["observation"]), write=True)

    assert report.ok
    assert report.steps[2].message == "wrote a probe of log"


async def test_a_sink_that_takes_nothing_is_not() -> None:
    """It says why for each kind."""
    report = await check_sink(Picky(refuses=["observation", "log"]), write=True)

    assert not report.ok
    assert report.steps[-1].message == "observation: no observation; log: no log"


async def test_what_was_taken_and_is_not_there_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A success that stored nothing is found out."""
    monkeypatch.setattr("mlops_events.control.sinkcheck._BACK_S", 0.1)
    monkeypatch.setattr("mlops_events.control.sinkcheck._AGAIN_S", 0.01)
    report = await check_sink(Picky(has=False), write=True)

    assert not report.ok
    assert "is not found" in report.steps[-1].message


async def test_settings_that_cannot_work_are_told() -> None:
    """With the variable to set."""
    report = await check_sink(LokiSink(LokiSettings()), write=True)

    assert "MLOPS_EVENTS_LOKI_URL" in report.steps[0].message


def test_a_server_that_is_away_is_told_in_few_words() -> None:
    """Without the layers of a client's exceptions."""
    report = asyncio.run(check_sink(LokiSink(LokiSettings(url="http://127.0.0.1:9")), write=True))

    assert report.steps[0].message == (
        "no answer from http://127.0.0.1:9/ready: [Errno 111] Connection refused"
    )
