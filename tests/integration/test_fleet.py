"""The fleet service as a process, on a real Kafka and on the embedded broker."""

import asyncio
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from mlops_events.control.topics import create_topics
from mlops_events.schemas.events import Log, Origin, Run, Stats
from mlops_events.schemas.frame import (
    Frame,
    FrameEncoder,
    StatsFrame,
    decode_frame,
    decode_stats,
    encode_stats,
)
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import origin_key, topic_specs
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.clients import open_reader
from mlops_events.streams.figures import summarise
from mlops_events.streams.logreader import TopicPartition as LogPartition

PARTITIONS = 3
SECOND = 1_000_000_000
SIZE = 10 * SECOND


class Node:
    """A node, and the samples of its windows; a new process of it has another version."""

    def __init__(self, uid: int, version: str) -> None:
        self.uid = uid
        self.rng = np.random.default_rng(uid)
        self.samples: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.restart(version)

    def restart(self, version: str) -> None:
        """Become another process."""
        self.id = os.urandom(16)
        self.origin = Origin(
            run="r", role="miner", uid=self.uid, version=version, node=f"host-{self.uid}"
        )

    def start(self) -> bytes:
        """Return the frame that says that it runs."""
        event = Run(ts=time.time_ns(), state="start")
        encoder = FrameEncoder(emitter=self.id, kind="run", origin=self.origin)
        return encoder.encode([ENCODER.encode(event)], seq=0, closed_ns=0, accepted=1, dropped=0)

    def window(self, start: int) -> bytes:
        """Return the final Stats of a window, as the streams make them."""
        samples = self.rng.normal(size=int(self.rng.integers(1, 20))).tolist()
        self.samples[self.origin.version, start] += samples
        figures = summarise(samples)
        stats = Stats(
            kind="observation",
            name="training",
            field="loss",
            start=start,
            size=SIZE,
            revision=len(samples),
            final=True,
            count=len(samples),
            mean=figures.mean,
            min=figures.min,
            max=figures.max,
            median=figures.median,
            closed_by="watermark",
        )
        return encode_stats(StatsFrame(emitter=self.id, origin=self.origin, stats=[stats]))


