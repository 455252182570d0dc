"""What the worker asks of Faust's consumer, asked in the consumer's own thread."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as KafkaPartition

from mlops_events.streams.logreader import TopicPartition

__all__ = ["FaustSource"]

log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_S: Final = 10.0
WATCH_S: Final = 0.25
FETCH_WAIT_MS: Final = 100


class FaustSource:
    """The consumer of a Faust app.

    Faust has no public way to commit or to look up offsets of one's own choice, so this reaches
    for `Consumer._thread` and `ConsumerThread._consumer`; a test holds them.

    Args:
        app: the Faust app; it need not be started yet.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def prepare(self) -> None:
        """Keep fetches short, and a static member from coming back under a name that it lost."""

        async def prepare(consumer: Any) -> None:
            _shorten_fetches(consumer._fetcher)  # noqa: SLF001 - Faust has no setting for it
            _stay_out(consumer._coordinator)  # noqa: SLF001 - aiokafka has none

        await self._ask(prepare)

    async def watch(self) -> None:
        """Wait until the group's side of the consumer has failed, and raise why.

        aiokafka keeps such an error for its own `getmany`, which Faust reads past. Unseen, it
        ends the heartbeats, and this process would stay a reader of whom the group knows nothing.

        Raises:
            KafkaError: what went wrong.
        """
        while True:
            await asyncio.sleep(WATCH_S)
            consumer = self._app.consumer._thread._consumer  # noqa: SLF001
            coordinator = None if consumer is None else consumer._coordinator  # noqa: SLF001
            error = None if coordinator is None else coordinator._pending_exception  # noqa: SLF001
            if error is not None:
                raise error

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read on from these offsets, as far as their partitions are still held."""
        consumer = self._app.consumer
        for tp, offset in offsets.items():
            try:
                await asyncio.wait_for(consumer.seek_wait({KafkaPartition(*tp): offset}), CALL_S)
            except IllegalStateError:  # a rebalance took the partition
                return

    async def log_start(self, partition: TopicPartition) -> int:
        """Return where a log starts."""
        key = KafkaPartition(*partition)

        async def start(consumer: Any) -> int:
            return int((await consumer.beginning_offsets([key]))[key])

        return await self._ask(start)

    async def log_ends(self) -> Mapping[TopicPartition, int]:
        """Return where the logs of the partitions held end, as far as fetches have told."""

        async def ends(consumer: Any) -> dict[TopicPartition, int]:
            found = {TopicPartition(*tp): consumer.highwater(tp) for tp in consumer.assignment()}
            return {tp: end for tp, end in found.items() if end is not None}

        return await self._ask(ends)

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the group's commits, where there are any."""

        async def commits(consumer: Any) -> dict[TopicPartition, int]:
            found = {tp: await consumer.committed(KafkaPartition(*tp)) for tp in partitions}
            return {tp: offset for tp, offset in found.items() if offset is not None}

        return await self._ask(commits)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit, as far as the partitions are still held.

        Commits are for tools that show lag. Recovery does not need them, so a failure is logged
        and no more.
        """

        async def commit(consumer: Any) -> None:
            held = consumer.assignment()
            todo = {
                KafkaPartition(*tp): OffsetAndMetadata(offset, "")
                for tp, offset in offsets.items()
                if tp in held
            }
            if todo:
                await consumer.commit(todo)

        try:
            await self._ask(commit)
        except (CommitFailedError, IllegalStateError):
            log.info("not committed: the group rebalances")
        except (KafkaError, TimeoutError) as error:
            log.warning("not committed", extra={"reason": repr(error)})

    async def _ask(self, what: Callable[[Any], Awaitable[T]]) -> T:
        thread = self._app.consumer._thread  # noqa: SLF001 - see above

        async def inside() -> T:
            # The limit stands inside, else the call would go on there and hold up others.
            async with asyncio.timeout(CALL_S):
                return await what(thread._consumer)  # noqa: SLF001

        answer: T = await thread.call_thread(inside)
        return answer


def _shorten_fetches(fetcher: Any) -> None:
    """Let a quiet partition not hold up a busy one.

    aiokafka has one fetch per broker under way. Faust lets one wait 1.5 s for records of
    partitions that have none, and meanwhile nothing is fetched from those that have.
    """
    fetcher._fetch_max_wait_ms = min(fetcher._fetch_max_wait_ms, FETCH_WAIT_MS)  # noqa: SLF001


def _stay_out(coordinator: Any) -> None:
    """Make it an error, which ends the process, that the group does not know a static member.

    Then another process has joined under its name, or it stood still for longer than its session.
    aiokafka would join again and take the name back, and so would the other one, for ever.
    """
    name, forget = coordinator._group_instance_id, coordinator.reset_generation  # noqa: SLF001
    if not name or "reset_generation" in vars(coordinator):
        return

    def lost() -> None:
        if coordinator._closing.done():  # noqa: SLF001
            forget()
            return
        raise KafkaError(
            f"the group no longer knows this process as {name!r}: another one has joined with "
            "this instance id, or this one stood still for longer than its session"
        )

    coordinator.reset_generation = lost
