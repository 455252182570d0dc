"""Dead letters on a real Kafka and on the embedded broker: what becomes one, and redriving it."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from mlops_events.control.deadletters import Choice, Letter
from mlops_events.control.deadletters_plan import Account
from mlops_events.control.deadletters_read import fetch_letter, find_letters
from mlops_events.control.deadletters_redrive import redrive
from mlops_events.control.topics import create_topics
from mlops_events.schemas import DeadLetter, EventId, Observation, Origin
from mlops_events.schemas.deadletters import (
    dead_letter_headers,
    encode_dead_letter,
    event_key,
    make_dead_letter,
)
from mlops_events.schemas.frame import FrameEncoder, Row, Series, decode_frame, decode_stats
from mlops_events.schemas.health import Counters
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import (
    MAX_RECORD_BYTES,
    frame_headers,
    origin_key,
    redriven_times,
    topic_specs,
)
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import Batch, Rejected
from mlops_events.sinks.deliver import Delivery
from mlops_events.sinks.grouplog import GroupLog
from mlops_events.sinks.intake import DeliverSettings
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import TopicPartition
from mlops_events.streams.settings import StreamSettings

PARTITIONS = 4  # as many as the embedded broker gives to topics that it makes itself
BAD = -1.0
WORKER = """
import asyncio, logging, sys
from mlops_events.schemas.settings import KafkaSettings, load
from mlops_events.streams.app import run_stream
from mlops_events.streams.settings import StreamSettings

logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")
logging.getLogger("aiokafka").setLevel("CRITICAL")
settings = load(StreamSettings, "stream"), load(KafkaSettings, "kafka")
sys.exit(asyncio.run(run_stream(*settings)))
"""
DIES = """
import asyncio, os, signal
from mlops_events.control.deadletters import Choice
from mlops_events.control.deadletters_plan import Planner
from mlops_events.control.deadletters_read import open_letters, read_letters
from mlops_events.control.deadletters_redrive import send_again
from mlops_events.schemas.settings import KafkaSettings, load
from mlops_events.streams.clients import make_producer
from mlops_events.streams.settings import StreamSettings

class Dying:
    def __init__(self, producer, after):
        self.producer, self.left = producer, after

    async def send(self, topic, *, value, **rest):
        if value is None:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return await self.producer.send(topic, value=value, **rest)

async def main():
    kafka = load(KafkaSettings, "kafka")
    producer = make_producer(kafka)
    await producer.start()
    async with open_letters(kafka) as (reader, partitions):
        letters = await read_letters(reader, partitions, Choice())
        sink = kafka.topics.sink("picky")
        planner = Planner(StreamSettings(), topics=kafka.topics, existing={sink}, force=False)
        topic = partitions[0].topic
        dying = Dying(producer, int(os.environ["REMOVALS"]))
        await send_again(letters, topic=topic, planner=planner, reader=reader, producer=dying)

