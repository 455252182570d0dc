"""Compares the topics below the prefix with what the guarantees rest on."""

from collections.abc import Collection, Sequence

import msgspec
from aiokafka.errors import KafkaError

from mlops_events.control.topics import TopicError, list_topics
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topicfaults import TopicFault, find_faults, sinks_of
from mlops_events.schemas.topicrules import TopicState
from mlops_events.streams.checkpoint import Checkpoint, find_checkpoints
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import LogReader, TopicPartition

__all__ = ["TopicsChecked", "check", "newest_checkpoints"]


class TopicsChecked(msgspec.Struct, frozen=True, kw_only=True):
    """Topics as they are, and what is wrong with them.

    `unread` names those whose settings the broker does not tell, so that only their partitions
    were looked at.
    """

    topics: Sequence[TopicState]
    faults: Sequence[TopicFault]
    unread: Sequence[str]


async def check(kafka: KafkaSettings, *, group: str, sinks: Collection[str]) -> TopicsChecked:
    """Compare the topics with what is needed; those of sinks that are there are looked at too.

    Args:
        kafka: where.
        group: the stream's, whose checkpoints tell how many partitions there were.
        sinks: whose topics must be there.

    Raises:
        ConfigError: no broker answers.
        TopicError: Kafka failed, or does not tell any settings to this user.
    """
    topics = kafka.topics
    states = await list_topics(kafka)
    found = {state.name: state for state in states}
    names = [
        *topics.raws,
        topics.stats,
        *(topics.sink(name) for name in sorted({*sinks, *sinks_of(topics, found)})),
        topics.dead_letters,
        topics.checkpoints,
    ]
    try:
        async with open_reader(kafka) as reader:
            checkpoints = await newest_checkpoints(reader, kafka, found.values(), group=group)
    except (KafkaError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise TopicError(f"the checkpoints cannot be read: {reason}") from error
    there = [found[name] for name in names if name in found]
    unread = [state.name for state in there if not state.config]
    if unread and not kafka.embedded:
        raise TopicError(
            f"the settings of {', '.join(unread)} cannot be read; this user needs the right to "
            "DescribeConfigs on topics"
        )
    kept = {checkpoint.topic: checkpoint.partitions for checkpoint in checkpoints}
    return TopicsChecked(
        topics=there,
        faults=find_faults(kafka, found, names=names, checkpointed=kept),
        unread=unread,
    )


async def newest_checkpoints(
    reader: LogReader, kafka: KafkaSettings, states: Collection[TopicState], *, group: str
) -> list[Checkpoint]:
    """Return the newest checkpoint of each partition of the raw topics that has one.

    Raises:
        TimeoutError: the broker does not answer.
    """
    counts = {state.name: state.partitions for state in states}
    places = counts.get(kafka.topics.checkpoints, 0)
    wanted = {
        TopicPartition(name, number)
        for name in kafka.topics.raws
        for number in range(min(counts.get(name, 0), places))
    }
    found = await find_checkpoints(
        reader, topic=kafka.topics.checkpoints, group=group, wanted=wanted
    )
    return [found[tp] for tp in sorted(found)]
