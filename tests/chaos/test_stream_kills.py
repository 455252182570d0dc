"""Deaths of stream workers under load: every window is the true one, every frame comes through."""

import asyncio
import json
import math
import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from mlops_events.control.topics import create_topics
from mlops_events.schemas import FrameEncoder, Origin, Stats, StatsKey
from mlops_events.schemas.frame import Row, Series, decode_frame, decode_stats
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import origin_key, raw_headers, topic_specs
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import TopicPartition

PARTITIONS = 4
SECOND = 1_000_000_000
NODES = 10
EVENTS = 20
KILLS = 6
FAULTY_S = 15.0
WORKER = """
import asyncio, json, logging, os, random, sys, time
from mlops_events.schemas.settings import KafkaSettings, load
from mlops_events.streams import app, batches
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.worker import Worker

logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")
logging.getLogger("aiokafka").setLevel("CRITICAL")
made = []
faults = float(os.environ.get("FAULTS", "0"))
lose_for_s = float(os.environ.get("LOSE_FOR_S", "0"))


class Faulty(batches.BatchScheduler):
    '''Drops some batches and hands out others twice, or drops all until it works and a while longer.'''

    works_since = None

    def iterate(self, records):
        for message in super().iterate(records):
            if self.works_since is None and made[0].worker.ready:
                self.works_since = time.monotonic()
            lose_until = (self.works_since or time.monotonic()) + lose_for_s
            if time.monotonic() < lose_until:
                continue
            chance = random.random()
            if chance >= faults / 2:
                yield message
            if faults / 2 <= chance < faults:
                yield message


if faults or lose_for_s:
    batches.SETTINGS["ConsumerScheduler"] = Faulty
settings = load(StreamSettings, "stream"), load(KafkaSettings, "kafka")
build = app.build_app
app.build_app = lambda *given: made.append(build(*given)) or made[-1]
code = asyncio.run(app.run_stream(*settings))
worker = made[0].worker
if worker is not None:
    counts = worker._guard_counts
    print(json.dumps({name: getattr(counts, name) for name in counts.__struct_fields__}))
sys.exit(code)
"""

Figures = tuple[int, float, float, float, float]


