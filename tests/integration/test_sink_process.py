"""A sink as a process, on a real Kafka and on the embedded broker."""

import asyncio
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import OffsetAndMetadata

from mlops_events.schemas import DeadLetter, EventId, Origin, Stats
from mlops_events.schemas.deadletters import decode_dead_letter
from mlops_events.schemas.frame import (
    FrameEncoder,
    Row,
    Series,
    StatsFrame,
    decode_frame,
    encode_stats,
)
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import (
    FRAME_CONTENT_TYPE,
    origin_key,
    raw_headers,
    stats_headers,
    topic_specs,
)
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import SinkUnavailable
from mlops_events.sinks.marks import decode_mark
from mlops_events.sinks.position import Mark
from mlops_events.sinks.sqlite import SQLiteStore

PARTITIONS = 4  # as many as the embedded broker gives to topics that it makes itself
SINKS = ("sqlite", "console")
SINK = """
import logging, sys
from mlops_events.sinks.service import run_sink

logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")
logging.getLogger("aiokafka").setLevel("CRITICAL")
sys.exit(run_sink(sys.argv[1]))
"""


class Node:
    """An emitter whose frames the streams have routed."""

    def __init__(self, uid: int) -> None:
        self.origin = Origin(run="r", role="miner", uid=uid, version="1.2")
        self.id = os.urandom(16)
        self.frames = 0
        self._encoder = FrameEncoder(emitter=self.id, kind="observation", origin=self.origin)

    def frame(self, *, events: int = 5, odd: Any = None, end: bool = False) -> bytes:
        """Return the next frame; the value of an event is its number. `odd` replaces one value."""
        rows = [Row(0, time.time_ns(), self.frames, [k]) for k in range(events)]
        if odd is not None:
            rows[1] = msgspec.structs.replace(rows[1], values=[odd])
        value = self._encoder.encode(
            [ENCODER.encode(row) for row in rows],
            seq=self.frames,
            closed_ns=time.time_ns(),
            accepted=(self.frames + 1) * events,
            dropped=0,
            series=[Series(0, "training", ["loss"])],
            end=end,
        )
        self.frames += 1
        return value

    def stats(self, revision: int) -> bytes:
        """Return the Stats of one window."""
        stats = Stats(
            kind="observation",
            name="training",
            field="loss",
            start=0,
            size=10,
            revision=revision,
            final=False,
            count=revision,
            mean=float(revision),
        )
        return encode_stats(StatsFrame(emitter=self.id, origin=self.origin, stats=[stats]))


