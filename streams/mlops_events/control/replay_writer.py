"""Writes what a replay puts out to the sink, and what that refuses to the dead letters."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from aiokafka.errors import KafkaError

from mlops_events.control.replay_account import Account
from mlops_events.schemas.events import DeadLetter
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.sinks.base import Batch, FrameRecord, Record, Sink, SinkBroken, SinkUnavailable
from mlops_events.sinks.deadletters import letters_of_rejected, out_record
from mlops_events.sinks.deliver import backoff_s
from mlops_events.streams.clients import make_producer

__all__ = ["DryRun", "ReplayWriter"]

T = TypeVar("T")

_SEND_S: Final = 30.0
_STOP_S: Final = 10.0


class ReplayWriter:
    """Writes batches, each until it is written for good.

    Args:
        sink: opened here, and closed at the end.
        kafka: where the dead letters go.
        replay: the id of the replay.
        timeout_s: how long the sink may take for a batch.
        draw: random numbers between 0 and 1, for the waits.
    """

    def __init__(
        self,
        sink: Sink,
        kafka: KafkaSettings,
        *,
        replay: str,
        timeout_s: float,
        draw: Callable[[], float],
    ) -> None:
        self._sink = sink
        self._kafka = kafka
        self._replay = replay
        self._timeout_s = timeout_s
        self._draw = draw
        self._producer: Any = None
        self.trouble = ""

    async def open(self) -> None:
        """Open the sink, however long that takes.

        Raises:
            SinkBroken: it cannot be opened as things are.
        """
        await self._insist(lambda: self._limited(self._sink.open()))

    async def write(self, records: Sequence[Record], account: Account) -> None:
        """Write records and count what became of them, however long that takes.

        Raises:
            SinkBroken: the sink cannot go on.
        """
        if not records:
            return
        batch = Batch(records, self._replay)
        rejected = await self._insist(lambda: self._limited(self._sink.write(batch)))
        letters = letters_of_rejected(rejected, batch, sink=self._sink.name)
        if letters:
            await self._insist(lambda: self._bury(letters))
        refused_stats = sum(letter.kind == "stats" for letter in letters)
        events = sum(r.count for r in records if isinstance(r, FrameRecord))
        account.written += events - len(letters) + refused_stats
        account.dead_lettered += len(letters) - refused_stats
        account.stats_written += len(batch) - events - refused_stats
        account.stats_dead_lettered += refused_stats

    async def close(self) -> None:
        """Let go of everything."""
        try:
            if self._producer is not None:
                await asyncio.wait_for(self._producer.stop(), _STOP_S)
        finally:
            await self._sink.close()

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it until it works, with growing pauses."""
        attempt = 0
        while True:
            try:
                done = await work()
            except SinkUnavailable as error:
                self.trouble = str(error)
                pause_s = backoff_s(attempt, retry_after=error.retry_after, draw=self._draw)
            except (KafkaError, TimeoutError) as error:
                self.trouble = f"dead letters not written: {error!r}"
                pause_s = backoff_s(attempt, retry_after=None, draw=self._draw)
            else:
                self.trouble = ""
                return done
            attempt += 1
            await asyncio.sleep(pause_s)

    async def _limited(self, work: Awaitable[T]) -> T:
        """Wait for the sink, but not for ever."""
        try:
            return await asyncio.wait_for(work, self._timeout_s)
        except TimeoutError as error:
            raise SinkBroken(
                f"sink {self._sink.name}: no answer within {self._timeout_s} s"
            ) from error

    async def _bury(self, letters: Sequence[DeadLetter]) -> None:
        async with asyncio.timeout(_SEND_S):
            if self._producer is None:
                self._producer = await self._connect()
            topic = self._kafka.topics.dead_letters
            records = [out_record(letter) for letter in letters]
            arriving = [
                await self._producer.send(topic, value=r.value, key=r.key, headers=r.headers)
                for r in records
            ]
            await asyncio.gather(*arriving)

    async def _connect(self) -> Any:
        producer = make_producer(self._kafka)
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer


class DryRun:
    """Takes the place of a ReplayWriter and writes nothing."""

    trouble = ""

    async def open(self) -> None:
        """Do nothing."""

    async def write(self, records: Sequence[Record], account: Account) -> None:
        """Count what would be written."""
        events = sum(r.count for r in records if isinstance(r, FrameRecord))
        account.written += events
        account.stats_written += sum(r.count for r in records) - events

    async def close(self) -> None:
        """Do nothing."""
