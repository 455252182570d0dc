"""The stream worker as a process, on a real Kafka and on the embedded broker."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from mlops_events.control.topics import create_topics
from mlops_events.schemas import FrameEncoder, Origin, Stats
from mlops_events.schemas.frame import Row, Series, decode_frame, decode_stats
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import MAX_RECORD_BYTES, origin_key, raw_headers, topic_specs
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.checkpoint import Checkpoint, split
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import TopicPartition as LogPartition

PARTITIONS = 4
SECOND = 1_000_000_000
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


class Miner:
    """An emitter of observations, one every second from `start`, in frames of ten."""

    def __init__(self, uid: int, start: int) -> None:
        self.origin = Origin(run="r", role="miner", uid=uid, version="1.2")
        self.id = os.urandom(16)
        self.start = start
        self.frames = 0
        self._encoder = FrameEncoder(emitter=self.id, kind="observation", origin=self.origin)

    def frame(self, *, end: bool = False) -> bytes:
        """Return the next frame; the value of an observation is its number."""
        first = 10 * self.frames
        events = [
            ENCODER.encode(Row(sid=0, ts=self.start + n * SECOND, step=n, values=[float(n)]))
            for n in range(first, first + 10)
        ]
        value = self._encoder.encode(
            events,
            seq=self.frames,
            closed_ns=self.start + (first + 10) * SECOND,
            accepted=first + 10,
            dropped=0,
            series=[Series(0, "training", ["loss"])],
            end=end,
        )
        self.frames += 1
        return value


class Lab:
    """Topics on a broker, and workers that read them."""

    def __init__(self, kafka: KafkaSettings, processes: Any, until: Any) -> None:
        self.kafka = kafka
        self.topics = kafka.topics
        self.producer: Any = None
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
            max_request_size=MAX_RECORD_BYTES,
        )
        await self.producer.start()

    def start(self, **environ: str) -> Any:
        """Start a worker."""
        return self._processes.start(
            sys.executable,
            *("-c", WORKER),
            env={
                "MLOPS_EVENTS_KAFKA_BROKERS": self.kafka.brokers,
                "MLOPS_EVENTS_KAFKA_PREFIX": self.kafka.prefix,
                "MLOPS_EVENTS_KAFKA_EMBEDDED": str(int(self.kafka.embedded)),
                **environ,
            },
        )

    async def stop(self, worker: Any) -> None:
        """Stop a worker with SIGTERM, which it must obey."""
        worker.signal(signal.SIGTERM)
        code = await asyncio.to_thread(worker.wait, within=30)
        assert code == 0, worker.stderr()

    async def send(self, miner: Miner, *values: bytes) -> None:
        """Send frames of a miner."""
        for value in values:
            await self.producer.send_and_wait(
                self.topics.raw("observation"),
                value,
                key=origin_key(miner.origin),
                headers=raw_headers(
                    miner.origin, kind="observation", emitter=miner.id, seq=0, count=10
                ),
            )

    async def read(self, topic: str) -> list[Any]:
        """Return all records of a topic."""
        partitions = {LogPartition(topic, i) for i in range(PARTITIONS)}
        async with open_reader(self.kafka) as reader:
            logs = await reader.bounds(partitions)
            return [record async for _, record in reader.read(logs)]

    async def stats(self) -> list[tuple[int, Stats]]:
        """Return all Stats with the uid they belong to."""
        records = [decode_stats(r.value) for r in await self.read(self.topics.stats)]
        return [(int(r.origin.uid or 0), s) for r in records for s in r.stats]

    async def windows(self, count: int) -> dict[tuple[int, int], Stats]:
        """Wait for the final Stats of so many windows, and return them by uid and start."""

        async def enough() -> dict[tuple[int, int], Stats]:
            found = await self.finals()
            return found if len(found) >= count else {}

        found: dict[tuple[int, int], Stats] = await self._until(enough, within=40, every=0.2)
        return found

    async def finals(self) -> dict[tuple[int, int], Stats]:
        """Return the final Stats by uid and start."""
        return {(uid, s.start): s for uid, s in await self.stats() if s.final}

    async def committed(self) -> dict[int, int]:
        """Return the group's commits for observations."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.kafka.brokers, group_id=f"{self.kafka.prefix}.stream"
        )
        await consumer.start()
        try:
            topic = self.topics.raw("observation")
            found = {p: await consumer.committed(TopicPartition(topic, p)) for p in range(4)}
            return {p: offset for p, offset in found.items() if offset}
        finally:
            await consumer.stop()