class Lab:
    """Topics on a broker, and the service that reads them."""

    def __init__(self, kafka: KafkaSettings, processes: Any, until: Any) -> None:
        self.kafka = kafka
        self.topics = kafka.topics
        self.producer: Any = None
        self.service: Any = None
        self._processes = processes
        self._until = until

    async def open(self) -> None:
        """Create the topics and connect a producer."""
        specs = topic_specs(self.topics, sinks=["sqlite"], partitions=PARTITIONS, replication=1)
        await create_topics(self.kafka, specs)
        self.producer = AIOKafkaProducer(
            bootstrap_servers=self.kafka.brokers,
            acks="all",
            enable_idempotence=not self.kafka.embedded,
        )
        await self.producer.start()

    def start(self, **environ: str) -> Any:
        """Start the service."""
        self.service = self._processes.start(
            *(sys.executable, "-m", "mlops_events.control", "fleet"),
            env={
                "MLOPS_EVENTS_KAFKA_BROKERS": self.kafka.brokers,
                "MLOPS_EVENTS_KAFKA_PREFIX": self.kafka.prefix,
                "MLOPS_EVENTS_KAFKA_EMBEDDED": str(int(self.kafka.embedded)),
                "MLOPS_EVENTS_FLEET_WAIT_S": "2",
                **environ,
            },
        )
        return self.service

    async def stop(self, service: Any) -> None:
        """Stop the service with SIGTERM, which it must obey."""
        service.signal(signal.SIGTERM)
        code = await asyncio.to_thread(service.wait, within=30)
        assert code == 0, service.stderr()

    async def run(self, *nodes: Node) -> None:
        """Let nodes say that they run."""
        for node in nodes:
            key = origin_key(node.origin)
            await self.producer.send_and_wait(self.topics.raw("run"), node.start(), key=key)

    async def report(self, start: int, *nodes: Node) -> None:
        """Let nodes report a window."""
        for node in nodes:
            key = origin_key(node.origin)
            await self.producer.send_and_wait(self.topics.stats, node.window(start), key=key)

    async def read(self, topic: str) -> list[Any]:
        """Return all records of a topic, as long as the service has not failed."""
        assert self.service.poll() in (None, 0), self.service.stderr()
        partitions = {LogPartition(topic, i) for i in range(PARTITIONS)}
        async with open_reader(self.kafka) as reader:
            logs = await reader.bounds(partitions)
            return [record async for _, record in reader.read(logs)]

    async def published(self, topic: str) -> list[tuple[str, Stats]]:
        """Return all Stats of fleets in a topic with their versions."""
        records = await self.read(topic)
        values = [
            r.value for r in records if dict(r.headers or ()).get("kind", b"stats") == b"stats"
        ]
        frames = [decode_stats(value) for value in values]
        return [(f.origin.version, s) for f in frames for s in f.stats if s.nodes is not None]

    async def complete(self, count: int) -> dict[tuple[str, int], Stats]:
        """Wait for so many final windows in the sink's topic; return the highest revisions."""

        async def finals() -> dict[tuple[str, int], Stats]:
            found: dict[tuple[str, int], Stats] = {}
            for version, stats in await self.published(self.topics.sink("sqlite")):
                known = found.get((version, stats.start))
                if known is None or stats.revision > known.revision:
                    found[version, stats.start] = stats
            whole = sum(s.final for s in found.values())
            return found if whole >= count else {}

        found: dict[tuple[str, int], Stats] = await self._until(finals, every=0.3)
        return found

    async def lines(self, count: int) -> list[Frame]:
        """Wait for so many different lines of log in the sink's topic; return all that are there."""

        async def enough() -> list[Frame]:
            records = await self.read(self.topics.sink("sqlite"))
            frames = [decode_frame(r.value) for r in records if dict(r.headers)["kind"] == b"log"]
            return frames if len({f.emitter for f in frames}) >= count else []

        found: list[Frame] = await self._until(enough, every=0.3)
        return found

    async def committed(self, count: int) -> None:
        """Wait until the service's group has committed so many Run records."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.kafka.brokers, group_id=f"{self.kafka.prefix}.fleet"
        )
        await consumer.start()
        places = [TopicPartition(self.topics.raw("run"), p) for p in range(PARTITIONS)]

        async def enough() -> bool:
            return sum([await consumer.committed(tp) or 0 for tp in places]) >= count

        try:
            await self._until(enough, every=0.3)
        finally:
            await consumer.stop()


@pytest.fixture(params=["kafka", "embedded"])
async def lab(
    request: pytest.FixtureRequest, prefix: str, processes: Any, until: Any
) -> AsyncIterator[Lab]:
    """Return topics on either kind of broker."""
    embedded = request.param == "embedded"
    address = (
        request.getfixturevalue("embedded_broker").address
        if embedded
        else request.getfixturevalue("kafka")
    )
    made = Lab(KafkaSettings(brokers=address, prefix=prefix, embedded=embedded), processes, until)
    await made.open()
    yield made
    await made.producer.stop()


def messages(frames: list[Frame]) -> list[str]:
    """Return the lines of log, each once however often it was sent."""
    found: dict[bytes, str] = {}
    for frame in frames:
        for _, event in frame.events():
            assert isinstance(event, Log)
            assert found.setdefault(frame.emitter, event.message) == event.message
    return sorted(found.values())


async def test_a_fleet_through_kills_of_the_service(lab: Lab) -> None:
    """Three nodes of two versions, one is upgraded: every window is there, as numpy has it."""
    nodes = [Node(1, "1.0"), Node(2, "1.0"), Node(3, "1.1")]
    begin = time.time_ns() // SIZE * SIZE - 20 * SIZE
    service = lab.start()
    await lab.run(*nodes)
    for number in range(4):
        await lab.report(begin + number * SIZE, *nodes)
    await lab.complete(1)
    service.kill()
    nodes[1].restart("1.1")
    await lab.run(nodes[1])
    for number in range(4, 8):
        await lab.report(begin + number * SIZE, *nodes)
    service = lab.start()
    await lab.complete(10)
    service.kill()
    await lab.report(begin + 8 * SIZE, nodes[0], nodes[1])
    service = lab.start()
    await lab.report(begin + 8 * SIZE, nodes[2])
    found = await lab.complete(18)
    await lab.stop(service)

    assert len(found) == 18
    for (version, start), stats in found.items():
        parts = [n.samples[version, start] for n in nodes if (version, start) in n.samples]
        whole = np.concatenate(parts)
        assert (stats.nodes, stats.nodes_missing, stats.final) == (len(parts), 0, True)
        assert (stats.count, stats.revision) == (whole.size, whole.size)
        assert (stats.min, stats.max) == (whole.min(), whole.max())
        assert stats.mean == pytest.approx(whole.mean(), rel=1e-12)
        assert stats.median_of_medians == pytest.approx(np.median([np.median(p) for p in parts]))
        assert stats.median is None
    in_topic = await lab.published(lab.topics.stats)
    in_sink = await lab.published(lab.topics.sink("sqlite"))
    contents: dict[tuple[str, int, int], Stats] = {}
    for version, stats in (*in_topic, *in_sink):  # one key and revision have one content
        assert contents.setdefault((version, stats.start, stats.revision), stats) == stats
    assert {(v, s.start, s.revision) for v, s in in_topic} == {
        (v, s.start, s.revision) for v, s in in_sink
    }
    places = [(v, s.start, s.revision) for v, s in in_topic]
    assert len(places) == len(set(places))


async def test_versions_are_told_once(lab: Lab) -> None:
    """What was committed is not told again, what came meanwhile is."""
    first, second = Node(1, "1.0"), Node(2, "1.1")
    await lab.run(first, second)
    service = lab.start()
    before = await lab.lines(2)
    await lab.committed(2)
    service.kill()
    second.restart("1.0")
    await lab.run(second)
    service = lab.start()
    after = await lab.lines(3)
    await lab.stop(service)

    told = [f.origin.version for f in before]
    assert sorted(told) == ["1.0", "1.1"]
    assert len(after) == 3
    assert messages(after) == [
        "node miner/2 goes back to version 1.0, after 1.1",
        "version 1.0 first appears in run r, on miner/1",
        "version 1.1 first appears in run r, on miner/2, after 1.0",
    ]
    assert [dict(f.tags)["version"] for f in after if f.origin.uid == 2] == ["1.0"]


async def test_a_missing_node_is_told_and_its_return(lab: Lab, until: Any) -> None:
    """With how many are missing in the windows; a stop publishes what waits."""
    nodes = [Node(1, "1.0"), Node(2, "1.0")]
    begin = time.time_ns() // SIZE * SIZE - 20 * SIZE
    service = lab.start(MLOPS_EVENTS_FLEET_MISSING_S="3")
    await lab.report(begin, *nodes)
    await lab.complete(1)
    number = 0

    async def told() -> list[Frame]:
        nonlocal number
        number += 1
        await lab.report(begin + number * SIZE, nodes[0])
        records = await lab.read(lab.topics.sink("sqlite"))
        return [decode_frame(r.value) for r in records if dict(r.headers)["kind"] == b"log"]

    (gone,) = await until(told, every=0.5)
    await lab.report(begin + number * SIZE, nodes[1])
    frames = await lab.lines(2)
    await lab.report(begin + 50 * SIZE, nodes[0])
    await lab.stop(service)

    assert [e.message for _, e in gone.events() if isinstance(e, Log)] == [
        "node miner/2 is missing"
    ]
    assert messages(frames) == ["node miner/2 is back", "node miner/2 is missing"]
    published = await lab.published(lab.topics.sink("sqlite"))
    assert (begin + 50 * SIZE, 1) in {(s.start, s.nodes) for _, s in published}
    assert any(s.nodes_missing == 1 and not s.final for _, s in published)
