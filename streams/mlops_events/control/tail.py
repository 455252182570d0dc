"""Follows what arrives in the topics, event by event."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as KafkaPartition

from mlops_events.control.topics import list_topics
from mlops_events.schemas.errors import ConfigError, DecodeError
from mlops_events.schemas.events import Kind
from mlops_events.schemas.frame import decode_frame, decode_stats
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.sinks.base import Envelope, FrameRecord, StatsRecord
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import TopicPartition

__all__ = ["follow"]

_POLL_MS = 500
_STOP_S = 10.0


async def follow(
    kafka: KafkaSettings, *, kinds: Collection[Kind], run: str | None, from_start: bool
) -> AsyncIterator[Envelope]:
    """Yield events and Stats as they arrive, for ever; what cannot be decoded is left out.

    Args:
        kafka: where the topics are.
        kinds: which topics to follow.
        run: only this run's.
        from_start: begin with what the topics hold, not with what arrives from now on.

    Raises:
        ConfigError: no broker answers, or there are no topics.
        KafkaError: the broker failed.
    """
    topics = kafka.topics
    names = {topics.stats if kind == "stats" else topics.raw(kind) for kind in kinds}
    found = {t.name: t.partitions for t in await list_topics(kafka) if t.name in names}
    if not found:
        raise ConfigError(f"no topics {topics.prefix}.*; create them: mlops-pipeline topics create")
    places = [
        TopicPartition(name, number) for name, count in found.items() for number in range(count)
    ]
    async with open_reader(kafka) as reader:
        logs = await reader.bounds(places)
    consumer = AIOKafkaConsumer(
        **kafka.client_options(), enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        consumer.assign([KafkaPartition(*place) for place in places])
        for place, log in logs.items():
            consumer.seek(KafkaPartition(*place), log.start if from_start else log.end)
        while True:
            polled = await consumer.getmany(timeout_ms=_POLL_MS)
            for place, records in polled.items():
                for record in records:
                    for envelope in _envelopes(
                        place.topic, record, stats=place.topic == topics.stats
                    ):
                        if run is None or envelope.origin.run == run:
                            yield envelope
    finally:
        await asyncio.wait_for(consumer.stop(), _STOP_S)


def _envelopes(topic: str, record: Any, *, stats: bool) -> list[Envelope]:
    place = {"topic": topic, "partition": record.partition, "offset": record.offset}
    try:
        if stats:
            return list(StatsRecord(frame=decode_stats(record.value), **place).envelopes())
        return list(FrameRecord(frame=decode_frame(record.value), **place).envelopes())
    except DecodeError:
        return []
