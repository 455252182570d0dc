"""The influxdb sink passes the tests of every sink, on a real InfluxDB 1.x."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from mlops_events.schemas.events import EventId, StatsKey
from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import Batch, Rejected, Sink
from mlops_events.sinks.influxdb import InfluxDBSettings, InfluxDBSink
from mlops_events.sinks.testing import SinkContract


class TestContractOnARealServer(SinkContract):
    """Every point that is stored is told from all others by measurement, tags and time."""

    @pytest.fixture(autouse=True)
    def _server(self, influxdb: Any, points_of: Any) -> None:
        self.influxdb = influxdb
        self.points_of = points_of
        self.known: list[Batch] = []

    def make_sink(self) -> Sink:
        return InfluxDBSink(
            InfluxDBSettings(
                url=self.influxdb.url,
                bucket=self.influxdb.database,
                token=Secret(self.influxdb.token),
            )
        )

    async def stored(self) -> Sequence[EventId | StatsKey]:
        owners: dict[Any, set[EventId | StatsKey]] = defaultdict(set)
        for batch in self.known:
            for id_, *point in self.points_of(batch):
                owners[tuple(point)].add(id_)
        found: list[EventId | StatsKey] = []
        for name, tags, time in self.influxdb.points():
            ids = owners[(name, frozenset(tags.items()), time)]
            assert ids, f"a point that no event is: {name} {tags} {time}"
            assert len(ids) == 1 or all(isinstance(one, StatsKey) for one in ids), "merged"
            found += ids
        return found

    async def _stored_with(self, batch: Batch, rejected: Sequence[Rejected]) -> None:
        self.known.append(batch)
        await super()._stored_with(batch, rejected)