class Lab:
    """The topics of a pipeline, and sinks that read them."""

    def __init__(self, kafka: KafkaSettings, folder: Path, processes: Any, until: Any) -> None:
        self.kafka = kafka
        self.topics = kafka.topics
        self.store = folder / "events.db"
        self.producer: Any = None
        self._processes = processes
        self._until = until

    async def create_topics(self) -> None:
        """Create the topics that are not there."""
        specs = topic_specs(self.topics, sinks=SINKS, partitions=PARTITIONS, replication=1)
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

    async def make_anew(self, topic: str) -> None:
        """Delete a topic and create it again."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.brokers)
        await admin.start()
        try:
            await admin.delete_topics([topic])

            async def gone() -> bool:
                return topic not in await admin.list_topics()

            await self._until(gone)
        finally:
            await admin.close()
        await self.create_topics()

    async def open(self) -> None:
        """Create the topics and connect a producer."""
        await self.create_topics()
        self.producer = await self.connect()

    async def connect(self) -> Any:
        """Return a started producer."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self.kafka.brokers,
            acks="all",
            enable_idempotence=not self.kafka.embedded,
        )
        await producer.start()
        return producer

    def start(self, name: str = "sqlite", **environ: str) -> Any:
        """Start a sink."""
        return self._processes.start(
            sys.executable,
            *("-c", SINK, name),
            env={
                "MLOPS_EVENTS_KAFKA_BROKERS": self.kafka.brokers,
                "MLOPS_EVENTS_KAFKA_PREFIX": self.kafka.prefix,
                "MLOPS_EVENTS_KAFKA_EMBEDDED": str(int(self.kafka.embedded)),
                "MLOPS_EVENTS_SQLITE_PATH": str(self.store),
                "MLOPS_EVENTS_SINK_MAX_AGE_S": "0.1",
                **environ,
            },
        )

    async def stop(self, sink: Any) -> None:
        """Stop a sink with SIGTERM, which it must obey."""
        sink.signal(signal.SIGTERM)
        code = await asyncio.to_thread(sink.wait, within=30)
        assert code == 0, sink.stderr()

    async def send(self, node: Node, *values: bytes, name: str = "sqlite") -> None:
        """Send frames to a sink's topic."""
        for value in values:
            frame = decode_frame(value)
            headers = raw_headers(
                node.origin,
                kind="observation",
                emitter=node.id,
                seq=frame.seq,
                count=len(frame),
            )
            await self.put(value, headers, key=origin_key(node.origin), name=name)

    async def send_stats(self, node: Node, *values: bytes, name: str = "sqlite") -> None:
        """Send Stats to a sink's topic."""
        headers = stats_headers(StatsFrame(emitter=node.id, origin=node.origin, stats=[]))
        for value in values:
            await self.put(value, headers, key=origin_key(node.origin), name=name)

    async def put(
        self,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        *,
        key: bytes = b"k",
        name: str = "sqlite",
    ) -> None:
        """Write a record to a sink's topic."""
        await self.producer.send_and_wait(
            self.topics.sink(name), value, key=key, headers=list(headers)
        )

    def stored(self) -> list[EventId]:
        """Return the ids of what the store holds."""
        try:
            with SQLiteStore(self.store) as store:
                return [stored.id for stored in store.events()]
        except SinkUnavailable:
            return []

    async def until_stored(self, count: int) -> list[EventId]:
        """Wait until the store holds so many events."""
        await self._until(lambda: len(self.stored()) >= count, within=60, every=0.1)
        return self.stored()

    async def read(self, topic: str) -> list[Any]:
        """Return all records of a topic."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.kafka.brokers,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, p) for p in range(PARTITIONS)])
            await consumer.seek_to_beginning()
            records: list[Any] = []
            while polled := await consumer.getmany(timeout_ms=1_000):
                records += [record for found in polled.values() for record in found]
            return records
        finally:
            await consumer.stop()

    async def dead_letters(self, count: int) -> list[DeadLetter]:
        """Wait for so many dead letters."""

        async def found() -> list[Any]:
            records = await self.read(self.topics.dead_letters)
            return records if len(records) >= count else []

        records = await self._until(found, within=30)
        return [decode_dead_letter(record.value) for record in records]

    async def marks(self, name: str = "sqlite") -> list[Mark]:
        """Return the marks that a sink's group has kept."""
        group, topic = f"{self.kafka.prefix}.sink.{name}", self.topics.sink(name)
        if self.kafka.embedded:
            records = await self.read(self.topics.checkpoints)
            found = [
                decode_mark(r.value, group=group, topic=topic, partition=r.partition)
                for r in records
            ]
            return [mark for mark in found if mark is not None]
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.brokers)
        await admin.start()
        try:
            commits = await admin.list_consumer_group_offsets(group)
        finally:
            await admin.close()
        decoded = [Mark.decode(commit.metadata) for commit in commits.values()]
        return [mark for mark in decoded if mark is not None]


REAL_KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)


@pytest.fixture(params=[REAL_KAFKA, "embedded_broker"])
def broker(request: pytest.FixtureRequest, prefix: str) -> KafkaSettings:
    """Return both brokers, one after the other."""
    found = request.getfixturevalue(request.param)
    if request.param == "kafka":
        return KafkaSettings(brokers=found, prefix=prefix)
    return KafkaSettings(brokers=found.address, prefix=prefix, embedded=True)


@pytest.fixture
async def lab(
    broker: KafkaSettings, tmp_path: Path, processes: Any, until: Any
) -> AsyncIterator[Lab]:
    """Return the topics of a pipeline."""
    lab = Lab(broker, tmp_path, processes, until)
    await lab.open()
    yield lab
    await lab.producer.stop()


async def test_what_is_routed_to_a_sink_is_stored_once(lab: Lab) -> None:
    """Frames and Stats arrive, repeats do not, over a clean stop and a restart."""
    nodes = [Node(uid) for uid in range(4)]
    firsts: dict[Node, bytes] = {}
    sink = lab.start()
    for node in nodes:
        firsts[node] = node.frame()
        await lab.send(node, firsts[node], node.frame(), firsts[node])
        await lab.send_stats(node, node.stats(2), node.stats(1))
    await lab.until_stored(40)
    await lab.stop(sink)
    marks = await lab.marks()
    for node in nodes:
        await lab.send(node, firsts[node], node.frame(end=True))
        await lab.send_stats(node, node.stats(3))
    sink = lab.start()
    ids = await lab.until_stored(60)
    await lab.stop(sink)

    assert marks
    assert {mark.incarnation for mark in marks} == {0}
    assert sorted(ids) == sorted(
        EventId(node.id, "observation", seq, index)
        for node in nodes
        for seq in range(3)
        for index in range(5)
    )
    with SQLiteStore(lab.store) as store:
        assert [w.stats.revision for w in store.windows()] == [3] * 4
        sent = [emitter.sent["observation"] for emitter in store.emitters()]
    assert [(s.missing, s.ended) for s in sent] == [(0, True)] * 4


