"""Turns events into Loki's entries: a stream's labels, a time, a line, structured metadata."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from mlops_events.schemas.events import AnyEvent, Log, Observation, Origin, Profile, Run, Stats
from mlops_events.sinks.base import Envelope, FrameRecord, Record
from mlops_events.sinks.jsontext import to_json

__all__ = ["Entry", "Labels", "Limits", "Renderer"]

Labels = tuple[tuple[str, str], ...]
"""A stream: its labels in a fixed order."""

_CACHED: Final = 10_000
_SERVICE: Final = "mlops-events"
_SPREAD_NS: Final = 1_000


class Limits(NamedTuple):
    """What Loki takes by default; each can be set there, and a tenant's may differ."""

    labels: int = 15
    label_name: int = 1024  # characters
    label_value: int = 2048
    line: int = 256 << 10  # bytes
    metadata: int = 64 << 10
    metadata_keys: int = 128


class Entry(NamedTuple):
    """One line of a stream; `record` and `position` lead back to its event."""

    labels: Labels
    ts: int
    line: str
    metadata: dict[str, str]
    record: Record
    position: int

    @property
    def envelope(self) -> Envelope:
        """The event it was made of."""
        for envelope in self.record.envelopes():
            if envelope.position == self.position:
                return envelope
        raise IndexError(f"no event {self.position} in the record")


class _Base(NamedTuple):
    """What all entries of an emitter with one level have in common."""

    labels: Labels
    metadata: dict[str, str]