asyncio.run(main())
"""


class PickySink:
    """Refuses events with the value BAD for good, until it is mended."""

    name = "picky"

    def __init__(self) -> None:
        self.mended = False
        self.got: Counter[EventId] = Counter()

    async def check(self) -> None: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def write(self, batch: Batch) -> list[Rejected]:
        rejected: list[Rejected] = []
        for envelope in batch:
            event = envelope.event
            if not isinstance(event, Observation):
                continue
            if event.fields.get("loss") == BAD and not self.mended:
                rejected.append(Rejected(envelope, "negative", "a loss below 0"))
            else:
                assert isinstance(envelope.id, EventId)
                self.got[envelope.id] += 1
        return rejected


class Node:
    """An emitter of observations."""

    def __init__(self, uid: int = 1) -> None:
        self.origin = Origin(run="r", role="miner", uid=uid, version="1.2")
        self.id = os.urandom(16)
        self.frames = 0
        self._encoder = FrameEncoder(emitter=self.id, kind="observation", origin=self.origin)

    def frame(self, values: Sequence[Any], *, end: bool = False) -> bytes:
        """Return the next frame, an event for each value; an unreadable one where it is None."""
        now = time.time_ns()
        rows = [
            Row(0, now, k, [value]) if value is not None else ["r", 0, "no time", k, [0.0]]
            for k, value in enumerate(values)
        ]
        seq, self.frames = self.frames, self.frames + 1
        return self._encoder.encode(
            [ENCODER.encode(row) for row in rows],
            seq=seq,
            closed_ns=now,
            accepted=len(values),
            dropped=0,
            series=[Series(0, "training", ["loss"])],
            end=end,
        )

    def event(self, seq: int, index: int) -> EventId:
        """Return the id of one of its events."""
        return EventId(self.id, "observation", seq, index)


class Lab:
    """The topics of a pipeline with one picky sink."""

    def __init__(self, kafka: KafkaSettings, processes: Any, until: Any) -> None:
        self.kafka = kafka
        self.topics = kafka.topics
        self.until = until
        self.sink = PickySink()
        self.counters = Counters("sink")
        self.delivery: Any = None
        self.producer: Any = None
        self._processes = processes

    async def open(self) -> None:
        """Create the topics and connect a producer."""
        await self.create_topics()
        self.producer = AIOKafkaProducer(
            bootstrap_servers=self.kafka.brokers,
            enable_idempotence=not self.kafka.embedded,
            max_request_size=4 << 20,
        )
        await self.producer.start()

    async def create_topics(self) -> None:
        """Create the topics that are not there."""
        specs = topic_specs(self.topics, sinks=["picky"], partitions=PARTITIONS, replication=1)
        await create_topics(self.kafka, specs)

    @asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        """Deliver to the picky sink in this process."""
        log = GroupLog(
            self.kafka, topic=self.topics.sink("picky"), group=f"{self.kafka.prefix}.sink.picky"
        )
        self.delivery = Delivery(
            self.sink,
            log,
            dead_letters=self.topics.dead_letters,
            settings=DeliverSettings(max_age_s=0.1),
            counters=self.counters,
            draw=lambda: 0.2,
        )
        stop = asyncio.Event()
        running = asyncio.ensure_future(self.delivery.run(stop))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait_for(running, 60)

    def environ(self, **more: str) -> dict[str, str]:
        """Return the settings of this pipeline's processes."""
        return {
            "MLOPS_EVENTS_KAFKA_BROKERS": self.kafka.brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": self.kafka.prefix,
            "MLOPS_EVENTS_KAFKA_EMBEDDED": str(int(self.kafka.embedded)),
            "MLOPS_EVENTS_STREAM_SINKS": "picky",
            "COLUMNS": "80",
            **more,
        }

    def worker(self) -> Any:
        """Start a stream worker."""
        return self._processes.start(sys.executable, "-c", WORKER, env=self.environ())

    async def stop(self, worker: Any) -> None:
        """Stop it with SIGTERM, which it must obey."""
        worker.signal(signal.SIGTERM)
        code = await asyncio.to_thread(worker.wait, within=30)
        assert code == 0, worker.stderr()

    async def command(self, *arguments: str, code: int = 0) -> str:
        """Run `mlops-pipeline dead-letters ...` and return what it prints."""
        process = self._processes.start(
            sys.executable, "-m", "mlops_events.control", "dead-letters", *arguments,
            env=self.environ(),
        )  # fmt: skip
        found = await asyncio.to_thread(process.wait)
        assert found == code, process.stderr()
        return str(process.stdout())

    async def redrive(self, choice: Choice | None = None, **options: Any) -> Account:
        """Redrive letters, all by default, and return the account."""
        settings = StreamSettings(sinks=("picky",))
        account = await redrive(self.kafka, settings, choice or Choice(), **options)
        assert account.chosen == account.redriven + len(account.kept) + account.gone
        return account

    async def script(self, source: str, **environ: str) -> int:
        """Run a program and return its exit code."""
        process = self._processes.start(sys.executable, "-c", source, env=self.environ(**environ))
        return int(await asyncio.to_thread(process.wait))

    async def put(
        self, topic: str, value: bytes | None, *, headers: Any = (), key: bytes = b"k"
    ) -> Any:
        """Write a record; return where it lies."""
        return await self.producer.send_and_wait(topic, value, key=key, headers=list(headers))

    async def send(self, node: Node, *values: bytes, topic: str) -> None:
        """Write frames of a node."""
        for value in values:
            headers = frame_headers(decode_frame(value))
            await self.put(topic, value, headers=headers, key=origin_key(node.origin))

    async def letters(self, count: int | None = None) -> list[Letter]:
        """Return the dead letters, when there are so many."""
        if count is None:
            return await find_letters(self.kafka, Choice())

        async def found() -> list[Letter] | None:
            letters = await find_letters(self.kafka, Choice())
            return letters if len(letters) == count else None

        return list(await self.until(found, every=0.3))

    async def letter_with(self, key: str) -> DeadLetter:
        """Return the only dead letter, when it has this key."""

        async def found() -> DeadLetter | None:
            keys = [letter.letter for letter in await find_letters(self.kafka, Choice())]
            return keys[0] if [letter.key for letter in keys] == [key] else None

        letter: DeadLetter = await self.until(found, every=0.3)
        return letter

    async def read(self, topic: str) -> list[Any]:
        """Return all records of a topic."""
        async with open_reader(self.kafka) as reader:
            logs = await reader.bounds([TopicPartition(topic, p) for p in range(PARTITIONS)])
            return [record async for _, record in reader.read(logs)]

    async def got(self, count: int) -> Counter[EventId]:
        """Wait until the sink has so many different events."""
        await self.until(lambda: len(self.sink.got) >= count)
        return self.sink.got

    async def bury(self, node: Node, count: int) -> None:
        """Write dead letters of the picky sink, of one event each."""
        for _ in range(count):
            value = node.frame([1.0])
            frame = decode_frame(value)
            letter = make_dead_letter(
                sink="picky",
                reason="negative",
                message="a loss below 0",
                key=event_key("picky", frame.event_id(0)),
                kind="observation",
                first_seen_ns=0,
                topic=self.topics.sink("picky"),
                partition=0,
                offset=0,
                payload=value,
            )
            await self.producer.send(
                self.topics.dead_letters,
                encode_dead_letter(letter),
                key=letter.key.encode(),
                headers=dead_letter_headers(letter),
            )
        await self.producer.flush()

    async def set_limit(self, limit: int) -> None:
        """Let the dead letters' topic take records of at most so many bytes."""
        specs = topic_specs(self.topics, sinks=(), partitions=PARTITIONS, replication=1)
        (spec,) = (spec for spec in specs if spec.name == self.topics.dead_letters)
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.brokers)
        await admin.start()
        try:
            resource = ConfigResource(
                ConfigResourceType.TOPIC,
                self.topics.dead_letters,
                configs={**spec.config, "max.message.bytes": str(limit)},
            )
            await admin.alter_configs([resource])
        finally:
            await admin.close()

    async def delete_letters_topic(self) -> None:
        """Delete the dead letters' topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.brokers)
        await admin.start()
        try:
            await admin.delete_topics([self.topics.dead_letters])

            async def gone() -> bool:
                return self.topics.dead_letters not in await admin.list_topics()

            await self.until(gone)
        finally:
            await admin.close()

    async def committed(self, group: str) -> int:
        """Return how many records a group has committed in all."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.brokers)
        await admin.start()
        try:
            found = await admin.list_consumer_group_offsets(f"{self.kafka.prefix}.{group}")
            return sum(max(0, commit.offset) for commit in found.values())
        finally:
            await admin.close()


