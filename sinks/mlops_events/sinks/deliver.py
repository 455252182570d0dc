"""The delivery loop: writes a sink's batches to it, and commits what was written."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from mlops_events.schemas.events import DeadLetter
from mlops_events.schemas.health import Counters
from mlops_events.sinks.base import (
    Batch,
    ExclusiveSink,
    FrameRecord,
    Sink,
    SinkBroken,
    SinkUnavailable,
)
from mlops_events.sinks.deadletters import letters_of_rejected, out_record
from mlops_events.sinks.intake import DeliverSettings, Intake, Pending
from mlops_events.sinks.log import Log, LogError

__all__ = ["Delivery", "backoff_s"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S = 0.5
_MAX_RETRY_AFTER_S = 600.0


def backoff_s(attempt: int, *, retry_after: float | None, draw: Callable[[], float]) -> float:
    """Return how long to wait after a failed attempt: full jitter, from half a second to sixty.

    Args:
        attempt: 0 after the first failure.
        retry_after: what the destination asked for; at most ten minutes are granted.
        draw: a random number between 0 and 1.
    """
    wait_s: float = draw() * min(60.0, 0.5 * 2.0 ** min(attempt, 10))
    return max(wait_s, min(retry_after or 0.0, _MAX_RETRY_AFTER_S))


class Delivery:
    """Delivers one topic to one sink, for ever.

    A batch is written, then its dead letters, then its commit. While the sink or the dead letters'
    topic is away the batch is kept and tried again, and nothing more is read; the place in the
    group is kept.

    Args:
        sink: opened here, and closed at the end.
        topic: the sink's log.
        dead_letters: the topic of the dead letters.
        settings: sizes and limits.
        counters: counts what passes.
        clock: seconds that never go back.
        draw: random numbers between 0 and 1, for the waits.
    """

    def __init__(
        self,
        sink: Sink,
        topic: Log,
        *,
        dead_letters: str,
        settings: DeliverSettings,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._sink = sink
        self._log = topic
        self._dead_letters = dead_letters
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._draw = draw
        self._intake = Intake(sink.name, topic, settings=settings, counters=counters, clock=clock)
        self._quiet = asyncio.Event()  # set while nothing is being written or committed
        self._quiet.set()
        self._stop = asyncio.Event()
        self._trouble: str | None = "not started"
        self._beat = clock()
        self._pending: Pending | None = None
        self._breaker_open = False
        counters.gauge("lag_records", lambda: float(self._intake.lag()))
        counters.gauge("breaker_open", lambda: float(self._breaker_open))
        counters.gauge("in_flight_events", lambda: float(self._in_flight))
        counters.gauge("oldest_uncommitted_seconds", lambda: self._oldest_s)
        counters.gauge("partitions", lambda: float(self._intake.partitions))

    @property
    def trouble(self) -> str | None:
        """What keeps it from delivering at present; None if nothing does."""
        return self._trouble

    @property
    def silent_s(self) -> float:
        """How long ago its loop last came round."""
        return self._clock() - self._beat

    @property
    def _in_flight(self) -> int:
        """Events of the batch that is being written."""
        return 0 if self._pending is None else self._pending.events

    @property
    def _oldest_s(self) -> float:
        """How long ago the first record of the batch that is being written was read."""
        since = None if self._pending is None else self._pending.since
        return 0.0 if since is None else self._clock() - since

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until told to stop; what was gathered by then is written and committed.

        Raises:
            SinkBroken: the sink cannot go on in this process.
            Exception: whatever else a sink or the consumer raises; the process must end.
        """
        self._stop = stop
        try:
            await self._open()
            if not stop.is_set():
                await self._join()
            while not stop.is_set():
                await self._round()
        finally:
            try:
                await self._log.close()
            finally:
                await self._sink.close()

    async def _open(self) -> None:
        attempt = 0
        while not self._stop.is_set():
            try:
                await self._limited(self._sink.open())
            except SinkUnavailable as error:
                self._complain("the sink is unavailable", error, attempt)
                await self._wait(backoff_s(attempt, retry_after=error.retry_after, draw=self._draw))
                attempt += 1
            else:
                self._trouble = "joining the group"
                return

    async def _join(self) -> None:
        """Join the group, unless told to stop before that is done."""
        joining = asyncio.ensure_future(self._log.start(self._revoked))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (joining, stopping):
            task.cancel()
        await asyncio.wait({joining, stopping})
        if not joining.cancelled():
            joining.result()

    async def _revoked(self) -> None:
        """Let what is being written be committed, then give every partition up."""
        try:
            await asyncio.wait_for(self._quiet.wait(), self._log.revoke_s)
        except TimeoutError:
            log.warning("partitions given up during a write", extra={"sink": self._sink.name})
        self._intake.give_up()
        if isinstance(self._sink, ExclusiveSink):
            await self._sink.give_up()

    async def _round(self) -> None:
        """Gather one batch and see it through."""
        self._beat = self._clock()
        try:
            await self._intake.take_over()
            await self._intake.watch_logs()
        except LogError as error:
            self._complain("Kafka does not answer", error, 0)
            await self._wait(_POLL_S)
            return
        if self._intake.partitions:
            self._trouble = None
        pending = await self._intake.gather(self._stop.is_set)
        if pending:
            self._pending = pending
            try:
                await self._settle(pending)
            finally:
                self._pending = None
                self._breaker_open = False

    async def _settle(self, pending: Pending) -> None:
        """Write a batch, then its dead letters, then commit, however long that takes.

        The first failure opens the circuit breaker: nothing is read until a batch gets through.
        The batch in hand is the probe; nothing else is sent.
        """
        letters: list[DeadLetter] | None = None
        attempt = 0
        while pending:
            retry_after = None
            self._quiet.clear()
            try:
                if letters is None:
                    letters = pending.letters() + await self._write(pending.batch())
                await self._bury(letters)
                await self._commit(pending)
            except SinkUnavailable as error:
                self._complain("the sink is unavailable", error, attempt)
                retry_after = error.retry_after
            except LogError as error:
                self._complain("dead letters not written; nothing is committed", error, attempt)
            else:
                self._trouble = None
                return
            finally:
                self._quiet.set()
            if self._stop.is_set():
                return
            if not self._breaker_open:
                self._breaker_open = True
                self._counters.add("breaker_opened")
            await self._pause(backoff_s(attempt, retry_after=retry_after, draw=self._draw))
            attempt += 1

    async def _write(self, batch: Batch) -> list[DeadLetter]:
        """Write a batch; return the letters of what the sink refuses."""
        if not batch.records:
            return []
        begun = self._clock()
        rejected = await self._limited(self._sink.write(batch))
        self._counters.add("write_seconds", self._clock() - begun)
        self._counters.add("batches")
        for record in batch.records:
            kind = record.frame.kind if isinstance(record, FrameRecord) else "stats"
            self._counters.sent(kind, record.count)
        return letters_of_rejected(rejected, batch, sink=self._sink.name)

    async def _bury(self, letters: Sequence[DeadLetter]) -> None:
        """Write the dead letters of a batch."""
        if not letters:
            return
        await self._log.send(self._dead_letters, [out_record(letter) for letter in letters])
        for letter in letters:
            self._counters.dropped(f"dead_letter_{letter.reason}")
        log.warning(
            "events became dead letters",
            extra={"sink": self._sink.name, "count": len(letters), "reason": letters[0].reason},
        )

    async def _commit(self, pending: Pending) -> None:
        marks = pending.marks()
        if not marks:
            return
        try:
            await self._log.commit(marks)
        except LogError as error:  # what was written stays so; the next commit says it again
            self._counters.error("commit")
            log.warning("commit failed", extra={"sink": self._sink.name, "error": str(error)})

    async def _limited(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the sink, but not for ever."""
        limit_s = self._settings.write_timeout_s
        try:
            return await asyncio.wait_for(work, limit_s)
        except TimeoutError as error:
            raise SinkBroken(f"sink {self._sink.name}: no answer within {limit_s} s") from error

    async def _pause(self, seconds: float) -> None:
        """Keep the place in the group without reading anything."""
        self._log.pause()
        try:
            left_s = seconds
            until = self._clock() + seconds
            while left_s >= 0 and not self._stop.is_set():
                self._beat = self._clock()
                await self._log.poll(timeout_s=min(left_s, _POLL_S), max_records=1)
                left_s = until - self._clock()
        finally:
            self._log.resume()

    async def _wait(self, seconds: float) -> None:
        """Wait, unless told to stop."""
        self._beat = self._clock()
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    def _complain(self, message: str, error: Exception, attempt: int) -> None:
        self._trouble = f"{message}: {error}"
        self._counters.error(type(error).__name__)
        level = logging.WARNING if attempt < 3 or attempt % 10 == 0 else logging.DEBUG
        log.log(level, message, extra={"sink": self._sink.name, "error": str(error)})
