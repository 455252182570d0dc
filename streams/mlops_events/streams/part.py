"""One source partition that a worker holds."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mlops_events.schemas.events import RawKind
from mlops_events.schemas.topics import redriven_times
from mlops_events.streams.checkpoint import Checkpoint, checkpoint_due
from mlops_events.streams.logreader import LogRecord, TopicPartition
from mlops_events.streams.offsets import GuardCounts, InOrderCommits, OffsetGuard, Ticket
from mlops_events.streams.outputs import DeadLetterOut, Output
from mlops_events.streams.provisional import Provisional
from mlops_events.streams.state import PartitionState

__all__ = ["Part"]

SLICE_RECORDS: Final = 100
SLICE_BYTES: Final = 128 << 10
"""What is folded in one go, without a break for the event loop."""


class Part:
    """The state of a partition with what belongs to it while a worker holds it.

    Args:
        tp: the partition.
        state: as it was recovered.
        saved: the checkpoint that holds just this state, None if there is none.
        provisional: knows its silent emitters.
        counts: where the guard counts.
        now: seconds of a monotonic clock; so in all methods.
        kind: of the topic's frames.
    """

    def __init__(
        self,
        tp: TopicPartition,
        state: PartitionState,
        *,
        saved: Checkpoint | None,
        provisional: Provisional,
        counts: GuardCounts,
        now: float,
        kind: RawKind,
    ) -> None:
        self.tp = tp
        self.kind = kind
        self.state = state
        self.provisional = provisional
        self.guard = OffsetGuard(state.next, now=now, counts=counts)
        self.commits = InOrderCommits(state.next)
        self.saved_bytes = 0 if saved is None else len(saved.state)
        self._read_bytes = 0
        self._told = self._counted()
        age_s = float("inf") if saved is None else time.time() - saved.written_ms / 1000
        self._saved_at = now - max(0.0, age_s)

    def fold(
        self,
        records: Sequence[LogRecord],
        start: int,
        stop: int,
        put: Callable[[Output, Ticket], None],
    ) -> int:
        """Fold a slice of `records[start:stop]` and return the index behind it.

        Args:
            records: what the guard has seen.
            start: where to begin.
            stop: where to end at the latest.
            put: takes each output.
        """
        size, end = 0, start
        last = min(stop, start + SLICE_RECORDS)
        while end < last and size < SLICE_BYTES:
            size += len(records[end].value or b"")
            end += 1
        ticket = self.commits.open(records[end - 1].offset + 1)
        fold = self.state.fold
        for record in records[start:end]:
            for output in fold(record.offset, record.timestamp, record.value):
                if isinstance(output, DeadLetterOut) and (times := redriven_times(record.headers)):
                    output = output.failed_again(times)
                put(output, ticket)
        ticket.acknowledge()
        self._read_bytes += size
        return end

    def news(self) -> dict[str, int]:
        """Return what the state counted since the last call, zeros left out."""
        before, self._told = self._told, self._counted()
        return {name: n - before[name] for name, n in self._told.items() if n > before[name]}

    def _counted(self) -> dict[str, int]:
        return msgspec.structs.asdict(self.state.counts)

    def restart_at(self, offset: int, *, expired: int) -> None:
        """Go on at the log's start, which retention has moved past `next`."""
        self.state.restart_at(offset, expired=expired)
        self.commits.open(offset).acknowledge()

    def due(self, *, now: float, every_s: float) -> bool:
        """Say whether a checkpoint is to be written."""
        return checkpoint_due(
            elapsed_s=now - self._saved_at,
            read_bytes=self._read_bytes,
            size_bytes=self.saved_bytes,
            every_s=every_s,
        )

    @property
    def unsaved(self) -> bool:
        """True if records were read since the last checkpoint, or there is none."""
        return self._read_bytes > 0 or self._saved_at == float("-inf")

    def cut(self, *, group: str, partitions: int, now: float) -> Checkpoint:
        """Return the state as it is now; it may be written once everything below is delivered."""
        self._read_bytes = 0
        self._saved_at = now
        state = self.state
        return Checkpoint(
            group=group,
            topic=self.tp.topic,
            partition=self.tp.partition,
            partitions=partitions,
            incarnation=state.incarnation,
            next=state.next,
            state=state.encode(),
        )
