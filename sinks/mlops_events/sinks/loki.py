"""The loki sink: log lines in batches over Loki's push API."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from mlops_events.schemas.settings import load, variable
from mlops_events.sinks.base import Batch, Rejected, SinkBroken
from mlops_events.sinks.loki_entries import Entry, Renderer
from mlops_events.sinks.loki_push import Client, Verdict
from mlops_events.sinks.loki_settings import LokiSettings

__all__ = ["LokiSettings", "LokiSink"]

_NS: Final = 1_000_000_000
_PUSH_BYTES: Final = 1 << 20
_REMEMBERED: Final = 100_000
"""Lines that are known to be stored while a batch is tried again."""


class LokiSink:
    """Pushes log lines, each at least once; what comes again carries the same id.

    Args:
        settings: from the environment if None.
        now: the time in seconds.
    """

    name = "loki"

    def __init__(
        self, settings: LokiSettings | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings if settings is not None else load(LokiSettings, "loki")
        self._now = now
        self._thread: ThreadPoolExecutor | None = None
        self._pusher: _Pusher | None = None

    async def check(self) -> None:
        """Ask the server whether it is ready."""
        with ThreadPoolExecutor(1) as thread:
            client = _client(self._settings)
            try:
                await asyncio.get_running_loop().run_in_executor(thread, client.check)
            finally:
                client.close()

    async def open(self) -> None:
        """Get ready; nothing is asked of the server."""
        if self._pusher is None:
            self._pusher = _Pusher(self._settings, self._now)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="loki")

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Push a batch."""
        if self._pusher is None or self._thread is None:
            raise SinkBroken("the loki sink is closed; open it first")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._pusher.write, batch)

    async def close(self) -> None:
        """Let go of the connections, after what is being pushed."""
        if self._thread is not None and self._pusher is not None:
            thread, pusher = self._thread, self._pusher
            self._thread = self._pusher = None
            thread.submit(pusher.client.close)
            await asyncio.to_thread(thread.shutdown)


class _Pusher:
    """The open sink, as its thread sees it."""

    def __init__(self, settings: LokiSettings, now: Callable[[], float]) -> None:
        self.client = _client(settings)
        self._now = now
        self._too_old_ns = round(settings.too_old_s * _NS)
        self._ahead_ns = round(settings.ahead_s * _NS)
        self._render = Renderer(
            clean=self.client.clean,
            uid_label=settings.uid_label,
            more_labels=settings.labels,
            structured_metadata=settings.structured_metadata,
        )
        self._stored: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        self._rejected: list[Rejected] = []

    def write(self, batch: Batch) -> list[Rejected]:
        """Push a batch and return what is refused.

        Raises:
            SinkUnavailable: not at present; what was stored of the batch is not sent again.
        """
        self._rejected = []
        now = round(self._now() * _NS)
        entries = [
            entry
            for record in batch.records
            for entry in self._render.entries(record, replay=batch.replay)
            if self._fits(entry, now)
        ]
        if self._stored:
            entries = [entry for entry in entries if _place(entry) not in self._stored]
        for some in _in_requests(entries):
            self._push(some)
            self._remember(some)
        self._stored.clear()
        return self._rejected

    def _fits(self, entry: Entry, now: int) -> bool:
        age = now - entry.ts
        if age > self._too_old_ns:
            message = f"{age / _NS / 86_400:.1f} days old; at most {self._too_old_ns / _NS / 86_400:g} are taken"
            self._refuse(entry, "too_old", message)
        elif -age > self._ahead_ns:
            message = (
                f"{-age / _NS:.0f} s in the future; at most {self._ahead_ns / _NS:g} are taken"
            )
            self._refuse(entry, "ahead", message)
        else:
            return True
        return False

    def _push(self, entries: Sequence[Entry]) -> None:
        """Push entries until each is stored or refused; halve what the server objects to."""
        waiting = [entries]
        while waiting:
            some = waiting.pop()
            answer = self.client.push(some)
            if answer.verdict is Verdict.STORED:
                continue
            if answer.verdict is Verdict.BEHIND and len({e.labels for e in some}) == 1:
                waiting += self._behind(some, answer.oldest_ns)
                continue
            if len(some) == 1:
                reason = "too_large" if answer.verdict is Verdict.LARGE else "refused"
                self._refuse(some[0], reason, answer.text[:2000])
                continue
            waiting += _halves(some)

    def _behind(self, entries: Sequence[Entry], oldest_ns: int | None) -> Iterator[list[Entry]]:
        """Yield what is to be pushed of a stream that has moved on too far for some entries.

        Those get a stream of their own, of their emitter: it is behind nobody.
        """
        if any(name == "late" for name, _ in entries[0].labels):
            yield from _halves(entries) if len(entries) > 1 else ()
            if len(entries) == 1:
                self._refuse(entries[0], "too_far_behind", "behind its own emitter's lines")
            return
        if oldest_ns is None and len(entries) > 1:
            yield from _halves(entries)
            return
        late = [
            entry._replace(labels=(*entry.labels, ("late", entry.record.frame.emitter.hex()[:8])))
            for entry in entries
            if oldest_ns is None or entry.ts < oldest_ns
        ]
        by_stream: dict[object, list[Entry]] = {}
        for entry in late:
            by_stream.setdefault(entry.labels, []).append(entry)
        yield from by_stream.values()

    def _remember(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._stored[_place(entry)] = None
        while len(self._stored) > _REMEMBERED:
            self._stored.popitem(last=False)

    def _refuse(self, entry: Entry, reason: str, message: str) -> None:
        self._rejected.append(Rejected(entry.envelope, reason, message or reason))


def _client(settings: LokiSettings) -> Client:
    if not settings.url:
        raise SinkBroken(
            f"the loki sink has no server: set {variable('loki', 'url')}=http://HOST:3100"
        )
    return Client(
        settings.url,
        ready_path=settings.ready_path,
        tenant=settings.tenant,
        username=settings.username,
        password=settings.password,
        token=settings.token,
        gzip=settings.gzip,
        timeout_s=settings.timeout_s,
    )


def _place(entry: Entry) -> tuple[str, int, int]:
    """Name an entry's event by its place in the topic."""
    record = entry.record
    number = (record.incarnation << 16 | record.partition) << 48 | record.offset
    return (record.topic, number, entry.position)


def _in_requests(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Split entries so that a request stays near a mebibyte."""
    start = size = 0
    for at, entry in enumerate(entries):
        size += len(entry.line) + 200
        if size > _PUSH_BYTES and at > start:
            yield entries[start:at]
            start, size = at, len(entry.line) + 200
    if start < len(entries):
        yield entries[start:]


def _halves(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Halve entries, streams apart if there are several."""
    by_stream: dict[object, list[Entry]] = {}
    for entry in entries:
        by_stream.setdefault(entry.labels, []).append(entry)
    if len(by_stream) > 1:
        return list(by_stream.values())
    middle = len(entries) // 2
    return [list(entries[:middle]), list(entries[middle:])]
