"""Between events and the columns `body` and `tags` of the SQLite store.

A body is a JSON array in the order of its series' fields, so that their names are stored once; a
series without fields has JSON objects that bring their own names.
"""

from collections.abc import Sequence
from typing import Any

from mlops_events.schemas.events import AnyEvent, Log, Observation, Profile, RawKind, Run
from mlops_events.schemas.frame import Frame, Free, StatsFrame
from mlops_events.sinks.jsontext import from_json, to_json

__all__ = ["FIELDS", "FREE", "body_of", "event_of", "fields_text", "is_derived", "name_of"]

FREE = ""
"""The `fields` of a series whose bodies are objects."""

_OURS = "mlops_events."
"""What the loggers begin with in whose name the streams speak; training programs' do not."""


def fields_text(fields: Sequence[str]) -> str:
    """Return a series' fields as they are stored."""
    return to_json(list(fields))


FIELDS: dict[RawKind, str] = {
    "run": fields_text(("config", "project", "name", "group", "job_type", "status")),
    "profile": fields_text(("duration_ns", "failed")),
    "log": fields_text(("message", "logger", "fields", "trace_id", "span_id")),
}
"""The fields of the kinds that have always the same ones."""


def is_derived(frame: Frame | StatsFrame) -> bool:
    """Whether the streams made up this emitter: for what they say of a fleet, or in one line of log."""
    if isinstance(frame, StatsFrame):
        return any(stats.nodes is not None for stats in frame.stats)
    return (
        frame.end
        and frame.accepted == 1
        and any(isinstance(e, Log) and e.logger.startswith(_OURS) for e in frame.items)
    )


def name_of(event: Free | Run | Profile | Log) -> str:
    """Return what a series of this kind is called: a log's level, a run's state."""
    if isinstance(event, Log):
        return event.level
    if isinstance(event, Run):
        return event.state
    return event.name


def body_of(event: Free | Run | Profile | Log) -> Any:
    """Return what is stored as an event's body."""
    if isinstance(event, Free):
        return event.fields
    if isinstance(event, Profile):
        return (event.duration_ns, event.failed)
    if isinstance(event, Log):
        return (event.message, event.logger, event.fields, event.trace_id, event.span_id)
    return (event.config, event.project, event.name, event.group, event.job_type, event.status)


def event_of(
    kind: RawKind,
    name: str,
    fields: Sequence[str] | None,
    *,
    ts: int,
    step: int | None,
    body: str,
    tags: str | None,
) -> AnyEvent:
    """Return the event that was stored.

    Args:
        kind: its kind.
        name: its series' name.
        fields: its series' fields; None if its body is an object.
        ts: its time.
        step: its step.
        body: its body.
        tags: its own tags.
    """
    values = from_json(body)
    found = from_json(tags) if tags is not None else None
    if kind == "observation":
        named = values if fields is None else dict(zip(fields, values, strict=True))
        return Observation(ts=ts, name=name, fields=named, step=step, tags=found or {})
    if kind == "profile":
        return Profile(
            ts=ts, name=name, duration_ns=values[0], step=step, tags=found, failed=values[1]
        )
    if kind == "log":
        message, logger, beside, trace_id, span_id = values
        return Log(
            ts=ts,
            level=name,
            message=message,
            logger=logger,
            fields=beside,
            step=step,
            trace_id=trace_id,
            span_id=span_id,
        )
    config, project, title, group, job_type, status = values
    return Run(
        ts=ts,
        state=name,  # type: ignore[arg-type]  # it was one when it was stored
        config=config,
        project=project,
        name=title,
        group=group,
        job_type=job_type,
        status=status,
    )
