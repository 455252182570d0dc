"""Loki's push API: one request, and what its answer means."""

import re
import zlib
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec
import requests
from logging_loki.emitter import LokiEmitterV1

from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import SinkUnavailable
from mlops_events.sinks.http import ask, retry_after, said
from mlops_events.sinks.loki_entries import Entry, Labels

__all__ = ["Answer", "Client", "Verdict"]

PUSH: Final = "/loki/api/v1/push"
_FRACTION = re.compile(r"(\.\d{6})\d+")
_ACCEPTABLE = re.compile(r"oldest acceptable timestamp is:? ?([0-9T:.\-]+Z)")
_BEHIND = re.compile(r"too far behind|out of order")
_LARGE = re.compile(
    r"too big data size|request body too large|message larger than max", re.IGNORECASE
)


class Verdict(Enum):
    """What is to be done about entries that were pushed."""

    STORED = "stored"
    BEHIND = "behind"
    LARGE = "large"
    BAD = "bad"


class Answer(NamedTuple):
    """What a server says of a request; `oldest_ns` is the oldest time its stream still takes."""

    verdict: Verdict
    text: str = ""
    oldest_ns: int | None = None


class Client:
    """Pushes entries; all calls wait for the server and belong into one thread.

    Args:
        url: of the server, with or without the path of its push API.
        ready_path: where it says whether it is ready.
        tenant: sent as X-Scope-OrgID if given.
        username: for basic authentication, with the password.
        password: see there.
        token: a bearer token instead.
        gzip: whether bodies are compressed.
        timeout_s: how long an answer may take.
    """

    def __init__(
        self,
        url: str,
        *,
        ready_path: str,
        tenant: str = "",
        username: str = "",
        password: Secret = Secret(),  # noqa: B008 - immutable
        token: Secret = Secret(),  # noqa: B008 - immutable
        gzip: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        base = url.rstrip("/").removesuffix(PUSH).rstrip("/")
        auth = (username, password.reveal()) if username else None
        self.url = base + PUSH
        self._ready = base + ready_path
        # Its session, authentication and rules of labels; its push, a line at a time, is not used.
        self._emitter: Any = LokiEmitterV1(self.url, auth=auth)
        self._gzip = gzip
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"}
        if tenant:
            self._headers["X-Scope-OrgID"] = tenant
        if token:
            self._headers["Authorization"] = f"Bearer {token.reveal()}"
        if gzip:
            self._headers["Content-Encoding"] = "gzip"

    def clean(self, name: str) -> str:
        """Return a label's name by Loki's rules: letters, digits and _, no digit first."""
        cleaned: str = self._emitter.format_label(name)
        return f"_{cleaned}" if cleaned[:1].isdigit() else cleaned

    def check(self) -> None:
        """Ask whether the server is ready.

        Raises:
            SinkUnavailable: it is not, or does not answer.
        """
        response = self._ask("GET", self._ready, None)
        if response.status_code != 200:
            raise SinkUnavailable(f"{self._ready} {said(response)}; expected 200")

    def push(self, entries: Sequence[Entry]) -> Answer:
        """Push entries, those of a stream in the order of their times.

        Raises:
            SinkUnavailable: the server takes nothing at present; nothing was stored, as far as it
                says.
        """
        return self._judge(self._ask("POST", self.url, self._body(entries)))

    def close(self) -> None:
        """Let go of the connections."""
        self._emitter.close()

    def _body(self, entries: Sequence[Entry]) -> bytes:
        streams: dict[Labels, list[Any]] = {}
        for entry in sorted(entries, key=_ts):
            value: list[Any] = [str(entry.ts), entry.line]
            if entry.metadata:
                value.append(entry.metadata)
            streams.setdefault(entry.labels, []).append(value)
        body = msgspec.json.encode(
            {
                "streams": [
                    {"stream": dict(labels), "values": values} for labels, values in streams.items()
                ]
            }
        )
        return zlib.compress(body, level=1, wbits=31) if self._gzip else body

    def _ask(self, method: str, url: str, body: bytes | None) -> requests.Response:
        headers = self._headers if body is not None else None
        session: requests.Session = self._emitter.session
        return ask(session, method, url, timeout_s=self._timeout_s, body=body, headers=headers)

    def _judge(self, response: requests.Response) -> Answer:
        status = response.status_code
        if status == 204:
            return Answer(Verdict.STORED)
        text = response.text[:20_000]
        if status == 413 or (status in (400, 500) and _LARGE.search(text)):
            return Answer(Verdict.LARGE, text)
        if status == 400:
            found = _ACCEPTABLE.search(text)
            if found or _BEHIND.search(text):
                return Answer(Verdict.BEHIND, text, _ns(found[1]) if found else None)
            return Answer(Verdict.BAD, text)
        answer = f"{self.url} {said(response)}"
        raise SinkUnavailable(_advice(status, answer), retry_after=retry_after(response))


def _advice(status: int, answer: str) -> str:
    """Say what to do about an answer that stops everything."""
    if status in (401, 403):
        return f"{answer}: set MLOPS_EVENTS_LOKI_USERNAME and _PASSWORD, _TOKEN or _TENANT"
    if status == 404:
        return f"{answer}: is MLOPS_EVENTS_LOKI_URL right, and does the server need a path before {PUSH}?"
    if status == 260:
        return f"{answer}: ingestion is blocked, nothing was stored"
    if status < 400:
        return f"{answer}: only 204 means that lines were stored"
    return answer


def _ns(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(_FRACTION.sub(r"\1", text))
    except ValueError:
        return None
    seconds = int(moment.timestamp())
    return seconds * 1_000_000_000 + 1_000_000_000  # what is at most a second older counts as older


def _ts(entry: Entry) -> int:
    return entry.ts
