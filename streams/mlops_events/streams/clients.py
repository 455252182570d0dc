"""The stream's own Kafka clients, beside Faust's consumer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.partitioner import murmur2

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topicfaults import find_faults, refusal, topic_states
from mlops_events.schemas.topicrules import TopicState
from mlops_events.schemas.topics import MAX_RECORD_BYTES
from mlops_events.streams.logreader import LogReader, TopicPartition

__all__ = [
    "check_topics",
    "count_partitions",
    "describe_topics",
    "make_producer",
    "open_reader",
    "place_keys",
]

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 512 << 10
REQUEST_S: Final = 60.0
LOOK_S: Final = 10.0
FETCH_WAIT_MS: Final = 20
"""A fetch at the end of a log is waited for before the next stretch can be read."""
RETRY_MS: Final = 20
"""Each topic that a reader hears of for the first time costs it one retry."""


def make_producer(kafka: KafkaSettings) -> Any:
    """Return the producer of outputs and checkpoints, not yet started.

    Raises:
        ConfigError: there are no brokers, or the CA file cannot be read.
    """
    return AIOKafkaProducer(
        **kafka.client_options(),
        acks="all",
        enable_idempotence=not kafka.embedded,
        compression_type="zstd",
        max_batch_size=BATCH_BYTES,
        max_request_size=MAX_RECORD_BYTES,
        request_timeout_ms=round(REQUEST_S * 1000),
    )


@asynccontextmanager
async def open_reader(kafka: KafkaSettings) -> AsyncIterator[LogReader]:
    """Connect a reader of logs for as long as it is needed.

    Raises:
        ConfigError: there are no brokers, or the CA file cannot be read.
        KafkaError: no broker answers.
    """
    consumer = AIOKafkaConsumer(
        **kafka.client_options(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=FETCH_WAIT_MS,
        retry_backoff_ms=RETRY_MS,
        request_timeout_ms=round(REQUEST_S * 1000),
    )
    try:
        await consumer.start()
        yield LogReader(consumer, embedded=kafka.embedded)
    finally:
        try:
            await consumer.stop()
        except asyncio.CancelledError:  # of a task of aiokafka's own, which had not begun yet
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise


async def count_partitions(producer: Any, topics: Collection[str]) -> dict[str, int]:
    """Return how many partitions each topic has.

    Raises:
        ConfigError: one does not exist.
        TimeoutError: the broker does not answer.
    """
    cluster = await asyncio.wait_for(producer.client.fetch_all_metadata(), LOOK_S)
    partitions = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
    missing = [topic for topic, number in partitions.items() if not number]
    if missing:
        raise ConfigError(
            f"no topic {', '.join(missing)}; create them with: mlops-pipeline topics create"
        )
    return partitions


async def check_topics(kafka: KafkaSettings, names: Collection[str]) -> None:
    """Make sure that topics are as the guarantees need them.

    The embedded broker does not tell its topics' settings, so nothing is checked there.

    Raises:
        ConfigError: they are not; it lists what is wrong, and how to mend each.
        KafkaError: the broker does not say.
        TimeoutError: the broker does not answer.
    """
    if kafka.embedded:
        return
    admin = AIOKafkaAdminClient(**kafka.client_options())
    try:
        await asyncio.wait_for(admin.start(), LOOK_S)
        found = await describe_topics(admin, prefix=kafka.prefix)
    finally:
        await asyncio.wait_for(admin.close(), LOOK_S)
    unread = [name for name in names if name in found and not found[name].config]
    if unread:
        log.warning("settings of topics cannot be read, so not checked", extra={"topics": unread})
    refused = refusal(find_faults(kafka, found, names=names))
    if refused is not None:
        raise ConfigError(refused)


async def describe_topics(
    admin: Any, *, prefix: str, settings: bool = True
) -> dict[str, TopicState]:
    """Return the topics below a prefix as they are.

    Args:
        admin: aiokafka's admin client, started.
        prefix: what their names begin with, up to a dot.
        settings: ask for their settings too; not of the embedded broker, which knows what it was
            given, but keeps to none of it.

    Raises:
        KafkaError: the broker does not say.
        TimeoutError: the broker does not answer.
    """
    # Of all topics: a question about one that is missing may create it.
    everything = await asyncio.wait_for(admin.describe_topics(), LOOK_S)
    described = [topic for topic in everything if topic["topic"].startswith(f"{prefix}.")]
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic["topic"]) for topic in described]
    answers: list[Any] = []
    if settings and resources:
        answers = await asyncio.wait_for(admin.describe_configs(resources), LOOK_S)
    return topic_states(described, answers)


def place_keys(partitions: Mapping[str, int]) -> Callable[[str, bytes], TopicPartition]:
    """Return what names the partition that Kafka's clients choose for a key of a topic."""

    @lru_cache(maxsize=1 << 16)
    def place(topic: str, key: bytes) -> TopicPartition:
        return TopicPartition(topic, (murmur2(key) & 0x7FFFFFFF) % partitions[topic])

    return place