async def test_a_sink_that_only_appends_gets_repeats_only_of_its_last_batch(lab: Lab) -> None:
    """After a clean restart frames and Stats that come again are known from reading back."""
    nodes = [Node(uid) for uid in range(3)]
    frames = [[node.frame() for _ in range(4)] for node in nodes]
    sink = lab.start("console")
    for node, values in zip(nodes, frames, strict=True):
        await lab.send(node, *values, name="console")
        await lab.send_stats(node, node.stats(2), name="console")
    await lab._until(lambda: sink.stdout().count("\n") >= 63)
    await lab.stop(sink)
    for node, values in zip(nodes, frames, strict=True):
        await lab.send(node, *values, node.frame(events=1), name="console")
        await lab.send_stats(node, node.stats(2), node.stats(1), name="console")
    again = lab.start("console")
    await lab._until(lambda: again.stdout().count("\n") >= 3)
    await lab.stop(again)

    assert sink.stdout().count("\n") == 63
    assert again.stdout().count("\n") == 3
    assert again.stdout().count("step=4") == 3


async def test_what_cannot_be_stored_or_read_becomes_a_dead_letter(lab: Lab) -> None:
    """One event of a frame, a record of garbage, and one without a value; the rest is stored."""
    node = Node(1)
    odd = msgspec.msgpack.Ext(5, b"what JSON cannot hold")
    sink = lab.start()
    await lab.send(node, node.frame(odd=odd))
    await lab.put(b"garbage", [("content-type", FRAME_CONTENT_TYPE.encode())])
    await lab.put(None)
    await lab.send(node, node.frame())
    ids = await lab.until_stored(9)
    letters = await lab.dead_letters(3)
    await lab.stop(sink)

    assert len(ids) == 9
    assert sorted(letter.reason for letter in letters) == [
        "undecodable",
        "undecodable",
        "unencodable",
    ]
    (event,) = (letter for letter in letters if letter.reason == "unencodable")
    assert event.key == f"sqlite/{node.id.hex()}/observation/0/1"
    assert [index for index, _ in decode_frame(event.payload).events()] == [1]


async def test_a_topic_that_was_made_anew_is_read_from_its_start(lab: Lab) -> None:
    """What a new log holds is stored, whether or not the group's commits went with the old one."""
    old, new = Node(1), Node(1)
    sink = lab.start()
    await lab.send(old, *(old.frame() for _ in range(30)))
    await lab.until_stored(150)
    await lab.stop(sink)
    await lab.producer.stop()
    await lab.make_anew(lab.topics.sink("sqlite"))
    lab.producer = await lab.connect()
    await lab.send(new, *(new.frame() for _ in range(5)))
    sink = lab.start()
    await lab.until_stored(175)
    await lab.send(new, *(new.frame() for _ in range(40)))
    ids = await lab.until_stored(375)
    await lab.stop(sink)

    assert {i.seq for i in ids if i.emitter == new.id} == set(range(45))
    # Kafka deletes a topic's commits with it; the embedded broker keeps them.
    assert max(mark.incarnation for mark in await lab.marks()) == int(lab.kafka.embedded)


@pytest.mark.parametrize("broker", [REAL_KAFKA], indirect=True)
async def test_a_mark_that_does_not_fit_means_another_log(lab: Lab) -> None:
    """Another record than the one in the commit's metadata starts the next incarnation."""
    node = Node(1)
    sink = lab.start()
    await lab.send(node, *(node.frame() for _ in range(30)))
    await lab.until_stored(150)
    await lab.stop(sink)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=lab.kafka.brokers,
        group_id=f"{lab.kafka.prefix}.sink.sqlite",
        enable_auto_commit=False,
    )
    await consumer.start()
    topic = lab.topics.sink("sqlite")
    consumer.assign([TopicPartition(topic, p) for p in range(PARTITIONS)])
    for tp in consumer.assignment():
        if offset := await consumer.committed(tp):
            wrong = Mark(incarnation=3, next=offset, timestamp_ms=1, crc=1).encode()
            await consumer.commit({tp: OffsetAndMetadata(offset, wrong)})
    await consumer.stop()
    sink = lab.start()
    await lab.send(node, node.frame())
    await lab.until_stored(155)
    await lab.stop(sink)

    assert max(mark.incarnation for mark in await lab.marks()) == 4
    assert "made anew" in sink.stderr()
    assert len(lab.stored()) == 155