REAL_KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)
on_real_kafka = pytest.mark.parametrize("broker", [REAL_KAFKA], indirect=True)


@pytest.fixture(params=[REAL_KAFKA, "embedded_broker"])
def broker(request: pytest.FixtureRequest, prefix: str) -> KafkaSettings:
    """Return both brokers, one after the other."""
    found = request.getfixturevalue(request.param)
    if request.param == "kafka":
        return KafkaSettings(brokers=found, prefix=prefix)
    return KafkaSettings(brokers=found.address, prefix=prefix, embedded=True)


@pytest.fixture
async def lab(broker: KafkaSettings, processes: Any, until: Any) -> AsyncIterator[Lab]:
    """Return the topics of a pipeline."""
    lab = Lab(broker, processes, until)
    await lab.open()
    yield lab
    await lab.producer.stop()


def kinds_of(letters: Sequence[Letter]) -> Counter[tuple[str, str]]:
    """Return how many letters there are of each sink and reason."""
    return Counter((found.letter.sink, found.letter.reason) for found in letters)


async def test_poison_ends_as_letters_and_the_rest_arrives_once(lab: Lab) -> None:
    """Nothing, garbage, something huge, one bad event of many; in raw topics and in a sink's."""
    node = Node()
    raw, routed = lab.topics.raw("observation"), lab.topics.sink("picky")
    huge = b"\xc1" * (3_000_000 if lab.kafka.embedded else 2_000_000)
    worker = lab.worker()
    async with lab.delivering():
        await lab.send(node, node.frame([1.0] * 5), topic=raw)
        for topic in (raw, routed):
            for value in (None, b"", b"garbage", huge):
                await lab.put(topic, value)
        await lab.send(node, node.frame([1.0, None, 1.0]), topic=raw)
        points = [1.0] * 4_000
        points[2_345] = BAD
        await lab.send(node, node.frame(points), node.frame([1.0] * 1_000), topic=raw)
        got = await lab.got(5 + 2 + 3_999 + 1_000)
        letters = await lab.letters(10)
    await lab.stop(worker)

    assert set(got.values()) == {1}
    assert node.event(2, 2_345) not in got
    assert kinds_of(letters) == {
        ("stream", "undecodable"): 4,
        ("stream", "unreadable_event"): 1,
        ("picky", "undecodable"): 4,
        ("picky", "negative"): 1,
    }
    assert {found.letter.size for found in letters} >= {0, 7, len(huge)}
    refused = event_key("picky", node.event(2, 2_345))
    whole = await fetch_letter(lab.kafka, key=refused)
    assert list(decode_frame(whole.letter.payload).indices) == [2_345]
    shown = await lab.command("show", refused)
    assert "a loss below 0" in shown
    assert '"loss": -1.0' in shown


