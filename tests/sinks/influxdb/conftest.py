"""Fixtures of the influxdb sink's tests.

new_sink       new_sink(**settings) -> an InfluxDBSink for the test's database of the real server
points_of      points_of(batch) -> (id, measurement, tags, time) of its events, as they should be stored
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import Batch
from mlops_events.sinks.influxdb import InfluxDBSettings, InfluxDBSink
from mlops_events.sinks.influxdb_lines import Renderer
from mlops_events.sinks.influxdb_types import FieldTypes

SPECIAL = re.compile(r"\\([, =])")


@pytest.fixture
def new_sink(influxdb: Any) -> Callable[..., InfluxDBSink]:
    """Return a function that makes a sink for the test's database."""

    def make(**settings: Any) -> InfluxDBSink:
        ours = {"url": influxdb.url, "bucket": influxdb.database, "token": Secret(influxdb.token)}
        return InfluxDBSink(InfluxDBSettings(**{**ours, **settings}))

    return make


@pytest.fixture
def points_of() -> Callable[[Batch], Iterator[tuple[Any, str, frozenset[tuple[str, str]], int]]]:
    """Return a function that says which points a batch's events should be."""

    def find(batch: Batch) -> Iterator[tuple[Any, str, frozenset[tuple[str, str]], int]]:
        renderer = Renderer(
            FieldTypes(), tags=InfluxDBSettings().tags, share=1.0, refuse=lambda *_: None
        )
        for record in batch.records:
            ids = {envelope.position: envelope.id for envelope in record.envelopes()}
            for text, _, position in renderer.lines(record):
                head = re.match(r"(?:\\.|[^\\ ])+", text)
                assert head is not None
                name, *tags = re.split(r"(?<!\\),", head[0])
                pairs = [re.split(r"(?<!\\)=", tag, maxsplit=1) for tag in tags]
                yield (
                    ids[position],
                    SPECIAL.sub(r"\1", name),
                    frozenset((SPECIAL.sub(r"\1", k), SPECIAL.sub(r"\1", v)) for k, v in pairs),
                    int(text.rpartition(" ")[2]),
                )

    return find
