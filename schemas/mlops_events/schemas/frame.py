"""The frame codec: many events of one kind and one emitter in one Kafka record.

A frame is a msgpack map: the header, a series table `s` and the events `e`. Observations are rows
that refer to the table, so names are sent once a frame. `docs/wire.md` describes the bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeAlias, get_args

import msgspec

from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import (
    EventId,
    Int64,
    Log,
    Observation,
    Origin,
    Profile,
    RawKind,
    Run,
    Stats,
)
from mlops_events.schemas.values import ENCODER

__all__ = [
    "MAX_EVENTS",
    "MAX_EVENT_BYTES",
    "MAX_FRAME_BYTES",
    "WIRE_VERSION",
    "Frame",
    "FrameEncoder",
    "Free",
    "Reject",
    "Row",
    "Series",
    "StatsFrame",
    "WireEvent",
    "decode_frame",
    "decode_stats",
    "encode_stats",
]

WIRE_VERSION = 1
MAX_EVENTS = 4095
MAX_FRAME_BYTES = 1 << 20
MAX_EVENT_BYTES = 256 << 10


class Series(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the series table: what the values of rows with this `sid` are called.

    `tags` belong to every row of the series; a row's own tags win over them.
    """

    sid: int
    name: str
    fields: list[str]
    tags: dict[str, Any] | None = None


class Row(msgspec.Struct, array_like=True, tag="r", gc=False):
    """An observation against the series table; `values` stand in the order of its fields."""

    sid: int
    ts: Int64
    step: Int64 | None
    values: list[Any]
    tags: dict[str, Any] | None = None


class Free(msgspec.Struct, array_like=True, tag="m", gc=False):
    """An observation that brings its own names."""

    ts: Int64
    step: Int64 | None
    name: str
    fields: dict[str, Any]
    tags: dict[str, Any] | None = None


WireEvent: TypeAlias = Row | Free | Run | Profile | Log


class Reject(msgspec.Struct, frozen=True):
    """An event inside a good frame that this version cannot read."""

    index: int
    reason: str
    message: str
    raw: bytes


