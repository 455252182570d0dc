"""Fixtures of the influxdb sink's tests.

observed       observed({"loss": 1.5}, ..., name="training") -> a Batch of observations
new_sink       new_sink(**settings) -> an InfluxDBSink for the test's database of the real server
strict_influxdb  a StrictInfluxDB, once by the rules of 2.x and once by those of 3.x: .points, .script, .posts
strict_sink    strict_sink(**settings) -> an InfluxDBSink for it
scripted       scripted(503, "text", {"Retry-After": "7"}) -> an answer to put into .script
points_of      points_of(batch) -> (id, measurement, tags, time) of its events, as they should be stored
"""

import gzip
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl

import pytest

from mlops_events.schemas.frame import Free
from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import Batch
from mlops_events.sinks.influxdb import InfluxDBSettings, InfluxDBSink
from mlops_events.sinks.influxdb_lines import Renderer
from mlops_events.sinks.influxdb_types import FieldTypes
from mlops_events.sinks.testing import frame_record

TS = 1_700_000_000_123_456_000
SPECIAL = re.compile(r"\\([, =])")
LINE = re.compile(
    r"((?:\\.|[^\\, ])+)((?:,(?:\\.|[^\\,= ])+=(?:\\.|[^\\,= ])+)*) (.+) (-?\d+)", re.DOTALL
)
TAG = re.compile(r",((?:\\.|[^\\,= ])+)=((?:\\.|[^\\,= ])+)")
FIELD = re.compile(
    r'((?:\\.|[^\\,= ])+)=("(?:\\.|[^"\\])*"|true|false|-?\d+[iu]|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)'
    r"(?:,(?=.)|$)",
    re.DOTALL,
)

Point: TypeAlias = tuple[str, frozenset[tuple[str, str]], int, dict[str, str]]
"""Measurement, tags, time, fields as they stood in the line."""


@pytest.fixture
def new_sink(influxdb: Any) -> Callable[..., InfluxDBSink]:
    """Return a function that makes a sink for the test's database."""

    def make(**settings: Any) -> InfluxDBSink:
        ours = {"url": influxdb.url, "bucket": influxdb.database, "token": Secret(influxdb.token)}
        return InfluxDBSink(InfluxDBSettings(**{**ours, **settings}))

    return make


@pytest.fixture
def observed() -> Callable[..., Batch]:
    """Return a function that makes a batch of observations of one name, a second apart."""

    def make(*fields: dict[str, Any], name: str = "training", seq: int = 0, **more: Any) -> Batch:
        start = more.pop("start", TS)
        tags = more.pop("tags", None)
        events = [Free(start + k * 10**9, k, name, one, tags) for k, one in enumerate(fields)]
        return Batch([frame_record(events, seq=seq, **more)])

    return make


@pytest.fixture
def points_of() -> Callable[[Batch], Iterator[tuple[Any, str, frozenset[tuple[str, str]], int]]]:
    """Return a function that says which points a batch's events should be."""

    def find(batch: Batch) -> Iterator[tuple[Any, str, frozenset[tuple[str, str]], int]]:
        renderer = Renderer(
            FieldTypes(), tags=InfluxDBSettings().tags, share=1.0, refuse=lambda *_: None
        )
        for record in batch.records:
            ids = {envelope.position: envelope.id for envelope in record.envelopes()}
            for text, _, position in renderer.lines(record):
                head = re.match(r"(?:\\.|[^\\ ])+", text)
                assert head is not None
                name, *tags = re.split(r"(?<!\\),", head[0])
                pairs = [re.split(r"(?<!\\)=", tag, maxsplit=1) for tag in tags]
                yield (
                    ids[position],
                    SPECIAL.sub(r"\1", name),
                    frozenset((SPECIAL.sub(r"\1", k), SPECIAL.sub(r"\1", v)) for k, v in pairs),
                    int(text.rpartition(" ")[2]),
                )

    return find


# --- a strict stand-in ---


class Scripted(NamedTuple):
    """An answer that is given instead of the right one; `stores` what came all the same."""

    status: int
    text: str = ""
    headers: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple's default, never changed
    stores: bool = False


