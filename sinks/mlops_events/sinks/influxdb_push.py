"""Posts lines to InfluxDB, one request at a time, and says what the answer means."""

import gzip
import json
import re
from enum import Enum
from typing import Any, Final, NamedTuple

import urllib3
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.rest import ApiException
from influxdb_client.service.write_service import WriteService

from mlops_events.schemas.settings import variable
from mlops_events.sinks.base import SinkBroken, SinkUnavailable
from mlops_events.sinks.influxdb_settings import InfluxDBSettings
from mlops_events.sinks.influxdb_types import escaped

__all__ = ["Answer", "Client", "Verdict", "classify"]

_CONNECT_S: Final = 5.0
_GZIP_LEVEL: Final = 1
_TOLD: Final = 300
"""Characters of an answer that are told on."""

# Bodies are looked at before statuses: a server of 1.x answers 500 for a retention policy that is
# not there, and others have answered 500 for fields of the wrong type.
_MISSING: Final = re.compile(
    r"retention policy not found|database not found|bucket .*not found|missing a slash"
    r"|max-series-per-database"
)
_REFUSED: Final = re.compile(
    r"partial write|field type conflict|unable to parse|beyond retention|outside retention"
    r"|max-values-per-tag|invalid tag key|invalid field name|invalid unicode|time outside range"
    r"|max key length|error parsing line|line protocol"
)
_GARBLED: Final = re.compile(r"unexpected EOF|gzip|An internal error has occurred")


class Verdict(Enum):
    """What became of posted lines."""

    STORED = "stored"
    LARGE = "large"  # too much at once
    REFUSED = "refused"  # at least one line is wrong; others may be stored
    MISSING = "missing"  # nothing there to write to, as things are configured
    AWAY = "away"  # not at present


class Answer(NamedTuple):
    """An answer; `text` is what the server said, `lines` the numbers (from 1) and beginnings of lines
    that it named."""

    verdict: Verdict
    text: str = ""
    status: int = 0
    retry_after: float | None = None
    lines: tuple[tuple[int, str], ...] = ()


def classify(status: int, body: str, retry_after: str | None = None) -> Answer:
    """Return what an answer to a write means."""
    text, lines = _said(body)
    if status == 204:
        return Answer(Verdict.STORED)
    if _MISSING.search(text) or status in (401, 403, 404):
        verdict = Verdict.MISSING
    elif status >= 400 and _REFUSED.search(text):
        verdict = Verdict.REFUSED
    elif status == 413:
        verdict = Verdict.LARGE
    elif status in (400, 422) and not _GARBLED.search(text):
        verdict = Verdict.REFUSED
    else:
        verdict = Verdict.AWAY
    return Answer(verdict, text, status, _seconds(retry_after), lines)


