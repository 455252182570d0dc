"""The influxdb sink as a process: a real Kafka, a real InfluxDB 1.x, and deaths of both ends.

ROUNDS=20 in the environment kills the sink twenty times instead of three, FAULT_S=60 keeps each fault up
for a minute instead of for a few failed writes.
"""

import asyncio
import http.client
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
FAULT_S = float(os.environ.get("FAULT_S", "0"))
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

    def __init__(
        self, nodes: Nodes, influxdb: Any, processes: Any, until: Any, url: str = ""
    ) -> None:
        self.nodes = nodes
        self.influxdb = influxdb
        self.user = influxdb.database
        influxdb.query(f"CREATE USER {self.user} WITH PASSWORD 'pw'")
        influxdb.query(f'GRANT ALL ON "{influxdb.database}" TO {self.user}')
        self._env = {
            "MLOPS_EVENTS_KAFKA_BROKERS": nodes.kafka.brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": nodes.kafka.prefix,
            "INFLUXDB_URL": url or influxdb.url,
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


class Gateway:
    """Stands before the server, as a load balancer does, and spoils answers.

    `mode` is 0 to pass everything on, a status to answer with instead, or -1 to pass it on and to
    answer when nobody waits any more.
    """

    def __init__(self, port: int) -> None:
        self.mode = 0
        self.spoilt = 0
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                mode = gateway.mode
                gateway.spoilt += mode != 0
                status, data = (mode, b"busy") if mode > 0 else self.forward(body)
                if mode < 0:
                    time.sleep(3)  # the sink waits for two
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", "1")
                if status != 204:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if status != 204:
                    self.wfile.write(data)

            def do_GET(self) -> None:
                self.do_POST()

            def forward(self, body: bytes) -> tuple[int, bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                try:
                    return answer.status, answer.read()
                finally:
                    connection.close()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def gateway(influxdb: Any) -> Iterator[Gateway]:
    """Run a gateway before the test's server."""
    gateway = Gateway(influxdb.server.port)
    gateway.server.daemon_threads = True
    gateway.server.block_on_close = False
    thread = threading.Thread(target=gateway.server.serve_forever, args=(0.05,))
    thread.start()
    yield gateway
    gateway.server.shutdown()
    gateway.server.server_close()
    thread.join()


@pytest.fixture
async def nodes(kafka: str, prefix: str) -> AsyncIterator[Nodes]:
    """Return emitters under way."""
    nodes = Nodes(KafkaSettings(brokers=kafka, prefix=prefix))
    await nodes.start()
    yield nodes
    await nodes.end()


@pytest.fixture
def sink(nodes: Nodes, influxdb: Any, processes: Any, until: Any) -> SinkProcess:
    """Return a sink under way."""
    return SinkProcess(nodes, influxdb, processes, until)


@pytest.mark.timeout(120 + 60 * ROUNDS)
async def test_kills_of_the_sink_lose_nothing_and_write_nothing_twice(sink: SinkProcess) -> None:
    """Each in the middle of its work: between reading, writing and committing."""
    for _ in range(ROUNDS):
        await sink.until_more(random.randrange(50, 500))
        sink.kill()
    await sink.until_more(100)

    await sink.check()


@pytest.mark.timeout(300 + 6 * FAULT_S)
async def test_a_server_that_died_hung_and_lost_its_rights_gets_everything_once(
    sink: SinkProcess, influxdb: Any, until: Any
) -> None:
    """Killed under load, then hung, then with another password; the sink is never restarted."""
    pid = sink.process.pid
    await sink.until_more(300)
    influxdb.kill()
    await until(lambda: "no answer from" in sink.process.stderr())
    await asyncio.sleep(FAULT_S)
    influxdb.start()
    await sink.until_more(300)
    influxdb.freeze()
    await until(lambda: "timed out" in sink.process.stderr())
    await asyncio.sleep(FAULT_S)
    influxdb.thaw()
    await sink.until_more(300)
    influxdb.query(f'REVOKE ALL ON "{influxdb.database}" FROM {sink.user}')
    await until(lambda: "answered 403" in sink.process.stderr())
    await asyncio.sleep(FAULT_S)
    influxdb.query(f'GRANT ALL ON "{influxdb.database}" TO {sink.user}')
    await sink.until_more(300)

    await sink.check()
    assert sink.process.pid == pid


@pytest.mark.timeout(300 + 10 * FAULT_S)
async def test_bad_answers_under_load_delay_everything_and_change_nothing(
    nodes: Nodes, gateway: Gateway, influxdb: Any, processes: Any, until: Any
) -> None:
    """429, 500, 503, a 200 that stored nothing, an answer that comes too late: each a few times."""
    sink = SinkProcess(nodes, influxdb, processes, until, url=gateway.url)
    for mode in (429, 500, 503, 200, -1):
        await sink.until_more(100)
        gateway.mode, before = mode, gateway.spoilt
        await until(lambda: gateway.spoilt >= before + 3)  # noqa: B023 - awaited at once
        await asyncio.sleep(FAULT_S)
        gateway.mode = 0

    await sink.check()
