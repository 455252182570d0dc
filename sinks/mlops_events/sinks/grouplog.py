"""One consumer group's view of one sink's topic: the only place where sinks meet Kafka."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import MAX_RECORD_BYTES
from mlops_events.sinks.log import LogError, LogRecord, OutRecord
from mlops_events.sinks.marks import encode_mark, find_marks
from mlops_events.sinks.position import HOLE_WAIT_S, READ_BACK_MS, Mark, Place
from mlops_events.sinks.topiccheck import check_topic

__all__ = ["GroupLog"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_CALL_S = 30.0
"""How long one question to Kafka may take."""

_SEND_S = 60.0
"""How long records may take until they are acknowledged."""

_STOP_S = 5.0
"""How long a client may take to stop; while the broker is away it never does."""

_RETRY_S = (0.5, 5.0)
_MARK_S = 10.0
"""How far apart the marks of one partition are on the embedded broker."""


class GroupLog:
    """The Log of a real Kafka or of the embedded broker.

    Args:
        kafka: where Kafka is.
        topic: the topic to read.
        group: the consumer group.
        instance_id: a name that no other member has and that stays over restarts; may be empty.
    """

    def __init__(
        self, kafka: KafkaSettings, *, topic: str, group: str, instance_id: str = ""
    ) -> None:
        self._kafka = kafka
        self._embedded = kafka.embedded
        self._topic = topic
        self._group = group
        self._instance_id = instance_id
        self._consumer: Any = None
        self._producer: Any = None
        self._polling: asyncio.Task[Any] | None = None
        self._assigned: frozenset[int] = frozenset()
        self._paused = False
        self._checked = False
        self._marked: dict[int, tuple[int, float]] = {}
        self._unmarked: dict[int, Mark] = {}

    @property
    def topic(self) -> str:
        """The topic that is read."""
        return self._topic

    @property
    def revoke_s(self) -> float:
        """How long the group waits for a member that has to give partitions up."""
        return 1.5 if self._embedded else 45.0

    async def start(self, on_revoked: Callable[[], Awaitable[None]]) -> None:
        """Join the group; retries until Kafka and the topic are there."""
        self._producer = await self._started(self._make_producer)
        consumer = await self._started(self._make_consumer)
        consumer.subscribe([self._topic], listener=_Listener(self, on_revoked))
        self._consumer = consumer

    def assigned(self) -> frozenset[int]:
        """Return the partitions that are held; none while the group reorders itself."""
        return self._assigned

    async def places(self, partitions: Collection[int]) -> dict[int, Place]:
        """Return what is known of partitions that were just assigned."""
        if not self._checked:  # not before: until now the topic may have been missing
            await check_topic(self._kafka, self._topic)
            self._checked = True
        tps = [TopicPartition(self._topic, p) for p in partitions]
        if self._embedded:
            commits, marks = await self._committed(tps), await self._mark_records(tps)
        else:
            commits, marks = await self._commits(tps)
        now_ms = int(time.time() * 1000)
        since = {
            tp: max(0, (marks[tp].timestamp_ms if tp in marks else now_ms) - READ_BACK_MS)
            for tp in tps
        }
        starts, found = await asyncio.gather(  # each waits for the fetch that is under way
            self._ask(self._consumer.beginning_offsets(tps)),
            self._ask(self._consumer.offsets_for_times(since)),
        )
        return {
            tp.partition: Place(
                committed=commits.get(tp),
                mark=marks.get(tp),
                log_start=starts[tp],
                by_time=found[tp].offset if found.get(tp) is not None else None,
            )
            for tp in tps
        }

    async def bounds(self, partition: int) -> tuple[int, int | None]:
        """Return where a log starts, and where it ends if that can be told."""
        tp = TopicPartition(self._topic, partition)
        starts = await self._ask(self._consumer.beginning_offsets([tp]))
        if self._embedded:  # its answer about ends is wrong, but that of a fetch is right
            return starts[tp], self.end(partition)
        ends = await self._ask(self._consumer.end_offsets([tp]))
        return starts[tp], ends[tp]

    def end(self, partition: int) -> int | None:
        """Return where a log ended at the last fetch, if there was one."""
        if partition not in self._assigned:
            return None
        with contextlib.suppress(IllegalStateError):
            end: int | None = self._consumer.highwater(TopicPartition(self._topic, partition))
            return end
        return None

    def seek(self, partition: int, offset: int) -> None:
        """Read on from here; does nothing if the partition is held no longer."""
        with contextlib.suppress(IllegalStateError):
            self._consumer.seek(TopicPartition(self._topic, partition), offset)

    async def poll(
        self, *, timeout_s: float, max_records: int
    ) -> Mapping[int, Sequence[LogRecord]]:
        """Return what was read; keeps the place in the group."""
        # While the group reorders itself this waits however long that takes. It is not cancelled,
        # but waited for again the next time.
        polling = self._polling
        if polling is None:
            timeout_ms = max(0, int(timeout_s * 1000))
            polling = self._polling = asyncio.ensure_future(
                self._consumer.getmany(timeout_ms=timeout_ms, max_records=max_records)
            )
        done, _ = await asyncio.wait({polling}, timeout=timeout_s + 0.2)
        if not done:
            return {}
        self._polling = None
        return {tp.partition: records for tp, records in polling.result().items()}

    def pause(self) -> None:
        """Read nothing, from partitions that come later either."""
        self._paused = True
        self._pause_held(self._assigned)

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        with contextlib.suppress(IllegalStateError):
            self._consumer.resume(*(TopicPartition(self._topic, p) for p in self._assigned))

    async def commit(self, marks: Mapping[int, Mark]) -> None:
        """Keep for each partition what was handled."""
        await self._ask(
            self._consumer.commit(
                {
                    TopicPartition(self._topic, p): OffsetAndMetadata(mark.next, mark.encode())
                    for p, mark in marks.items()
                }
            )
        )
        if self._embedded:
            self._unmarked.update(marks)
            await self._keep_marks(_MARK_S)

    async def send(self, topic: str, records: Sequence[OutRecord]) -> None:
        """Write records and wait until all are acknowledged."""

        async def all_acknowledged() -> None:
            sent = [
                await self._producer.send(
                    topic, value=record.value, key=record.key, headers=record.headers
                )
                for record in records
            ]
            await asyncio.gather(*sent)

        await self._ask(all_acknowledged(), within_s=_SEND_S)

    async def close(self) -> None:
        """Leave the group; may be called twice, and without `start`."""
        if self._unmarked:
            with contextlib.suppress(LogError):  # an older one will do
                await self._keep_marks(0.0)
        consumer, self._consumer = self._consumer, None
        producer, self._producer = self._producer, None
        if consumer is not None:
            await _stop(consumer.stop())
        if self._polling is not None:
            polling, self._polling = self._polling, None
            await _stop(polling)
        if producer is not None:
            await _stop(producer.stop())

    def _make_consumer(self) -> Any:
        embedded = self._embedded
        session_s = 2 if embedded else 30 if self._instance_id else 10
        options: dict[str, Any] = {
            "group_id": self._group,
            "group_instance_id": None if embedded else self._instance_id or None,
            "enable_auto_commit": False,
            # A jump of the client is noticed and undone: position.py. "none" would also raise at
            # every first start.
            "auto_offset_reset": "earliest",
            "session_timeout_ms": session_s * 1000,
            "heartbeat_interval_ms": 500 if embedded else 1000,
            "rebalance_timeout_ms": 2000 if embedded else 60_000,
            "request_timeout_ms": 90_000,
            "metadata_max_age_ms": 10_000,
            "max_partition_fetch_bytes": MAX_RECORD_BYTES,
            "fetch_max_wait_ms": 250,
            **self._kafka.client_options(),
        }
        return AIOKafkaConsumer(**options)

    def _make_producer(self) -> Any:
        return AIOKafkaProducer(
            acks="all",
            enable_idempotence=not self._embedded,
            compression_type="zstd",
            max_request_size=MAX_RECORD_BYTES,
            request_timeout_ms=10_000,
            **self._kafka.client_options(),
        )

    async def _started(self, make: Callable[[], Any]) -> Any:
        """Make a client and start it, however long that takes."""
        delay_s, longest_s = _RETRY_S
        while True:
            client = make()
            try:
                await client.start()
            except KafkaError as error:
                await _stop(client.stop())
                log.warning(
                    "Kafka cannot be reached", extra={"group": self._group, "error": str(error)}
                )
                await asyncio.sleep(delay_s)
                delay_s = min(longest_s, delay_s * 2)
            except BaseException:
                await _stop(client.stop())
                raise
            else:
                return client

    async def _ask(self, question: Coroutine[Any, Any, T], *, within_s: float = _CALL_S) -> T:
        try:
            return await asyncio.wait_for(question, within_s)
        except (KafkaError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise LogError(f"{self._topic}: {reason}") from error

    async def _commits(
        self, tps: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Mark]]:
        """The group's commits and their marks; consumer.committed() would lack the metadata."""
        admin = AIOKafkaAdminClient(request_timeout_ms=10_000, **self._kafka.client_options())

        async def ask() -> Mapping[TopicPartition, OffsetAndMetadata]:
            await admin.start()
            found: Mapping[
                TopicPartition, OffsetAndMetadata
            ] = await admin.list_consumer_group_offsets(self._group, partitions=tps)
            return found

        try:
            found = await self._ask(ask())
        finally:
            await _stop(admin.close())
        commits = {tp: commit.offset for tp, commit in found.items() if commit.offset >= 0}
        marks = {tp: mark for tp in commits if (mark := Mark.decode(found[tp].metadata))}
        return commits, marks

    async def _committed(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's commits, from a broker that gives no metadata back."""
        offsets = {tp: await self._ask(self._consumer.committed(tp)) for tp in tps}
        return {tp: offset for tp, offset in offsets.items() if offset is not None}

    async def _mark_records(self, tps: list[TopicPartition]) -> dict[TopicPartition, Mark]:
        """The marks of partitions, from the records that keep them."""
        consumer = AIOKafkaConsumer(
            enable_auto_commit=False,
            max_partition_fetch_bytes=MAX_RECORD_BYTES,
            fetch_max_wait_ms=20,
            **self._kafka.client_options(),
        )

        async def find() -> dict[int, Mark]:
            await consumer.start()
            return await find_marks(
                _CheckpointReader(consumer, self._kafka.topics.checkpoints),
                group=self._group,
                topic=self._topic,
                partitions=[tp.partition for tp in tps],
            )

        try:
            marks = await self._ask(find())
        finally:
            await _stop(consumer.stop())
        return {TopicPartition(self._topic, partition): mark for partition, mark in marks.items()}

    async def _keep_marks(self, every_s: float) -> None:
        """Write marks that are due; they may lag behind the commit."""
        now = time.monotonic()
        due = []
        for partition, mark in self._unmarked.items():
            incarnation, at = self._marked.get(partition, (-1, 0.0))
            if incarnation != mark.incarnation or now - at >= every_s:
                due.append((partition, mark))

        async def all_acknowledged() -> None:
            topic = self._kafka.topics.checkpoints
            sent = []
            for partition, mark in due:
                value = encode_mark(mark, group=self._group, topic=self._topic, partition=partition)
                key = f"{self._group}/{self._topic}/{partition}".encode()
                sent.append(await self._producer.send(topic, value, key=key, partition=partition))
            await asyncio.gather(*sent)

        await self._ask(all_acknowledged())
        for partition, mark in due:
            self._marked[partition] = (mark.incarnation, now)
            del self._unmarked[partition]

    def _pause_held(self, partitions: frozenset[int]) -> None:
        with contextlib.suppress(IllegalStateError):
            self._consumer.pause(*(TopicPartition(self._topic, p) for p in partitions))

    def _on_assigned(self, partitions: frozenset[int]) -> None:
        self._assigned = partitions
        self._marked.clear()
        self._unmarked.clear()
        if self._paused:
            self._pause_held(partitions)

    def _on_revoked(self) -> None:
        self._assigned = frozenset()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    """Hands the group's orders on."""

    def __init__(self, owner: GroupLog, on_revoked: Callable[[], Awaitable[None]]) -> None:
        self._owner = owner
        self._on_revoked = on_revoked

    # aiokafka awaits them if they are async, as its documentation says and its types do not.
    async def on_partitions_revoked(self, revoked: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._owner._on_revoked()  # noqa: SLF001 - its own half
        await self._on_revoked()

    async def on_partitions_assigned(self, assigned: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._owner._on_assigned(frozenset(tp.partition for tp in assigned))  # noqa: SLF001


class _CheckpointReader:
    """Reads the checkpoints topic by assignment."""

    def __init__(self, consumer: Any, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    async def ends(self, partitions: Collection[int]) -> dict[int, int]:
        # the embedded broker tells them with a fetch only
        tps = self._take(dict.fromkeys(partitions, 0))
        while None in (ends := {tp.partition: self._consumer.highwater(tp) for tp in tps}).values():
            await self._consumer.getmany(timeout_ms=50, max_records=1)
        return ends

    async def read(self, spans: Mapping[int, range]) -> dict[int, list[bytes | None]]:
        tps = self._take({p: span.start for p, span in spans.items()})
        values: dict[int, list[bytes | None]] = {}
        heard = time.monotonic()
        while tps and time.monotonic() - heard < HOLE_WAIT_S:
            for tp, records in (await self._consumer.getmany(timeout_ms=100)).items():
                stop = spans[tp.partition].stop
                found = values.setdefault(tp.partition, [])
                found += [record.value for record in records if record.offset < stop]
                heard = time.monotonic()
            tps = [tp for tp in tps if await self._consumer.position(tp) < spans[tp.partition].stop]
        return values

    def _take(self, starts: Mapping[int, int]) -> list[TopicPartition]:
        tps = [TopicPartition(self._topic, p) for p in starts]
        self._consumer.assign(tps)
        for tp in tps:
            self._consumer.seek(tp, starts[tp.partition])
        return tps


async def _stop(stopping: Awaitable[Any]) -> None:
    """Wait a while for a client to stop; what it says then is of no use any more."""
    task = asyncio.ensure_future(stopping)
    _, pending = await asyncio.wait({task}, timeout=_STOP_S)
    if pending:
        task.cancel()
        await asyncio.wait({task}, timeout=_STOP_S)
    if task.done() and not task.cancelled():
        task.exception()
