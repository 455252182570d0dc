"""Names, keys, headers and settings of all topics."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import RAW_KINDS, Kind, Origin, RawKind
from mlops_events.schemas.frame import Frame, StatsFrame

__all__ = [
    "DAY_MS",
    "DEFAULT_PARTITIONS",
    "DEFAULT_PREFIX",
    "FRAME_CONTENT_TYPE",
    "MAX_RECORD_BYTES",
    "STATS_CONTENT_TYPE",
    "RecordHeaders",
    "TopicSpec",
    "Topics",
    "frame_headers",
    "origin_key",
    "raw_headers",
    "read_headers",
    "redriven_header",
    "redriven_times",
    "stats_headers",
    "topic_specs",
    "wandb_key",
]

DEFAULT_PREFIX = "mlops.events"
DEFAULT_PARTITIONS = 12
MAX_RECORD_BYTES = 2 << 20
FRAME_CONTENT_TYPE = "application/vnd.mlops-events.frame.v1+msgpack"
STATS_CONTENT_TYPE = "application/vnd.mlops-events.stats.v1+msgpack"

DAY_MS = 86_400_000

_REDRIVEN = "redriven"
_MAX_DIGITS = 10

Headers = Sequence[tuple[str, bytes]]


class Topics(msgspec.Struct, frozen=True):
    """The names of all topics below one prefix."""

    prefix: str = DEFAULT_PREFIX

    def raw(self, kind: RawKind) -> str:
        """Frames as emitters sent them."""
        return f"{self.prefix}.{kind}.v1"

    @property
    def raws(self) -> list[str]:
        """The raw topics of all kinds."""
        return [self.raw(kind) for kind in RAW_KINDS]

    def sink(self, name: str) -> str:
        """What is routed to one sink."""
        return f"{self.prefix}.sink.{name}.v1"

    @property
    def stats(self) -> str:
        """Window aggregates."""
        return f"{self.prefix}.stats.v1"

    @property
    def dead_letters(self) -> str:
        """Events that could not be delivered."""
        return f"{self.prefix}.dead-letters.v1"

    @property
    def checkpoints(self) -> str:
        """The state of the source partitions."""
        return f"{self.prefix}.checkpoints.v1"


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it must be created."""

    name: str
    partitions: int
    replication: int
    config: dict[str, str]


def topic_specs(
    topics: Topics,
    *,
    sinks: Iterable[str],
    partitions: int = DEFAULT_PARTITIONS,
    replication: int = 3,
    raw_retention_ms: int = 7 * DAY_MS,
    sink_retention_ms: int = 3 * DAY_MS,
    letter_retention_ms: int = 30 * DAY_MS,
) -> list[TopicSpec]:
    """Return every topic with the settings that the guarantees rest on.

    Checkpoints outlive the raw topics by a day. Timestamps are the broker's: log time, from which
    silence is judged, must not be an emitter's clock.
    """
    common = {
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(MAX_RECORD_BYTES),
        "min.insync.replicas": "2" if replication >= 3 else "1",
    }

    def spec(name: str, retention_ms: int, **config: str) -> TopicSpec:
        settings = {
            **common,
            "cleanup.policy": "delete",
            "retention.ms": str(retention_ms),
            **config,
        }
        return TopicSpec(name=name, partitions=partitions, replication=replication, config=settings)

    daily = {"segment.ms": str(min(DAY_MS, raw_retention_ms))}
    return [
        *(spec(name, raw_retention_ms, **daily) for name in topics.raws),
        spec(topics.stats, raw_retention_ms, **daily),
        *(spec(topics.sink(name), sink_retention_ms, **daily) for name in sinks),
        spec(topics.dead_letters, letter_retention_ms, **{"cleanup.policy": "compact,delete"}),
        spec(topics.checkpoints, raw_retention_ms + DAY_MS, **daily),
    ]


def origin_key(origin: Origin) -> bytes:
    """The key of all topics but W&B's: run/role/uid/rank."""
    return _key(origin.run, origin.role, origin.uid, origin.rank)


def wandb_key(origin: Origin) -> bytes:
    """The key of W&B's topic, where one run has one writer: run/role/uid."""
    return _key(origin.run, origin.role, origin.uid)


def _key(*parts: object) -> bytes:
    texts = ("" if part is None else str(part) for part in parts)
    return "/".join(t.replace("%", "%25").replace("/", "%2F") for t in texts).encode()


class RecordHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """A record's headers, read back.

    `seq` is -1 on records of kind stats. `redriven` is how often it was sent once more on purpose.
    """

    kind: Kind
    run: str
    role: str
    uid: str
    version: str
    emitter: bytes
    seq: int
    count: int
    redriven: int = 0


def raw_headers(
    origin: Origin, *, kind: RawKind, emitter: bytes, seq: int, count: int
) -> list[tuple[str, bytes]]:
    """The headers of a frame's record, readable in any Kafka tool."""
    return _headers(origin, FRAME_CONTENT_TYPE, kind, emitter, seq, count)


def frame_headers(frame: Frame) -> list[tuple[str, bytes]]:
    """The headers of a decoded frame's record."""
    return raw_headers(
        frame.origin, kind=frame.kind, emitter=frame.emitter, seq=frame.seq, count=len(frame)
    )


def stats_headers(frame: StatsFrame) -> list[tuple[str, bytes]]:
    """The headers of a record of kind stats."""
    return _headers(frame.origin, STATS_CONTENT_TYPE, "stats", frame.emitter, -1, len(frame.stats))


def _headers(
    origin: Origin, content_type: str, kind: str, emitter: bytes, seq: int, count: int
) -> list[tuple[str, bytes]]:
    return [
        ("content-type", content_type.encode()),
        ("kind", kind.encode()),
        ("run", origin.run.encode()),
        ("role", origin.role.encode()),
        ("uid", b"" if origin.uid is None else str(origin.uid).encode()),
        ("version", origin.version.encode()),
        ("emitter", emitter.hex().encode()),
        ("seq", b"%d" % seq),
        ("count", b"%d" % count),
    ]


def read_headers(headers: Headers) -> RecordHeaders:
    """Read a record's headers.

    Raises:
        DecodeError: one that identifies the record is missing or malformed.
    """
    found: Mapping[str, bytes] = dict(headers)
    try:
        return msgspec.convert(
            {
                "kind": found["kind"].decode(),
                "run": found.get("run", b"").decode("utf-8", "replace"),
                "role": found.get("role", b"").decode("utf-8", "replace"),
                "uid": found.get("uid", b"").decode("utf-8", "replace"),
                "version": found.get("version", b"").decode("utf-8", "replace"),
                "emitter": bytes.fromhex(found["emitter"].decode()),
                "seq": int(found["seq"]),
                "count": int(found["count"]),
                "redriven": _times(found.get(_REDRIVEN)),
            },
            RecordHeaders,
        )
    except KeyError as error:
        raise DecodeError(f"the record has no header {error.args[0]!r}") from error
    except (ValueError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise DecodeError(f"the record's headers are malformed: {error}") from error


def redriven_header(times: int) -> tuple[str, bytes]:
    """The header of a record that is sent once more on purpose: sinks take it as if it were new.

    Args:
        times: how often this was done, this time included.
    """
    return (_REDRIVEN, b"%d" % times)


def redriven_times(headers: Headers) -> int:
    """Return how often a record was sent once more on purpose: 0 for one that was not."""
    return _times(dict(headers).get(_REDRIVEN))


def _times(value: bytes | None) -> int:
    if value is None:
        return 0
    return max(1, int(value)) if value.isdigit() and len(value) < _MAX_DIGITS else 1