@pytest.fixture
def start() -> int:
    """Return the start of a window of two minutes ago."""
    return (time.time_ns() // SECOND - 120) // 10 * 10 * SECOND


@pytest.fixture
async def lab(kafka: str, prefix: str, processes: Any, until: Any) -> AsyncIterator[Lab]:
    """Return topics on the real Kafka."""
    lab = Lab(KafkaSettings(brokers=kafka, prefix=prefix), processes, until)
    await lab.open()
    yield lab
    await lab.producer.stop()


@pytest.fixture
async def embedded_lab(
    embedded_broker: Any, prefix: str, processes: Any, until: Any
) -> AsyncIterator[Lab]:
    """Return topics on the embedded broker."""
    lab = Lab(
        KafkaSettings(brokers=embedded_broker.address, prefix=prefix, embedded=True),
        processes,
        until,
    )
    await lab.open()
    yield lab
    await lab.producer.stop()


def figures(
    stats: Stats,
) -> tuple[int, int, float | None, float | None, float | None, float | None]:
    """Return what a window's Stats say."""
    return (stats.revision, stats.count, stats.mean, stats.min, stats.max, stats.median)


def expected(number: int) -> tuple[int, int, float, float, float, float]:
    """Return what the Stats of a miner's window number `number` must say."""
    low = 10.0 * number
    return (10, 10, low + 4.5, low, low + 9, low + 4.5)


async def check_windows(lab: Lab, start: int) -> None:
    """Run two miners through a worker, one of them with repeats, and compare everything."""
    miners = [Miner(uid, start) for uid in (1, 2)]
    frames = [[miner.frame(end=n == 5) for n in range(6)] for miner in miners]
    await lab.send(miners[0], *frames[0][:3], frames[0][1], *frames[0][3:])
    worker = lab.start()
    await lab.send(miners[1], *frames[1], frames[1][0])
    windows = await lab.windows(12)
    await lab.stop(worker)

    assert {key: figures(s) for key, s in windows.items()} == {
        (uid, start + 10 * n * SECOND): expected(n) for uid in (1, 2) for n in range(6)
    }
    assert {s.closed_by for s in windows.values()} == {"watermark", "end"}
    records = await lab.read(lab.topics.sink("sqlite"))
    kinds = [dict(record.headers)["kind"] for record in records]
    tagged = [
        decode_frame(r.value) for r, kind in zip(records, kinds, strict=True) if kind != b"stats"
    ]
    assert sorted((f.emitter, f.seq) for f in tagged) == sorted(
        (miner.id, seq) for miner in miners for seq in range(6)
    )
    assert {f.tags["version"] for f in tagged} == {"1.2"}
    stats = [
        decode_stats(r.value) for r, kind in zip(records, kinds, strict=True) if kind == b"stats"
    ]
    assert sum(len(s.stats) for s in stats) == 12


async def test_windows_and_frames_come_out_right_on_kafka(lab: Lab, start: int) -> None:
    """Every window's figures, every frame once, whether sent before or after the worker's start."""
    await check_windows(lab, start)


async def test_windows_and_frames_come_out_right_on_the_embedded_broker(
    embedded_lab: Lab, start: int
) -> None:
    """The same on the broker of the local mode."""
    await check_windows(embedded_lab, start)


async def test_a_clean_stop_saves_all_that_was_read(lab: Lab, start: int) -> None:
    """After SIGTERM the commit is at the log's end and a restart repeats nothing."""
    miner = Miner(1, start)
    worker = lab.start()
    await lab.send(miner, *(miner.frame() for _ in range(3)))
    await lab.windows(1)
    await lab.stop(worker)
    committed = await lab.committed()
    worker = lab.start()
    await lab.send(miner, miner.frame(end=True))
    windows = await lab.windows(4)
    await lab.stop(worker)

    assert list(committed.values()) == [3]
    assert [figures(s) for _, s in sorted(windows.items())] == [expected(n) for n in range(4)]
    assert len(await lab.stats()) == 4


async def test_bytes_that_are_no_frame_become_dead_letters(
    lab: Lab, start: int, until: Any
) -> None:
    """Garbage, nothing and a frame of another kind are kept; what follows them is read."""
    miner = Miner(1, start)
    key = origin_key(miner.origin)
    topic = lab.topics.raw("observation")
    for value in (b"garbage", None, b""):
        await lab.producer.send_and_wait(topic, value, key=key)
    frames = [miner.frame(), miner.frame(end=True)]
    await lab.producer.send_and_wait(lab.topics.raw("log"), frames[0], key=key)
    await lab.send(miner, *frames)
    worker = lab.start()
    windows = await lab.windows(2)
    letters = await until(lambda: four(lab), within=20)
    await lab.stop(worker)

    assert [figures(s) for _, s in sorted(windows.items())] == [expected(0), expected(1)]
    assert {r.key.decode().split("/")[0] for r in letters} == {"stream"}
    assert len({r.key for r in letters}) == 4


async def four(lab: Lab) -> list[Any]:
    """Return the dead letters once there are four."""
    letters = await lab.read(lab.topics.dead_letters)
    return letters if len(letters) >= 4 else []


async def test_a_refused_output_ends_the_process_uncommitted(
    lab: Lab, start: int, kafka: str, until: Any
) -> None:
    """The sink's topic takes no record of this size: exit 1, a reason, and no commit."""
    worker = lab.start(MLOPS_EVENTS_STREAM_CHECKPOINT_S="0.2")
    await until(lambda: "partitions loaded" in worker.stderr())
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    small = {"max.message.bytes": "100"}
    await admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, lab.topics.sink("sqlite"), configs=small)]
    )
    await admin.close()
    miner = Miner(1, start)
    await lab.send(miner, miner.frame())
    code = await asyncio.to_thread(worker.wait, within=30)

    assert code == 1
    assert "nothing more is committed" in worker.stderr()
    assert "MessageSizeTooLarge" in worker.stderr()
    assert await lab.committed() == {}


