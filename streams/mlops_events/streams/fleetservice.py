"""The fleet service: reads Stats and Run events of all partitions, publishes what follows."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import Run
from mlops_events.schemas.frame import decode_frame, decode_stats
from mlops_events.schemas.health import Counters
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.clients import count_partitions, make_producer, open_reader
from mlops_events.streams.crew import Crews
from mlops_events.streams.derived import DerivedLog
from mlops_events.streams.fleet import Fleet, FleetOut
from mlops_events.streams.fleetsettings import FleetStatsSettings
from mlops_events.streams.follow import Follower, open_follower
from mlops_events.streams.history import Versions
from mlops_events.streams.logreader import LogReader, LogRecord, Span, TopicPartition
from mlops_events.streams.outputs import Output, OutputEncoder
from mlops_events.streams.presence import Presence
from mlops_events.streams.settings import StreamSettings

__all__ = ["FleetService"]

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
POLL_S: Final = 0.5
SWEEP_S: Final = 10.0
SEND_S: Final = 60.0
DRAIN_S: Final = 10.0
STOP_S: Final = 5.0

_MS: Final = 1_000_000


class FleetService:
    """Folds two topics and publishes; `run` does it until told to stop.

    Nothing is kept between runs: the Stats of the last `keep_s` are read again, and what was
    published of them is known by the service's own Stats there. These are sent last: what is in the
    Stats topic is in the sinks' topics too.

    Args:
        settings: of the service.
        stream: of the streams, for routes and tags.
        kafka: where the topics are.
    """

    def __init__(
        self, settings: FleetStatsSettings, *, stream: StreamSettings, kafka: KafkaSettings
    ) -> None:
        topics = kafka.topics
        self.counters = Counters("fleet")
        self.ready = False
        self._settings = settings
        self._kafka = kafka
        self._run_topic, self._stats_topic = topics.raw("run"), topics.stats
        self._topics = [self._run_topic, self._stats_topic, *map(topics.sink, stream.sinks)]
        self._encoder = OutputEncoder(stream, topics=topics, kind="log", partition=0)
        self._crews = Crews(settings)
        self._presence = Presence(settings, self._crews)
        self._versions = Versions()
        self._fleet = Fleet(settings, self._crews)
        self._producer: Any = None
        self._remember_ns = stream.keep_ns  # as long as the run topic has it
        self._lag = 0
        self._newest_ns = 0
        self._heard_at = time.monotonic()
        self._counted = (0, 0)
        counters = self.counters
        counters.gauge("windows", lambda: self._fleet.held)
        counters.gauge("nodes_missing", self._presence.missing)
        counters.gauge("lag_records", lambda: self._lag)

    async def run(self, stop: asyncio.Event) -> None:
        """Read back, then follow until told to stop; publish what still waits then.

        Raises:
            ConfigError: topics are missing.
            MlopsEventsError: a topic was made anew.
            KafkaError: a broker failed.
            TimeoutError: a broker does not answer.
        """
        async with AsyncExitStack() as clients:
            self._producer = make_producer(self._kafka)
            clients.push_async_callback(_stop, self._producer)
            await self._producer.start()
            partitions = await count_partitions(self._producer, self._topics)
            group = self._settings.group or f"{self._kafka.prefix}.fleet"
            follower = await clients.enter_async_context(open_follower(self._kafka, group=group))
            await self._read_back(follower, partitions)
            self.ready = True
            await self._follow(follower, stop)
            await self._drain(follower, partitions)

    # --- reading ------------------------------------------------------------------------------

    async def _read_back(self, follower: Follower, partitions: Mapping[str, int]) -> None:
        """Take what was there before, and go to the logs' ends."""
        runs, stats = (
            [TopicPartition(topic, number) for number in range(partitions[topic])]
            for topic in (self._run_topic, self._stats_topic)
        )
        back_s = self._settings.keep_s + self._settings.seen_s
        since_ms = max(0, round((time.time() - back_s) * 1000))
        first = await follower.since(stats, since_ms=since_ms)
        committed = await follower.committed(runs)
        async with open_reader(self._kafka) as reader:
            logs = await reader.bounds([*runs, *stats])
            said = await self._read_runs(reader, {tp: logs[tp] for tp in runs}, committed)
            spans = {
                tp: Span(max(first.get(tp, logs[tp].end), logs[tp].start), logs[tp].end)
                for tp in stats
            }
            read = 0
            async for _, record in reader.read(spans):
                self._take_stats(record)
                read += 1
        log.info("read back", extra={"stats_records": read, "windows": self._fleet.held})
        await self._publish((), said)
        ends = {tp: span.end for tp, span in logs.items()}
        follower.go(ends)
        await follower.commit({tp: ends[tp] for tp in runs})

    async def _read_runs(
        self,
        reader: LogReader,
        logs: Mapping[TopicPartition, Span],
        committed: Mapping[TopicPartition, int],
    ) -> list[DerivedLog]:
        """Take all Run events there are; return what is to be said of those not committed."""
        found = [one async for one in reader.read(logs)]
        found.sort(key=lambda one: (one[1].timestamp, one[0], one[1].offset))
        said: list[DerivedLog] = []
        for tp, record in found:
            news = self._take_run(record)
            done = committed.get(tp, 0)
            if record.offset >= done or done > logs[tp].end:  # the topic was made anew
                said += news
        return said

    def _take_run(self, record: LogRecord) -> list[DerivedLog]:
        try:
            frame = decode_frame(record.value)
        except DecodeError:  # the stream makes a dead letter of it
            self.counters.error("undecodable")
            return []
        said: list[DerivedLog] = []
        self.counters.received("run", len(frame))
        for _, event in frame.events():
            if not isinstance(event, Run):
                continue
            said += self._versions.take(frame.origin, frame.emitter, event)
            if event.state == "end" and event.status != "crashed":
                self._crews.finish(frame.emitter, log_ns=record.timestamp * _MS)
        return said

    def _take_stats(self, record: LogRecord) -> None:
        try:
            frame = decode_stats(record.value)
        except DecodeError:
            self.counters.error("undecodable")
            return
        log_ns = record.timestamp * _MS
        if not any(stats.nodes is not None for stats in frame.stats):
            self.counters.received("stats", len(frame.stats))
            self._presence.note(frame.origin, log_ns=log_ns)
        self._fleet.take(frame, log_ns=log_ns)
        self._newest_ns = max(self._newest_ns, log_ns)
        self._heard_at = time.monotonic()

    # --- following ----------------------------------------------------------------------------

    async def _follow(self, follower: Follower, stop: asyncio.Event) -> None:
        ticked = swept = time.monotonic()
        while not stop.is_set():
            await self._take(await follower.poll(timeout_s=POLL_S), follower)
            self._lag = follower.lag()
            now = time.monotonic()
            if now - ticked >= TICK_S:
                ticked = now
                await self._publish(
                    self._fleet.due(now_ns=self._now_ns()),
                    self._presence.changes(now_ns=self._newest_ns),
                )
            if now - swept >= SWEEP_S:
                swept = now
                self._fleet.forget(now_ns=self._newest_ns)
                self._crews.forget(now_ns=self._newest_ns)
                self._presence.forget(now_ns=self._newest_ns)
                self._versions.forget(before_ns=time.time_ns() - self._remember_ns)
            self._count()

    async def _take(
        self, records: Sequence[tuple[TopicPartition, LogRecord]], follower: Follower
    ) -> None:
        said: list[DerivedLog] = []
        done: dict[TopicPartition, int] = {}
        for tp, record in records:
            if tp.topic == self._run_topic:
                said += self._take_run(record)
                done[tp] = record.offset + 1
            else:
                self._take_stats(record)
        await self._publish((), said)
        await follower.commit(done)

    async def _drain(self, follower: Follower, partitions: Mapping[str, int]) -> None:
        """Read what the streams still wrote, and publish what waits, as it is."""
        log.info("stopping")
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                stats = [
                    TopicPartition(self._stats_topic, number)
                    for number in range(partitions[self._stats_topic])
                ]
                async with open_reader(self._kafka) as reader:
                    ends = {tp: span.end for tp, span in (await reader.bounds(stats)).items()}
                while follower.behind(ends):
                    await self._take(await follower.poll(timeout_s=POLL_S), follower)
        await self._publish(self._fleet.rest(now_ns=self._now_ns()), ())
        self._count()

    def _now_ns(self) -> int:
        """Return the time of the records, which goes on where none come."""
        return self._newest_ns + round((time.monotonic() - self._heard_at) * 1e9)

    def _count(self) -> None:
        late, evicted = self._fleet.late, self._fleet.evicted
        self.counters.add("late", late - self._counted[0])
        self.counters.add("evicted", evicted - self._counted[1])
        self._counted = (late, evicted)

    # --- publishing ---------------------------------------------------------------------------

    async def _publish(self, outs: Iterable[FleetOut], said: Iterable[DerivedLog]) -> None:
        """Send to the sinks' topics, then to that of all Stats; return when all is acknowledged."""
        stats = [
            one for out in outs for one in self._encoder.stats(out.emitter, out.origin, out.stats)
        ]
        lines: list[Output] = []
        for derived in said:
            line, run = derived.log, derived.origin.run
            level = logging.WARNING if line.level == "warning" else logging.INFO
            log.log(level, "told", extra={"line": line.message, "run": run})
            lines += self._encoder.frame(derived.frame())
        await self._send([*lines, *(one for one in stats if one.topic != self._stats_topic)])
        await self._send([one for one in stats if one.topic == self._stats_topic])

    async def _send(self, records: Sequence[Output]) -> None:
        async def all_acknowledged() -> None:
            sent = [
                await self._producer.send(
                    one.topic, value=one.value, key=one.key, headers=one.headers
                )
                for one in records
            ]
            await asyncio.gather(*sent)

        if records:
            await asyncio.wait_for(all_acknowledged(), SEND_S)
            for one in records:
                self.counters.sent(dict(one.headers)["kind"].decode(), one.count)


async def _stop(producer: Any) -> None:
    # With idempotence aiokafka waits without end for a broker that is away.
    with suppress(TimeoutError):
        await asyncio.wait_for(producer.stop(), STOP_S)
