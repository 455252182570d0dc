"""Fixtures of the tests of the streams: logs in memory."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import pytest

from mlops_events.streams.logreader import TopicPartition


class Stored(NamedTuple):
    """A record of a log in memory."""

    offset: int
    timestamp: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


class Logs:
    """Partitions in memory, read as by an assigned Kafka consumer.

    Args:
        embedded: ends are known after a fetch only, and fetches beyond the end return nothing.
    """

    def __init__(self, *, embedded: bool = False) -> None:
        self.embedded = embedded
        self.records: dict[TopicPartition, list[Stored]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.fetched = 0
        self._positions: dict[TopicPartition, int] = {}
        self._known: dict[TopicPartition, int] = {}

    def append(self, partition: TopicPartition, value: bytes, *, timestamp: int = 0) -> None:
        """Append a record."""
        offset = self.ends.get(partition, 0)
        self.records.setdefault(partition, []).append(Stored(offset, timestamp, value))
        self.ends[partition] = offset + 1

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Take these partitions."""
        self._positions = dict.fromkeys(partitions, 0)
        self._known = {}

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetch nothing more, which is how it is anyway."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from here."""
        self._positions[partition] = offset

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end as the last fetch told it."""
        return self._known.get(partition)

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0
    ) -> Mapping[TopicPartition, Sequence[Stored]]:
        """Return at most ten records of each partition."""
        got: dict[TopicPartition, Sequence[Stored]] = {}
        for tp in partitions:
            place = self._positions[tp]
            there = [r for r in self.records.get(tp, []) if r.offset >= place][:10]
            self.fetched += len(there)
            empty = self.embedded and not there
            self._known[tp] = 0 if empty else self.ends.get(tp, 0)
            if there:
                got[tp] = there
                self._positions[tp] = there[-1].offset + 1
        return got

    async def position(self, partition: TopicPartition) -> int:
        """Return what is read next."""
        return self._positions[partition]

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs start."""
        return {tp: self.starts.get(tp, 0) for tp in partitions}

    async def end_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs end, or nonsense as the embedded broker does."""
        return {tp: 1 if self.embedded else self.ends.get(tp, 0) for tp in partitions}


@pytest.fixture(params=["kafka", "embedded"])
def logs(request: pytest.FixtureRequest) -> Logs:
    """Return empty logs of either kind of broker."""
    return Logs(embedded=request.param == "embedded")
