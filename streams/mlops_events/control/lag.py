"""How far behind groups are, and what the stream's checkpoints say was lost or came too late."""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from aiokafka.errors import KafkaError

from mlops_events.control.grouplogs import open_logs
from mlops_events.control.topics import TopicError, open_admin
from mlops_events.control.topicscheck import newest_checkpoints
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topicfaults import sinks_of
from mlops_events.schemas.topicrules import TopicState
from mlops_events.streams.checkpoint import Checkpoint
from mlops_events.streams.clients import describe_topics, open_reader
from mlops_events.streams.glance import glance
from mlops_events.streams.logreader import Span, TopicPartition

__all__ = [
    "GroupLag",
    "LagReport",
    "Member",
    "PartitionLag",
    "TopicCounts",
    "count_losses",
    "measure",
    "partition_lag",
]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A process in a group."""

    id: str
    client: str
    host: str


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is in one partition; `committed` is None if it never committed there.

    `behind_s` is the age of the first record that it has not handled, 0 if there is none, and
    None if that cannot be told. `expired` records were deleted before they were handled.
    """

    partition: int
    committed: int | None
    start: int
    end: int
    records: int
    expired: int = 0
    behind_s: float | None = None


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far behind a group is in one topic; `members` are those of the whole group."""

    group: str
    topic: str
    state: str
    members: Sequence[Member]
    records: int
    behind_s: float | None
    expired: int
    partitions: Sequence[PartitionLag]


class TopicCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the stream met in one raw topic, by its newest checkpoints, since its beginning.

    Records: `lost_by_retention`, `missing` (holes that stayed), `undecodable`. Events: `late`,
    `too_old`, `ahead`, which are delivered, but not in the Stats. `gaps_closed` counts gaps in
    the numbers of emitters that were given up.
    """

    topic: str
    checkpoints: int
    lost_by_retention: int
    missing: int
    undecodable: int
    late: int
    too_old: int
    ahead: int
    gaps_closed: int


class LagReport(msgspec.Struct, frozen=True, kw_only=True):
    """All groups, and what the stream counted."""

    groups: Sequence[GroupLag]
    topics: Sequence[TopicCounts]

    @property
    def lost(self) -> int:
        """How many records retention took before they were handled."""
        return sum(group.expired for group in self.groups) + sum(
            topic.lost_by_retention for topic in self.topics
        )


async def measure(
    kafka: KafkaSettings, *, group: str, counts: Sequence[TopicCounts] | None = None
) -> LagReport:
    """Look where the stream and each sink are.

    Args:
        kafka: where.
        group: the stream's.
        counts: those of an earlier report, to save reading the checkpoints once more.

    Raises:
        ConfigError: no broker answers, or there are no topics.
        TopicError: Kafka failed.
    """
    topics = kafka.topics
    async with open_admin(kafka) as admin:
        states = await describe_topics(admin, prefix=kafka.prefix, settings=False)
        wanted = {group: [name for name in topics.raws if name in states]}
        for sink in sinks_of(topics, states):
            wanted[f"{kafka.prefix}.sink.{sink}"] = [topics.sink(sink)]
        members = {name: await _members(admin, name) for name in wanted}
    groups: list[GroupLag] = []
    for name, of in wanted.items():
        groups += await _group(kafka, name, [states[topic] for topic in of], *members[name])
    if counts is None:
        try:
            async with open_reader(kafka) as reader:
                found = await newest_checkpoints(reader, kafka, states.values(), group=group)
        except (KafkaError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise TopicError(f"the checkpoints cannot be read: {reason}") from error
        counts = count_losses(found)
    return LagReport(groups=groups, topics=counts)


def count_losses(checkpoints: Collection[Checkpoint]) -> list[TopicCounts]:
    """Add up what the checkpoints of each topic say.

    Raises:
        DecodeError: the state in one cannot be read.
    """
    totals: dict[str, dict[str, int]] = {}
    for checkpoint in checkpoints:
        seen = glance(checkpoint.state)
        total = totals.setdefault(
            checkpoint.topic, dict.fromkeys(TopicCounts.__struct_fields__[1:], 0)
        )
        total["checkpoints"] += 1
        total["lost_by_retention"] += seen.lost_by_retention
        total["missing"] += seen.missing
        for name in ("undecodable", "late", "too_old", "ahead", "gaps_closed"):
            total[name] += getattr(seen.counts, name)
    return [TopicCounts(topic=topic, **totals[topic]) for topic in sorted(totals)]


def partition_lag(
    partition: int, *, committed: int | None, log: Span, at_ms: int | None, now_ms: int
) -> PartitionLag:
    """Say how far behind a group is in one partition.

    Args:
        partition: its number.
        committed: the group's commit.
        log: where the log starts and ends.
        at_ms: the time of the first record that was not handled, None if it is not known.
        now_ms: the time.
    """
    place = max(log.start, min(log.end, log.start if committed is None else committed))
    behind_s = None if at_ms is None else max(0.0, (now_ms - at_ms) / 1000)
    return PartitionLag(
        partition=partition,
        committed=committed,
        start=log.start,
        end=log.end,
        records=log.end - place,
        expired=0 if committed is None else max(0, log.start - committed),
        behind_s=behind_s if place < log.end else 0.0,
    )


async def _group(
    kafka: KafkaSettings,
    group: str,
    states: Sequence[TopicState],
    state: str,
    members: Sequence[Member],
) -> list[GroupLag]:
    places = [
        TopicPartition(topic.name, number) for topic in states for number in range(topic.partitions)
    ]
    async with open_logs(kafka, group=group) as logs:
        committed = await logs.committed(places)
        bounds = await logs.bounds(places)
        first = {
            tp: max(log.start, committed.get(tp, log.start))
            for tp, log in bounds.items()
            if committed.get(tp, log.start) < log.end
        }
        times = await logs.times(first)
    now_ms = round(time.time() * 1000)
    found: list[GroupLag] = []
    for topic in states:
        parts = [
            partition_lag(
                tp.partition,
                committed=committed.get(tp),
                log=bounds[tp],
                at_ms=times.get(tp),
                now_ms=now_ms,
            )
            for tp in places
            if tp.topic == topic.name
        ]
        found.append(
            GroupLag(
                group=group,
                topic=topic.name,
                state=state,
                members=members,
                records=sum(part.records for part in parts),
                behind_s=max(
                    (part.behind_s for part in parts if part.behind_s is not None), default=None
                ),
                expired=sum(part.expired for part in parts),
                partitions=parts,
            )
        )
    return found


async def _members(admin: Any, group: str) -> tuple[str, Sequence[Member]]:
    """Return a group's state and its members; "" if the broker does not say."""
    try:
        answers = await admin.describe_consumer_groups([group])
    except KafkaError:
        return "", ()
    described: Mapping[str, Any] = {
        found[1]: found for answer in answers for found in answer.groups
    }
    if group not in described or described[group][0]:
        return "", ()
    _, _, state, _, _, members, *_ = described[group]
    return state.lower(), [
        Member(id=member[0], client=member[1], host=member[2].lstrip("/")) for member in members
    ]
