"""Deaths of the sink and of the broker under load: nothing is lost, nothing is stored twice."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from mlops_events.schemas import EventId, Origin, Stats
from mlops_events.schemas.frame import FrameEncoder, Row, Series, StatsFrame, encode_stats
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import origin_key, raw_headers, stats_headers, topic_specs
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import SinkUnavailable
from mlops_events.sinks.sqlite import SQLiteStore

EVENTS = 20
SINK = """
import logging, sys
from mlops_events.sinks.service import run_sink

logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")
logging.getLogger("aiokafka").setLevel("CRITICAL")
sys.exit(run_sink("sqlite"))
"""


class Node:
    """An emitter: every frame a second of values, and after it the window's Stats so far."""

    def __init__(self, uid: int) -> None:
        self.origin = Origin(run="r", role="miner", uid=uid)
        self.id = os.urandom(16)
        self.frames = 0
        self._encoder = FrameEncoder(emitter=self.id, kind="observation", origin=self.origin)

    def records(self) -> list[tuple[bytes, list[tuple[str, bytes]]]]:
        """Return the next frame and Stats, with headers."""
        seq, self.frames = self.frames, self.frames + 1
        rows = [ENCODER.encode(Row(0, time.time_ns(), seq, [float(k)])) for k in range(EVENTS)]
        frame = self._encoder.encode(
            rows,
            seq=seq,
            closed_ns=time.time_ns(),
            accepted=self.frames * EVENTS,
            dropped=0,
            series=[Series(0, "training", ["loss"])],
        )
        window = Stats(
            kind="observation",
            name="training",
            field="loss",
            start=0,
            size=10,
            revision=self.frames,
            final=False,
            count=self.frames,
        )
        stats = StatsFrame(emitter=self.id, origin=self.origin, stats=[window])
        headers = raw_headers(
            self.origin, kind="observation", emitter=self.id, seq=seq, count=EVENTS
        )
        return [(frame, headers), (encode_stats(stats), stats_headers(stats))]


