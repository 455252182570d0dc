"""Worker: nothing is saved before it is delivered, nothing goes on after it went wrong."""

import asyncio
import contextlib
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mlops_events.schemas import DecodeError, FrameEncoder, Origin
from mlops_events.schemas.deadletters import decode_dead_letter
from mlops_events.schemas.frame import Row, Series, decode_frame, decode_stats
from mlops_events.schemas.health import Counters
from mlops_events.schemas.topics import Topics
from mlops_events.schemas.values import ENCODER
from mlops_events.streams import outbox as outbox_module
from mlops_events.streams.checkpoint import Checkpoint, split
from mlops_events.streams.logreader import LogReader, TopicPartition
from mlops_events.streams.outbox import Outbox
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.worker import Worker

TOPICS = Topics("t")
RAW = TopicPartition(TOPICS.raw("observation"), 0)
CHECKPOINTS = TopicPartition(TOPICS.checkpoints, 0)
SINK = TopicPartition(TOPICS.sink("sqlite"), 0)
DEAD = TopicPartition(TOPICS.dead_letters, 0)
STATS = TopicPartition(TOPICS.stats, 0)
SECOND = 1_000_000_000
GROUP = "g"


class Miner:
    """An emitter: each frame holds one observation, 10 s after the one before."""

    def __init__(self) -> None:
        self.origin = Origin(run="r", role="miner", uid=1)
        self.id = os.urandom(16)
        self.frames = 0
        self._start = time.time_ns()
        self._encoder = FrameEncoder(emitter=self.id, kind="observation", origin=self.origin)

    def frame(self, *, end: bool = False) -> bytes:
        """Return the next frame."""
        seq, self.frames = self.frames, self.frames + 1
        ts = self._start + 10 * seq * SECOND
        return self._encoder.encode(
            [ENCODER.encode(Row(0, ts, seq, [float(seq)]))],
            seq=seq,
            closed_ns=ts,
            accepted=seq + 1,
            dropped=0,
            series=[Series(0, "training", ["loss"])],
            end=end,
        )


