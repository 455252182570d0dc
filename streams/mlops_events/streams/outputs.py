"""What a fold puts out: records for topics, in the order of the log."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from mlops_events.schemas.deadletters import (
    dead_letter_headers,
    decode_dead_letter,
    encode_dead_letter,
    event_key,
    frame_key,
    make_dead_letter,
    record_key,
)
from mlops_events.schemas.events import DeadLetter, Origin, RawKind, Stats
from mlops_events.schemas.frame import Frame, Reject, StatsFrame, encode_stats
from mlops_events.schemas.topics import Topics, frame_headers, stats_headers
from mlops_events.streams.route import Routes
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.tag import tag

__all__ = ["STREAM", "DeadLetterOut", "FrameOut", "Output", "OutputEncoder", "StatsOut"]

STREAM: Final = "stream"
"""Stands in dead letters where else the sink does: no sink has seen the event."""

_MAX_LABELS: Final = 2000
_STATS_BYTES: Final = 512 << 10
_PLAIN_STATS_BYTES: Final = 160  # of one Stats, without its names


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record to produce; its partition follows from its key.

    `count` is how many events or Stats are in it.
    """

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    count: int


class FrameOut(_Record, frozen=True, kw_only=True):
    """A tagged frame for a sink's topic; those for several sinks share value and headers."""


class StatsOut(_Record, frozen=True, kw_only=True):
    """Stats of one emitter, for a sink's topic or the topic of all Stats."""


class DeadLetterOut(_Record, frozen=True, kw_only=True):
    """A record, or an event inside a good frame, that goes no further; `reason` says why."""

    reason: str

    def failed_again(self, times: int) -> "DeadLetterOut":
        """Return the letter that it is if its record had been redriven so often."""
        found = decode_dead_letter(self.value)
        letter = msgspec.structs.replace(found, key=f"{found.key}#{times}", redriven=times)
        return msgspec.structs.replace(
            self, key=letter.key.encode(), value=encode_dead_letter(letter)
        )


Output: TypeAlias = FrameOut | StatsOut | DeadLetterOut


class _Label(msgspec.Struct, frozen=True, kw_only=True):
    """What all frames of an emitter have in common."""

    origin: Origin
    tags: dict[str, str]
    headers: list[tuple[str, bytes]]
    places: list[tuple[str, bytes]]


