"""Reads events from lines of JSON, and sends them as fast as the broker takes them."""

import json
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from mlops_events.producers.arguments import ArgumentError, level
from mlops_events.producers.emitter import Emitter
from mlops_events.producers.simulate import emit
from mlops_events.producers.workload import Event
from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.schemas.events import Int64, Log, Observation, Profile
from mlops_events.schemas.text import duration_ns

__all__ = ["BadLine", "LineError", "LinesReport", "parse", "schema", "send"]

_NS: Final = 1_000_000_000
_AHEAD: Final = 20_000
"""Events that may wait in memory before reading goes on."""
_PAUSE_S: Final = 0.01

_When: TypeAlias = Annotated[
    int | float | str | None,
    msgspec.Meta(
        description="When it was: nanoseconds since 1970 as an integer, seconds with a fraction, "
        "or ISO 8601, UTC where no zone is told; now if it is left out."
    ),
]
_Step: TypeAlias = Annotated[Int64 | None, msgspec.Meta(description="The training step.")]
_TagMap: TypeAlias = Annotated[dict[str, Any], msgspec.Meta(description="More about the event.")]


class LineError(MlopsEventsError):
    """A line is no event; the message says what was found and what was expected."""


class ObservationLine(
    msgspec.Struct, tag="observation", tag_field="kind", forbid_unknown_fields=True
):
    """Values that belong together at one moment."""

    name: Annotated[str, msgspec.Meta(min_length=1, description="What is observed.")]
    fields: Annotated[
        dict[str, Any], msgspec.Meta(description="Numbers, bools, texts, lists, mappings of these.")
    ]
    step: _Step = None
    ts: _When = None
    tags: _TagMap = {}


class ProfileLine(msgspec.Struct, tag="profile", tag_field="kind", forbid_unknown_fields=True):
    """How long something took."""

    name: Annotated[str, msgspec.Meta(min_length=1, description="What took the time.")]
    duration: Annotated[
        int | float | str,
        msgspec.Meta(description="Seconds as a number, or a text with its unit: 12ms, 3.5s."),
    ]
    step: _Step = None
    ts: _When = None
    tags: _TagMap = {}
    failed: bool = False


class LogLine(msgspec.Struct, tag="log", tag_field="kind", forbid_unknown_fields=True):
    """A line of log with values beside it."""

    message: Annotated[str, msgspec.Meta(description="What happened.")]
    level: Annotated[str, msgspec.Meta(min_length=1, description="info, warning, ...")] = "info"
    logger: str = ""
    fields: Annotated[dict[str, Any], msgspec.Meta(description="Values beside the message.")] = {}
    step: _Step = None
    ts: _When = None


_Line: TypeAlias = ObservationLine | ProfileLine | LogLine

_DECODER = msgspec.json.Decoder(_Line)


class BadLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was passed over, by its number from 1."""

    line: int
    error: str


class LinesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all lines: `events` were read, `sent` are acknowledged; `empty` lines are
    none."""

    lines: int
    events: int
    sent: int
    bad: int
    empty: int
    seconds: float
    error: str = ""


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a line."""
    found = msgspec.json.schema(_Line)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def parse(line: bytes, *, now_ns: int) -> Event:
    """Return the event of a line.

    NaN and Infinity are numbers here, as Python's json writes them.

    Args:
        line: an object with `kind` observation, profile or log.
        now_ns: the time of an event that tells none.

    Raises:
        LineError: the line is no event.
    """
    try:
        try:
            found: _Line = _DECODER.decode(line)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            found = msgspec.convert(json.loads(line), _Line)
        ts = now_ns if found.ts is None else _time(found.ts)
        if isinstance(found, ObservationLine):
            return Observation(
                ts=ts, name=found.name, fields=found.fields, step=found.step, tags=found.tags
            )
        if isinstance(found, ProfileLine):
            return Profile(
                ts=ts,
                name=found.name,
                duration_ns=_duration(found.duration),
                step=found.step,
                tags=found.tags or None,
                failed=found.failed,
            )
        return Log(
            ts=ts,
            level=level(found.level),
            message=found.message,
            logger=found.logger,
            fields=found.fields,
            step=found.step,
        )
    except msgspec.ValidationError as error:
        kinds = "; kinds: observation, profile, log" if "$.kind" in str(error) else ""
        raise LineError(f"{error}{kinds}") from error
    except ArgumentError as error:
        raise LineError(str(error)) from error
    except (ValueError, RecursionError, OverflowError) as error:
        raise LineError(f"no JSON: {error}" if _is_syntax(error) else str(error)) from error


def send(
    lines: Iterable[bytes],
    emitter: Emitter,
    *,
    timeout_s: float,
    bad: Callable[[BadLine], None],
    progress: Callable[[int], None],
) -> LinesReport:
    """Emit the events of lines, never faster than the broker takes them, and wait for the acks.

    Args:
        lines: of JSON.
        emitter: where they go.
        timeout_s: how long the broker may take for what was read, before it is given up.
        bad: is told of each line that is passed over.
        progress: is told now and then how many lines were read.
    """
    start = time.monotonic()
    count = events = wrong = empty = 0
    stuck = False
    for count, line in enumerate(lines, 1):
        if not line.strip():
            empty += 1
            continue
        try:
            event = parse(line, now_ns=time.time_ns())
        except LineError as problem:
            wrong += 1
            bad(BadLine(line=count, error=str(problem)))
            continue
        emit(emitter, event)
        events += 1
        if events % 1000 == 0:
            progress(count)
            stuck = not _wait(emitter, timeout_s)
            if stuck:
                break
    acked = not stuck and emitter.flush(timeout_s)
    stats = emitter.stats()
    error = "" if acked else stats.error or "the broker has not acknowledged everything in time"
    return LinesReport(
        lines=count,
        events=events,
        sent=stats.sent,
        bad=wrong,
        empty=empty,
        seconds=round(time.monotonic() - start, 3),
        error=error,
    )


def _wait(emitter: Emitter, timeout_s: float) -> bool:
    """Wait until there is room for more; False if the broker takes nothing for so long."""
    sent, since = -1, time.monotonic()
    while (stats := emitter.stats()).buffered > _AHEAD:
        if stats.sent != sent:
            sent, since = stats.sent, time.monotonic()
        elif time.monotonic() - since > timeout_s:
            return False
        time.sleep(_PAUSE_S)
    return True


def _time(when: float | str) -> int:
    if isinstance(when, str):
        try:
            moment = datetime.fromisoformat(when)
        except ValueError as error:
            raise LineError(f"ts {when!r} is no time; write ISO 8601, or nanoseconds") from error
        if moment.tzinfo is None:
            moment = datetime.fromisoformat(f"{when}+00:00")
        return round(moment.timestamp() * 1e6) * 1000
    ts = when if isinstance(when, int) else round(when * 1e6) * 1000
    if not -(2**63) <= ts < 2**63:
        raise LineError(f"ts {when!r} is beyond 64 bits of nanoseconds")
    return ts


def _duration(given: float | str) -> int:
    if isinstance(given, str):
        try:
            return duration_ns(given)
        except ValueError as error:
            raise LineError(f"duration {given!r}: write one such as 12ms or 3.5s") from error
    return round(given * _NS)


def _is_syntax(error: Exception) -> bool:
    return isinstance(error, json.JSONDecodeError | RecursionError)
