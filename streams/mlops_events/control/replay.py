"""Replays events from the raw topics into one sink, apart from live traffic."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

from mlops_events.control.replay_account import Account
from mlops_events.control.replay_fold import ReplayFold
from mlops_events.control.replay_state import ReplayState
from mlops_events.sinks.base import Record
from mlops_events.streams.logreader import LogRecord, Span, TopicPartition

__all__ = ["Moment", "Portions", "Replay", "ReplayReads", "ReplayWrites"]

_SAVE_S: Final = 5.0
_SAVE_SHARE: Final = 10
"""Saving may take a tenth of the time at most."""

_TICK_S: Final = 0.5


class ReplayReads(Protocol):
    """What is used of a LogReader."""

    def read(
        self, spans: Mapping[TopicPartition, Span]
    ) -> AsyncGenerator[tuple[TopicPartition, LogRecord], None]:
        """Yield the records of each span in the order of their offsets."""
        ...


class ReplayWrites(Protocol):
    """Where a replay's records go."""

    @property
    def trouble(self) -> str:
        """Why nothing is written at present; "" if all is well."""
        ...

    async def write(self, records: Sequence[Record], account: Account) -> None:
        """Write for good, however long that takes, and count what became of the events."""
        ...


class Moment(NamedTuple):
    """How far a replay is, in records of the topics, and since how many seconds."""

    account: Account
    done: int
    records: int
    seconds: float
    trouble: str


class Portions(NamedTuple):
    """How much is written at once, and at most how many events a second; 0 is no limit."""

    max_events: int
    max_bytes: int
    rate: float = 0.0


class Replay:
    """One replay, from where its state says to its end.

    The state is saved between two batches: whatever is read up to there is written. After a kill
    the batches since then are written again, under the same ids.

    Args:
        state: kept up to date.
        folds: one for each of its sources.
        writer: opened.
        save: keeps the state; may block.
        portions: the sizes of batches, and the pace.
        clock: seconds that never go back.
        now_ms: the time that records get.
        stop: set when it is to stop.
    """

    def __init__(
        self,
        state: ReplayState,
        folds: Sequence[ReplayFold],
        writer: ReplayWrites,
        *,
        save: Callable[[ReplayState], None],
        portions: Portions,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        stop: asyncio.Event,
    ) -> None:
        self._state = state
        self._folds = {fold.source.place: fold for fold in folds}
        self._writer = writer
        self._save_to = save
        self._portions = portions
        self._clock = clock
        self._now_ms = now_ms
        self._stop = stop
        self._seen_s = clock()
        self._save_at = clock() + _SAVE_S
        self._free_at = clock()
        self._records = sum(s.end - s.start for s in state.sources)

    def moment(self) -> Moment:
        """Return how far it is."""
        left = sum(fold.source.end - fold.source.next for fold in self._folds.values())
        seconds = self._state.seconds + self._clock() - self._seen_s
        return Moment(
            self._state.account, self._records - left, self._records, seconds, self._writer.trouble
        )

    async def run(self, reader: ReplayReads) -> None:
        """Read, write and save until everything is done, or it is told to stop.

        Raises:
            SinkBroken: the sink cannot go on.
            TimeoutError: the broker does not answer.
            OSError: the state cannot be saved.
        """
        await self._save()
        await self._read(reader)
        if self._stop.is_set():
            await self._save()
            return
        for fold in self._folds.values():
            await self._write(fold.finish(now_ms=self._now_ms()))
        self._state.done = True
        await self._save()

    async def _read(self, reader: ReplayReads) -> None:
        spans = {
            place: Span(fold.source.next, fold.source.end) for place, fold in self._folds.items()
        }
        pending: list[Record] = []
        events = size = 0
        tick = self._clock() + _TICK_S
        async with aclosing(reader.read(spans)) as records:
            async for place, record in records:
                out = self._folds[place].take(record, now_ms=self._now_ms())
                if out:
                    pending += out
                    events += sum(r.count for r in out)
                    size += len(record.value or b"")
                full = events >= self._batch_events() or size >= self._portions.max_bytes
                if full or self._clock() >= tick or self._stop.is_set():
                    await self._write(pending)
                    await self._save_if_due()
                    pending, events, size = [], 0, 0
                    tick = self._clock() + _TICK_S
                    if self._stop.is_set():
                        return
        await self._write(pending)

    async def _write(self, records: Sequence[Record]) -> None:
        for batch in _batches(records, self._batch_events()):
            await self._writer.write(batch, self._state.account)
            await self._pace(sum(record.count for record in batch))

    async def _pace(self, events: int) -> None:
        """Wait for as long as these events may take at least."""
        if not self._portions.rate:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now) + events / self._portions.rate
        try:
            await asyncio.wait_for(self._stop.wait(), self._free_at - now)
        except TimeoutError:
            return

    def _batch_events(self) -> int:
        rate = self._portions.rate
        most = self._portions.max_events
        return max(1, min(most, int(rate * _TICK_S))) if rate else most

    async def _save_if_due(self) -> None:
        if self._clock() >= self._save_at:
            await self._save()

    async def _save(self) -> None:
        begun = self._clock()
        self._state.seconds += begun - self._seen_s
        self._seen_s = begun
        self._state.sources = [fold.save() for fold in self._folds.values()]
        await asyncio.to_thread(self._save_to, self._state)
        took_s = self._clock() - begun
        self._save_at = self._clock() + max(_SAVE_S, _SAVE_SHARE * took_s)


def _batches(records: Sequence[Record], max_events: int) -> Iterator[list[Record]]:
    """Split records, each of them whole, into batches of about so many events."""
    batch: list[Record] = []
    events = 0
    for record in records:
        batch.append(record)
        events += record.count
        if events >= max_events:
            yield batch
            batch, events = [], 0
    if batch:
        yield batch