class OutputEncoder:
    """Makes the records that one source partition puts out.

    Args:
        settings: routes and tags.
        topics: the names of all topics.
        kind: of the source topic.
        partition: of the source topic.
    """

    def __init__(
        self, settings: StreamSettings, *, topics: Topics, kind: RawKind, partition: int
    ) -> None:
        routes = Routes(topics, settings.sinks, settings.routes)
        self._frames = routes.of(kind)
        self._stats = routes.of("stats")
        self._tags = settings.tags
        self._keep_unrouted = settings.unrouted == "dead_letter"
        self._kind = kind
        self._topic = topics.raw(kind)
        self._dead_letters = topics.dead_letters
        self._partition = partition
        self._labels: dict[bytes, _Label] = {}

    def frame(self, frame: Frame, *, only: Sequence[int] | None = None) -> list[FrameOut]:
        """Return a new frame, tagged, for each sink that takes its kind.

        Args:
            frame: as it came.
            only: the indices of the events to send on, all if None.
        """
        if not self._frames:
            return []
        label = self._labels.get(frame.emitter)
        if label is None or label.origin != frame.origin:
            label = self._label(frame)
        count = len(frame) if only is None else len(only)
        value = frame.encode(tags=label.tags, only=only)
        headers = [*label.headers, ("seq", b"%d" % frame.seq), ("count", b"%d" % count)]
        return [
            FrameOut(topic=topic, key=key, value=value, headers=headers, count=count)
            for topic, key in label.places
        ]

    def unrouted(
        self, frame: Frame, *, offset: int, log_ns: int, only: Sequence[int] | None = None
    ) -> list[DeadLetterOut]:
        """Return the dead letter of a frame that no sink takes, if it is to have one."""
        if not self._keep_unrouted or not len(frame) or only == []:
            return []
        letter = self._letter(
            frame_key(STREAM, emitter=frame.emitter, kind=frame.kind, seq=frame.seq),
            frame.encode(only=only),
            offset=offset,
            log_ns=log_ns,
            reason="no_route",
            message=f"no sink of the stream takes events of kind {frame.kind}",
        )
        return [letter]

    def stats(self, emitter: bytes, origin: Origin, stats: Sequence[Stats]) -> Iterator[StatsOut]:
        """Yield the Stats of one emitter for each sink that takes them and for their own topic."""
        for some in _in_records(stats):
            frame = StatsFrame(
                emitter=emitter, origin=origin, stats=some, tags=tag(origin, self._tags)
            )
            value = encode_stats(frame)
            headers = stats_headers(frame)
            for topic, key in self._stats:
                yield StatsOut(
                    topic=topic, key=key(origin), value=value, headers=headers, count=len(some)
                )

    def _label(self, frame: Frame) -> "_Label":
        if len(self._labels) >= _MAX_LABELS:
            self._labels.clear()
        origin = frame.origin
        label = self._labels[frame.emitter] = _Label(
            origin=origin,
            tags=tag(origin, self._tags),
            headers=[h for h in frame_headers(frame) if h[0] not in ("seq", "count")],
            places=[(topic, key(origin)) for topic, key in self._frames],
        )
        return label

    def undecodable(
        self, value: bytes | None, *, offset: int, log_ns: int, reason: str, message: str
    ) -> DeadLetterOut:
        """Return the dead letter of a whole record."""
        key = record_key(
            STREAM, topic=self._topic, partition=self._partition, offset=offset, value=value
        )
        return self._letter(
            key, value or b"", offset=offset, log_ns=log_ns, reason=reason, message=message
        )

    def reject(self, frame: Frame, reject: Reject, *, offset: int, log_ns: int) -> DeadLetterOut:
        """Return the dead letter of one event inside a good frame."""
        return self._letter(
            event_key(STREAM, frame.event_id(reject.index)),
            frame.encode_reject(reject),
            offset=offset,
            log_ns=log_ns,
            reason=reject.reason,
            message=reject.message,
        )

    def over(
        self,
        frame: Frame,
        indices: Sequence[int],
        *,
        offset: int,
        log_ns: int,
        reason: str,
        message: str,
    ) -> DeadLetterOut:
        """Return the dead letter of all events of a frame that are too much for one reason.

        It has the key of the first, and a frame of all of them: a flood makes no more letters than
        it had frames.
        """
        origin = frame.origin
        who = f"{origin.run}/{origin.role}/{origin.uid}"
        events = "1 event" if len(indices) == 1 else f"{len(indices)} events"
        return self._letter(
            event_key(STREAM, frame.event_id(indices[0])),
            frame.encode(only=indices),
            offset=offset,
            log_ns=log_ns,
            reason=reason,
            message=f"{events} of {who} too many: {message}",
        )

    def _letter(
        self, key: str, payload: bytes, *, offset: int, log_ns: int, reason: str, message: str
    ) -> DeadLetterOut:
        letter: DeadLetter = make_dead_letter(
            sink=STREAM,
            reason=reason,
            message=message,
            key=key,
            kind=self._kind,
            first_seen_ns=log_ns,
            topic=self._topic,
            partition=self._partition,
            offset=offset,
            payload=payload,
        )
        return DeadLetterOut(
            topic=self._dead_letters,
            key=key.encode(),
            value=encode_dead_letter(letter),
            headers=dead_letter_headers(letter),
            count=1,
            reason=reason,
        )


def _in_records(stats: Sequence[Stats]) -> Iterator[list[Stats]]:
    """Split Stats so that each part fits well into a record."""
    some: list[Stats] = []
    size = 0
    for one in stats:
        added = _PLAIN_STATS_BYTES + 4 * (len(one.name) + len(one.field))
        if some and size + added > _STATS_BYTES:
            yield some
            some, size = [], 0
        some.append(one)
        size += added
    if some:
        yield some
