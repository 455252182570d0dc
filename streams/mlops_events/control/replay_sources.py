"""Where in the raw topics a replay reads, by when records arrived."""

from collections.abc import Collection
from typing import Final

from mlops_events.control.replay_account import Account
from mlops_events.control.replay_fold import Source
from mlops_events.control.replay_request import ReplayRequest
from mlops_events.control.topics import list_topics
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import RawKind
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.logreader import LogReader, Span, TopicPartition

__all__ = ["check_sources", "find_partitions", "find_sources"]

_NS_PER_MS: Final = 1_000_000


async def find_partitions(kafka: KafkaSettings, kinds: Collection[RawKind]) -> list[TopicPartition]:
    """Return the partitions of the raw topics of these kinds.

    Raises:
        ConfigError: no broker answers, or a topic does not exist.
    """
    wanted = {kafka.topics.raw(kind) for kind in kinds}
    found = {topic.name: topic.partitions for topic in await list_topics(kafka)}
    missing = sorted(wanted.difference(found))
    if missing:
        raise ConfigError(
            f"no topic {', '.join(missing)}; create them with: mlops-pipeline topics create"
        )
    return [TopicPartition(topic, n) for topic in sorted(wanted) for n in range(found[topic])]


async def find_sources(
    reader: LogReader,
    kafka: KafkaSettings,
    request: ReplayRequest,
    logs: dict[TopicPartition, Span],
) -> list[Source]:
    """Return what is to be read: [since - margin, until + margin + slack) by time of arrival.

    An event that its emitter kept while Kafka was away arrives hours after its time, so the slack
    is what finds it. Where the logs end before that, they are read up to their present end.

    Raises:
        TimeoutError: the broker does not answer.
    """
    first_ms = max(0, (request.since_ns - request.margin_ns) // _NS_PER_MS)
    last_ns = request.until_ns + request.margin_ns + request.slack_ns
    starts = await reader.since(logs, timestamp_ms=first_ms)
    ends = await reader.since(logs, timestamp_ms=-(-last_ns // _NS_PER_MS))
    kinds: dict[str, RawKind] = {kafka.topics.raw(kind): kind for kind in request.sources}
    sources: list[Source] = []
    for tp, log in logs.items():
        start, end = starts[tp], ends[tp]
        end = log.end if end is None else min(end, log.end)
        start = end if start is None else min(max(start, log.start), end)
        sources.append(
            Source(
                kind=kinds[tp.topic],
                topic=tp.topic,
                partition=tp.partition,
                start=start,
                next=start,
                end=end,
            )
        )
    return sources


def check_sources(
    sources: Collection[Source], logs: dict[TopicPartition, Span], account: Account
) -> None:
    """Go on in logs that may have changed since a replay was interrupted.

    What retention deleted meanwhile is counted and passed over.

    Raises:
        ConfigError: a topic was made anew.
    """
    for source in sources:
        log = logs[source.place]
        if log.end < source.end:
            raise ConfigError(
                f"partition {source.partition} of {source.topic} ends at {log.end}, expected at "
                f"least {source.end}: the topic was made anew; replay without --resume"
            )
        gone = min(log.start, source.end) - source.next
        if gone > 0:
            account.expired += gone
            source.next += gone
