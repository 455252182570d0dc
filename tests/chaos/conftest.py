"""A fleet with a known truth: emitters under load, stream workers that die, and the comparison.

fleet      a Fleet on the run's Kafka, its topics created
fleet_on   await fleet_on(KafkaSettings(...)) -> Fleet, for a broker of one's own
"""

import asyncio
import json
import math
import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

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
WORKER = """
import asyncio, json, os, random, sys, time
from mlops_events.control.logs import log_to
from mlops_events.schemas.settings import KafkaSettings, load
from mlops_events.streams import app, batches, worker
from mlops_events.streams.settings import StreamSettings

log_to(sys.stderr)
made = []
environ = os.environ.get
faults = float(environ("FAULTS", "0"))
lose_for_s = float(environ("LOSE_FOR_S", "0"))
app.HANG_S = float(environ("HANG_S", app.HANG_S))
session_s = float(environ("SESSION_S", "0"))
options = app._options


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


def build(*given):
    made.append(build_app(*given))
    if "BLOCK_AFTER_S" in os.environ:
        asyncio.get_running_loop().call_later(float(environ("BLOCK_AFTER_S")), time.sleep, 600)
    return made[-1]


async def write_or_die(*given):
    # delivered, not yet in a checkpoint
    if random.random() < die:
        os._exit(9)
    sizes = await write(*given)
    # in a checkpoint, not yet committed
    if random.random() < die:
        os._exit(9)
    return sizes


die = float(environ("DIE", "0"))
write, worker.write_checkpoints = worker.write_checkpoints, write_or_die
if faults or lose_for_s:
    batches.SETTINGS["ConsumerScheduler"] = Faulty
if session_s:
    app._options = lambda *given: {**options(*given), "broker_session_timeout": session_s}
settings = load(StreamSettings, "stream"), load(KafkaSettings, "kafka")
build_app, app.build_app = app.build_app, build
code = asyncio.run(app.run_stream(*settings))
if made[0].worker is not None:
    counts = made[0].worker._guard_counts
    print(json.dumps({name: getattr(counts, name) for name in counts.__struct_fields__}))
sys.exit(code)
"""

Figures = tuple[int, float, float, float, float]


class Account(NamedTuple):
    """What came of all that was sent; `check` has compared it with the truth."""

    events: int
    windows: int
    repeated_frames: int
    repeated_stats: int
    guards: list[dict[str, int]]


