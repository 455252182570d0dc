"""The influxdb sink: Stats and raw values as points, each once however often it comes."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mlops_events.schemas.settings import load
from mlops_events.sinks.base import Batch, Record, Rejected, SinkBroken
from mlops_events.sinks.influxdb_isolate import Isolator
from mlops_events.sinks.influxdb_lines import Line, Renderer
from mlops_events.sinks.influxdb_push import Client
from mlops_events.sinks.influxdb_settings import InfluxDBSettings
from mlops_events.sinks.influxdb_types import FieldTypes

__all__ = ["InfluxDBSettings", "InfluxDBSink"]

T = TypeVar("T")


class InfluxDBSink:
    """Writes to one bucket over the v2 write API, in one thread.

    What comes again is the same point again.

    Args:
        settings: from the environment if None.
    """

    name = "influxdb"

    def __init__(self, settings: InfluxDBSettings | None = None) -> None:
        self._settings = settings if settings is not None else load(InfluxDBSettings, "influxdb")
        self._thread: ThreadPoolExecutor | None = None
        self._writer: _Writer | None = None

    async def check(self) -> None:
        """Ask the server whether it would take points in this bucket, with this token."""
        client = Client(self._settings)
        try:
            await asyncio.to_thread(client.check)
        finally:
            client.close()

    async def open(self) -> None:
        """Get ready, and learn the types that fields have."""
        if self._writer is None:
            writer, thread = _Writer(self._settings), ThreadPoolExecutor(1, "influxdb")
            try:
                await _run(thread, writer.learn)
            except BaseException:
                thread.submit(writer.client.close)
                thread.shutdown(wait=False)
                raise
            self._writer, self._thread = writer, thread

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Write a batch."""
        if self._writer is None or self._thread is None:
            raise SinkBroken("the influxdb sink is closed; open it first")
        writer = self._writer
        return await _run(self._thread, lambda: writer.write(batch))

    async def close(self) -> None:
        """Let go of the connections, after what is being written."""
        if self._thread is not None and self._writer is not None:
            thread, writer = self._thread, self._writer
            self._thread = self._writer = None
            thread.submit(writer.client.close)
            await asyncio.to_thread(thread.shutdown)


async def _run(thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, work)


class _Writer:
    """The open sink, as its thread sees it."""

    def __init__(self, settings: InfluxDBSettings) -> None:
        self.client = Client(settings)
        self._types = FieldTypes(settings.types)
        self._refused: dict[int, tuple[Record, dict[int, tuple[str, str]]]] = {}
        shares = {"all": 1.0, "sampled": settings.sample_share, "none": 0.0}
        self._renderer = Renderer(
            self._types,
            tags=settings.tags,
            share=shares[settings.observations],
            refuse=self._refuse,
        )
        self._isolator = Isolator(
            self.client.write, self._types, render=self._again, refuse=self._refuse
        )

    def learn(self) -> None:
        """Take over the types that fields have in the bucket."""
        self._types.learn(self.client.field_types())

    def write(self, batch: Batch) -> list[Rejected]:
        """Write a batch and return what is refused.

        Raises:
            SinkUnavailable: not at present; what was stored of it is stored again, to no effect.
        """
        self._refused = {}
        lines: list[Line] = []
        for record in batch.records:
            lines += self._renderer.lines(record)
        self._isolator.write(lines)
        return [
            Rejected(envelope, *places[envelope.position])
            for record, places in self._refused.values()
            for envelope in record.envelopes()
            if envelope.position in places
        ]

    def _again(self, lines: Sequence[Line]) -> list[Line]:
        """Make lines again of the same events."""
        wanted: dict[int, tuple[Record, list[int]]] = {}
        for _, record, position in lines:
            wanted.setdefault(id(record), (record, []))[1].append(position)
        return [
            line
            for record, positions in wanted.values()
            for line in self._renderer.lines(record, frozenset(positions))
        ]

    def _refuse(self, record: Record, position: int, reason: str, message: str) -> None:
        self._refused.setdefault(id(record), (record, {}))[1][position] = (reason, message)