class Load:
    """Nodes that send without a pause, each record until it is acknowledged."""

    def __init__(self, kafka: KafkaSettings, nodes: int = 6) -> None:
        self.kafka = kafka
        self.nodes = [Node(uid) for uid in range(nodes)]
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._producer: Any = None

    async def start(self) -> None:
        """Create the topics and begin."""
        specs = topic_specs(self.kafka.topics, sinks=["sqlite"], partitions=4, replication=1)
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.brokers)
        await admin.start()
        try:
            await admin.create_topics(
                [
                    NewTopic(s.name, s.partitions, s.replication, topic_configs=s.config)
                    for s in specs
                ]
            )
        finally:
            await admin.close()
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self.kafka.brokers,
            acks="all",
            enable_idempotence=not self.kafka.embedded,
        )
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
        while not self._stop.is_set():
            for node in self.nodes:
                for value, headers in node.records():
                    await self._send(node, value, headers)
            await asyncio.sleep(0.2)  # the embedded broker keeps some 2,000 batches a partition

    async def _send(self, node: Node, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        topic, key = self.kafka.topics.sink("sqlite"), origin_key(node.origin)
        while True:
            try:
                await self._producer.send_and_wait(topic, value, key=key, headers=headers)
            except KafkaError:  # the same again: a repeat if it had arrived after all
                await asyncio.sleep(0.05)
            else:
                return


class Sink:
    """The sqlite sink as a process that is started again."""

    def __init__(self, kafka: KafkaSettings, folder: Path, processes: Any, until: Any) -> None:
        self.store = folder / "events.db"
        self._env = {
            "MLOPS_EVENTS_KAFKA_BROKERS": kafka.brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": kafka.prefix,
            "MLOPS_EVENTS_KAFKA_EMBEDDED": str(int(kafka.embedded)),
            "MLOPS_EVENTS_SQLITE_PATH": str(self.store),
            "MLOPS_EVENTS_SINK_MAX_AGE_S": "0.05",
            # Kafka gives the partitions of a name back at once, though the process died
            "MLOPS_EVENTS_SINK_INSTANCE_ID": "sqlite-0",
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

    async def stop(self) -> None:
        """Stop it with SIGTERM, which it must obey."""
        self.process.signal(signal.SIGTERM)
        code = await asyncio.to_thread(self.process.wait, within=30)
        assert code == 0, self.process.stderr()

    def count(self) -> int:
        """Return how many events are stored."""
        try:
            with SQLiteStore(self.store) as store:
                return store.counts().get("observation", 0)
        except SinkUnavailable:
            return 0

    async def until_more(self, events: int) -> None:
        """Wait until so many more events are stored."""
        before = self.count()
        await self._until(lambda: self.count() >= before + events, within=90)

    async def check(self, load: Load) -> None:
        """Wait until all is stored, and compare it with what was sent."""
        total = sum(node.frames for node in load.nodes) * EVENTS
        try:
            await self._until(lambda: self.count() >= total, within=60)
        except pytest.fail.Exception:
            pytest.fail(f"{self.count()} of {total} events\n{self.process.stderr()}")
        with SQLiteStore(self.store) as store:
            ids = Counter(stored.id for stored in store.events())
            revisions = {w.emitter: w.stats.revision for w in store.windows()}
            missing = {e.emitter: e.sent["observation"].missing for e in store.emitters()}

        assert ids == {
            EventId(node.id, "observation", seq, index): 1
            for node in load.nodes
            for seq in range(node.frames)
            for index in range(EVENTS)
        }
        assert missing == {node.id: 0 for node in load.nodes}
        assert revisions == {node.id: node.frames for node in load.nodes}


@pytest.fixture(params=[pytest.param("kafka_broker", marks=pytest.mark.kafka), "embedded_broker"])
def broker(request: pytest.FixtureRequest) -> tuple[Any, bool]:
    """Return both brokers, one after the other, to kill, and whether it is the embedded one."""
    return request.getfixturevalue(request.param), request.param == "embedded_broker"


@pytest.fixture
async def load(broker: tuple[Any, bool], prefix: str) -> AsyncIterator[Load]:
    """Return nodes under way."""
    killable, embedded = broker
    load = Load(KafkaSettings(brokers=killable.address, prefix=prefix, embedded=embedded))
    await load.start()
    yield load
    await load.end()


@pytest.fixture
def sink(load: Load, tmp_path: Path, processes: Any, until: Any) -> Sink:
    """Return a sink under way."""
    return Sink(load.kafka, tmp_path, processes, until)


async def test_kills_of_the_sink(load: Load, sink: Sink) -> None:
    """Four times, each in the middle of its work: between reading, writing and committing."""
    for round_ in range(4):
        await sink.until_more(200 + 37 * round_)
        sink.kill()
    await sink.until_more(200)
    await load.pause()
    await sink.check(load)
    await sink.stop()


async def test_kills_of_sink_and_broker(load: Load, sink: Sink, broker: tuple[Any, bool]) -> None:
    """The broker dies under the sink, and then both at once."""
    killable, _ = broker
    await sink.until_more(300)
    killable.kill()
    await asyncio.to_thread(killable.start)
    await sink.until_more(300)
    sink.kill()
    killable.kill()
    await asyncio.to_thread(killable.start)
    await sink.until_more(300)
    await load.pause()
    await sink.check(load)
    await sink.stop()


@pytest.mark.parametrize("broker", ["embedded_broker"], indirect=True)
async def test_a_sink_that_was_asleep(load: Load, sink: Sink) -> None:
    """A process that is stopped longer than its session, as by a suspended laptop, goes on."""
    for _ in range(2):
        await sink.until_more(300)
        sink.process.signal(signal.SIGSTOP)
        await asyncio.sleep(4)
        sink.process.signal(signal.SIGCONT)
    await sink.until_more(300)
    await load.pause()
    await sink.check(load)
    await sink.stop()
