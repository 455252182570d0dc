"""Decides what redriving a dead letter sends, and where to; or why it must stay."""

from collections import Counter
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import Final

import msgspec

from mlops_events.control.deadletters import read_payload
from mlops_events.schemas.deadletters import event_key, first_key, frame_key, record_key
from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import DeadLetter
from mlops_events.schemas.frame import Frame, StatsFrame, encode_stats
from mlops_events.schemas.topics import (
    Topics,
    frame_headers,
    origin_key,
    redriven_header,
    stats_headers,
)
from mlops_events.streams.outputs import STREAM, OutputEncoder
from mlops_events.streams.route import key_of
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import MAX_VALUE_BYTES

__all__ = ["MAX_TIMES", "Account", "Kept", "Outgoing", "Planner", "whole_payload"]

MAX_TIMES: Final = 3
"""An event that failed again so often is not sent once more unless somebody insists."""

_NOT_FOLDED: Final = frozenset({"undecodable", "too_large", "wrong_kind"})
"""Reasons of the stream that a record has before its frame is known: it is folded once it can be
read. The frames of all others were folded, and would be dropped as repeats."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a redriven letter becomes."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A letter that stays, and why."""

    key: str
    why: str


class Account(msgspec.Struct, kw_only=True):
    """What became of the letters that were meant: redriven + kept + gone = chosen.

    `gone` were deleted by the broker, or written anew, while this ran. `sent` counts records by
    their topics. In a dry run it says what would become of them.
    """

    chosen: int
    dry_run: bool
    redriven: int = 0
    gone: int = 0
    sent: Counter[str] = msgspec.field(default_factory=Counter)
    kept: list[Kept] = msgspec.field(default_factory=list)


class Planner:
    """Decides about letters, one by one.

    Args:
        settings: of the stream: its sinks, routes and tags.
        topics: the names of the topics.
        existing: the topics that there are.
        force: letters that failed again too often are sent all the same.
    """

    def __init__(
        self, settings: StreamSettings, *, topics: Topics, existing: Container[str], force: bool
    ) -> None:
        self._settings = settings
        self._topics = topics
        self.existing = existing
        self._force = force

    def plan(self, letter: DeadLetter) -> list[Outgoing] | str:
        """Return the records to send, or why the letter stays.

        Args:
            letter: with its whole payload.
        """
        if letter.redriven >= MAX_TIMES and not self._force:
            return f"was redriven {letter.redriven} times and failed each time; --force insists"
        if letter.truncated:
            return f"was cut to {len(letter.payload)} of {letter.size} bytes, the rest is gone"
        try:
            frame = read_payload(letter.payload)
        except DecodeError as error:
            return f"still cannot be read: {error}"
        if isinstance(frame, Frame) and frame.rejects and not frame.items:
            return f"still cannot be read: {frame.rejects[0].message}"
        if letter.sink != STREAM:
            records = [self._to_sink(letter, frame)]
        elif isinstance(frame, StatsFrame):
            return "are Stats, which the stream makes itself"
        elif letter.reason not in _NOT_FOLDED:
            records = self._to_routes(letter, frame)
            if not records:
                return f"no sink of the stream takes events of kind {frame.kind}"
        elif len(letter.payload) > MAX_VALUE_BYTES:
            return f"has {len(letter.payload)} bytes; a frame has at most {MAX_VALUE_BYTES}"
        else:
            records = [self._to_stream(letter, frame)]
        missing = [record.topic for record in records if record.topic not in self.existing]
        return f"there is no topic {missing[0]}" if missing else records

    def _to_sink(self, letter: DeadLetter, frame: Frame | StatsFrame) -> Outgoing:
        """To the sink that refused it, as it was."""
        headers = stats_headers(frame) if isinstance(frame, StatsFrame) else frame_headers(frame)
        return Outgoing(
            topic=self._topics.sink(letter.sink),
            key=key_of(letter.sink)(frame.origin),
            value=letter.payload,
            headers=[*headers, redriven_header(letter.redriven + 1)],
        )

    def _to_stream(self, letter: DeadLetter, frame: Frame) -> Outgoing:
        """To the stream, which folds it as if it came for the first time."""
        return Outgoing(
            topic=self._topics.raw(frame.kind),
            key=origin_key(frame.origin),
            value=letter.payload,
            headers=[*frame_headers(frame), redriven_header(letter.redriven + 1)],
        )

    def _to_routes(self, letter: DeadLetter, frame: Frame) -> list[Outgoing]:
        """To the sinks of its kind, tagged as the stream does it."""
        encoder = OutputEncoder(
            self._settings, topics=self._topics, kind=frame.kind, partition=letter.partition
        )
        header = redriven_header(letter.redriven + 1)
        return [
            Outgoing(topic=out.topic, key=out.key, value=out.value, headers=[*out.headers, header])
            for out in encoder.frame(frame)
        ]


def whole_payload(letter: DeadLetter, value: bytes | None) -> bytes | None:
    """Return the payload of a letter that was cut, from the record that it was made of.

    Args:
        letter: one that was cut.
        value: of the record that lies where the letter's event stood.

    Returns:
        None if another record lies there now.
    """
    key = first_key(letter)
    for made_key, make in _letters_of(letter, value or b""):
        if made_key == key:
            payload = make()
            fits = len(payload) == letter.size and payload.startswith(letter.payload)
            return payload if fits else None
    return None


def _letters_of(letter: DeadLetter, value: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the keys of all letters that this record can have led to, and their payloads."""
    yield (
        record_key(
            letter.sink,
            topic=letter.topic,
            partition=letter.partition,
            offset=letter.offset,
            value=value,
        ),
        lambda: value,
    )
    try:
        frame = read_payload(value)
    except DecodeError:
        return
    if isinstance(frame, StatsFrame):
        for stats in frame.stats:
            only = msgspec.structs.replace(frame, stats=[stats])
            yield event_key(letter.sink, stats.key(frame.emitter)), partial(encode_stats, only)
        return
    yield (
        frame_key(letter.sink, emitter=frame.emitter, kind=frame.kind, seq=frame.seq),
        frame.encode,
    )
    for index in frame.indices:
        yield event_key(letter.sink, frame.event_id(index)), partial(frame.encode, only=[index])
    for reject in frame.rejects:
        yield (
            event_key(letter.sink, frame.event_id(reject.index)),
            partial(frame.encode_reject, reject),
        )