class Node:
    """An emitter whose clock runs fast, so that windows close in seconds.

    Args:
        uid: its number; two nodes of one number are two processes of one origin.
        start: when it begins, in nanoseconds; may be set to another time at any moment.
        chance: where its values come from.
    """

    def __init__(self, uid: int, start: int, chance: random.Random) -> None:
        self.origin = Origin(run="r", role="miner", uid=uid)
        self.id = chance.randbytes(16)
        self.now = start
        self.made: list[bytes] = []
        self.windows: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._chance = chance
        self._encoder = FrameEncoder(emitter=self.id, kind="observation", origin=self.origin)

    def frame(self, *, end: bool = False, late: bool = False) -> bytes:
        """Return the next frame: about a second of its time, in no good order.

        Args:
            end: it is the last one.
            late: its events come too late for their windows.
        """
        seq = len(self.made)
        rows = []
        for k in range(EVENTS):
            ts = self.now + round(self._chance.uniform(-4, 1) * SECOND)
            values = [self._chance.gauss(0, 1e6), self._chance.random()]
            rows.append(ENCODER.encode(Row(0, ts, seq * EVENTS + k, list(values))))
            for field, value in zip(("loss", "rate"), values, strict=True):
                if not late:
                    self.windows[field, ts // (10 * SECOND) * 10 * SECOND].append(value)
        self.now += round(self._chance.uniform(0.5, 1.5) * SECOND)
        value = self._encoder.encode(
            rows,
            seq=seq,
            closed_ns=self.now + SECOND,
            accepted=(seq + 1) * EVENTS,
            dropped=0,
            series=[Series(0, "training", ["loss", "rate"])],
            end=end,
        )
        self.made.append(value)
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
    """Nodes, workers, and what must come of it."""

    def __init__(
        self, kafka: KafkaSettings, processes: Any, until: Any, *, partitions: int
    ) -> None:
        self.kafka = kafka
        self.partitions = partitions
        self.chance = random.Random(11)
        self.nodes: list[Node] = []
        self.workers: dict[str, Any] = {}
        self.exits: list[tuple[str, int]] = []
        """Deaths that `supervised` saw: names and exit codes."""
        self.pace_s = 0.2
        self._environs: dict[str, dict[str, str]] = {}
        self._producer: Any = None
        self._processes = processes
        self._until = until

    async def open(self) -> None:
        """Create the topics and connect the emitters."""
        specs = topic_specs(
            self.kafka.topics, sinks=["sqlite"], partitions=self.partitions, replication=1
        )
        await create_topics(self.kafka, specs)
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self.kafka.brokers,
            acks="all",
            enable_idempotence=not self.kafka.embedded,
            request_timeout_ms=60_000,
        )
        await self._producer.start()

    async def close(self) -> None:
        """Disconnect the emitters."""
        await asyncio.wait_for(self._producer.stop(), 60)

    # --- emitters -----------------------------------------------------------------------------

    async def send(self, node: Node, *values: bytes) -> None:
        """Send frames of a node, each until it is acknowledged."""
        for value in values:
            while True:
                try:
                    await self._producer.send_and_wait(
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
                    break

    def add(self, uid: int, start: int) -> Node:
        """Return a new node, which is counted in the comparison."""
        node = Node(uid, start, self.chance)
        self.nodes.append(node)
        return node

    async def load(self, enough: asyncio.Event) -> None:
        """Make ten nodes that send frames until it is enough, one in twenty of them again, then the last ones."""

        async def run(node: Node) -> None:
            while not enough.is_set() or len(node.made) < 20:
                await self.send(node, node.frame())
                if self.chance.random() < 0.05:
                    await self.send(node, self.chance.choice(node.made))
                await asyncio.sleep(self.chance.uniform(0, self.pace_s))
            await self.send(node, node.frame(end=True))

        start = (time.time_ns() // SECOND - 60) // 10 * 10 * SECOND
        async with asyncio.TaskGroup() as tasks:
            for uid in range(NODES):
                tasks.create_task(run(self.add(uid, start)))

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[None]:
        """Keep the nodes sending; at the end of the block they send their last frames."""
        enough = asyncio.Event()
        loading = asyncio.create_task(self.load(enough))
        try:
            yield
        except BaseException:
            loading.cancel()
            raise
        enough.set()
        await loading

    # --- workers ------------------------------------------------------------------------------

    def start(self, name: str, **environ: str) -> Any:
        """Start a worker; with an INSTANCE it is a static member of that name."""
        instance = environ.pop("INSTANCE", "")
        self._environs[name] = {
            "MLOPS_EVENTS_KAFKA_BROKERS": self.kafka.brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": self.kafka.prefix,
            "MLOPS_EVENTS_KAFKA_EMBEDDED": str(int(self.kafka.embedded)),
            "MLOPS_EVENTS_STREAM_CHECKPOINT_S": "1",
            "MLOPS_EVENTS_STREAM_INSTANCE_ID": instance,
            **environ,
        }
        return self.restart(name)

    def restart(self, name: str) -> Any:
        """Start a worker again as it was started before."""
        worker = self._processes.start(sys.executable, "-c", WORKER, env=self._environs[name])
        self.workers[name] = worker
        return worker

    async def running(self, *names: str, times: int = 1) -> None:
        """Wait until these workers have loaded their partitions so many times."""
        for name in names or tuple(self.workers):
            await self._until(lambda name=name: self._loads(name) >= times, within=90)

    def _loads(self, name: str) -> int:
        worker = self.workers[name]
        assert worker.poll() in (None, 0), worker.stderr()
        return worker.stderr().count("partitions loaded")

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Start workers again as soon as they have ended, and note their exit codes."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.05)
                for name, worker in list(self.workers.items()):
                    code = worker.poll()
                    if code is not None:
                        self.exits.append((name, code))
                        self.restart(name)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def exit_code(self, worker: Any, *, within: float = 90) -> int:
        """Wait for the end of a worker."""
        code: int = await asyncio.to_thread(worker.wait, within=within)
        return code

    async def end(self, worker: Any) -> None:
        """Stop a worker with SIGTERM, once it is so far that it can obey."""
        await self._until(lambda: "partitions loaded" in worker.stderr(), within=60)
        worker.signal(signal.SIGTERM)
        assert await self.exit_code(worker) == 0, worker.stderr()

    async def stop(self) -> list[dict[str, int]]:
        """Stop all workers, and return what their guards met."""
        for worker in self.workers.values():
            await self.end(worker)
        return [json.loads(worker.stdout()) for worker in self.workers.values()]

    def now(self) -> float:
        """Return the time by the broker's clock, which is this machine's."""
        return time.time()

    # --- what came of it ----------------------------------------------------------------------

    async def read(self, topic: str) -> list[Any]:
        """Return all records of a topic."""
        async with open_reader(self.kafka) as reader:
            logs = await reader.bounds({TopicPartition(topic, p) for p in range(self.partitions)})
            return [record async for _, record in reader.read(logs)]

    async def frames(self) -> list[Any]:
        """Return the records of the sink's topic that are frames."""
        records = await self.read(self.kafka.topics.sink("sqlite"))
        return [r for r in records if dict(r.headers)["kind"] != b"stats"]

    async def windows(self) -> dict[tuple[bytes, str, int], Stats]:
        """Return what is kept of each window: the Stats of the highest revision, the final one."""
        kept: dict[tuple[bytes, str, int], Stats] = {}
        for key, stats in await self.stats():
            window = (key.emitter, key.field, key.start)
            before = kept.get(window)
            if before is None or (stats.revision, stats.final) > (before.revision, before.final):
                kept[window] = stats
        return kept

    async def stats(self) -> list[tuple[StatsKey, Stats]]:
        """Return all Stats in the order of the topic."""
        records = [decode_stats(r.value) for r in await self.read(self.kafka.topics.stats)]
        return [(s.key(r.emitter), s) for r in records for s in r.stats]

    def truth(self) -> dict[tuple[bytes, str, int], Figures]:
        """Return what the Stats of all windows must say."""
        return {key: f for node in self.nodes for key, f in node.truth().items()}

    async def complete(self, *, all_final: bool = True) -> None:
        """Wait until every window has all its samples, and is final."""
        counts = {key: f[0] for key, f in self.truth().items()}

        async def there() -> bool:
            kept = await self.windows()
            return counts.keys() <= kept.keys() and all(
                kept[key].revision >= count and (kept[key].final or not all_final)
                for key, count in counts.items()
            )

        await self._until(there, within=120, every=1)

    async def check(self, *, all_final: bool = True) -> Account:
        """Wait until every window is there, stop, then compare everything with the truth."""
        truth = self.truth()
        await self.complete(all_final=all_final)
        guards = await self.stop()
        kept = {key: figures(s) for key, s in (await self.windows()).items()}
        stats = await self.stats()
        contents: defaultdict[tuple[StatsKey, int], set[Figures]] = defaultdict(set)
        for key, s in stats:
            contents[key, s.revision].add(figures(s))
        frames = [decode_frame(r.value) for r in await self.frames()]
        bodies: defaultdict[tuple[bytes, int], set[str]] = defaultdict(set)
        for frame in frames:
            bodies[frame.emitter, frame.seq].add(repr(list(frame.items)))
        sent = {(node.id, seq) for node in self.nodes for seq in range(len(node.made))}

        assert {k: f for k, f in kept.items() if f != truth.get(k)} == {}
        assert kept.keys() == truth.keys()
        assert [k for k, found in contents.items() if len(found) > 1] == []
        assert bodies.keys() == sent
        assert [k for k, found in bodies.items() if len(found) > 1] == []
        assert await self.read(self.kafka.topics.dead_letters) == []
        return Account(
            events=len(sent) * EVENTS,
            windows=len(kept),
            repeated_frames=len(frames) - len(bodies),
            repeated_stats=len(stats) - len(contents),
            guards=guards,
        )

    async def waits(self) -> list[tuple[float, float]]:
        """Return when each frame came into its raw topic, and how long it took to the sink's.

        Seconds by the broker's clock, of the first copy of each.
        """
        raw: dict[tuple[bytes, int], int] = {}
        for r in await self.read(self.kafka.topics.raw("observation")):
            frame = decode_frame(r.value)
            raw.setdefault((frame.emitter, frame.seq), r.timestamp)
        out: dict[tuple[bytes, int], int] = {}
        for r in await self.frames():
            frame = decode_frame(r.value)
            out.setdefault((frame.emitter, frame.seq), r.timestamp)
        return sorted((raw[key] / 1e3, (out[key] - raw[key]) / 1e3) for key in out)


def figures(stats: Stats) -> Figures:
    """Return what a window's Stats say."""
    assert stats.mean is not None
    assert stats.min is not None
    assert stats.max is not None
    assert stats.median is not None
    return (stats.revision, stats.mean, stats.min, stats.max, stats.median)


@pytest.fixture
async def fleet_on(processes: Any, until: Any) -> AsyncIterator[Callable[..., Awaitable[Fleet]]]:
    """Return a maker of fleets."""
    made: list[Fleet] = []

    async def make(kafka: KafkaSettings, *, partitions: int = PARTITIONS) -> Fleet:
        fleet = Fleet(kafka, processes, until, partitions=partitions)
        await fleet.open()
        made.append(fleet)
        return fleet

    yield make
    for fleet in made:
        await fleet.close()


@pytest.fixture
async def fleet(kafka: str, prefix: str, fleet_on: Any) -> Fleet:
    """Return a fleet on the real Kafka."""
    made: Fleet = await fleet_on(KafkaSettings(brokers=kafka, prefix=prefix))
    return made