_EMPTY = msgspec.Raw(b"\x90")


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Wire(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The map on the wire. New keys get a default; old readers skip what they do not know."""

    v: int
    emitter: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    kind: str
    seq: _Count
    closed_ns: Int64
    origin: Origin
    accepted: _Count
    dropped: _Count = 0
    end: bool = False
    s: msgspec.Raw = _EMPTY
    i: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_EVENTS - 1)]] | None = None
    tags: dict[str, str] | None = None
    e: msgspec.Raw = _EMPTY


class Frame:
    """A decoded frame.

    Args:
        wire: the header as it stood on the wire.
        series: the series table by `sid`.
        items: the events that could be read, in wire form.
        indices: the index of each item, as in its event id.
        rejects: the events that could not be read.
    """

    __slots__ = ("_wire", "indices", "items", "rejects", "series")

    def __init__(
        self,
        wire: _Wire,
        *,
        series: dict[int, Series],
        items: Sequence[WireEvent],
        indices: Sequence[int],
        rejects: list[Reject],
    ) -> None:
        self._wire = wire
        self.series = series
        self.items = items
        self.indices = indices
        self.rejects = rejects

    @property
    def version(self) -> int:
        """The wire version of its writer."""
        return self._wire.v

    @property
    def emitter(self) -> bytes:
        """The 16 bytes that name the emitter."""
        return self._wire.emitter

    @property
    def kind(self) -> RawKind:
        """The kind of all its events."""
        return self._wire.kind  # type: ignore[return-value]  # decode_frame refuses other kinds

    @property
    def seq(self) -> int:
        """Its number in its emitter and kind, from 0."""
        return self._wire.seq

    @property
    def closed_ns(self) -> int:
        """When it was closed, by the emitter's clock."""
        return self._wire.closed_ns

    @property
    def origin(self) -> Origin:
        """Who emitted it."""
        return self._wire.origin

    @property
    def accepted(self) -> int:
        """Events of this kind that the emitter put into frames, up to and with this one."""
        return self._wire.accepted

    @property
    def dropped(self) -> int:
        """Events of this kind that the emitter dropped before they got into a frame."""
        return self._wire.dropped

    @property
    def end(self) -> bool:
        """True for the last frame of its emitter and kind."""
        return self._wire.end

    @property
    def tags(self) -> dict[str, str]:
        """What the streams attached: the version and the operator's tags; empty on raw topics."""
        return self._wire.tags or {}

    def __len__(self) -> int:
        return len(self.items)

    def event_id(self, index: int) -> EventId:
        """The id of the event with this index."""
        return EventId(self._wire.emitter, self._wire.kind, self._wire.seq, index)

    def events(self) -> Iterator[tuple[int, Run | Observation | Profile | Log]]:
        """Yield each event with its index, observations with their names put back."""
        series = self.series
        for index, item in zip(self.indices, self.items, strict=True):
            if isinstance(item, Row):
                table = series[item.sid]
                tags = {**(table.tags or {}), **(item.tags or {})}
                yield (
                    index,
                    Observation(
                        ts=item.ts,
                        name=table.name,
                        fields=dict(zip(table.fields, item.values, strict=True)),
                        step=item.step,
                        tags=tags,
                    ),
                )
            elif isinstance(item, Free):
                yield (
                    index,
                    Observation(
                        ts=item.ts,
                        name=item.name,
                        fields=item.fields,
                        step=item.step,
                        tags=item.tags or {},
                    ),
                )
            else:
                yield index, item

    def encode(
        self, *, tags: dict[str, str] | None = None, only: Sequence[int] | None = None
    ) -> bytes:
        """Encode it again under the same (emitter, kind, seq).

        Args:
            tags: what the streams attach; the frame's own if None.
            only: indices of the events to keep, all readable ones if None.
        """
        wire = self._wire
        attached = wire.tags if tags is None else tags
        if only is None and not self.rejects:
            return ENCODER.encode(msgspec.structs.replace(wire, tags=attached))
        if only is not None and len(only) == 1 and only[0] in self.indices:
            return self._encode_one(only[0], attached)
        keep = set(self.indices if only is None else only)
        kept = [(k, e) for k, e in zip(self.indices, self.items, strict=True) if k in keep]
        return ENCODER.encode(
            msgspec.structs.replace(
                wire,
                tags=attached,
                i=[k for k, _ in kept],
                e=msgspec.Raw(ENCODER.encode([e for _, e in kept])),
            )
        )

    def _encode_one(self, index: int, tags: dict[str, str] | None) -> bytes:
        """Encode a frame of one event, for each of thousands when a whole frame is refused."""
        item = self.items[self.indices.index(index)]
        series = [self.series[item.sid]] if isinstance(item, Row) else []
        return ENCODER.encode(
            msgspec.structs.replace(
                self._wire,
                tags=tags,
                s=msgspec.Raw(ENCODER.encode(series)),
                i=[index],
                e=msgspec.Raw(ENCODER.encode([item])),
            )
        )

    def encode_reject(self, reject: Reject) -> bytes:
        """Encode a frame that holds only this event, for a version that can read it."""
        return ENCODER.encode(
            msgspec.structs.replace(
                self._wire, i=[reject.index], e=msgspec.Raw(b"\x91" + reject.raw)
            )
        )


class FrameEncoder:
    """Closes frames of one emitter and kind around events that are already encoded."""

    def __init__(self, *, emitter: bytes, kind: RawKind, origin: Origin) -> None:
        self._emitter = emitter
        self._kind = kind
        self._origin = origin

    def encode(
        self,
        events: Sequence[bytes],
        *,
        seq: int,
        closed_ns: int,
        accepted: int,
        dropped: int,
        series: Sequence[Series] = (),
        end: bool = False,
    ) -> bytes:
        """Return the bytes of a frame that holds these encoded events.

        Raises:
            ValueError: there are more events than a frame may hold.
        """
        if len(events) > MAX_EVENTS:
            raise ValueError(f"{len(events)} events in a frame; at most {MAX_EVENTS} fit")
        return ENCODER.encode(
            _Wire(
                v=WIRE_VERSION,
                emitter=self._emitter,
                kind=self._kind,
                seq=seq,
                closed_ns=closed_ns,
                origin=self._origin,
                accepted=accepted,
                dropped=dropped,
                end=end,
                s=msgspec.Raw(ENCODER.encode(series)) if series else _EMPTY,
                e=msgspec.Raw(_array_header(len(events)) + b"".join(events)),
            )
        )


def decode_frame(value: bytes | None) -> Frame:
    """Decode the value of a record of a raw or sink topic.

    Events that cannot be read do not spoil the others: they are in `Frame.rejects`.

    Raises:
        DecodeError: the value is no frame, or a frame of a kind this version does not know.
    """
    if not value:
        raise DecodeError("the record has no value; expected a frame, a msgpack map")
    try:
        wire = _WIRE.decode(value)
        decoder = _EVENTS.get(wire.kind)
        if decoder is None:
            known = ", ".join(_EVENTS)
            raise DecodeError(f"a frame of kind {wire.kind!r}; this version knows {known}")
        series = {entry.sid: entry for entry in _SERIES.decode(wire.s)}
        items, indices, rejects = _decode_events(decoder, wire.e, series)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError(f"{len(value)} bytes are not a frame: {error}") from error
    if len(items) + len(rejects) > MAX_EVENTS:
        raise DecodeError(f"{len(items) + len(rejects)} events; a frame holds at most {MAX_EVENTS}")
    if wire.i is not None:
        if len(wire.i) != len(items) + len(rejects):
            raise DecodeError(f"the index column has {len(wire.i)} entries, not one for each event")
        column = wire.i
        indices = [column[k] for k in indices]
        rejects = [msgspec.structs.replace(r, index=column[r.index]) for r in rejects]
    return Frame(wire, series=series, items=items, indices=indices, rejects=rejects)


def _decode_events(
    decoder: "msgspec.msgpack.Decoder[list[Any]]", raw: msgspec.Raw, series: dict[int, Series]
) -> tuple[Sequence[WireEvent], Sequence[int], list[Reject]]:
    try:
        items = decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return _decode_each(decoder, raw, series)
    widths = {sid: len(entry.fields) for sid, entry in series.items()}
    for item in items:
        if item.__class__ is Row and widths.get(item.sid) != len(item.values):
            return _decode_each(decoder, raw, series)
    return items, range(len(items)), []


def _decode_each(
    decoder: "msgspec.msgpack.Decoder[list[Any]]", raw: msgspec.Raw, series: dict[int, Series]
) -> tuple[list[WireEvent], list[int], list[Reject]]:
    """Decode one event at a time and keep the good ones."""
    items: list[WireEvent] = []
    indices: list[int] = []
    rejects: list[Reject] = []
    for index, one in enumerate(_RAWS.decode(raw)):
        try:
            item = decoder.decode(b"\x91" + bytes(one))[0]
        except (msgspec.MsgspecError, RecursionError) as error:
            rejects.append(Reject(index, "unreadable_event", str(error), bytes(one)))
            continue
        if isinstance(item, Row):
            entry = series.get(item.sid)
            if entry is None or len(entry.fields) != len(item.values):
                message = (
                    f"series {item.sid} is not in the frame's table"
                    if entry is None
                    else f"{len(item.values)} values for {len(entry.fields)} fields of series {item.sid}"
                )
                rejects.append(Reject(index, "unreadable_event", message, bytes(one)))
                continue
        items.append(item)
        indices.append(index)
    return items, indices, rejects


class StatsFrame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stats of one emitter: the value of a record of kind `stats`."""

    v: int = WIRE_VERSION
    emitter: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    origin: Origin
    stats: list[Stats]
    tags: dict[str, str] = {}


def encode_stats(frame: StatsFrame) -> bytes:
    """Return the bytes of a record of kind `stats`."""
    return ENCODER.encode(frame)


def decode_stats(value: bytes | None) -> StatsFrame:
    """Decode the value of a record of kind `stats`.

    Raises:
        DecodeError: the value is none.
    """
    if not value:
        raise DecodeError("the record has no value; expected Stats, a msgpack map")
    try:
        return _STATS.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError(f"{len(value)} bytes are not Stats: {error}") from error


def _array_header(length: int) -> bytes:
    """The msgpack header of an array of this length."""
    if length < 16:
        return bytes((0x90 | length,))
    return b"\xdc" + length.to_bytes(2, "big")


_WIRE = msgspec.msgpack.Decoder(_Wire)
_SERIES = msgspec.msgpack.Decoder(list[Series])
_RAWS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_STATS = msgspec.msgpack.Decoder(StatsFrame)
_EVENTS: "dict[str, msgspec.msgpack.Decoder[list[Any]]]" = {
    "run": msgspec.msgpack.Decoder(list[Run]),
    "observation": msgspec.msgpack.Decoder(list[Row | Free]),
    "profile": msgspec.msgpack.Decoder(list[Profile]),
    "log": msgspec.msgpack.Decoder(list[Log]),
}
assert set(_EVENTS) == set(get_args(RawKind))  # noqa: S101 - checked when the module is read