class Renderer:
    """Makes entries; the same event always makes the same one.

    Args:
        clean: makes a text a label's name by Loki's rules.
        uid_label: whether streams are told apart by uid, by a shard of it, or not.
        more_labels: names of origin tags that become labels.
        structured_metadata: False for servers without it: all goes into the line then.
        limits: of the server.
    """

    def __init__(
        self,
        *,
        clean: Callable[[str], str],
        uid_label: str,
        more_labels: Sequence[str] = (),
        structured_metadata: bool = True,
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> None:
        self._clean = clean
        self._uid_label = uid_label
        self._more = tuple(more_labels)
        self._structured = structured_metadata
        self._limits = limits
        self._bases: dict[tuple[bytes, str, str, str], _Base] = {}

    def entries(self, record: Record, *, replay: str = "") -> Iterator[Entry]:
        """Yield the entries of a record.

        Args:
            record: of any kind.
            replay: the id of the replay that it comes from, a label then.
        """
        frame = record.frame
        if isinstance(record, FrameRecord) and record.frame.kind == "log":
            head = f"{frame.emitter.hex()}/log/{record.frame.seq}/"
            for position, (index, event) in enumerate(record.frame.events()):
                assert isinstance(event, Log)  # noqa: S101 - frames hold one kind
                base = self._base(record, event.level.lower(), "log", replay)
                line, extra = _log_line(event)
                yield self._entry(
                    base, event.ts + index % _SPREAD_NS, line, f"{head}{index}", extra, record,
                    position,
                )  # fmt: skip
            return
        for envelope in record.envelopes():
            kind, ts, values = _plain(envelope.event)
            base = self._base(record, "info", kind, replay)
            line = _json(values)
            ts = ts or record.timestamp_ms * 1_000_000  # a window over a field has no time
            yield self._entry(base, ts, line, str(envelope.id), {}, record, envelope.position)

    def _entry(
        self,
        base: _Base,
        ts: int,
        line: str,
        name: str,
        extra: Mapping[str, str],
        record: Record,
        position: int,
    ) -> Entry:
        metadata = (
            {"id": name, **base.metadata, **extra} if extra else {"id": name, **base.metadata}
        )
        if not self._structured:
            line = _json({"message": line, **metadata})
            metadata = {}
        if len(line) > self._limits.line // 4:  # a character has at most four bytes
            line, cut = _cut(line, self._limits.line)
            if cut and self._structured:
                metadata["truncated"] = "true"
        return Entry(base.labels, ts, line, metadata, record, position)

    def _base(self, record: Record, level: str, kind: str, replay: str) -> _Base:
        key = (record.frame.emitter, level, kind, replay)
        base = self._bases.get(key)
        if base is None:
            if len(self._bases) >= _CACHED:
                self._bases.clear()
            base = self._bases[key] = self._make_base(record, level, kind, replay)
        return base

    def _make_base(self, record: Record, level: str, kind: str, replay: str) -> _Base:
        origin = record.frame.origin
        uid = "" if origin.uid is None else str(origin.uid)
        wanted: dict[str, str] = {
            "service_name": origin.tags.get("service", "") or origin.project or _SERVICE,
            "env": origin.environment,
            "role": origin.role,
            "netuid": "" if origin.netuid is None else str(origin.netuid),
            "level": level,
            "kind": "" if kind == "log" else kind,
            "replay": replay,
        }
        if self._uid_label == "uid":
            wanted["uid"] = uid
        elif self._uid_label == "shard" and uid:
            wanted["shard"] = str(_shard(uid))
        spare = _metadata(origin, record.frame.tags)
        for name in self._more:
            wanted.setdefault(self._clean(name), spare.get(name, ""))
        labels: dict[str, str] = {}
        for name, value in wanted.items():
            if not value or not name:
                continue
            if len(labels) < self._limits.labels:
                labels[name[: self._limits.label_name]] = _text(value)[: self._limits.label_value]
            else:
                spare.setdefault(name, value)
        return _Base(tuple(labels.items()), _bounded(spare, self._limits))


def _metadata(origin: Origin, tags: Mapping[str, str]) -> dict[str, str]:
    """Return who emitted, as texts, without what is empty."""
    known = {
        "run": origin.run,
        "project": origin.project,
        "uid": origin.uid,
        "hotkey": origin.hotkey,
        "rank": origin.rank,
        "node": origin.node,
        "version": origin.version,
        "group": origin.group,
        "job_type": origin.job_type,
    }
    texts = {**origin.tags, **tags, **{k: v for k, v in known.items() if v not in ("", None)}}
    if tags.get("version"):
        texts["version"] = tags["version"]
    return {key: _text(str(value)) for key, value in texts.items() if value not in ("", None)}


def _bounded(metadata: dict[str, str], limits: Limits) -> dict[str, str]:
    """Leave out what is beyond the limits, the last first; room is left for an entry's own."""
    kept: dict[str, str] = {}
    size = 0
    for key, value in metadata.items():
        size += len(key.encode()) + len(value.encode())
        if len(kept) >= limits.metadata_keys - 8 or size > limits.metadata // 2:
            break
        kept[key] = value
    return kept


def _log_line(event: Log) -> tuple[str, dict[str, str]]:
    """Return a log's line and what is said beside it.

    A message alone stays as it is; with fields it is a JSON object, the message first.
    """
    extra: dict[str, str] = {}
    if event.logger:
        extra["logger"] = _text(event.logger)[:1024]
    if event.step is not None:
        extra["step"] = str(event.step)
    if event.trace_id:
        extra["trace_id"] = _text(event.trace_id)[:128]
    if event.span_id:
        extra["span_id"] = _text(event.span_id)[:128]
    if not event.fields:
        return _text(event.message), extra
    fields = {(f"{k}_" if k == "message" else k): v for k, v in event.fields.items()}
    return _json({"message": event.message, **fields}), extra


def _plain(event: AnyEvent) -> tuple[str, int, dict[str, Any]]:
    """Return kind, time and values of an event that is no log line."""
    if isinstance(event, Observation):
        return (
            "observation",
            event.ts,
            _given(name=event.name, step=event.step, fields=event.fields, tags=event.tags),
        )
    if isinstance(event, Profile):
        return "profile", event.ts, _given(
            name=event.name, step=event.step, seconds=event.duration_ns / 1e9, tags=event.tags,
            failed=event.failed,
        )  # fmt: skip
    if isinstance(event, Stats):
        ends = event.start + event.size if event.by == "time" else 0
        return "stats", ends, _given(**msgspec.structs.asdict(event))
    kind = "run" if isinstance(event, Run) else "log"
    return kind, event.ts, _given(**msgspec.structs.asdict(event))


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, "", {}, False)}


def _json(values: Mapping[str, Any]) -> str:
    try:
        return _text(to_json(values))
    except (TypeError, RecursionError):
        return _text(repr(values))


def _text(text: str) -> str:
    return text.replace("\x00", "\ufffd") if "\x00" in text else text


def _cut(line: str, limit: int) -> tuple[str, bool]:
    raw = line.encode("utf-8", "replace")
    return (line, False) if len(raw) <= limit else (raw[:limit].decode("utf-8", "ignore"), True)


def _shard(uid: str) -> int:
    """Return a number below 32, the uid's own remainder where it is a number."""
    return int(uid) % 32 if uid.isdecimal() else sum(uid.encode()) % 32
