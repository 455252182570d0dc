"""What delivery needs of Kafka: one topic's log, read as a member of one group."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.sinks.position import Mark, Place, Positioned

__all__ = ["Log", "LogError", "LogRecord", "OutRecord"]


class LogError(MlopsEventsError):
    """Kafka did not do what was asked of it; it may the next time."""


class LogRecord(Positioned, Protocol):
    """A record as it was read."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """What is said about it."""
        ...


class OutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record to be written."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class Log(Protocol):
    """One topic, read as a member of one group."""

    @property
    def topic(self) -> str:
        """The topic that is read."""
        ...

    @property
    def revoke_s(self) -> float:
        """How long the group waits for a member that has to give partitions up."""
        ...

    async def start(self, on_revoked: Callable[[], Awaitable[None]]) -> None:
        """Join the group; retries until Kafka and the topic are there.

        Args:
            on_revoked: called before partitions are given up, within `revoke_s`.
        """
        ...

    def assigned(self) -> frozenset[int]:
        """Return the partitions that are held; none while the group reorders itself."""
        ...

    async def places(self, partitions: Collection[int]) -> dict[int, Place]:
        """Return what is known of partitions that were just assigned.

        Raises:
            LogError: Kafka does not say.
            ConfigError: the topic's settings break what delivery rests on.
        """
        ...

    async def bounds(self, partition: int) -> tuple[int, int | None]:
        """Return where a log starts, and where it ends if that can be told. Raises LogError."""
        ...

    def end(self, partition: int) -> int | None:
        """Return where a log ended at the last fetch, if there was one."""
        ...

    def seek(self, partition: int, offset: int) -> None:
        """Read on from here; does nothing if the partition is held no longer."""
        ...

    async def poll(
        self, *, timeout_s: float, max_records: int
    ) -> Mapping[int, Sequence[LogRecord]]:
        """Return what was read; keeps the place in the group."""
        ...

    def pause(self) -> None:
        """Read nothing, from partitions that come later either."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...

    async def commit(self, marks: Mapping[int, Mark]) -> None:
        """Keep for each partition what was handled. Raises LogError."""
        ...

    async def send(self, topic: str, records: Sequence[OutRecord]) -> None:
        """Write records and wait until all are acknowledged. Raises LogError."""
        ...

    async def close(self) -> None:
        """Leave the group; may be called twice, and without `start`."""
        ...
