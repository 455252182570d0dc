"""Where a worker goes on: the checkpoints found, compared with the logs as they are."""

import logging
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import RAW_KINDS, RawKind
from mlops_events.schemas.health import Counters
from mlops_events.schemas.topics import Topics
from mlops_events.streams.checkpoint import Checkpoint, find_checkpoints, resume
from mlops_events.streams.logreader import LogReader, TopicPartition
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import Mark, PartitionState

__all__ = ["Recovered", "Recovery"]

log = logging.getLogger(__name__)

_MOVE: Final = "a live topic keeps its number, so move to topics with another prefix"


class Recovered(NamedTuple):
    """A partition's state, and the checkpoint that holds just this state, if there is one."""

    state: PartitionState
    saved: Checkpoint | None


class Recovery:
    """Finds the states of partitions.

    Args:
        settings: of the stream.
        topics: the names of all topics.
        group: whose checkpoints count.
        partitions: how many each topic has.
        committed: returns the group's commits, where there are any.
        counters: where to count what needs a human.
    """

    def __init__(
        self,
        settings: StreamSettings,
        *,
        topics: Topics,
        group: str,
        partitions: Mapping[str, int],
        committed: Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]],
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._group = group
        self._partitions = partitions
        self._committed = committed
        self._counters = counters
        self._kinds: Mapping[str, RawKind] = {topics.raw(kind): kind for kind in RAW_KINDS}

    async def recover(
        self, reader: LogReader, wanted: Collection[TopicPartition]
    ) -> dict[TopicPartition, Recovered]:
        """Return the state of each partition, set to where its log goes on.

        Raises:
            ConfigError: a topic has another number of partitions than at the start of this
                process, or than its checkpoints say.
            DecodeError: a checkpoint is of a version that this one cannot read.
            TimeoutError: the broker does not answer.
        """
        for tp in wanted:
            if tp.partition >= self._partitions[tp.topic]:
                raise ConfigError(
                    f"topic {tp.topic} was given more than its {self._partitions[tp.topic]} "
                    f"partitions; {_MOVE}"
                )
        found = await self._checkpoints(reader, wanted)
        states = {tp: self._state(tp, found.get(tp)) for tp in wanted}
        logs = await reader.bounds(wanted)
        before = {
            tp: state.next - 1
            for tp, state in states.items()
            if state.mark is not None and logs[tp].start < state.next <= logs[tp].end
        }
        there = {
            tp: Mark(record.timestamp, zlib.crc32(record.value or b""))
            for tp, record in (await reader.at(before)).items()
        }
        for tp, state in states.items():
            if tp not in found:
                state.restart_at(logs[tp].start)
                continue
            place = resume(next=state.next, mark=state.mark, log=logs[tp], at_mark=there.get(tp))
            if place.recreated:
                self._alert("source recreated", "recreated", tp, next=state.next, log=logs[tp])
            elif place.expired:
                self._alert("lost to retention", "expired", tp, records=place.expired)
            if place.offset != state.next or place.recreated:
                state.restart_at(place.offset, expired=place.expired, recreated=place.recreated)
                del found[tp]
        return {tp: Recovered(state, found.get(tp)) for tp, state in states.items()}

    async def _checkpoints(
        self, reader: LogReader, wanted: Collection[TopicPartition]
    ) -> dict[TopicPartition, Checkpoint]:
        found = await self._find(reader, wanted)
        commits = await self._committed([tp for tp in wanted if tp not in found])
        lost = [tp for tp, offset in commits.items() if offset > 0]
        if lost:  # look twice: the embedded broker may answer a first fetch with nothing
            found |= await self._find(reader, lost)
        for tp in lost:
            if tp not in found:
                self._alert("checkpoint lost", "checkpoint_lost", tp, commit=commits[tp])
        for checkpoint in found.values():
            self._check(checkpoint)
        return found

    async def _find(
        self, reader: LogReader, wanted: Collection[TopicPartition]
    ) -> dict[TopicPartition, Checkpoint]:
        return await find_checkpoints(
            reader, topic=self._topics.checkpoints, group=self._group, wanted=wanted
        )

    def _state(self, tp: TopicPartition, checkpoint: Checkpoint | None) -> PartitionState:
        kind = self._kinds[tp.topic]
        if checkpoint is None:
            return PartitionState(
                self._settings, topics=self._topics, kind=kind, partition=tp.partition
            )
        return PartitionState.decode(
            checkpoint.state,
            self._settings,
            topics=self._topics,
            kind=kind,
            partition=tp.partition,
        )

    def _check(self, checkpoint: Checkpoint) -> None:
        now = self._partitions[checkpoint.topic]
        if checkpoint.partitions != now:
            raise ConfigError(
                f"topic {checkpoint.topic} has {now} partitions, its checkpoints were written "
                f"when it had {checkpoint.partitions}; {_MOVE}"
            )

    def _alert(self, message: str, reason: str, tp: TopicPartition, **values: object) -> None:
        log.error(message, extra={"topic": tp.topic, "partition": tp.partition, **values})
        self._counters.error(reason)
