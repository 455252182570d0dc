"""A sink of one's own: appends the final Stats to a CSV file, each at least once."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from mlops_events.schemas import Stats
from mlops_events.sinks import Batch, Rejected, SinkBroken, SinkUnavailable

__all__ = ["CSVSink"]


class CSVSink:
    """Writes run, role, uid, name, field, window and figures, a row for each final Stats."""

    name = "csv"

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(os.environ.get("CSV_SINK_PATH", "stats.csv"))
        self._open = False

    async def check(self) -> None:
        """See that the folder is there."""
        if not self._path.parent.is_dir():
            raise SinkBroken(f"{self._path.parent} is no folder; set CSV_SINK_PATH")

    async def open(self) -> None:
        """Get ready."""
        await self.check()
        self._open = True

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Append the final Stats; other events are refused, so route none here."""
        if not self._open:
            raise SinkBroken("the csv sink is closed; open it first")
        rows, rejected = [], []
        for one in batch:
            event, who = one.event, one.origin
            if not isinstance(event, Stats):
                rejected.append(Rejected(one, "unwanted", "the csv sink writes Stats only"))
            elif event.final:
                window = (event.name, event.field, event.by, event.start, event.size)
                figures = (event.count, event.mean, event.min, event.max, event.median)
                rows.append([who.run, who.role, who.uid, *window, *figures])
        try:
            with self._path.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(rows)
        except OSError as error:
            raise SinkUnavailable(f"{self._path}: {error}") from error
        return rejected

    async def close(self) -> None:
        """Write no more."""
        self._open = False