async def test_a_redriven_event_fails_again_without_a_loop_and_passes_once_mended(
    lab: Lab,
) -> None:
    """Each failure is a letter of its own, after three somebody must insist, none is lost."""
    node = Node()
    event = node.event(0, 1)
    key = event_key("picky", event)
    await lab.send(node, node.frame([1.0, BAD, 2.0]), topic=lab.topics.sink("picky"))
    async with lab.delivering():
        await lab.letters(1)
        records = len(await lab.read(lab.topics.dead_letters))
        said = await lab.command("redrive", "--sink", "picky", "--dry-run")
        assert "1 of 1 dead letters would be redriven" in said
        assert await lab.command("redrive", "--sink", "nope", code=2) == ""
        assert len(await lab.read(lab.topics.dead_letters)) == records

        for times in (1, 2, 3):
            account = await lab.redrive(Choice(sink="picky"))
            assert account.redriven == 1
            again = await lab.letter_with(f"{key}#{times}")
            assert again.redriven == times
        tired = msgspec.json.decode(await lab.command("redrive", "--all", "--json", code=1))
        assert "--force" in tired["kept"][0]["why"]
        assert sum(lab.sink.got.values()) == 2

        lab.sink.mended = True
        await lab.redrive(keys=[key], force=True)
        await lab.until(lambda: event in lab.sink.got)

        assert await lab.letters() == []
    assert lab.sink.got == {node.event(0, index): 1 for index in range(3)}
    last = (await lab.read(lab.topics.sink("picky")))[-1]
    assert redriven_times(last.headers) in (0, 4)


async def test_letters_of_the_stream_go_where_they_belong(lab: Lab) -> None:
    """A whole record is folded as if it came now; an event of a frame that was folded is routed."""
    node, other = Node(1), Node(2)
    worker = lab.worker()
    async with lab.delivering():
        await lab.send(node, node.frame([5.0, 7.0], end=True), topic=lab.topics.raw("log"))
        await lab.send(other, other.frame([1.0, 2.0]), topic=lab.topics.raw("observation"))
        await lab.got(2)
        (wrong,) = await lab.letters(1)
        frame = decode_frame(other._encoder.encode(
            [ENCODER.encode(Row(0, 1, 9, [3.0]))], seq=0, closed_ns=1, accepted=1, dropped=0,
            series=[Series(0, "training", ["loss"])],
        ))  # fmt: skip
        limited = make_dead_letter(
            sink="stream",
            reason="series_limit",
            message="too many",
            key=event_key("stream", other.event(0, 77)),
            kind="observation",
            first_seen_ns=0,
            topic=lab.topics.raw("observation"),
            partition=0,
            offset=0,
            payload=_with_index(frame, 77),
        )
        await lab.put(
            lab.topics.dead_letters, encode_dead_letter(limited), key=limited.key.encode()
        )
        account = await lab.redrive(Choice(sink="stream"))
        got = await lab.got(5)

        async def stats() -> list[Any]:
            found = [decode_stats(r.value) for r in await lab.read(lab.topics.stats)]
            return [s for f in found for s in f.stats if f.emitter == node.id and s.final]

        (window,) = await lab.until(stats, every=0.3)
    await lab.stop(worker)

    assert wrong.letter.reason == "wrong_kind"
    assert account.sent == {
        lab.topics.raw("observation"): 1,
        lab.topics.sink("picky"): 1,
    }
    assert got[other.event(0, 77)] == 1
    assert (window.count, window.mean) == (2, 6.0)
    assert await lab.letters() == []
    (direct,) = [r for r in await lab.read(lab.topics.sink("picky")) if redriven_times(r.headers)]
    assert decode_frame(direct.value).tags == {"version": "1.2"}


