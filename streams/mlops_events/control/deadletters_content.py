"""Shows what a dead letter's payload holds: events, an event that cannot be read, or bytes."""

import textwrap
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from mlops_events.control.deadletters import Letter, read_payload
from mlops_events.control.truth import plain
from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import EventId
from mlops_events.schemas.frame import Frame, StatsFrame
from mlops_events.sinks.base import Envelope, FrameRecord, StatsRecord
from mlops_events.sinks.console import render

__all__ = ["as_json", "content_lines", "describe", "hexdump", "wrapped"]

_EVENTS: Final = 10
_DUMPED: Final = 256
_WIDE: Final = 72
_NARROWEST: Final = 20


def content_lines(payload: bytes, *, width: int) -> Iterator[str]:
    """Yield the lines that show a payload to people."""
    try:
        frame = read_payload(payload)
    except DecodeError as error:
        yield from wrapped(f"cannot be read: {error}", width)
        yield from _dumped(payload, width)
        return
    origin = msgspec.json.encode(frame.origin).decode()
    yield from wrapped(f"origin {origin}", width)
    shown = list(_envelopes(payload))
    for envelope in shown[:_EVENTS]:
        yield from wrapped(render(envelope), width)
    if len(shown) > _EVENTS:
        yield f"and {len(shown) - _EVENTS} events more"
    elif len(shown) == 1:
        event = as_json(_plain_event(shown[0]))
        yield from msgspec.json.format(event, indent=2).splitlines()
    for reject in frame.rejects if isinstance(frame, Frame) else ():
        yield from wrapped(f"event {reject.index} cannot be read: {reject.message}", width)
        yield from _raw(reject.raw, width)


def describe(found: Letter) -> dict[str, Any]:
    """Return everything about one letter as JSON can hold it; its events where it has some."""
    letter = msgspec.structs.asdict(found.letter)
    payload: bytes = letter.pop("payload")
    facts = {
        **letter,
        "written_ns": found.written_ns,
        "letter_partition": found.partition,
        "letter_offset": found.offset,
    }
    if payload:
        facts["payload"] = payload
        facts["events"] = [_plain_event(envelope) for envelope in _envelopes(payload)]
    return facts


def hexdump(data: bytes, *, width: int) -> Iterator[str]:
    """Yield lines of bytes as numbers and as text."""
    per_line = 16 if width >= _WIDE else 8
    for start in range(0, len(data), per_line):
        some = data[start : start + per_line]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        yield f"{start:04x}  {some.hex(' '):{3 * per_line - 1}}  {text}"


def wrapped(text: str, width: int, *, indent: int = 0, most: int | None = None) -> list[str]:
    """Return the lines of a text; nothing in them is a command to a terminal."""
    return textwrap.wrap(
        _clean(text),
        max(_NARROWEST, width),
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        max_lines=most,
        placeholder=" ...",
        break_long_words=False,  # keys stay whole, to be copied
        break_on_hyphens=False,
    )


def _raw(raw: bytes, width: int) -> Iterator[str]:
    try:
        yield from wrapped(as_json(plain(msgspec.msgpack.decode(raw))), width, indent=2)
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError):
        yield from _dumped(raw, width)


def _dumped(data: bytes, width: int) -> Iterator[str]:
    yield from hexdump(data[:_DUMPED], width=width)
    if len(data) > _DUMPED:
        yield f"and {len(data) - _DUMPED} bytes more"


def _envelopes(payload: bytes) -> Iterator[Envelope]:
    try:
        frame = read_payload(payload)
    except DecodeError:
        return
    if isinstance(frame, StatsFrame):
        yield from StatsRecord(frame=frame, topic="", partition=0, offset=0).envelopes()
    else:
        yield from FrameRecord(frame=frame, topic="", partition=0, offset=0).envelopes()


def _plain_event(envelope: Envelope) -> dict[str, Any]:
    key = envelope.id
    return {
        "id": str(key) if isinstance(key, EventId) else {**key._asdict(), "emitter": key[0].hex()},
        "kind": type(envelope.event).__name__.lower(),
        "origin": msgspec.to_builtins(envelope.origin),
        "stream_tags": envelope.tags,
        "event": plain(msgspec.structs.asdict(envelope.event)),
    }


def as_json(value: Any) -> str:
    """Return a value as JSON, in which what JSON cannot hold is a text."""
    try:
        return msgspec.json.encode(value, enc_hook=_text).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
        return repr(value)


def _text(value: Any) -> str:
    if isinstance(value, msgspec.msgpack.Ext):
        return f"extension {value.code}: {bytes(value.data).hex()}"
    return repr(value)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
