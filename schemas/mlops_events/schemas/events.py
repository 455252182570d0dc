"""The events that producers, streams and sinks agree on.

Times are nanoseconds since the Unix epoch, durations nanoseconds, unless a name says otherwise.
`Run`, `Profile`, `Log` and `Stats` are also their own wire form: tagged arrays whose positions are
never inserted, removed or reused, only appended with a default.
"""

from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

__all__ = [
    "RAW_KINDS",
    "AnyEvent",
    "DeadLetter",
    "EventId",
    "Int64",
    "Kind",
    "Log",
    "Observation",
    "Origin",
    "Profile",
    "RawKind",
    "Run",
    "Stats",
    "StatsKey",
]

RawKind: TypeAlias = Literal["run", "observation", "profile", "log"]
"""Kinds that emitters send."""

Kind: TypeAlias = Literal["run", "observation", "profile", "log", "stats"]
"""All kinds; `stats` are made by the streams."""

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What every store can hold; an event with a larger time or step cannot be read."""

RAW_KINDS: tuple[RawKind, ...] = ("run", "observation", "profile", "log")


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who emitted an event: one node's place in one training run.

    `run` is the run's id, `role` what the node does in it (miner, validator, aggregator,
    evaluator, trainer or any other word), `uid` its number or name there, `rank` and
    `world_size` its place in a process group, `netuid` the subnet.
    """

    run: str = ""
    project: str = ""
    role: str = ""
    uid: int | str | None = None
    hotkey: str = ""
    rank: int | None = None
    world_size: int | None = None
    node: str = ""
    version: str = ""
    environment: str = ""
    group: str = ""
    job_type: str = ""
    netuid: int | None = None
    tags: dict[str, str] = {}


class EventId(msgspec.Struct, frozen=True, order=True):
    """Names one event for ever: the same event has the same id wherever it is met."""

    emitter: bytes
    kind: str
    seq: int
    index: int

    def __str__(self) -> str:
        return f"{self.emitter.hex()}/{self.kind}/{self.seq}/{self.index}"


class Run(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="u"):
    """A run's start, an update of its config, or its end.

    `status` is set at the end only: `finished`, or `crashed` when an exception ended the program.
    """

    ts: Int64
    state: Literal["start", "update", "end"]
    config: dict[str, Any] = {}
    project: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    status: Literal["finished", "crashed"] | None = None


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Values that belong together at one moment, such as loss and learning rate of a step.

    A field is a number, a bool, a string, None, a list of samples, or a nested mapping.
    """

    ts: Int64
    name: str
    fields: dict[str, Any]
    step: Int64 | None = None
    tags: dict[str, Any] = {}


class Profile(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="p"):
    """How long a section of the program took; `ts` is its end, `failed` if it raised."""

    ts: Int64
    name: str
    duration_ns: Int64
    step: Int64 | None = None
    tags: dict[str, Any] | None = None
    failed: bool = False


class Log(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="l"):
    """A line of log with values beside it."""

    ts: Int64
    level: str
    message: str
    logger: str = ""
    fields: dict[str, Any] = {}
    step: Int64 | None = None
    trace_id: str = ""
    span_id: str = ""


class StatsKey(NamedTuple):
    """The natural key of a Stats within its origin."""

    emitter: bytes
    kind: str
    name: str
    field: str
    by: str
    start: Int64
    size: Int64

    def __str__(self) -> str:
        place = f"{self.name}/{self.field}/{self.by}/{self.start}/{self.size}"
        return f"{self.emitter.hex()}/{self.kind}/{place}"


class Stats(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="s"):
    """Mean, min, max and median of one series of one emitter in one window.

    With `by="time"`, `start` and `size` are nanoseconds; else `by` names a field, and they are
    plain integers: the window holds what had a value from `start` to below `start + size` in it. `count` samples were finite; `mean`,
    `min`, `max` and `median` are theirs, None if there was none. `nonfinite` samples were NaN or
    infinite: the first of them was seen at `first_nonfinite_step`. `last_finite` is the newest
    finite sample. `revision` is the number of samples, finite or not; a higher one holds all of
    a lower one. A `final` Stats will not change; `closed_by` says what closed its window:
    `watermark`, `end`, `hold`, `replay`, or "" while it is open.

    With `nodes` it is about all nodes of a run, role and version: so many reported, and
    `nodes_missing` did not. `count` is then the sum of theirs, `mean` weighs each node by its
    count, and `median_of_medians` is the median of the nodes' medians; `median` is None.
    """

    kind: str
    name: str
    field: str
    start: Int64
    size: Int64
    revision: int
    final: bool
    count: int
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    median: float | None = None
    nonfinite: int = 0
    first_nonfinite_step: Int64 | None = None
    last_finite: float | None = None
    by: str = "time"
    closed_by: str = ""
    nodes: int | None = None
    nodes_missing: int | None = None
    median_of_medians: float | None = None

    def key(self, emitter: bytes) -> StatsKey:
        """The natural key of IDENTITY: one key and revision have one content."""
        return StatsKey(emitter, self.kind, self.name, self.field, self.by, self.start, self.size)


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that could not be delivered, kept with the reason.

    `sink` is the sink that refused it, or `stream` if no sink has seen it. `payload` is the
    record's value, or a frame that holds only this event; `truncated` if it was cut, in which
    case `topic`, `partition` and `offset` still lead to the whole. `redriven` is how often it had
    been sent once more before it failed this time.
    """

    sink: str
    reason: str
    message: str
    key: str
    kind: str = ""
    first_seen_ns: int
    topic: str
    partition: int
    offset: int
    size: int
    payload: bytes = b""
    truncated: bool = False
    redriven: int = 0


AnyEvent: TypeAlias = Run | Observation | Profile | Log | Stats
