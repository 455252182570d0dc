"""Turns what cannot be delivered into records of the dead letters' topic."""

from collections.abc import Sequence

from mlops_events.schemas.deadletters import (
    dead_letter_headers,
    encode_dead_letter,
    event_key,
    make_dead_letter,
    record_key,
)
from mlops_events.schemas.events import DeadLetter, EventId, StatsKey
from mlops_events.schemas.frame import Reject, StatsFrame, encode_stats
from mlops_events.schemas.topics import redriven_times
from mlops_events.sinks.base import Batch, Envelope, FrameRecord, Record, Rejected
from mlops_events.sinks.log import LogRecord, OutRecord

__all__ = ["letter_of_reject", "letter_of_value", "letters_of_rejected", "out_record"]


def letter_of_value(
    record: LogRecord, *, sink: str, topic: str, partition: int, message: str
) -> DeadLetter:
    """Return the dead letter of a record that could not be decoded."""
    value = record.value or b""
    return make_dead_letter(
        sink=sink,
        reason="undecodable",
        message=message,
        key=record_key(
            sink, topic=topic, partition=partition, offset=record.offset, value=record.value
        ),
        kind="",
        first_seen_ns=record.timestamp * 1_000_000,
        topic=topic,
        partition=partition,
        offset=record.offset,
        payload=value,
        redriven=redriven_times(record.headers),
    )


def letter_of_reject(record: FrameRecord, reject: Reject, *, sink: str) -> DeadLetter:
    """Return the dead letter of an event that could not be read inside a good frame.

    Its payload is a frame that holds only this event, as it stood there.
    """
    id = record.frame.event_id(reject.index)  # noqa: A001 - what it is
    payload = record.frame.encode_reject(reject)
    return _letter(record, id, sink, reject.reason, reject.message, payload)


def letters_of_rejected(
    rejected: Sequence[Rejected], batch: Batch, *, sink: str
) -> list[DeadLetter]:
    """Return the dead letters of the events of a batch that the sink refused.

    The payload of each is a record's value that holds only this event.
    """
    if not rejected:
        return []
    records: dict[tuple[str, int, int], list[Record]] = {}
    for record in batch.records:
        records.setdefault((record.topic, record.partition, record.offset), []).append(record)
    letters: list[DeadLetter] = []
    for one in rejected:
        envelope = one.envelope
        there = records[envelope.topic, envelope.partition, envelope.offset]
        record = next(record for record in there if _holds(record, envelope))
        letters.append(_letter_of_rejected(one, record, sink))
    return letters


def _letter_of_rejected(rejected: Rejected, record: Record, sink: str) -> DeadLetter:
    envelope = rejected.envelope
    if isinstance(envelope.id, EventId) and isinstance(record, FrameRecord):
        payload = record.frame.encode(only=[envelope.id.index])
    elif isinstance(record.frame, StatsFrame):
        frame = record.frame
        payload = encode_stats(
            StatsFrame(
                emitter=frame.emitter,
                origin=frame.origin,
                stats=[frame.stats[envelope.position]],
                tags=frame.tags,
            )
        )
    else:
        raise TypeError(f"{envelope.id} is in no record of the batch")
    return _letter(record, envelope.id, sink, rejected.reason, rejected.message, payload)


def out_record(letter: DeadLetter) -> OutRecord:
    """Return the record that keeps a dead letter."""
    return OutRecord(
        key=letter.key.encode(),
        value=encode_dead_letter(letter),
        headers=dead_letter_headers(letter),
    )


def _holds(record: Record, envelope: Envelope) -> bool:
    """Whether an event came from this record; in a replay's batch several lie at one place."""
    if isinstance(record, FrameRecord):
        return isinstance(envelope.id, EventId) and record.frame.emitter == envelope.id.emitter
    stats = record.frame.stats[envelope.position : envelope.position + 1]
    return [one.key(record.frame.emitter) for one in stats] == [envelope.id]


def _letter(
    record: Record,
    id: EventId | StatsKey,  # noqa: A002 - what it is
    sink: str,
    reason: str,
    message: str,
    payload: bytes,
) -> DeadLetter:
    kind = id.kind if isinstance(id, EventId) else "stats"
    return make_dead_letter(
        sink=sink,
        reason=reason,
        message=message,
        key=event_key(sink, id),
        kind=kind,
        first_seen_ns=record.timestamp_ms * 1_000_000,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        payload=payload,
        redriven=record.redriven,
    )