class Client:
    """Writes to one bucket through the v2 API, in the calling thread.

    Args:
        settings: of the sink.

    Raises:
        SinkBroken: they name no server or no bucket.
    """

    def __init__(self, settings: InfluxDBSettings) -> None:
        for name, found in (("url", settings.address), ("bucket", settings.bucket)):
            if not found:
                raise SinkBroken(
                    f"the influxdb sink has no {name}: set {variable('influxdb', name)}"
                )
        self._settings = settings
        self._url = settings.address
        self._plain = not settings.gzip
        limit_ms = round(settings.timeout_s * 1000)
        client: Any = InfluxDBClient  # much of it has no types, or wrong ones
        self._client = client(
            self._url,
            settings.token.reveal(),
            org=settings.org,
            timeout=(min(round(_CONNECT_S * 1000), limit_ms), limit_ms),
        )
        service: Any = WriteService
        self._service = service(self._client.api_client)

    def write(self, body: bytes) -> Answer:
        """Post lines.

        Raises:
            SinkUnavailable: it does not take any at present, and why.
        """
        answer = self._post(body)
        if answer.verdict in (Verdict.MISSING, Verdict.AWAY):
            # A server that cannot unpack a body says 500 for ever; the next try goes without.
            self._plain = not self._settings.gzip or bool(_GARBLED.search(answer.text))
            raise SinkUnavailable(self._words(answer), retry_after=answer.retry_after)
        return answer

    def check(self) -> None:
        """Ask whether lines would be taken, with a write of none.

        Raises:
            SinkUnavailable: they would not, and why.
        """
        answer = self._post(b"")
        if answer.verdict in (Verdict.MISSING, Verdict.AWAY):
            raise SinkUnavailable(self._words(answer), retry_after=answer.retry_after)

    def field_types(self) -> list[tuple[str, str, str]]:
        """Return the types that fields have in the bucket, as far as the server tells.

        Raises:
            SinkUnavailable: it does not answer.
        """
        settings = self._settings
        query = {"db": settings.bucket, "q": "SHOW FIELD KEYS"}
        if settings.retention_policy:
            query["rp"] = settings.retention_policy
        answer = self._request("GET", "/query", query)
        try:
            results = json.loads(answer)["results"] if answer else []
            return [
                escaped(series["name"], field, kind)
                for result in results
                for series in result.get("series", ())
                for field, kind in series["values"]
            ]
        except (ValueError, KeyError, TypeError):
            return []

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def _post(self, body: bytes) -> Answer:
        extra: dict[str, Any] = {}
        if not self._plain and body:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            extra["content_encoding"] = "gzip"
        try:
            _, status, _ = self._service.post_write_with_http_info(
                self._settings.org,
                self._settings.place,
                body,
                precision="ns",
                urlopen_kw={"redirect": False},
                **extra,
            )
        except ApiException as error:
            if not error.status:
                raise SinkUnavailable(f"no answer from {self._url}: {error.reason}") from error
            headers: Any = error.headers or {}
            return classify(error.status, error.body or "", headers.get("Retry-After"))
        except (urllib3.exceptions.HTTPError, OSError, UnicodeDecodeError) as error:
            raise SinkUnavailable(f"no answer from {self._url}: {error}") from error
        return classify(int(status), "")

    def _request(self, method: str, path: str, query: dict[str, str]) -> str:
        """Return an answer's body; nothing if it is a refusal."""
        api = self._client.api_client
        try:
            answer = api.request(
                method,
                self._url + path,
                query_params=list(query.items()),
                headers={"Authorization": f"Token {self._settings.token.reveal()}"},
            )
        except ApiException:
            return ""
        except (urllib3.exceptions.HTTPError, OSError, UnicodeDecodeError) as error:
            raise SinkUnavailable(f"no answer from {self._url}: {error}") from error
        return str(answer.data)

    def _words(self, answer: Answer) -> str:
        """Say what is wrong and what to do."""
        said = f"{self._url} answered {answer.status}"
        if answer.text:
            said += f" ({' '.join(answer.text.split())[:_TOLD]})"
        if answer.status == 401:
            hint = f"set {variable('influxdb', 'token')}; for InfluxDB 1.x it is USER:PASSWORD"
        elif answer.status == 403:
            hint = f"the token may not write to {self._settings.place!r}"
        elif "max-series-per-database" in answer.text:
            hint = "the server's limit of series is reached: raise it, or write fewer tags"
        elif answer.verdict is Verdict.MISSING:
            hint = (
                f"is there a bucket {self._settings.place!r} in the organisation "
                f"{self._settings.org!r}? (1.x: database and retention policy; "
                f"{variable('influxdb', 'bucket')}, {variable('influxdb', 'retention_policy')})"
            )
        elif answer.status < 300:
            hint = "only 204 says that lines are stored; is this InfluxDB?"
        else:
            hint = "tried again"
        return f"{said}; {hint}"


def _said(body: str) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Return what a server says in its answer, and the lines that it names."""
    try:
        found = json.loads(body)
    except ValueError:
        return body, ()
    if not isinstance(found, dict):
        return body, ()
    data = found.get("data")
    named = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    words = [found.get("message"), found.get("error"), *(one.get("error_message") for one in named)]
    return (
        "; ".join(str(word) for word in words if word) or body,
        tuple(
            (one["line_number"], str(one.get("original_line", "")))
            for one in named
            if isinstance(one.get("line_number"), int)
        ),
    )


def _seconds(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
