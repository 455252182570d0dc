"""Sends one event and tells whether the broker has it."""

import logging
from typing import Any

import msgspec

from mlops_events.producers.emitter import Emitter
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.simulate import emit
from mlops_events.producers.testing import MemoryTransport
from mlops_events.producers.truth import plain
from mlops_events.producers.workload import Event
from mlops_events.schemas.events import EventId, Log, Observation, Origin, Profile, RawKind
from mlops_events.schemas.topics import origin_key

__all__ = ["Report", "send"]

_CLOSE_S = 1.0
_KINDS: dict[type[Event], RawKind] = {Observation: "observation", Profile: "profile", Log: "log"}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an event; `error` is "" when the broker has it, or when it was a dry run."""

    acked: bool
    dry_run: bool
    id: str
    kind: str
    topic: str
    key: str
    brokers: str
    origin: Origin
    event: dict[str, Any]
    error: str


def send(
    event: Event, settings: EmitterSettings, *, timeout_s: float, dry_run: bool = False
) -> Report:
    """Send an event and wait until the broker has it, not longer than `timeout_s`.

    A dry run does all but the sending.

    Raises:
        ConfigError: there are no brokers.
    """
    for name in ("mlops_events.producers", "aiokafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the report says it, once
    kind = _KINDS[type(event)]
    topic = settings.kafka.topics.raw(kind)
    memory = MemoryTransport() if dry_run else None
    emitter = Emitter(settings=settings, transport=memory, required=True, announce=False)
    close_s = 0.0
    try:
        emit(emitter, event)
        if emitter.flush(timeout_s):
            close_s = _CLOSE_S
        stats = emitter.stats()
    finally:
        emitter.close(close_s)
    sent = any(counts.sent for counts in stats.kinds.values())
    error = ""
    if not emitter.enabled:
        error = "nothing was sent, since MLOPS_EVENTS_DISABLED is set; unset it"
    elif not sent:
        reason = stats.error.removeprefix(f"{settings.kafka.brokers}: ") or "no answer"
        error = (
            f"{settings.kafka.brokers} has not acknowledged the {kind} within {timeout_s:g} s: "
            f"{reason}; check that the broker runs, that --brokers names it and that it has the "
            f"topic {topic}"
        )
    return Report(
        acked=sent and not dry_run,
        dry_run=dry_run,
        id=str(EventId(emitter.id, kind, 0, 0)),
        kind=kind,
        topic=topic,
        key=origin_key(emitter.origin).decode(),
        brokers=settings.kafka.brokers,
        origin=emitter.origin,
        event=plain(msgspec.structs.asdict(event)),
        error=error,
    )
