"""A collector that takes OTLP over HTTP by its specification, in one process."""

import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb


class Scripted(NamedTuple):
    """An answer that is given instead of the right one."""

    status: int
    headers: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple's default, never changed


class Collector:
    """Keeps what is exported. `bad` says whether a log record or a data point is refused."""

    def __init__(self) -> None:
        self.url = ""
        self.logs: list[tuple[dict[str, Any], Any]] = []
        self.metrics: list[tuple[dict[str, Any], Any]] = []
        self.script: list[Scripted] = []
        self.bad: Callable[[Any], bool] = lambda _: False
        self.whole_request = False
        self.headers: dict[str, str] = {}
        self.posts = 0

    def take(self, path: str, body: bytes, headers: Any) -> tuple[int, bytes, dict[str, str]]:
        """Take a request and return status, body and headers of the answer."""
        self.posts += 1
        self.headers = dict(headers)
        if self.script:
            scripted = self.script.pop(0)
            return scripted.status, b"as the test wants it", scripted.headers
        if headers.get("Content-Type") != "application/x-protobuf":
            return 415, b"", {}
        if headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        try:
            if path == "/v1/logs":
                return self._logs(logs_pb.ExportLogsServiceRequest.FromString(body))
            if path == "/v1/metrics":
                return self._metrics(metrics_pb.ExportMetricsServiceRequest.FromString(body))
        except DecodeError:
            return 400, b"", {}
        return 404, b"404 page not found", {}

    def _logs(self, request: Any) -> tuple[int, bytes, dict[str, str]]:
        found = [
            (_plain(resource.resource.attributes), record)
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]
        bad = [record for _, record in found if self.bad(record)]
        if bad and self.whole_request:
            return 400, b"a bad record", {}
        self.logs += [one for one in found if not self.bad(one[1])]
        answer = logs_pb.ExportLogsServiceResponse()
        if bad:
            answer.partial_success.rejected_log_records = len(bad)
            answer.partial_success.error_message = "a bad record"
        return 200, answer.SerializeToString(), {}

    def _metrics(self, request: Any) -> tuple[int, bytes, dict[str, str]]:
        for resource in request.resource_metrics:
            who = _plain(resource.resource.attributes)
            self.metrics += [
                (who, metric) for scope in resource.scope_metrics for metric in scope.metrics
            ]
        return 200, metrics_pb.ExportMetricsServiceResponse().SerializeToString(), {}


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    if kind == "kvlist_value":
        return _plain(value.kvlist_value.values)
    return None if kind is None else getattr(value, kind)


@pytest.fixture
def plain() -> Callable[[Any], dict[str, Any]]:
    """Return a function that reads attributes."""
    return _plain


@pytest.fixture
def scripted() -> type[Scripted]:
    """Return the type of answers that are given instead of right ones."""
    return Scripted


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Return a collector that runs."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer, headers = found.take(self.path, body, self.headers)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    server.server_close()