class Builder:
    """A batch of records."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def append(
        self,
        *,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> object | None:
        """Take a record."""
        self.values.append(value or b"")
        return self

    def close(self) -> None:
        """Take no more."""

    def size(self) -> int:
        """Return its bytes."""
        return sum(map(len, self.values))


class Kafka:
    """Logs with a producer and a group's consumer on them; arrivals can be held or refused."""

    def __init__(self, logs: Any) -> None:
        self.logs = logs
        self.commits: dict[TopicPartition, int] = {}
        self.seeks: list[dict[TopicPartition, int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.refusal: Exception | None = None

    def create_batch(self) -> Builder:
        """Return an empty batch."""
        return Builder()

    async def send_batch(
        self, batch: Builder, topic: str, *, partition: int
    ) -> "asyncio.Future[None]":
        """Append a batch to its log, when arrivals are open."""
        return asyncio.ensure_future(self._arrive(TopicPartition(topic, partition), batch.values))

    async def send(
        self, topic: str, *, value: bytes, key: bytes, partition: int
    ) -> "asyncio.Future[None]":
        """Append a record to its log."""
        return asyncio.ensure_future(self._arrive(TopicPartition(topic, partition), [value]))

    async def _arrive(self, tp: TopicPartition, values: Iterable[bytes]) -> None:
        await self.open.wait()
        if self.refusal is not None:
            raise self.refusal
        for value in values:
            self.logs.append(tp, value, timestamp=time.time_ns() // 1_000_000)

    async def prepare(self) -> None:
        """Get ready, once that is allowed."""
        await self.may_load.wait()

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note where to read on."""
        self.seeks.append(dict(offsets))

    async def log_start(self, partition: TopicPartition) -> int:
        """Return where a log starts."""
        return int(self.logs.starts.get(partition, 0))

    async def log_ends(self) -> Mapping[TopicPartition, int]:
        """Return where the raw log ends."""
        return {RAW: self.logs.ends.get(RAW, 0)}

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return what was committed."""
        return {tp: self.commits[tp] for tp in partitions if tp in self.commits}

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit."""
        self.commits.update(offsets)


class Lab:
    """A raw log, and workers on it."""

    def __init__(self, kafka: Kafka, until: Any) -> None:
        self.kafka = kafka
        self.logs = kafka.logs
        self.counters = Counters("stream")
        self.worker: Worker = None  # type: ignore[assignment]
        self.running: asyncio.Task[None] = None  # type: ignore[assignment]
        self._until = until

    def start(self, *, partitions: int = 1, **settings: Any) -> None:
        """Start a worker and assign it the raw log."""

        @asynccontextmanager
        async def reader() -> AsyncIterator[LogReader]:
            yield LogReader(self.logs, embedded=self.logs.embedded)

        topics = [*TOPICS.raws, TOPICS.sink("sqlite"), TOPICS.stats, TOPICS.checkpoints]
        self.worker = Worker(
            StreamSettings(**{"checkpoint_s": 0.02, **settings}),
            topics=TOPICS,
            group=GROUP,
            partitions=dict.fromkeys(topics, partitions),
            place=lambda topic, key: TopicPartition(topic, 0),
            source=self.kafka,
            producer=self.kafka,
            outbox=Outbox(self.kafka),
            reader=reader,
            counters=self.counters,
        )
        self.running = asyncio.create_task(self.worker.run())
        self.worker.assigned([RAW])

    async def ready(self) -> None:
        """Wait for the worker's state."""
        await self._until(lambda: self.worker.ready, within=10, every=0.001)

    async def kill(self) -> None:
        """End the worker without a word."""
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running

    def write(self, *values: bytes) -> None:
        """Append to the raw log."""
        for value in values:
            self.logs.append(RAW, value, timestamp=time.time_ns() // 1_000_000)

    async def take(self, start: int = 0, stop: int | None = None) -> None:
        """Give the worker these records of the raw log."""
        records = self.logs.records.get(RAW, [])
        await self.worker.take(RAW, [r for r in records if start <= r.offset < (stop or 1 << 60)])

    def values(self, tp: TopicPartition) -> list[bytes]:
        """Return what a log holds."""
        return [r.value for r in self.logs.records.get(tp, [])]

    def frames(self) -> list[int]:
        """Return the numbers of the frames in the sink's topic."""
        found: list[int] = []
        for value in self.values(SINK):
            with contextlib.suppress(DecodeError):
                found.append(decode_frame(value).seq)
        return found

    def finals(self) -> list[int]:
        """Return the numbers of the windows that are final, by what is in them."""
        stats = [s for value in self.values(STATS) for s in decode_stats(value).stats]
        return [int(s.mean or 0) for s in stats if s.final]

    async def committed(self, offset: int) -> None:
        """Wait for a commit."""
        await self._until(lambda: self.kafka.commits.get(RAW) == offset, within=10, every=0.001)

    async def failure(self) -> str:
        """Wait for the worker's end and return the reasons."""
        await asyncio.wait([self.running], timeout=10)
        error = self.running.exception()
        assert error is not None
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}"


@pytest.fixture
def miner() -> Miner:
    """Return an emitter."""
    return Miner()


@pytest.fixture
async def lab(logs: Any, until: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """Yield an empty lab, where checkpoints may be larger than what is read."""
    monkeypatch.setattr("mlops_events.streams.checkpoint.AT_MOST_S", 0.0)
    lab = Lab(Kafka(logs), until)
    yield lab
    if lab.running is not None and not lab.running.done():
        await lab.kill()


async def test_records_become_outputs_then_a_checkpoint_then_a_commit(
    lab: Lab, miner: Miner
) -> None:
    """Frames are sent on, passed windows come out, the commit follows the checkpoint."""
    lab.write(*(miner.frame() for _ in range(4)))
    lab.start()
    await lab.ready()
    await lab.take()
    await lab.committed(4)

    assert lab.frames() == [0, 1, 2, 3]
    assert lab.finals() == [0, 1]
    assert lab.values(CHECKPOINTS)


async def test_a_successor_goes_on_where_the_checkpoint_was_cut(lab: Lab, miner: Miner) -> None:
    """After a kill nothing is sent again, and open windows are complete."""
    lab.write(*(miner.frame() for _ in range(3)))
    lab.start()
    await lab.ready()
    await lab.take()
    await lab.committed(3)
    await lab.kill()
    lab.write(miner.frame(end=True))
    lab.start()
    await lab.ready()
    await lab.take(2)
    await lab.committed(4)

    assert lab.kafka.seeks[-1] == {RAW: 3}
    assert lab.frames() == [0, 1, 2, 3]
    assert lab.finals() == [0, 1, 2, 3]


async def test_no_checkpoint_runs_ahead_of_the_outputs(lab: Lab, miner: Miner) -> None:
    """While outputs are under way nothing is written or committed."""
    lab.start()
    await lab.ready()
    await lab.committed(0)
    checkpoints = len(lab.values(CHECKPOINTS))
    lab.kafka.open.clear()
    lab.write(miner.frame())
    await lab.take()
    await asyncio.sleep(0.1)

    assert len(lab.values(CHECKPOINTS)) == checkpoints
    assert lab.kafka.commits == {RAW: 0}
    lab.kafka.open.set()
    await lab.committed(1)
    assert len(lab.values(CHECKPOINTS)) > checkpoints


async def test_an_undelivered_output_ends_the_worker_uncommitted(lab: Lab, miner: Miner) -> None:
    """The reason comes out, and no commit goes past the record."""
    lab.start()
    await lab.ready()
    await lab.committed(0)
    lab.kafka.refusal = RuntimeError("refused")
    lab.write(miner.frame())
    await lab.take()

    failure = await lab.failure()
    assert "t.sink.sqlite.v1, partition 0, does not take" in failure
    assert "refused" in failure
    assert lab.kafka.commits == {RAW: 0}


async def test_events_without_a_sink_are_counted_and_named_once(
    lab: Lab, miner: Miner, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """They are in their raw topic and nowhere else, so somebody should know."""
    lab.start(sinks=("loki",), checkpoint_s=1000)
    await lab.ready()
    for _ in range(2):
        lab.write(miner.frame())
        await lab.take(miner.frames - 1)
        await until(lambda: lab.counters.total("dropped", "no_route") == miner.frames)

    assert [r.message for r in caplog.records].count("no sink takes events of this kind") == 1


async def test_a_dead_letter_says_how_often_its_record_was_redriven(lab: Lab, until: Any) -> None:
    """It counts by its reason, and has a key of its own."""
    lab.start(checkpoint_s=1000)
    await lab.ready()
    lab.write(b"junk", b"junk")
    first, second = lab.logs.records[RAW]
    lab.logs.records[RAW] = [first, second._replace(headers=[("redriven", b"2")])]
    await lab.take()
    await until(lambda: len(lab.values(DEAD)) == 2)

    new, again = map(decode_dead_letter, lab.values(DEAD))
    assert (new.redriven, again.redriven) == (0, 2)
    assert again.key == f"stream/{RAW.topic}/0/1/{zlib.crc32(b'junk'):08x}#2"
    assert lab.counters.total("dropped", "dead_letter_undecodable") == 2


async def test_a_batch_that_is_not_folded_to_its_end_ends_the_worker(lab: Lab) -> None:
    """A fault of ours on the way: better to start anew than to go on with half of it."""
    lab.start()
    await lab.ready()

    class Odd:
        offset = 0
        timestamp = "now"
        value = b""

    odd: Any = Odd()
    with pytest.raises(TypeError):
        await lab.worker.take(RAW, [odd])
    assert "was not folded to its end" in await lab.failure()


async def test_a_revoked_partition_is_saved_and_let_go(lab: Lab, miner: Miner) -> None:
    """Its new owner finds the checkpoint; what comes for it later waits for an assignment."""
    lab.write(miner.frame(), miner.frame())
    lab.start(checkpoint_s=1000)
    await lab.ready()
    await lab.take()
    await lab.worker.revoked(within_s=5)
    late = asyncio.create_task(lab.take())
    await asyncio.sleep(0.01)

    assert lab.kafka.commits == {RAW: 2}
    assert not late.done()
    lab.worker.assigned([])
    await late
    assert lab.frames() == [0, 1]


async def test_a_partition_that_is_revoked_while_it_loads_is_not_held(
    lab: Lab, miner: Miner
) -> None:
    """The state that arrives then belongs to nobody; the next assignment loads it again."""
    lab.write(miner.frame())
    lab.kafka.may_load.clear()
    lab.start()
    await asyncio.sleep(0.01)
    await lab.worker.revoked(within_s=5)
    lab.kafka.may_load.set()
    await asyncio.sleep(0.1)
    ready = lab.worker.ready
    lab.worker.assigned([RAW])
    await lab.ready()
    await lab.take()
    await lab.committed(1)

    assert not ready
    assert lab.frames() == [0]


async def test_a_revocation_does_not_wait_for_ever(lab: Lab, miner: Miner) -> None:
    """With the broker stuck the checkpoint is given up in time, which costs repeats only."""
    lab.start(checkpoint_s=1000)
    await lab.ready()
    lab.kafka.open.clear()
    lab.write(miner.frame())
    await lab.take()
    await lab.worker.revoked(within_s=0.05)

    assert lab.kafka.commits == {}
    assert lab.counters.total("errors", "checkpoint_late") == 1


async def test_a_drained_worker_has_saved_all_and_takes_nothing_more(
    lab: Lab, miner: Miner
) -> None:
    """What comes after the order to stop is left to the next worker."""
    lab.write(miner.frame(), miner.frame())
    lab.start(checkpoint_s=1000)
    await lab.ready()
    await lab.take(0, 1)
    drained = await lab.worker.drain(within_s=5)
    await lab.take()

    assert drained
    assert lab.kafka.commits == {RAW: 1}
    assert lab.frames() == [0]


async def test_skipped_records_are_read_again(lab: Lab, miner: Miner) -> None:
    """A batch from the middle makes the worker seek, and nothing of it gets through."""
    lab.write(*(miner.frame() for _ in range(4)))
    lab.start()
    await lab.ready()
    await lab.take(0, 1)
    await lab.take(2)
    await lab.take(1)
    await lab.committed(4)

    assert lab.kafka.seeks[1:] == [{RAW: 1}]
    assert lab.frames() == [0, 1, 2, 3]


async def test_records_lost_to_retention_are_passed_while_it_runs(lab: Lab, miner: Miner) -> None:
    """The log's start moved past what is next: counted, and the same batch is taken."""
    lab.write(*(miner.frame() for _ in range(6)))
    lab.start()
    await lab.ready()
    await lab.take(0, 2)
    lab.logs.starts[RAW] = 4
    await lab.take(4)
    await lab.committed(6)

    assert lab.frames() == [0, 1, 4, 5]
    assert lab.counters.total("errors", "expired") == 1
    assert lab.kafka.seeks[1:] == []


async def test_a_log_made_anew_under_a_running_worker_ends_it(lab: Lab, miner: Miner) -> None:
    """It ends before what was read, so its records would all pass for repeats."""
    lab.write(*(miner.frame() for _ in range(4)))
    lab.start()
    await lab.ready()
    await lab.take()
    lab.logs.records[RAW] = lab.logs.records[RAW][:2]
    lab.logs.ends[RAW] = 2

    with pytest.raises(Exception, match="made anew"):
        await lab.take()
    assert "made anew" in await lab.failure()


async def test_a_full_outbox_holds_the_batch_back(
    lab: Lab, miner: Miner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backpressure: a batch is taken when there is room for its outputs."""
    monkeypatch.setattr(outbox_module, "MAX_BYTES", 100)
    lab.start()
    await lab.ready()
    lab.kafka.open.clear()
    lab.write(miner.frame())
    taking = asyncio.create_task(lab.take())
    await asyncio.sleep(0.02)

    assert not taking.done()
    lab.kafka.open.set()
    await asyncio.wait_for(taking, 5)
    await lab.committed(1)


async def test_silent_emitters_are_shown_at_the_end_of_the_log(
    lab: Lab, miner: Miner, monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    """Open windows come out as provisional Stats, which no commit waits for."""
    monkeypatch.setattr("mlops_events.streams.worker.PROVISIONAL_TICK_S", 0.1)
    lab.write(miner.frame())
    lab.start(provisional_s=0.2)
    await lab.ready()
    await lab.take()
    await until(lambda: lab.values(STATS), within=20)
    stats = [s for value in lab.values(STATS) for s in decode_stats(value).stats]

    assert [(s.final, s.revision) for s in stats] == [(False, 1)]


def saved(state: bytes, *, partitions: int = 1) -> Checkpoint:
    """Return a checkpoint of the raw log."""
    return Checkpoint(
        group=GROUP,
        topic=RAW.topic,
        partition=0,
        partitions=partitions,
        incarnation=0,
        next=5,
        state=state,
    )


@pytest.mark.parametrize(
    ("checkpoint", "reason"),
    [
        (saved(b"", partitions=3), "ConfigError: topic t.observation.v1 has 1 partitions"),
        (saved(b"\x99nonsense"), "DecodeError"),
    ],
)
async def test_a_checkpoint_that_cannot_be_continued_ends_the_start(
    lab: Lab, checkpoint: Checkpoint, reason: str
) -> None:
    """Another number of partitions, or a state of another version: nothing is thrown away."""
    for record in split(checkpoint):
        lab.logs.append(CHECKPOINTS, record)
    lab.start()

    assert (await lab.failure()).startswith(reason)


async def test_a_lost_checkpoint_is_an_alert(lab: Lab, miner: Miner) -> None:
    """The group has a commit but no state: the log is folded from its start, and it is said."""
    lab.write(miner.frame(), miner.frame())
    lab.kafka.commits[RAW] = 1
    lab.start()
    await lab.ready()
    await lab.take()
    await lab.committed(2)

    assert lab.frames() == [0, 1]
    assert lab.counters.total("errors", "checkpoint_lost") == 1


async def test_what_happened_to_the_log_meanwhile_is_told(lab: Lab, miner: Miner) -> None:
    """Between two workers: retention passes what is next, then the log is made anew."""
    lab.write(*(miner.frame() for _ in range(3)))
    lab.start()
    await lab.ready()
    await lab.take()
    await lab.committed(3)
    await lab.kill()
    lab.write(*(miner.frame() for _ in range(3)))
    lab.logs.records[RAW] = lab.logs.records[RAW][4:]
    lab.logs.starts[RAW] = 4
    lab.start()
    await lab.ready()
    await lab.take()
    await lab.committed(6)
    await lab.kill()
    lab.logs.records[RAW], lab.logs.starts[RAW], lab.logs.ends[RAW] = [], 0, 0
    lab.write(miner.frame(end=True))
    lab.start()
    await lab.ready()
    await lab.take()
    await lab.committed(1)

    assert lab.frames() == [0, 1, 2, 4, 5, 6]
    assert lab.counters.total("errors", "expired") == 1
    assert lab.counters.total("errors", "recreated") == 1


async def test_what_passes_is_counted(lab: Lab, miner: Miner, until: Callable[..., Any]) -> None:
    """Events in and out, repeats, checkpoints."""
    frame = miner.frame()
    lab.write(frame, frame, b"garbage")
    lab.start()
    await lab.ready()
    await lab.take()
    await until(lambda: lab.counters.total("sent", "dead_letters"))

    assert lab.counters.total("received", "observation") == 1
    assert lab.counters.total("repeats") == 1
    assert lab.counters.total("sent", "events") == 1