async def test_missing_topics_are_named(
    kafka: str, prefix: str, processes: Any, until: Any
) -> None:
    """A worker without its topics says which and how to create them."""
    lab = Lab(KafkaSettings(brokers=kafka, prefix=prefix), processes, until)
    worker = lab.start()

    assert await asyncio.to_thread(worker.wait, within=30) == 1
    assert f"no topic {prefix}.run.v1" in worker.stderr()
    assert "mlops-pipeline topics create" in worker.stderr()


async def half_read(lab: Lab, start: int) -> Miner:
    """Send five frames, have them read, and stop; windows of the last ones are open."""
    miner = Miner(1, start)
    worker = lab.start()
    await lab.send(miner, *(miner.frame() for _ in range(5)))
    await lab.windows(3)
    await lab.stop(worker)
    return miner


async def end(lab: Lab, miner: Miner, count: int) -> tuple[dict[int, Stats], str]:
    """Send the miner's last frame, run a worker until there are so many windows, and return them."""
    await lab.send(miner, miner.frame(end=True))
    worker = lab.start()
    windows = await lab.windows(count)
    await lab.stop(worker)
    return {
        (s - miner.start) // SECOND // 10: stats for (_, s), stats in windows.items()
    }, worker.stderr()


async def delete(lab: Lab, topic: str, before: int) -> None:
    """Delete the records of a topic below an offset, -1 for all, as retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=lab.kafka.brokers)
    await admin.start()
    await admin.delete_records(
        {
            TopicPartition(topic, p): RecordsToDelete(before_offset=before)
            for p in range(PARTITIONS)
            if before < 0 or p == await partition_of(lab)
        }
    )
    await admin.close()


async def partition_of(lab: Lab) -> int:
    """Return the partition that the miner's frames are in."""
    return next(r.partition for r in await lab.read(lab.topics.raw("observation")))


async def test_a_lost_checkpoint_is_made_up_for(lab: Lab, start: int) -> None:
    """Without any checkpoint the log is folded from its start, with an alert, to the same figures."""
    miner = await half_read(lab, start)
    await delete(lab, lab.topics.checkpoints, -1)
    windows, said = await end(lab, miner, 6)

    assert "ERROR mlops_events.streams.recovery checkpoint lost" in said
    assert {n: figures(s) for n, s in windows.items()} == {n: expected(n) for n in range(6)}


async def test_a_torn_checkpoint_is_ignored(lab: Lab, start: int) -> None:
    """Half of a checkpoint that is further on does not hide the whole one before it."""
    miner = await half_read(lab, start)
    torn = Checkpoint(
        group=f"{lab.kafka.prefix}.stream",
        topic=lab.topics.raw("observation"),
        partition=await partition_of(lab),
        partitions=PARTITIONS,
        incarnation=0,
        next=1_000_000,
        state=os.urandom(2 << 20),
    )
    await lab.producer.send_and_wait(
        lab.topics.checkpoints, split(torn)[0], partition=torn.partition
    )
    windows, said = await end(lab, miner, 6)

    assert "ERROR" not in said
    assert {n: figures(s) for n, s in windows.items()} == {n: expected(n) for n in range(6)}
    assert len(await lab.stats()) == 6


async def recreate(lab: Lab, topic: str, until: Any) -> None:
    """Delete a topic and create it again."""
    admin = AIOKafkaAdminClient(bootstrap_servers=lab.kafka.brokers)
    await admin.start()
    await admin.delete_topics([topic])

    async def gone() -> bool:
        return topic not in await admin.list_topics()

    await until(gone)
    specs = topic_specs(lab.topics, sinks=["sqlite"], partitions=PARTITIONS, replication=1)
    await create_topics(lab.kafka, [spec for spec in specs if spec.name == topic])
    await admin.close()


