"""The otlp sink: final Stats as metrics and logs as log records, to an OpenTelemetry collector."""

import asyncio
import gzip
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import requests
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from mlops_events.schemas.events import Log, Stats
from mlops_events.schemas.settings import load, variable
from mlops_events.sinks.base import Batch, Envelope, Rejected, SinkBroken, SinkUnavailable
from mlops_events.sinks.http import ask, retry_after, said
from mlops_events.sinks.otlp_messages import logs_request, metrics_request
from mlops_events.sinks.otlp_settings import OTLPSettings

__all__ = ["OTLPSettings", "OTLPSink"]

_NS: Final = 1_000_000_000
_BLOCKED: Final = frozenset((401, 403, 404, 405, 407))
"""Answers that no other batch would change: somebody must look at the settings."""
_REFUSED: Final = range(400, 429)


class OTLPSink:
    """Exports over HTTP with protobuf, each event at least once.

    Args:
        settings: from the environment if None.
        now: the time in seconds.
    """

    name = "otlp"

    def __init__(
        self, settings: OTLPSettings | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings if settings is not None else load(OTLPSettings, "otlp")
        self._now = now
        self._thread: ThreadPoolExecutor | None = None
        self._exporter: _Exporter | None = None

    async def check(self) -> None:
        """Ask the collector to take nothing, which it must answer with success."""
        with ThreadPoolExecutor(1) as thread:
            exporter = _Exporter(self._settings, self._now)
            try:
                await asyncio.get_running_loop().run_in_executor(thread, exporter.check)
            finally:
                exporter.session.close()

    async def open(self) -> None:
        """Get ready; nothing is asked of the collector."""
        if self._exporter is None:
            self._exporter = _Exporter(self._settings, self._now)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="otlp")

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Export a batch."""
        if self._exporter is None or self._thread is None:
            raise SinkBroken("the otlp sink is closed; open it first")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._exporter.write, batch)

    async def close(self) -> None:
        """Let go of the connections, after what is being exported."""
        if self._thread is not None and self._exporter is not None:
            thread, exporter = self._thread, self._exporter
            self._thread = self._exporter = None
            thread.submit(exporter.session.close)
            await asyncio.to_thread(thread.shutdown)


class _Exporter:
    """The open sink, as its thread sees it."""

    def __init__(self, settings: OTLPSettings, now: Callable[[], float]) -> None:
        base = settings.endpoint.rstrip("/")
        self._metrics_url = settings.metrics_endpoint or (base and f"{base}/v1/metrics")
        self._logs_url = settings.logs_endpoint or (base and f"{base}/v1/logs")
        if not (self._metrics_url or self._logs_url):
            raise SinkBroken(
                f"the otlp sink has no collector: set {variable('otlp', 'endpoint')}="
                "http://HOST:4318"
            )
        self.session = requests.Session()
        self._settings = settings
        self._now = now
        self._headers = {"Content-Type": "application/x-protobuf", **settings.headers}
        if settings.token:
            self._headers["Authorization"] = f"Bearer {settings.token.reveal()}"
        if settings.gzip:
            self._headers["Content-Encoding"] = "gzip"

    def check(self) -> None:
        """Send requests without events.

        Raises:
            SinkUnavailable: one is not answered with success.
        """
        for url, empty in (
            (self._metrics_url, metrics_request([], now_ns=0)),
            (self._logs_url, logs_request([])),
        ):
            if url:
                response = self._post(url, empty)
                if response.status_code != 200:
                    raise SinkUnavailable(_advice(url, response))

    def write(self, batch: Batch) -> list[Rejected]:
        """Export logs, then Stats; other kinds, and Stats that are not final, have no form here.

        Raises:
            SinkUnavailable: not at present; what was exported of the batch comes again.
        """
        logs: list[tuple[Envelope, Log]] = []
        stats: list[tuple[Envelope, Stats]] = []
        rejected: list[Rejected] = []
        for envelope in batch:
            event = envelope.event
            if isinstance(event, Log) and self._logs_url:
                logs.append((envelope, event))
            elif isinstance(event, Stats) and self._metrics_url:
                if event.final:
                    stats.append((envelope, event))
            else:
                kind = type(event).__name__.lower()
                rejected.append(
                    Rejected(
                        envelope, "unwanted", f"the otlp sink exports no events of kind {kind}"
                    )
                )
        now_ns = round(self._now() * _NS)
        rejected += self._export(
            self._logs_url, logs, lambda some: logs_request(some, replay=batch.replay),
            ExportLogsServiceResponse,
        )  # fmt: skip
        rejected += self._export(
            self._metrics_url,
            stats,
            lambda some: metrics_request(some, now_ns=now_ns, replay=batch.replay),
            ExportMetricsServiceResponse,
        )
        return rejected

    def _export(
        self,
        url: str,
        events: Sequence[tuple[Envelope, Any]],
        request: Callable[[Any], Message],
        answer: type[Message],
    ) -> list[Rejected]:
        """Export events until each is taken or refused; halve what the collector objects to."""
        rejected: list[Rejected] = []
        waiting = [events] if events else []
        while waiting:
            some = waiting.pop()
            response = self._post(url, request(some))
            problem = self._problem(url, response, answer, len(some))
            if problem is None:
                continue
            if len(some) == 1:
                rejected.append(Rejected(some[0][0], "refused", problem[:2000] or "refused"))
                continue
            middle = len(some) // 2
            waiting += [some[middle:], some[:middle]]
        return rejected

    def _post(self, url: str, message: Message) -> requests.Response:
        body = message.SerializeToString()
        if self._settings.gzip:
            body = gzip.compress(body, compresslevel=1)
        return ask(
            self.session,
            "POST",
            url,
            timeout_s=self._settings.timeout_s,
            body=body,
            headers=self._headers,
        )

    def _problem(
        self, url: str, response: requests.Response, answer: type[Message], count: int
    ) -> str | None:
        """Return what a collector objects to; None if it took everything.

        Raises:
            SinkUnavailable: it takes nothing at present.
        """
        status = response.status_code
        if status == 200:
            return _partial(response, answer)
        if status in _REFUSED and status not in _BLOCKED:
            return f"{url} {said(response)}"
        raise SinkUnavailable(_advice(url, response), retry_after=retry_after(response))


def _partial(response: requests.Response, answer: type[Message]) -> str | None:
    """Return what is said of events that were refused in a request that succeeded."""
    try:
        read: Any = answer.FromString
        partial = read(response.content).partial_success
    except DecodeError:
        return None  # JSON, or nothing: the status alone counts
    refused = getattr(partial, "rejected_data_points", 0) or getattr(
        partial, "rejected_log_records", 0
    )
    return f"{refused} refused: {partial.error_message}" if refused else None


def _advice(url: str, response: requests.Response) -> str:
    """Say what to do about an answer that stops everything."""
    answer = f"{url} {said(response)}"
    if response.status_code in (401, 403, 407):
        return f"{answer}: set {variable('otlp', 'token')} or {variable('otlp', 'headers')}"
    if response.status_code in (404, 405):
        return f"{answer}: is {variable('otlp', 'endpoint')} a collector's, with OTLP over HTTP?"
    if response.status_code < 400:
        return f"{answer}: only 200 means that events were taken"
    return answer
