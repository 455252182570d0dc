"""How much topics hold, and since when."""

import msgspec

from mlops_events.control.grouplogs import open_logs
from mlops_events.control.topics import list_topics
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.logreader import TopicPartition

__all__ = ["TopicSize", "list_sizes"]


class TopicSize(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, and what it holds.

    `records` counts offsets from the logs' starts to their ends; a compacted topic holds fewer.
    `oldest_ms` is the time of the oldest record, None if there is none.
    """

    name: str
    partitions: int
    replication: int
    config: dict[str, str]
    records: int
    oldest_ms: int | None


async def list_sizes(kafka: KafkaSettings) -> list[TopicSize]:
    """Return the topics below the prefix, by name.

    Raises:
        ConfigError: no broker answers.
        TopicError: Kafka failed.
    """
    states = await list_topics(kafka)
    places = [
        TopicPartition(state.name, number) for state in states for number in range(state.partitions)
    ]
    async with open_logs(kafka) as logs:
        bounds = await logs.bounds(places)
        filled = [tp for tp, log in bounds.items() if log.start < log.end]
        oldest = await logs.oldest(filled)
    return [
        TopicSize(
            name=state.name,
            partitions=state.partitions,
            replication=state.replication,
            config=state.config,
            records=sum(
                log.end - log.start for tp, log in bounds.items() if tp.topic == state.name
            ),
            oldest_ms=min(
                (ms for tp, ms in oldest.items() if tp.topic == state.name), default=None
            ),
        )
        for state in states
    ]
