"""The daemon thread that closes frames on time and sends them."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from mlops_events.producers.clock import Clock
from mlops_events.producers.lane import Lane
from mlops_events.producers.lifetime import IMPORTING, watch_child
from mlops_events.producers.transport import (
    OutRecord,
    RecordRefusedError,
    Transport,
    TransportError,
)

if TYPE_CHECKING:
    import asyncio

    from mlops_events.producers.keeper import Keeper
    from mlops_events.producers.loop import Signal
    from mlops_events.producers.scalars import Capture
    from mlops_events.producers.scrub import Scrubber

__all__ = ["Pace", "Worker"]

_GROWTH = 1.5
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
_WARN_EVERY_S = 30.0
_CAPTURE_EVERY_S = 0.25
_CAPTURE_POLL_S = 0.002
_CAPTURE_S = 1.0
"""How long a flush or the end waits for values on their way from a GPU."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How old an open frame may get: `linger_s`, up to `most_s` while there is little to send."""

    linger_s: float
    most_s: float
    little: int

    def next(self, now_s: float, events: int) -> float:
        """Return how long to wait after a round of `now_s` seconds that brought so many events."""
        if events >= self.little:
            return self.linger_s
        return max(self.linger_s, min(self.most_s, now_s * _GROWTH))


class _Ticket:
    """A flush that a thread waits for."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.ok = False


class Worker:
    """Owns the thread, its event loop and the transport of one emitter.

    The thread starts with the first event, and nothing that it imports costs the program before.
    """

    def __init__(self, *, transport: Transport, clock: Clock, pace: Pace) -> None:
        self.lanes: Sequence[Lane] = ()
        self.spool: Keeper | None = None
        self.capture: Capture | None = None
        self.observe: Callable[[str, Any, Any, int, Any], None]
        """Emits what was captured, once its values are here."""
        self.scrubber: Callable[[], Scrubber | None] = lambda: None
        """Makes what masks secrets, in the thread."""
        self.collect: Callable[[], object] | None = None
        """Starts to collect figures of the machine, when the thread starts."""
        self.ended = False
        self.error = ""
        self._transport = transport
        self._clock = clock
        self._pace = pace
        self._lock = threading.RLock()  # reentrant: a signal handler may emit, too
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event
        self._sealed: Signal
        self._progress: Signal
        self._tickets: deque[_Ticket] = deque()
        self._flushes: set[asyncio.Task[None]] = set()
        self._lost_told = 0
        self._closing = False
        self._deadline = 0.0
        self._warned_at = -_WARN_EVERY_S
        self._silent = 0

    # Called by any thread.

    def wake(self) -> None:
        """Start the thread, or have it look at the buffers now."""
        with self._lock:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._main, name="mlops-events", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # no more threads, or the interpreter is ending
                    self._thread = None
                    self.error = str(error)
                    return
                watch_child()
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._woken.set)
            except RuntimeError:  # it has just been closed
                return

    def flush(self, timeout: float) -> bool:
        """Wait until all before is acknowledged; False if not in time, or if some was given up.

        What was given up makes one flush fail, the next one after it.
        """
        if self._thread is None or self._closing:
            return all(len(lane.buffer) == 0 for lane in self.lanes)
        ticket = _Ticket()
        self._tickets.append(ticket)
        self.wake()
        ticket.done.wait(timeout)
        return ticket.ok

    def close(self, timeout: float) -> None:
        """Begin to send the rest and to end; `join` waits for it."""
        with self._lock:
            if self._closing:
                return
            self._deadline = monotonic() + timeout
            self._closing = True
            if self._thread is None:
                self.ended = not any(lane.used or len(lane.buffer) for lane in self.lanes)
        if not self.capture:  # else the thread does, when it has what was captured
            self._close_buffers()
        self.wake()

    def join(self) -> None:
        """Wait until it has ended, not longer than its deadline."""
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, self._deadline - monotonic()))

    def abandon(self) -> None:
        """Leave the spool to the parent, in a forked child."""
        if self.spool is not None:
            self.spool.abandon()

    # Called by the thread itself.

    def _main(self) -> None:
        with IMPORTING:
            import random  # noqa: F401 - used later, when a fork may come at any moment

            from mlops_events.producers.loop import run

            scrubber = self.scrubber()
            if self.collect is not None:
                self.collect()
        for lane in self.lanes:
            lane.scrubber = scrubber
        try:
            run(self._run())
        except Exception as error:  # the edge of a thread in somebody else's program
            self.complain(error)

    async def _run(self) -> None:
        import asyncio

        from mlops_events.producers.loop import Signal

        loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._sealed = Signal()
        self._progress = Signal()
        self._loop = loop
        sending = asyncio.create_task(self._send_all())
        wait_s = self._pace.linger_s
        due = loop.time() + wait_s
        events = 0
        while not self._closing:
            tickets = [self._tickets.popleft() for _ in range(len(self._tickets))]
            late = loop.time() >= due
            if self.capture is not None:
                await self._release(_CAPTURE_S if tickets else 0.0)
            events += await self._gather(seal=late or bool(tickets))
            if late:
                self._clock.follow()
                wait_s = self._pace.next(wait_s, events)
                due = loop.time() + wait_s
                events = 0
            if tickets:
                flush = asyncio.create_task(self._flush(tickets))
                self._flushes.add(flush)
                flush.add_done_callback(self._flushes.discard)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._nap(due - loop.time()))
            self._woken.clear()
        await self._finish(sending)

    def _close_buffers(self) -> None:
        for lane in self.lanes:
            lane.buffer.close()

    def _nap(self, seconds: float) -> float:
        """Return how long to sleep; not for long while values may be on their way from a GPU."""
        most = seconds if self.capture is None else min(seconds, _CAPTURE_EVERY_S)
        return max(0.0, most)

    async def _release(self, within_s: float) -> None:
        """Emit what was captured and is here; wait for the rest as long as is said."""
        import asyncio

        capture = self.capture
        if capture is None:
            return
        until = monotonic() + within_s
        try:
            capture.prepare()
            while True:
                for captured in capture.ready():
                    self.observe(*captured)
                if not len(capture) or monotonic() >= until:
                    return
                await asyncio.sleep(_CAPTURE_POLL_S)
        except Exception as error:  # a GPU may fail in any way
            self.complain(error)

    async def _gather(self, *, seal: bool) -> int:
        """Put what is in the buffers into frames, and close those; return the number of events."""
        import asyncio

        count = 0
        for lane in self.lanes:
            left = len(lane.buffer)
            count += left
            try:
                while left > 0:
                    left -= lane.gather()
                    await asyncio.sleep(0)
                if seal:
                    lane.seal()
            except Exception as error:  # the edge of a thread in somebody else's program
                self.complain(error)
        self._sealed.fire()
        return count

    async def _flush(self, tickets: list[_Ticket]) -> None:
        await self._settled()
        lost = sum(lane.lost for lane in self.lanes)
        for ticket in tickets:
            ticket.ok = lost == self._lost_told
            ticket.done.set()
        self._lost_told = lost

    async def _settled(self) -> None:
        """Wait until every frame that is closed now was acknowledged or given up."""
        targets = [(lane, lane.seq) for lane in self.lanes]
        while any(lane.oldest < seq for lane, seq in targets):
            await self._progress.wait()

    async def _send_all(self) -> None:
        import asyncio

        failures = 0
        while True:
            try:
                await self._transport.open()
                break
            except Exception as error:  # a transport may be anybody's
                failures += 1
                self.complain(error)
                await self._pause(failures)
        sending = [self._send_lane(lane) for lane in self.lanes]
        if self.spool is not None:
            sending.append(self.spool.drain(self.send))
        await asyncio.gather(*sending)

    async def _send_lane(self, lane: Lane) -> None:
        """Send a lane's frames one by one."""
        while True:
            frame = lane.backlog.first()
            if frame is None:
                await self._sealed.wait()
                continue
            lane.done(sent=await self.send(frame.record))
            self._progress.fire()

    async def send(self, record: OutRecord) -> bool:
        """Send a record again and again until it is acknowledged; False if it is refused."""
        failures = 0
        while True:
            try:
                await self._transport.send(record)
            except RecordRefusedError as error:
                self.complain(error)
                return False
            except Exception as error:  # a transport may be anybody's
                failures += 1
                self.complain(error)
                await self._pause(failures)
            else:
                self.error = ""
                return True

    async def _pause(self, failures: int) -> None:
        """Wait before the next attempt, with full jitter: a fleet must not come back as one."""
        import asyncio
        import random

        longest = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** min(failures, 10))
        await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 - not for secrets

    async def _finish(self, sending: "asyncio.Task[None]") -> None:
        """Send the rest and say that it was all; what the deadline cuts off is lost."""
        import asyncio

        left = self._deadline - monotonic()
        try:
            async with asyncio.timeout(max(0.0, left - min(0.3, left / 5))):
                await self._release(min(_CAPTURE_S, left / 2))
                if self.capture is not None:
                    for captured in self.capture.give_up():
                        self.observe(*captured)
                    self._close_buffers()
                await self._gather(seal=True)
                await self._settled()
                for lane in self.lanes:
                    if lane.used:
                        lane.seal(end=True)
                self._sealed.fire()
                await self._settled()
                self.ended = True
        except TimeoutError:
            pass
        sending.cancel()
        await asyncio.wait({sending}, timeout=0.1)
        for lane in self.lanes:
            lane.give_up()
            if self.spool is not None and lane.backlog.kept:
                lane.seal(end=True)  # behind all that waits for the next process
        if self.spool is not None:
            self.spool.close()
        for ticket in self._tickets:
            ticket.ok = self.ended
            ticket.done.set()
        try:
            await self._transport.close(max(0.05, self._deadline - monotonic()))
        except Exception as error:  # a transport may be anybody's
            self.complain(error)

    def complain(self, error: Exception) -> None:
        """Keep the reason, and warn of it at most every 30 s."""
        import logging

        self.error = str(error) or repr(error)
        self._silent += 1
        if monotonic() - self._warned_at < _WARN_EVERY_S:
            return
        logging.getLogger(__name__).warning(
            "events are not sent: %s",
            self.error,
            extra={"failures": self._silent},
            exc_info=None if isinstance(error, TransportError) else error,
        )
        self._warned_at = monotonic()
        self._silent = 0
