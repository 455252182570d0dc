"""Dead letters: their keys, their size and their records."""

import zlib

import msgspec

from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import DeadLetter, EventId, StatsKey
from mlops_events.schemas.values import ENCODER

__all__ = [
    "DEAD_LETTER_CONTENT_TYPE",
    "dead_letter_headers",
    "decode_dead_letter",
    "encode_dead_letter",
    "event_key",
    "first_key",
    "frame_key",
    "make_dead_letter",
    "record_key",
]

DEAD_LETTER_CONTENT_TYPE = "application/vnd.mlops-events.dead-letter.v1+msgpack"

_WHOLE_BYTES = 512 << 10
_CUT_BYTES = 4 << 10


def event_key(sink: str, id: EventId | StatsKey) -> str:  # noqa: A002 - what it is
    """Return the key of an event's dead letter: the same whenever this sink refuses it."""
    if isinstance(id, EventId):
        return f"{sink}/{id}"
    parts = (id.kind, id.name, id.field, id.by, str(id.start), str(id.size))
    return "/".join((sink, id.emitter.hex(), *(_escape(part) for part in parts)))


def frame_key(sink: str, *, emitter: bytes, kind: str, seq: int) -> str:
    """Return the key of a whole frame's dead letter."""
    return f"{sink}/{emitter.hex()}/{kind}/{seq}"


def record_key(sink: str, *, topic: str, partition: int, offset: int, value: bytes | None) -> str:
    """Return the key of a record that could not be decoded."""
    return f"{sink}/{topic}/{partition}/{offset}/{zlib.crc32(value or b''):08x}"


def make_dead_letter(
    *,
    sink: str,
    reason: str,
    message: str,
    key: str,
    kind: str,
    first_seen_ns: int,
    topic: str,
    partition: int,
    offset: int,
    payload: bytes,
    redriven: int = 0,
) -> DeadLetter:
    """Return a dead letter that fits into a record: whole up to 512 KiB, else the first 4 KiB.

    One that was redriven and failed again gets a key of its own, `KEY#n`: when the letter that it
    was is taken away, this one stays.
    """
    whole = len(payload) <= _WHOLE_BYTES
    return DeadLetter(
        sink=sink,
        reason=reason,
        message=message[:_CUT_BYTES],
        key=f"{key}#{redriven}" if redriven else key,
        kind=kind,
        first_seen_ns=first_seen_ns,
        topic=topic,
        partition=partition,
        offset=offset,
        size=len(payload),
        payload=payload if whole else payload[:_CUT_BYTES],
        truncated=not whole,
        redriven=redriven,
    )


def first_key(letter: DeadLetter) -> str:
    """Return the key that the letter had when its event failed for the first time."""
    return letter.key.removesuffix(f"#{letter.redriven}") if letter.redriven else letter.key


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Return the bytes of a record of the dead letters' topic; its key is `letter.key`."""
    return ENCODER.encode(letter)


def decode_dead_letter(value: bytes | None) -> DeadLetter:
    """Decode the value of a record of the dead letters' topic.

    Raises:
        DecodeError: the value is none, or is missing: its event was delivered after all.
    """
    if not value:
        raise DecodeError("the record has no value; expected a dead letter, a msgpack map")
    try:
        return _LETTER.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError(f"{len(value)} bytes are no dead letter: {error}") from error


def dead_letter_headers(letter: DeadLetter) -> list[tuple[str, bytes]]:
    """The headers of a dead letter's record, readable in any Kafka tool."""
    return [
        ("content-type", DEAD_LETTER_CONTENT_TYPE.encode()),
        ("kind", letter.kind.encode()),
        ("sink", letter.sink.encode()),
        ("reason", letter.reason.encode()),
    ]


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


_LETTER = msgspec.msgpack.Decoder(DeadLetter)
