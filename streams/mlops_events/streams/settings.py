"""Settings of the stream worker."""

from typing import Annotated, Literal

import msgspec

from mlops_events.schemas.events import Kind
from mlops_events.streams.by import By, parse_rules

__all__ = ["StreamSettings"]

_NS = 1_000_000_000

Seconds = Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)]


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the worker aggregates, what it adds and where it sends; read with the prefix "stream".

    `by` names the rules by which windows are cut: `time:10s` for windows over event time,
    `field:NAME` or `field:NAME/SIZE` for windows over a whole-numbered field, such as
    `field:global_step/100`; several are worked at once. Over time, an emitter's watermark is its
    highest event time less `lateness_s`; over a field, a window closes when its emitter is two
    windows further. An emitter that is silent for `hold_s` of log time has its windows closed. Frames
    are known again, and events may be old, for `keep_s`, which is the retention of the raw topics;
    event times may be `ahead_s` ahead of log time. A partition remembers `max_emitters`.

    A window takes `max_samples` of each series; the open windows of a partition hold `max_series`,
    where a series counts once for each window. Events beyond that become dead letters. Where a
    partition is full, an emitter may still have its share, `max_series` divided by the emitters
    that spoke lately, so that one of them costs the others nothing; a partition holds never more than twice
    `max_series`.

    Events are routed to those of `sinks` that take their kind; `routes` names the kinds of a sink
    where the default is not wanted (`wandb=run,observation;loki=log`). `tags` are attached to
    every event. Events of a kind that no sink takes are only counted, or each frame of them becomes
    a dead letter: `unrouted`.

    A checkpoint is written every `checkpoint_s`; the open windows of an emitter are shown after it
    was silent for `provisional_s`. `group` is the consumer group, `<prefix>.stream` if empty;
    `instance_id` makes this worker a static member of it.
    """

    by: tuple[str, ...] = ("time:10s",)
    lateness_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 10.0
    hold_s: Seconds = 3600.0
    keep_s: Seconds = 7 * 86_400.0
    ahead_s: Seconds = 86_400.0
    max_emitters: Annotated[int, msgspec.Meta(ge=1)] = 100_000
    max_samples: Annotated[int, msgspec.Meta(ge=1)] = 100_000
    max_series: Annotated[int, msgspec.Meta(ge=1)] = 500_000
    sinks: tuple[str, ...] = ("sqlite",)
    routes: dict[str, tuple[Kind, ...]] = {}
    tags: dict[str, str] = {}
    unrouted: Literal["count", "dead_letter"] = "count"
    checkpoint_s: Seconds = 10.0
    provisional_s: Seconds = 60.0
    group: str = ""
    instance_id: str = ""
    health_port: int | None = None

    def __post_init__(self) -> None:
        parse_rules(self.by)
        if self.hold_s > self.keep_s:
            raise ValueError(
                f"hold_s ({self.hold_s:g}) must not be above keep_s ({self.keep_s:g}): "
                "an emitter's windows are closed before it is forgotten"
            )
        if len(set(self.sinks)) < len(self.sinks):
            raise ValueError(f"sinks name one twice: {', '.join(self.sinks)}")
        if "version" in self.tags:
            raise ValueError("tags cannot set 'version': it is the emitter's own")
        for sink in self.routes:
            if sink not in self.sinks:
                raise ValueError(
                    f"routes name {sink!r}, which is not among the sinks ({', '.join(self.sinks)})"
                )

    @property
    def rules(self) -> tuple[By, ...]:
        """The rules by which windows are cut."""
        return parse_rules(self.by)

    @property
    def lateness_ns(self) -> int:
        """How far a watermark stays behind the highest event time, in nanoseconds."""
        return round(self.lateness_s * _NS)

    @property
    def hold_ns(self) -> int:
        """After how much silence windows are closed, in nanoseconds."""
        return round(self.hold_s * _NS)

    @property
    def keep_ns(self) -> int:
        """How long emitters are remembered and how old events may be, in nanoseconds."""
        return round(self.keep_s * _NS)

    @property
    def ahead_ns(self) -> int:
        """How far an event may be ahead of log time, in nanoseconds."""
        return round(self.ahead_s * _NS)