def _with_index(frame: Any, index: int) -> bytes:
    frame._wire.i = [index]
    return bytes(frame.encode())


async def test_what_was_cut_is_read_where_it_stood(lab: Lab) -> None:
    """The whole record, if it is still there; else the letter stays and says so."""
    node = Node()
    value = node.frame(["x" * 200_000] * 4)
    await lab.put(lab.topics.sink("picky"), value)  # without headers it cannot be read
    async with lab.delivering():
        (letter,) = await lab.letters(1)
        lost = msgspec.structs.replace(
            (await fetch_letter(lab.kafka, key=letter.letter.key)).letter,
            offset=7,
            key=letter.letter.key.replace("/0/", "/7/"),
        )
        await lab.put(lab.topics.dead_letters, encode_dead_letter(lost), key=b"lost")
        account = await lab.redrive()
        got = await lab.got(4)

    assert letter.letter.truncated
    assert account.redriven == 1
    assert "was cut to 4096" in account.kept[0].why
    assert set(got) == {node.event(0, index) for index in range(4)}


@pytest.mark.parametrize("removals", [0, 70])
async def test_a_kill_between_sending_and_taking_away_loses_nothing(
    lab: Lab, removals: int
) -> None:
    """What was sent is sent once more, under the same ids; every letter is gone in the end."""
    node = Node()
    await lab.bury(node, 500)
    before = await lab.letters(500)
    code = await lab.script(DIES, REMOVALS=str(removals))
    left = await lab.letters()
    account = await lab.redrive()
    async with lab.delivering():
        got = await lab.got(500)
        await lab.until(lambda: lab.delivery.trouble is None)
    records = await lab.read(lab.topics.sink("picky"))

    assert code == -signal.SIGKILL
    assert len(before) - removals <= len(left) <= len(before)
    assert account.redriven == len(left)
    assert set(got) == {node.event(seq, 0) for seq in range(500)}
    assert len(records) > 500
    assert {decode_frame(r.value).event_id(0) for r in records} == set(got)
    assert await lab.letters() == []


@on_real_kafka
@pytest.mark.parametrize("trouble", ["deleted", "small"])
async def test_a_sink_commits_nothing_while_its_letters_cannot_be_written(
    lab: Lab, trouble: str
) -> None:
    """It says so, keeps its place, and goes on once the topic is back."""
    node = Node()
    async with lab.delivering():
        await lab.send(node, node.frame([1.0]), topic=lab.topics.sink("picky"))
        await lab.until(lambda: lab.committed("sink.picky"), every=0.2)
        before = await lab.committed("sink.picky")
        await (lab.delete_letters_topic() if trouble == "deleted" else lab.set_limit(100))
        await lab.send(node, node.frame([1.0, BAD]), topic=lab.topics.sink("picky"))
        await lab.until(lambda: "dead letters not written" in (lab.delivery.trouble or ""))
        during = await lab.committed("sink.picky")
        await (lab.create_topics() if trouble == "deleted" else lab.set_limit(MAX_RECORD_BYTES))
        await lab.until(lambda: lab.delivery.trouble is None)
        await lab.send(node, node.frame([BAD]), topic=lab.topics.sink("picky"))
        letters = await lab.letters(2)

    assert (before, during) == (1, 1)
    assert await lab.committed("sink.picky") == 3
    assert [found.letter.reason for found in letters] == ["negative"] * 2
    assert lab.sink.got == {node.event(0, 0): 1, node.event(1, 0): 1}


@on_real_kafka
async def test_a_stream_commits_nothing_while_its_letters_cannot_be_written(lab: Lab) -> None:
    """It ends with the topic's name, and a new start delivers all once the topic takes them."""
    node = Node()
    raw = lab.topics.raw("observation")
    worker = lab.worker()
    await lab.send(node, node.frame([1.0]), topic=raw)
    await lab.until(lambda: lab.committed("stream"), every=0.2)
    await lab.set_limit(100)
    await lab.put(raw, b"garbage", key=origin_key(node.origin))
    code = await asyncio.to_thread(worker.wait)
    during = await lab.committed("stream")
    await lab.set_limit(MAX_RECORD_BYTES)
    again = lab.worker()
    async with lab.delivering():
        await lab.got(1)
        letters = await lab.letters(1)
    await lab.stop(again)

    assert code == 1
    assert f"{lab.topics.dead_letters}, partition" in worker.stderr()
    assert "nothing more is committed" in worker.stderr()
    assert during == 1
    assert kinds_of(letters) == {("stream", "undecodable"): 1}
    assert await lab.committed("stream") == 2
