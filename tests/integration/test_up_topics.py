"""Topics on real brokers: created as the guarantees need them, refused when they differ."""

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from mlops_events.control.topics import TopicError, create_topics, list_topics
from mlops_events.schemas import ConfigError
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import TopicSpec, topic_specs

DAY_MS = 86_400_000
Specs = Callable[..., list[TopicSpec]]


@pytest.fixture
def settings(kafka: str, prefix: str) -> KafkaSettings:
    return KafkaSettings(brokers=kafka, prefix=prefix, partitions=2, replication=1)


@pytest.fixture
def specs(settings: KafkaSettings) -> Specs:
    def make(**options: Any) -> list[TopicSpec]:
        given = {"sinks": ["sqlite"], "partitions": 2, "replication": 1, **options}
        return topic_specs(settings.topics, **given)

    return make


async def test_missing_topics_are_created_and_others_left_alone(
    settings: KafkaSettings, specs: Specs
) -> None:
    """A second time nothing is created, and nothing is wrong."""
    first = await create_topics(settings, specs())
    second = await create_topics(settings, specs(sinks=["sqlite", "console"]))
    listed = await list_topics(settings)

    assert all(topic.created for topic in first)
    assert [t.name for t in second if t.created] == [settings.topics.sink("console")]
    assert sorted(t.name for t in second) == [t.name for t in listed]
    assert {t.partitions for t in listed} == {2}
    assert {t.config["message.timestamp.type"] for t in listed} == {"LogAppendTime"}


async def test_another_number_of_partitions_is_refused(
    settings: KafkaSettings, specs: Specs
) -> None:
    """Every topic that differs is named, with what to set."""
    await create_topics(settings, specs())

    with pytest.raises(
        TopicError, match=r"(?s)run\.v1 has 2 .*, expected 3;.*PARTITIONS=2.*log\.v1"
    ):
        await create_topics(settings, specs(partitions=3))


async def test_topics_that_somebody_made_otherwise_are_refused(
    settings: KafkaSettings, specs: Specs
) -> None:
    """Timestamps of the writers, a short retention, compacted checkpoints: all are named."""
    admin = AIOKafkaAdminClient(**settings.client_options())
    await admin.start()
    short = {"retention.ms": str(DAY_MS // 2), "message.timestamp.type": "LogAppendTime"}
    compact = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    await admin.create_topics(
        [
            NewTopic(settings.topics.raw("log"), 2, 1, topic_configs=short),
            NewTopic(settings.topics.raw("run"), 2, 1),
            NewTopic(settings.topics.checkpoints, 2, 1, topic_configs=compact),
        ]
    )
    await admin.close()

    with pytest.raises(TopicError) as found:
        await create_topics(settings, specs())

    assert "log.v1: retention.ms is 43200000 (12 h)" in str(found.value)
    assert "run.v1: message.timestamp.type is CreateTime" in str(found.value)
    assert "checkpoints.v1: cleanup.policy is compact" in str(found.value)


async def test_more_replicas_than_brokers_are_refused(
    settings: KafkaSettings, specs: Specs
) -> None:
    """With what to set."""
    with pytest.raises(TopicError, match="MLOPS_EVENTS_KAFKA_REPLICATION=1"):
        await create_topics(settings, specs(replication=3))


async def test_a_short_retention_of_raw_topics_is_refused(
    settings: KafkaSettings, specs: Specs
) -> None:
    """Before anything is created."""
    with pytest.raises(ConfigError, match=r"12 h .* needs 24 h"):
        await create_topics(settings, specs(raw_retention_ms=DAY_MS // 2))

    assert await list_topics(settings) == []


async def test_a_broker_that_does_not_answer_is_named(free_port: Callable[[], int]) -> None:
    """Within the time that was given."""
    nowhere = KafkaSettings(brokers=f"127.0.0.1:{free_port()}")

    with pytest.raises(ConfigError, match=f"no Kafka answers at {nowhere.brokers} within 0.5 s"):
        await create_topics(nowhere, [], within_s=0.5)
