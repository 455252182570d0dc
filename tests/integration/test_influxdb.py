"""The influxdb sink as a process: a real Kafka, a real InfluxDB 1.x, and deaths of both ends.

ROUNDS=20 in the environment kills the sink twenty times instead of three.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from mlops_events.schemas import Origin, Stats
from mlops_events.schemas.frame import FrameEncoder, Row, Series, StatsFrame, encode_stats
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import origin_key, raw_headers, stats_headers, topic_specs
from mlops_events.schemas.values import ENCODER

ROUNDS = int(os.environ.get("ROUNDS", "3"))
EVENTS = 50
SINK = """
import sys
from mlops_events.control.logs import log_to
from mlops_events.sinks.service import run_sink

log_to(sys.stderr)
sys.exit(run_sink("influxdb"))
"""


class Nodes:
    """Emitters whose frames and Stats the streams have routed to InfluxDB."""

    def __init__(self, kafka: KafkaSettings, count: int = 4) -> None:
        self.kafka = kafka
        self.sent = 0
        self._ids = [os.urandom(16) for _ in range(count)]
        self._origins = [Origin(run="r", role="miner", uid=uid) for uid in range(count)]
        self.frames = 0
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._producer: Any = None

    async def start(self) -> None:
        """Create the topics and send without a pause."""
        specs = topic_specs(self.kafka.topics, sinks=["influxdb"], partitions=4, replication=1)
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.brokers)
        await admin.start()
        await admin.create_topics(
            [NewTopic(s.name, s.partitions, s.replication, topic_configs=s.config) for s in specs]
        )
        await admin.close()
        self._producer = AIOKafkaProducer(bootstrap_servers=self.kafka.brokers, acks="all")
        await self._producer.start()
        self._task = asyncio.ensure_future(self._run())

    async def pause(self) -> None:
        """Send no more; everything that was begun is acknowledged."""
        self._stop.set()
        assert self._task is not None
        await asyncio.wait_for(self._task, 60)

    async def end(self) -> None:
        """Send no more, and disconnect."""
        await self.pause()
        await asyncio.wait_for(self._producer.stop(), 30)

    async def _run(self) -> None:
        topic = self.kafka.topics.sink("influxdb")
        while not self._stop.is_set():
            for node, origin in zip(self._ids, self._origins, strict=True):
                key = origin_key(origin)
                for value, headers in self._records(node, origin):
                    await self._producer.send_and_wait(topic, value, key=key, headers=headers)
            self.frames += 1
            self.sent += EVENTS * len(self._ids)
            await asyncio.sleep(0.2)

    def _records(self, node: bytes, origin: Origin) -> list[tuple[bytes, Any]]:
        now, seq = time.time_ns(), self.frames
        rows = [Row(0, now + k, seq, [float(k)]) for k in range(EVENTS)]
        frame = FrameEncoder(emitter=node, kind="observation", origin=origin).encode(
            [ENCODER.encode(row) for row in rows],
            seq=seq,
            closed_ns=now,
            accepted=(seq + 1) * EVENTS,
            dropped=0,
            series=[Series(0, "training", ["loss"])],
        )
        window = Stats(
            kind="observation",
            name="training",
            field="loss",
            start=seq * 10**10,
            size=10**10,
            revision=EVENTS,
            final=True,
            count=EVENTS,
        )
        stats = StatsFrame(emitter=node, origin=origin, stats=[window])
        return [
            (
                frame,
                raw_headers(origin, kind="observation", emitter=node, seq=seq, count=EVENTS),
            ),
            (encode_stats(stats), stats_headers(stats)),
        ]


class SinkProcess:
    """The influxdb sink as a process that is started again."""

    def __init__(self, nodes: Nodes, influxdb: Any, processes: Any, until: Any) -> None:
        self.nodes = nodes
        self.influxdb = influxdb
        self.user = influxdb.database
        influxdb.query(f"CREATE USER {self.user} WITH PASSWORD 'pw'")
        influxdb.query(f'GRANT ALL ON "{influxdb.database}" TO {self.user}')
        self._env = {
            "MLOPS_EVENTS_KAFKA_BROKERS": nodes.kafka.brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": nodes.kafka.prefix,
            "INFLUXDB_URL": influxdb.url,
            "INFLUXDB_TOKEN": f"{self.user}:pw",
            "INFLUXDB_DATABASE": influxdb.database,
            "MLOPS_EVENTS_INFLUXDB_TIMEOUT_S": "2",
            "MLOPS_EVENTS_SINK_MAX_AGE_S": "0.05",
            # Kafka gives the partitions of a name back at once, though the process died
            "MLOPS_EVENTS_SINK_INSTANCE_ID": "influxdb-0",
        }
        self._processes = processes
        self._until = until
        self.process = self._start()

    def _start(self) -> Any:
        return self._processes.start(sys.executable, "-c", SINK, env=self._env)

    def kill(self) -> None:
        """Kill it, whatever it is doing, and start it again."""
        self.process.kill()
        self.process = self._start()

    def count(self, measurement: str = "training", field: str = "loss") -> int:
        """Return how many points are stored."""
        query = f'SELECT count("{field}") FROM "{measurement}"'  # noqa: S608 - our own names
        found = self.influxdb.query(query)
        return int(found[0]["count"]) if found else 0

    async def until_more(self, points: int) -> None:
        """Wait until so many more points are stored."""
        before = self.count()
        await self._reach(lambda: self.count() >= before + points)

    async def _reach(self, condition: Callable[[], bool]) -> None:
        try:
            await self._until(condition)
        except pytest.fail.Exception:
            stderr = self.process.stderr()[-5_000:]
            pytest.fail(f"{self.count()} of {self.nodes.sent} points\n{stderr}", pytrace=False)

    async def check(self) -> None:
        """Wait until all is stored; then all of it is there once."""
        await self.nodes.pause()
        await self._reach(lambda: self.count() >= self.nodes.sent)
        windows = self.nodes.frames * 4
        await self._reach(lambda: self.count("training_10s", "loss_count") >= windows)
        self.process.signal(signal.SIGTERM)
        code = await asyncio.to_thread(self.process.wait, within=60)

        assert code == 0, self.process.stderr()
        assert self.count() == self.nodes.sent
        assert self.count("training_10s", "loss_count") == windows
        steps = self.influxdb.query("SELECT count(loss), sum(loss) FROM training GROUP BY uid")
        assert [row["count"] for row in steps] == [self.nodes.frames * EVENTS] * 4
        assert [row["sum"] for row in steps] == [self.nodes.frames * sum(range(EVENTS))] * 4


@pytest.fixture
async def sink(
    kafka: str, prefix: str, influxdb: Any, processes: Any, until: Any
) -> AsyncIterator[SinkProcess]:
    """Return a sink under way, with nodes that send to it."""
    nodes = Nodes(KafkaSettings(brokers=kafka, prefix=prefix))
    await nodes.start()
    yield SinkProcess(nodes, influxdb, processes, until)
    await nodes.end()


@pytest.mark.timeout(120 + 60 * ROUNDS)
async def test_kills_of_the_sink_lose_nothing_and_write_nothing_twice(sink: SinkProcess) -> None:
    """Each in the middle of its work: between reading, writing and committing."""
    for _ in range(ROUNDS):
        await sink.until_more(random.randrange(50, 500))
        sink.kill()
    await sink.until_more(100)

    await sink.check()


async def test_a_server_that_died_hung_and_lost_its_rights_gets_everything_once(
    sink: SinkProcess, influxdb: Any, until: Any
) -> None:
    """Killed under load, then hung, then with another password; the sink is never restarted."""
    pid = sink.process.pid
    await sink.until_more(300)
    influxdb.kill()
    await until(lambda: "no answer from" in sink.process.stderr())
    influxdb.start()
    await sink.until_more(300)
    influxdb.freeze()
    await until(lambda: "timed out" in sink.process.stderr())
    influxdb.thaw()
    await sink.until_more(300)
    influxdb.query(f'REVOKE ALL ON "{influxdb.database}" FROM {sink.user}')
    await until(lambda: "answered 403" in sink.process.stderr())
    influxdb.query(f'GRANT ALL ON "{influxdb.database}" TO {sink.user}')
    await sink.until_more(300)

    await sink.check()
    assert sink.process.pid == pid