async def test_a_store_that_is_locked_for_a_while_loses_nothing(lab: Lab, until: Any) -> None:
    """The sink waits with its batch, keeps its place in the group, and goes on."""
    node = Node(1)
    sink = lab.start()
    await lab.send(node, node.frame())
    await lab.until_stored(5)
    other = sqlite3.connect(lab.store, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    await lab.send(node, *(node.frame() for _ in range(20)))
    await until(lambda: "the sink is unavailable" in sink.stderr())
    before = lab.stored()
    other.execute("ROLLBACK")
    other.close()
    ids = await lab.until_stored(105)

    assert len(before) == 5
    assert len(ids) == len(set(ids)) == 105
    assert sink.poll() is None
    assert "partitions given up" not in sink.stderr()
    await lab.stop(sink)


async def test_processes_of_one_sink_share_its_partitions(lab: Lab, until: Any) -> None:
    """One joins and one leaves under load, and every event is printed once by one of them."""
    nodes = [Node(uid) for uid in range(8)]
    done = asyncio.Event()

    async def load() -> None:
        while not done.is_set():
            for node in nodes:
                await lab.send(node, node.frame(events=1), name="console")
            await asyncio.sleep(0.01)

    first = lab.start("console")
    loading = asyncio.ensure_future(load())
    await until(lambda: first.stdout().count("\n") > 20)
    second = lab.start("console")
    await until(lambda: second.stdout().count("\n") > 20)
    await lab.stop(first)
    seen = second.stdout().count("\n")
    await until(lambda: second.stdout().count("\n") > seen + 100)
    done.set()
    await loading
    total = sum(node.frames for node in nodes)

    def printed() -> list[str]:
        return (first.stdout() + second.stdout()).splitlines()

    await until(lambda: len(printed()) >= total)
    await lab.stop(second)
    events = [line.split(" ", 1)[1] for line in printed()]
    assert len(events) == len(set(events)) == total


async def test_a_sink_waits_for_its_topic(
    broker: KafkaSettings, tmp_path: Path, processes: Any, until: Any
) -> None:
    """A sink that is started before the topics exist delivers once they do."""
    lab = Lab(broker, tmp_path, processes, until)
    sink = lab.start()
    await until(lambda: lab.store.exists())
    await lab.open()
    try:
        node = Node(1)
        await lab.send(node, node.frame())
        await lab.until_stored(5)
    finally:
        await lab.producer.stop()
    await lab.stop(sink)


def test_a_sink_without_a_broker_waits_and_still_stops(
    processes: Any, free_port: Callable[[], int], tmp_path: Path, until: Any
) -> None:
    """Kafka may come later; SIGTERM is obeyed at once."""
    sink = processes.start(
        sys.executable,
        *("-c", SINK, "sqlite"),
        env={
            "MLOPS_EVENTS_KAFKA_BROKERS": f"127.0.0.1:{free_port()}",
            "MLOPS_EVENTS_SQLITE_PATH": str(tmp_path / "events.db"),
        },
    )
    until.sync(lambda: "Kafka cannot be reached" in sink.stderr())
    sink.signal(signal.SIGTERM)

    assert sink.wait(within=20) == 0


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (["lokki"], {}, "no sink named 'lokki'"),
        (["sqlite"], {"MLOPS_EVENTS_KAFKA_BROKERS": ""}, "no brokers"),
        (["sqlite"], {"MLOPS_EVENTS_SQLITE_PATHH": "x"}, "did you mean"),
        (["sqlite"], {"MLOPS_EVENTS_SINK_MAX_EVENTS": "none"}, "MAX_EVENTS"),
    ],
)
def test_settings_that_cannot_be_used_end_the_process(
    processes: Any, arguments: list[str], environ: dict[str, str], message: str
) -> None:
    """What is wrong is named at once."""
    sink = processes.start(
        sys.executable,
        *("-c", SINK, *arguments),
        env={"MLOPS_EVENTS_KAFKA_BROKERS": "127.0.0.1:1", **environ},
    )

    assert sink.wait(within=20) != 0
    assert message in sink.stderr()