async def test_a_topic_made_anew_continues_the_old_one(lab: Lab, start: int, until: Any) -> None:
    """Deleted and created with the worker stopped: read from its start, open windows are kept."""
    miner = await half_read(lab, start)
    await recreate(lab, lab.topics.raw("observation"), until)
    windows, said = await end(lab, miner, 6)

    assert "ERROR mlops_events.streams.recovery source recreated" in said
    assert {n: figures(s) for n, s in windows.items()} == {n: expected(n) for n in range(6)}


async def test_a_topic_made_anew_under_a_running_worker_is_noticed(
    lab: Lab, start: int, until: Any
) -> None:
    """By the rebalance that follows, or by its records, for which the worker ends.

    More records come than the old topic had, so its end alone would not betray it.
    """
    miner = Miner(1, start)
    workers = [lab.start()]
    await lab.send(miner, *(miner.frame() for _ in range(5)))
    await lab.windows(3)
    await recreate(lab, lab.topics.raw("observation"), until)
    await lab.send(miner, *(miner.frame(end=n == 7) for n in range(8)))

    async def all_closed() -> bool:
        if workers[-1].poll() is not None:  # started again, as a supervisor does
            assert workers[-1].poll() == 1
            workers.append(lab.start())
        return len(await lab.finals()) == 13

    await until(all_closed, every=0.2)
    windows = await lab.finals()
    await lab.stop(workers[-1])

    assert "ERROR mlops_events.streams.recovery source recreated" in workers[-1].stderr()
    assert all("made anew under a running worker" in w.stderr() for w in workers[:-1])
    assert [figures(s) for _, s in sorted(windows.items())] == [expected(n) for n in range(13)]


async def add_partitions(lab: Lab, topics: list[str]) -> None:
    """Give topics more partitions than they had."""
    admin = AIOKafkaAdminClient(bootstrap_servers=lab.kafka.brokers)
    await admin.start()
    await admin.create_partitions({t: NewPartitions(total_count=PARTITIONS + 1) for t in topics})
    await admin.close()


async def test_a_topic_with_partitions_added_is_not_read(lab: Lab, start: int) -> None:
    """The running worker ends for it, and none starts, whatever else is changed to fit."""
    miner = Miner(1, start)
    worker = lab.start()
    await lab.send(miner, *(miner.frame() for _ in range(5)))
    await lab.windows(3)
    await add_partitions(lab, [lab.topics.raw("observation")])
    assert await asyncio.to_thread(worker.wait) == 1
    second = lab.start()
    assert await asyncio.to_thread(second.wait) == 1
    others = [topic for topic in lab.topics.raws if topic != lab.topics.raw("observation")]
    await add_partitions(lab, [*others, lab.topics.checkpoints])
    third = lab.start()
    assert await asyncio.to_thread(third.wait) == 1

    assert f"{lab.topics.raw('observation')} was given more than its 4" in worker.stderr()
    assert lab.topics.raw("observation") in second.stderr()
    assert "its checkpoints were written when it had 4" in third.stderr()
    for refused in (worker, second, third):
        assert "prefix" in refused.stderr().lower()


async def test_what_retention_took_is_counted_and_passed(lab: Lab, start: int) -> None:
    """Records deleted before they were read: an alert, and reading goes on behind them."""
    miner = await half_read(lab, start)
    await lab.send(miner, *(miner.frame() for _ in range(3)))
    await delete(lab, lab.topics.raw("observation"), 7)
    windows, said = await end(lab, miner, 7)

    assert "ERROR mlops_events.streams.recovery lost to retention" in said
    assert {n: figures(s) for n, s in windows.items()} == {
        n: expected(n) for n in (0, 1, 2, 3, 4, 7, 8)
    }


async def test_what_retention_takes_under_a_slow_worker_is_counted_and_passed(
    lab: Lab, start: int, until: Any
) -> None:
    """A worker stands still, records are sent and deleted, it goes on: no jump without a word."""
    miner = await half_read(lab, start)
    worker = lab.start()
    await until(lambda: "partitions loaded" in worker.stderr())
    worker.signal(signal.SIGSTOP)
    await lab.send(miner, *(miner.frame() for _ in range(3)))
    await delete(lab, lab.topics.raw("observation"), 7)
    worker.signal(signal.SIGCONT)
    await lab.send(miner, miner.frame(end=True))

    async def last() -> bool:
        return start + 80 * SECOND in {s.start for _, s in await lab.stats() if s.final}

    await until(last)
    windows = {s.start: figures(s) for _, s in await lab.stats() if s.final}
    await lab.stop(worker)

    windows.pop(start + 50 * SECOND, None)  # a fetch that was under way may have had it
    assert "records lost to retention" in worker.stderr()
    assert windows == {start + 10 * n * SECOND: expected(n) for n in (0, 1, 2, 3, 4, 7, 8)}
