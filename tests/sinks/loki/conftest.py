"""A stand-in for Loki that enforces the limits its documentation names, in one process."""

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

NOW = 1_800_000_000
"""The time that tests of limits take place at, in seconds."""

NS = 1_000_000_000
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


class Line(NamedTuple):
    """A stored line."""

    labels: tuple[tuple[str, str], ...]
    ts: int
    line: str
    metadata: dict[str, str]


class Scripted(NamedTuple):
    """An answer that is given instead of the right one; `stores` what came all the same."""

    status: int
    text: str = ""
    headers: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple's default, never changed
    stores: bool = False


class StrictLoki:
    """Loki's push API by its documented rules.

    Limits (defaults of Loki 3): 15 labels, at least one; names `[a-zA-Z_][a-zA-Z0-9_]*` of up to
    1,024 characters, values of up to 2,048; lines of up to 256 KiB; structured metadata of up to
    64 KiB and 128 keys; not older than 7 days, not further ahead than 10 minutes, not more than an
    hour behind the newest line of the stream. A request in which something is refused is answered
    with 400 and all the rest of it is stored. The same (time, line) of a stream is stored once.
    """

    def __init__(self, now: Callable[[], float], tenant: str, max_body: int) -> None:
        self.now = now
        self.tenant = tenant
        self.max_body = max_body
        self.metadata = True
        self.ready = True
        self.lines: list[Line] = []
        self.script: list[Scripted] = []
        self.posts = 0
        self.received = 0
        self.headers: dict[str, str] = {}
        self.url = ""
        self._known: set[tuple[Any, ...]] = set()
        self._newest: dict[Any, int] = {}

    def push(self, body: bytes, headers: Any) -> tuple[int, str, dict[str, str]]:
        """Take a request and return status, text and headers of the answer."""
        self.posts += 1
        self.headers = dict(headers)
        scripted = self.script.pop(0) if self.script else None
        if scripted is not None and not scripted.stores:
            return scripted.status, scripted.text, scripted.headers
        status, text = self._take(body, headers)
        if scripted is not None:
            return scripted.status, scripted.text, scripted.headers
        return status, text, {}

    def _take(self, body: bytes, headers: Any) -> tuple[int, str]:
        if self.tenant and headers.get("X-Scope-OrgID") != self.tenant:
            return 401, "no org id"
        if headers.get("Content-Type") != "application/json":
            return 400, "unsupported content type"
        try:
            raw = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
            if len(raw) > self.max_body:
                return 413, "request body too large"
            streams = json.loads(raw)["streams"]
        except (OSError, EOFError, ValueError, KeyError) as error:
            return 400, f"cannot parse: {error}"
        refused: list[str] = []
        total = 0
        for stream in streams:
            labels = tuple(sorted(stream["stream"].items()))
            wrong = self._labels(stream["stream"])
            for value in stream["values"]:
                total += 1
                self.received += 1
                reason = wrong or self._entry(labels, value)
                if reason:
                    refused.append(reason)
                else:
                    self._store(labels, value)
        if refused:
            told = "\n".join(refused[:10])
            return 400, f"{told},\nuser 'fake', total ignored: {len(refused)} out of {total}"
        return 204, ""

    def _labels(self, labels: dict[str, Any]) -> str:
        if not labels:
            return "error at least one label pair is required per stream"
        if len(labels) > 15:
            return f"entry has {len(labels)} label names; limit 15"
        for name, value in labels.items():
            if not NAME.match(name) or len(name) > 1024:
                return f"invalid label name {name[:50]!r}"
            if not isinstance(value, str) or len(value) > 2048:
                return f"label value too long or no string: {name}"
        return ""

    def _entry(self, labels: Any, value: list[Any]) -> str:
        if not (2 <= len(value) <= 3) or not isinstance(value[0], str) or not value[0].isdecimal():
            return f"invalid entry {str(value)[:50]}"
        ts, line = int(value[0]), value[1]
        metadata = value[2] if len(value) == 3 else {}
        if not isinstance(line, str):
            return "line is no string"
        if len(line.encode()) > 256 << 10:
            return "max entry size 262144 bytes exceeded"
        if metadata and not self.metadata:
            return "structured metadata is not allowed"
        if len(metadata) > 128 or sum(len(f"{k}{v}".encode()) for k, v in metadata.items()) > 65536:
            return "structured metadata exceeds its limits"
        if not all(isinstance(v, str) for v in metadata.values()):
            return "structured metadata must hold strings"
        now = round(self.now() * NS)
        if ts < now - 7 * 86_400 * NS:
            return f"entry with timestamp {_time(ts)} ignored, reason: 'timestamp too old'"
        if ts > now + 600 * NS:
            return f"entry with timestamp {_time(ts)} ignored, reason: 'timestamp too new'"
        oldest = self._newest.get(labels, ts) - 3600 * NS
        if ts < oldest:
            return (
                f"entry with timestamp {_time(ts)} ignored, reason: 'entry too far behind, "
                f"entry timestamp is: {_time(ts)}, oldest acceptable timestamp is: {_time(oldest)}'"
            )
        return ""

    def _store(self, labels: Any, value: list[Any]) -> None:
        ts, line = int(value[0]), value[1]
        self._newest[labels] = max(ts, self._newest.get(labels, ts))
        if (labels, ts, line) not in self._known:
            self._known.add((labels, ts, line))
            self.lines.append(Line(labels, ts, line, value[2] if len(value) == 3 else {}))


def _time(ts: int) -> str:
    return f"{datetime.fromtimestamp(ts // NS, UTC):%Y-%m-%dT%H:%M:%S}Z"


@pytest.fixture
def new_strict_loki() -> Iterator[Callable[..., StrictLoki]]:
    """Return a function that starts a strict Loki."""
    servers: list[ThreadingHTTPServer] = []

    def start(*, tenant: str = "", max_body: int = 4 << 20) -> StrictLoki:
        loki = StrictLoki(lambda: NOW, tenant, max_body)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/loki/api/v1/push":
                    self._answer(*loki.push(body, self.headers))
                else:
                    self._answer(404, "404 page not found", {})

            def do_GET(self) -> None:
                there = self.path == "/ready"
                status = (200 if loki.ready else 503) if there else 404
                self._answer(status, "ready" if status == 200 else "Ingester not ready", {})

            def _answer(self, status: int, text: str, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                raw = b"" if status == 204 else text.encode()
                if status != 204:
                    self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        loki.url = f"http://127.0.0.1:{server.server_port}"
        return loki

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def strict_loki(new_strict_loki: Callable[..., StrictLoki]) -> StrictLoki:
    """Return a strict Loki that runs."""
    return new_strict_loki()


@pytest.fixture
def scripted() -> type[Scripted]:
    """Return the type of answers that are given instead of right ones."""
    return Scripted


@pytest.fixture
def now_s() -> int:
    """Return the time that tests of limits take place at."""
    return NOW
