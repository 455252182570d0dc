"""Emitters and a real Kafka that is away, comes, is killed and comes back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from mlops_events.control.topics import create_topics
from mlops_events.producers import Emitter, EmitterSettings
from mlops_events.schemas.frame import Frame, decode_frame
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import read_headers, topic_specs

PARTITIONS = 2


@pytest.fixture
def kafka_settings(kafka_broker: Any, prefix: str) -> KafkaSettings:
    """Return the settings of a broker that this test may kill."""
    return KafkaSettings(
        brokers=kafka_broker.address, prefix=prefix, partitions=PARTITIONS, replication=1
    )


async def _create(kafka: KafkaSettings) -> None:
    specs = topic_specs(kafka.topics, sinks=[], partitions=PARTITIONS, replication=1)
    await create_topics(kafka, specs)


async def _frames(kafka: KafkaSettings) -> AsyncIterator[Frame]:
    """Yield every frame of the raw topics, checked against its headers."""
    consumer = AIOKafkaConsumer(**kafka.client_options(), enable_auto_commit=False)
    await consumer.start()
    try:
        places = [TopicPartition(t, p) for t in kafka.topics.raws for p in range(PARTITIONS)]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(places)
        got = dict.fromkeys(places, 0)
        while any(got[place] < end for place, end in ends.items()):
            for place, records in (await consumer.getmany(timeout_ms=1000)).items():
                for record in records:
                    got[place] = record.offset + 1
                    frame = decode_frame(record.value)
                    headers = read_headers(record.headers)
                    assert (headers.emitter, headers.seq) == (frame.emitter, frame.seq)
                    yield frame
    finally:
        await consumer.stop()


async def test_every_accepted_event_arrives_once_whatever_happens_to_the_broker(
    kafka_broker: Any, kafka_settings: KafkaSettings
) -> None:
    """The broker is stopped at the start, comes, is killed under load and comes back."""
    await _create(kafka_settings)
    await asyncio.to_thread(kafka_broker.stop)
    settings = EmitterSettings(kafka=kafka_settings, linger_s=0.05, max_linger_s=0.1)
    events = Emitter(run="r", role="miner", uid=1, settings=settings)
    emitted = 0

    async def emit(count: int) -> None:
        nonlocal emitted
        for _ in range(count):
            events.observe("training", {"i": emitted}, step=emitted)
            emitted += 1
            if emitted % 20 == 0:
                await asyncio.sleep(0.005)

    await emit(1_000)
    await asyncio.to_thread(kafka_broker.start)
    await emit(2_000)
    await asyncio.to_thread(kafka_broker.kill)
    await emit(1_000)
    await asyncio.to_thread(kafka_broker.start)
    await emit(1_000)

    assert await events.aclose(60)
    stats = events.stats()
    assert (stats.lost, stats.dropped, stats.sent) == (0, 0, emitted + 2)
    seen: dict[int, int] = {}
    ends = set()
    async for frame in _frames(kafka_settings):
        if frame.end:
            ends.add(frame.kind)
        if frame.kind == "observation":
            assert frame.seq not in seen
            seen[frame.seq] = len(frame)
            assert [e.fields["i"] for _, e in frame.events()] == list(  # type: ignore[union-attr]
                range(frame.accepted - len(frame), frame.accepted)
            )
    assert sorted(seen) == list(range(len(seen)))
    assert sum(seen.values()) == emitted
    assert ends == {"run", "observation"}


async def test_topics_that_come_later_get_everything(kafka: str, prefix: str, until: Any) -> None:
    """A fleet may be started before its operator has made the topics; the reason is told."""
    kafka_settings = KafkaSettings(
        brokers=kafka, prefix=prefix, partitions=PARTITIONS, replication=1
    )
    settings = EmitterSettings(kafka=kafka_settings, linger_s=0.05, max_linger_s=0.1)
    events = Emitter(run="r", settings=settings)
    events.observe("training", {"i": 1})

    await until(lambda: "there is no topic" in events.stats().error, within=40)
    await _create(kafka_settings)
    assert await events.aclose(60)
    kinds = [frame.kind async for frame in _frames(kafka_settings) if len(frame)]
    assert set(kinds) == {"observation", "run"}
