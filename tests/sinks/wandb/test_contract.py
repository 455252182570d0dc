"""The wandb sink passes the tests of every sink, with wandb's own client writing files offline."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mlops_events.schemas.events import EventId, Run, StatsKey
from mlops_events.sinks.base import Batch, Envelope, Rejected, Sink
from mlops_events.sinks.testing import SinkContract
from mlops_events.sinks.wandb import WandbSettings, WandbSink
from mlops_events.sinks.wandb_files import RunFile


class TestOffline(SinkContract):
    """What wandb's client wrote is read back from its run files, row by row."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.known: dict[int, Envelope] = {}

    def make_sink(self) -> Sink:
        return WandbSink(WandbSettings(mode="offline", folder=self.folder))

    async def stored(self) -> Sequence[EventId | StatsKey]:
        paths = sorted(self.folder.glob("wandb/offline-run-*/run-*.wandb"))
        rows = [row for path in paths for row in await asyncio.to_thread(_rows, path)]
        runs = [e.id for e in self.known.values() if isinstance(e.event, Run)]
        return [self.known[row["sink/pos"]].id for row in rows] + (runs if paths else [])

    async def _stored_with(self, batch: Batch, rejected: Sequence[Rejected]) -> None:
        for e in batch:
            place = e.id.index if isinstance(e.id, EventId) else e.position
            self.known[e.offset * 4096 + place] = e
        await super()._stored_with(batch, rejected)


def _rows(path: Path) -> list[dict[str, Any]]:
    return list(RunFile(path).rows())