class StrictInfluxDB:
    """The v2 write API by the documented rules of InfluxDB 2 and 3.

    Both know a token, an organisation and a bucket, answer a body that is too large with 413, and keep
    one point for (measurement, tags, time); lines with the text `unparsable` they cannot parse,
    and a body with the text `hopeless` is refused without a word about the line. `delay_s` is
    how long an answer takes. Version 2 stores nothing of a body with a line that it
    cannot parse (400), and all but the offending points if a type or the retention is violated (422).
    Version 3 stores all good lines and names the others by number (400).
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.token, self.org, self.bucket = "secret", "lab", "events"
        self.url = ""
        self.max_body = 50_000_000
        self.oldest = -(2**63)
        self.points: dict[tuple[str, frozenset[tuple[str, str]], int], dict[str, str]] = {}
        self.types: dict[tuple[str, str], str] = {}
        self.unparsable = ""
        self.hopeless = ""
        self.delay_s = 0.0
        self.script: list[Scripted] = []
        self.posts = 0
        self.encodings: list[str] = []

    def write(self, path: str, headers: Any, body: bytes) -> tuple[int, str, dict[str, str]]:
        """Take a request; return status, text and headers of the answer."""
        if not path.startswith("/api/v2/write?"):
            return 404, json.dumps({"code": "not found", "message": "path not found"}), {}
        self.posts += 1
        scripted = self.script.pop(0) if self.script else None
        if scripted is not None and not scripted.stores:
            return scripted.status, scripted.text, scripted.headers
        delay_s = self.delay_s
        status, text = self._take(dict(parse_qsl(path.partition("?")[2])), headers, body)
        if delay_s:
            time.sleep(delay_s)
        if scripted is not None:
            return scripted.status, scripted.text, scripted.headers
        return status, text, {}

    def _take(self, query: dict[str, str], headers: Any, body: bytes) -> tuple[int, str]:
        if headers.get("Authorization") != f"Token {self.token}":
            return 401, _problem("unauthorized", "unauthorized access")
        if query.get("bucket") != self.bucket or query.get("org") != self.org:
            return 404, _problem("not found", f'bucket "{query.get("bucket")}" not found')
        assert query["precision"] == "ns"
        self.encodings.append(headers.get("Content-Encoding", ""))
        if self.encodings[-1] == "gzip":
            body = gzip.decompress(body)
        if len(body) > self.max_body:
            return 413, _problem(
                "request too large", "unable to read data: points batch is too large"
            )
        lines = [line for line in split_lines(body.decode()) if line and not line.startswith("#")]
        if self.hopeless and any(self.hopeless in line for line in lines):
            return 400, _problem("invalid", "no")
        return (self._take_2 if self.version == 2 else self._take_3)(lines)

    def _take_2(self, lines: list[str]) -> tuple[int, str]:
        parsed: list[Point] = []
        wrong: list[str] = []
        for line in lines:
            try:
                parsed.append(self._parse(line))
            except ValueError as error:
                wrong.append(f"unable to parse '{line}': {error}")
        if wrong:
            return 400, _problem("invalid", "\n".join(wrong))
        dropped: list[str] = []
        for point in parsed:
            problem = self._keep(point)
            dropped += [problem] if problem else []
        if dropped:
            words = f"failure writing points to database: partial write: {dropped[0]}"
            return 422, _problem("unprocessable entity", f"{words} dropped={len(dropped)}")
        return 204, ""

    def _take_3(self, lines: list[str]) -> tuple[int, str]:
        wrong: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            try:
                problem = self._keep(self._parse(line))
            except ValueError as error:
                problem = str(error)
            if problem:
                found = {
                    "original_line": line[:60],
                    "line_number": number,
                    "error_message": problem,
                }
                wrong.append(found)
        if wrong:
            words = "partial write of line protocol occurred"
            return 400, json.dumps({"error": words, "data": wrong})
        return 204, ""

    def _parse(self, line: str) -> Point:
        if self.unparsable and self.unparsable in line:
            raise ValueError("invalid number")
        return parse(line)

    def _keep(self, point: Point) -> str:
        """Store a point; return what is wrong with it."""
        name, tags, ts, fields = point
        if ts < self.oldest:
            bound = f"{datetime.fromtimestamp(self.oldest // 10**9, UTC):%Y-%m-%dT%H:%M:%S}Z"
            return (
                "dropped 1 points outside retention policy of duration 168h0m0s - oldest point "
                f"{name} at T dropped because it violates a Retention Policy Lower Bound at {bound}"
            )
        for key, value in fields.items():
            kind = self.types.setdefault((name, key), _kind(value))
            if kind != _kind(value):
                return (
                    f'field type conflict: input field "{key}" on measurement "{name}" is type '
                    f"{_kind(value)}, already exists as type {kind}"
                )
        self.points.setdefault((name, tags, ts), {}).update(fields)
        return ""


def _problem(code: str, message: str) -> str:
    return json.dumps({"code": code, "message": message})


def split_lines(text: str) -> list[str]:
    """Split a body at the newlines that stand in no quoted text."""
    lines, start, in_fields, quoted, k = [], 0, False, False, 0
    while k < len(text):
        char = text[k]
        if char == "\\":
            k += 1
        elif char == '"' and in_fields:
            quoted = not quoted
        elif char == " ":
            in_fields = True
        elif char == "\n" and not quoted:
            lines.append(text[start:k])
            start, in_fields = k + 1, False
        k += 1
    return [*lines, text[start:]]


def parse(line: str) -> Point:
    """Parse a line strictly.

    Raises:
        ValueError: it is none.
    """
    found = LINE.fullmatch(line)
    if not found:
        raise ValueError("invalid line")
    name, tail, text, ts = found.groups()
    if len(name) + len(tail) > 65_535:
        raise ValueError(f"max key length exceeded: {len(name) + len(tail)} > 65535")
    pairs = [(SPECIAL.sub(r"\1", k), SPECIAL.sub(r"\1", v)) for k, v in TAG.findall(tail)]
    tags = dict(pairs)
    if len(tags) < len(pairs):
        raise ValueError("duplicate tags")
    for key in ("time", "_field", "_measurement"):
        if key in tags:
            raise ValueError(f'cannot use reserved tag key "{key}"')
    fields, at = {}, 0
    while at < len(text):
        field = FIELD.match(text, at)
        if not field:
            raise ValueError("invalid field format")
        fields[SPECIAL.sub(r"\1", field[1])] = field[2]
        at = field.end()
    if "time" in fields:
        raise ValueError("invalid field name: time")
    if not -(2**63) + 2 <= int(ts) < 2**63 - 1:
        raise ValueError(f"time outside range {ts}")
    return SPECIAL.sub(r"\1", name), frozenset(tags.items()), int(ts), fields


def _kind(value: str) -> str:
    if value[0] == '"':
        return "string"
    if value in ("true", "false"):
        return "boolean"
    return {"i": "integer", "u": "unsigned"}.get(value[-1], "float")


@pytest.fixture(params=[2, 3], ids=["documented_rules_of_2", "documented_rules_of_3"])
def strict_influxdb(request: pytest.FixtureRequest) -> Iterator[StrictInfluxDB]:
    """Run a stand-in that is as strict as the documentation, once as each version."""
    strict = StrictInfluxDB(request.param)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, text, headers = strict.write(self.path, self.headers, body)
            self.answer(status, text, headers)

        def do_GET(self) -> None:
            self.answer(404, _problem("not found", "path not found"), {})

        def answer(self, status: int, text: str, headers: dict[str, str]) -> None:
            data = text.encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if status != 204:
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    strict.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield strict
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def strict_sink(strict_influxdb: StrictInfluxDB) -> Callable[..., InfluxDBSink]:
    """Return a function that makes a sink for the stand-in."""

    def make(**settings: Any) -> InfluxDBSink:
        strict = strict_influxdb
        theirs = {"url": strict.url, "org": strict.org, "bucket": strict.bucket}
        return InfluxDBSink(
            InfluxDBSettings(**{**theirs, "token": Secret(strict.token), **settings})
        )

    return make


@pytest.fixture
def scripted() -> type[Scripted]:
    """Return the form of an answer for `strict_influxdb.script`."""
    return Scripted