class Node:
    """An emitter whose clock runs fast, so that windows close in seconds."""

    def __init__(self, uid: int, start: int, chance: random.Random) -> None:
        self.origin = Origin(run="r", role="miner", uid=uid)
        self.id = chance.randbytes(16)
        self.sent: list[bytes] = []
        self.windows: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._now = start
        self._chance = chance
        self._encoder = FrameEncoder(emitter=self.id, kind="observation", origin=self.origin)

    def frame(self, *, end: bool = False) -> bytes:
        """Return the next frame: about a second of its time, in no good order."""
        seq = len(self.sent)
        rows = []
        for k in range(EVENTS):
            ts = self._now + round(self._chance.uniform(-4, 1) * SECOND)
            values = [self._chance.gauss(0, 1e6), self._chance.random()]
            rows.append(ENCODER.encode(Row(0, ts, seq * EVENTS + k, list(values))))
            for field, value in zip(("loss", "rate"), values, strict=True):
                self.windows[field, ts // (10 * SECOND) * 10 * SECOND].append(value)
        self._now += round(self._chance.uniform(0.5, 1.5) * SECOND)
        value = self._encoder.encode(
            rows,
            seq=seq,
            closed_ns=self._now + SECOND,
            accepted=(seq + 1) * EVENTS,
            dropped=0,
            series=[Series(0, "training", ["loss", "rate"])],
            end=end,
        )
        self.sent.append(value)
        return value

    def truth(self) -> dict[tuple[bytes, str, int], Figures]:
        """Return what the Stats of its windows must say."""
        return {
            (self.id, field, start): (
                len(values),
                math.fsum(values) / len(values),
                min(values),
                max(values),
                statistics.median(values),
            )
            for (field, start), values in self.windows.items()
        }


class Fleet:
    """Nodes under load, workers that die, and what must come of it."""

    def __init__(self, kafka: KafkaSettings, processes: Any, until: Any) -> None:
        self.kafka = kafka
        self.chance = random.Random(11)
        start = (time.time_ns() // SECOND - 60) // 10 * 10 * SECOND
        self.nodes = [Node(uid, start, self.chance) for uid in range(NODES)]
        self.workers: dict[str, Any] = {}
        self._processes = processes
        self._until = until

    async def load(self, enough: asyncio.Event) -> None:
        """Send frames until it is enough, one in twenty of them again, then the last ones."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self.kafka.brokers,
            acks="all",
            enable_idempotence=not self.kafka.embedded,
            request_timeout_ms=60_000,
        )
        await producer.start()

        async def send(node: Node, value: bytes) -> None:
            while True:
                try:
                    await producer.send_and_wait(
                        self.kafka.topics.raw("observation"),
                        value,
                        key=origin_key(node.origin),
                        headers=raw_headers(
                            node.origin, kind="observation", emitter=node.id, seq=0, count=EVENTS
                        ),
                    )
                except KafkaError:  # the broker died; the frame goes again before its successors
                    await asyncio.sleep(0.1)
                else:
                    return

        async def run(node: Node) -> None:
            while not enough.is_set() or len(node.sent) < 20:
                await send(node, node.frame())
                if self.chance.random() < 0.05:
                    await send(node, self.chance.choice(node.sent))
                await asyncio.sleep(self.chance.uniform(0, 0.2))
            await send(node, node.frame(end=True))

        async with asyncio.TaskGroup() as tasks:
            for node in self.nodes:
                tasks.create_task(run(node))
        await producer.stop()

    def start(self, name: str, **environ: str) -> None:
        """Start a worker under a name that stays, as a supervisor does."""
        static = {} if self.kafka.embedded else {"MLOPS_EVENTS_STREAM_INSTANCE_ID": name}
        self.workers[name] = self._processes.start(
            sys.executable,
            *("-c", WORKER),
            env={
                "MLOPS_EVENTS_KAFKA_BROKERS": self.kafka.brokers,
                "MLOPS_EVENTS_KAFKA_PREFIX": self.kafka.prefix,
                "MLOPS_EVENTS_KAFKA_EMBEDDED": str(int(self.kafka.embedded)),
                "MLOPS_EVENTS_STREAM_CHECKPOINT_S": "1",
                **static,
                **environ,
            },
        )

    async def kill(self, name: str, *, gently: bool = False) -> None:
        """End a worker and start it again at once."""
        worker = self.workers[name]
        if gently:
            await self.end(worker)
        else:
            assert worker.poll() is None, worker.stderr()
            worker.kill()
        self.start(name)

    async def end(self, worker: Any) -> None:
        """Stop a worker with SIGTERM, once it is so far that it can obey."""
        await self._until(lambda: "partitions loaded" in worker.stderr(), within=60)
        worker.signal(signal.SIGTERM)
        code = await asyncio.to_thread(worker.wait, within=60)
        assert code == 0, worker.stderr()

    async def stop(self) -> list[dict[str, int]]:
        """Stop all workers, and return what their guards met."""
        for worker in self.workers.values():
            await self.end(worker)
        return [json.loads(worker.stdout()) for worker in self.workers.values()]

    async def read(self, topic: str) -> list[Any]:
        """Return all records of a topic."""
        async with open_reader(self.kafka) as reader:
            logs = await reader.bounds({TopicPartition(topic, p) for p in range(PARTITIONS)})
            return [record async for _, record in reader.read(logs)]

    async def finals(self) -> dict[tuple[bytes, str, int], Figures]:
        """Return the figures of the windows that are final."""
        return {
            (key.emitter, key.field, key.start): figures(s)
            for key, s in await self.stats()
            if s.final
        }

    async def stats(self) -> list[tuple[StatsKey, Stats]]:
        """Return all Stats in the order of the topic."""
        records = [decode_stats(r.value) for r in await self.read(self.kafka.topics.stats)]
        return [(s.key(r.emitter), s) for r in records for s in r.stats]

    async def check(self) -> list[dict[str, int]]:
        """Wait until every window is there, then compare everything with the truth.

        Returns what the guards of the last workers met.
        """
        truth = {key: f for node in self.nodes for key, f in node.truth().items()}

        async def complete() -> bool:
            return truth.keys() <= (await self.finals()).keys()

        await self._until(complete, within=120, every=1)
        guards = await self.stop()
        finals = await self.finals()
        contents: defaultdict[tuple[StatsKey, int], set[Figures]] = defaultdict(set)
        for key, stats in await self.stats():
            contents[key, stats.revision].add(figures(stats))
        records = await self.read(self.kafka.topics.sink("sqlite"))
        frames = [decode_frame(r.value) for r in records if dict(r.headers)["kind"] != b"stats"]
        bodies: defaultdict[tuple[bytes, int], set[str]] = defaultdict(set)
        for frame in frames:
            bodies[frame.emitter, frame.seq].add(repr(list(frame.items)))
        sent = {(node.id, seq) for node in self.nodes for seq in range(len(node.sent))}

        assert {k: f for k, f in finals.items() if f != truth.get(k)} == {}
        assert finals.keys() == truth.keys()
        assert [k for k, found in contents.items() if len(found) > 1] == []
        assert bodies.keys() == sent
        assert [k for k, found in bodies.items() if len(found) > 1] == []
        assert await self.read(self.kafka.topics.dead_letters) == []
        return guards


def figures(stats: Stats) -> Figures:
    """Return what a window's Stats say."""
    assert stats.mean is not None
    assert stats.min is not None
    assert stats.max is not None
    assert stats.median is not None
    return (stats.revision, stats.mean, stats.min, stats.max, stats.median)


async def fleet_on(kafka: KafkaSettings, processes: Any, until: Any) -> Fleet:
    """Create the topics and return a fleet."""
    specs = topic_specs(kafka.topics, sinks=["sqlite"], partitions=PARTITIONS, replication=1)
    await create_topics(kafka, specs)
    return Fleet(kafka, processes, until)


@pytest.fixture
async def fleet(kafka: str, prefix: str, processes: Any, until: Any) -> Fleet:
    """Return a fleet on the real Kafka."""
    return await fleet_on(KafkaSettings(brokers=kafka, prefix=prefix), processes, until)


async def test_windows_stay_true_while_two_workers_die(fleet: Fleet) -> None:
    """On Kafka, two static members: kill -9 and now and then SIGTERM, every few seconds."""
    for name in ("w0", "w1"):
        fleet.start(name)
    enough = asyncio.Event()
    loading = asyncio.create_task(fleet.load(enough))
    for kill in range(KILLS):
        await asyncio.sleep(fleet.chance.uniform(2, 5))
        await fleet.kill(fleet.chance.choice(["w0", "w1"]), gently=kill % 3 == 2)
    enough.set()
    await loading
    await fleet.check()


async def test_windows_stay_true_while_worker_and_embedded_broker_die(
    embedded_broker: Any, prefix: str, processes: Any, until: Any
) -> None:
    """On the broker of the local mode: kill -9 of the one worker, and of the broker too."""
    kafka = KafkaSettings(brokers=embedded_broker.address, prefix=prefix, embedded=True)
    fleet = await fleet_on(kafka, processes, until)
    fleet.start("w0")
    enough = asyncio.Event()
    loading = asyncio.create_task(fleet.load(enough))
    for kill in range(KILLS):
        await asyncio.sleep(fleet.chance.uniform(2, 5))
        if kill % 2:
            await asyncio.to_thread(embedded_broker.kill)
            await asyncio.to_thread(embedded_broker.start)
        await fleet.kill("w0")
    enough.set()
    await loading
    await fleet.check()


async def test_windows_stay_true_while_batches_are_dropped_and_doubled(fleet: Fleet) -> None:
    """Faust loses one batch in forty and delivers another twice: the guard notices each."""
    enough = asyncio.Event()
    fleet.start("w0", FAULTS="0.05")
    loading = asyncio.create_task(fleet.load(enough))
    await asyncio.sleep(FAULTY_S)
    enough.set()
    await loading
    (guard,) = await fleet.check()

    assert guard["repeated"] > 0
    assert guard["holes"] > 0
    assert guard["healed"] == guard["holes"]
    assert guard["missing"] == 0


async def test_a_skipped_tail_is_read_again(fleet: Fleet) -> None:
    """Faust loses all there is, and nothing follows that would betray it: the log's end does."""
    enough = asyncio.Event()
    enough.set()
    await fleet.load(enough)
    fleet.start("w0", LOSE_FOR_S="3")
    (guard,) = await fleet.check()

    assert guard["nudges"] > 0
    assert guard["holes"] == 0


async def test_windows_stay_true_while_kafka_is_away(
    kafka_broker: Any, prefix: str, processes: Any, until: Any
) -> None:
    """Kafka dies under load and comes back after a while: the worker waits and goes on."""
    kafka = KafkaSettings(brokers=kafka_broker.address, prefix=prefix)
    fleet = await fleet_on(kafka, processes, until)
    fleet.start("w0")
    worker = fleet.workers["w0"]
    enough = asyncio.Event()
    loading = asyncio.create_task(fleet.load(enough))
    await until(lambda: "partitions loaded" in worker.stderr(), within=60)
    await asyncio.sleep(3)
    await asyncio.to_thread(kafka_broker.kill)
    await asyncio.sleep(5)
    await asyncio.to_thread(kafka_broker.start)
    await asyncio.sleep(3)
    enough.set()
    await loading
    await fleet.check()

    assert worker.stderr().count("partitions loaded") == 1


async def test_windows_stay_true_when_a_stopped_worker_wakes_up(
    embedded_broker: Any, prefix: str, processes: Any, until: Any
) -> None:
    """Two workers, one stopped for longer than its session: a zombie's outputs do no harm."""
    kafka = KafkaSettings(brokers=embedded_broker.address, prefix=prefix, embedded=True)
    fleet = await fleet_on(kafka, processes, until)
    for name in ("w0", "w1"):
        fleet.start(name)
    enough = asyncio.Event()
    loading = asyncio.create_task(fleet.load(enough))
    await asyncio.sleep(5)
    for name in ("w0", "w1"):
        fleet.workers[name].signal(signal.SIGSTOP)
        await asyncio.sleep(5)
        fleet.workers[name].signal(signal.SIGCONT)
        await asyncio.sleep(4)
    enough.set()
    await loading
    await fleet.check()
