"""What a sink is: the protocol, what it is given, what it may answer, and how it is found."""

from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from mlops_events.schemas.errors import ConfigError, MlopsEventsError
from mlops_events.schemas.events import AnyEvent, EventId, Origin, StatsKey
from mlops_events.schemas.frame import Frame, StatsFrame

__all__ = [
    "GROUP",
    "Batch",
    "Envelope",
    "ExclusiveSink",
    "FrameRecord",
    "ReadsBack",
    "Record",
    "Rejected",
    "ReplaySink",
    "Sink",
    "SinkBroken",
    "SinkError",
    "SinkUnavailable",
    "StatsRecord",
    "installed_sinks",
    "load_sink",
]

GROUP = "mlops_events.sinks"
"""The entry points by which sinks are found, ours and anybody else's."""


class SinkError(MlopsEventsError):
    """Base of what a sink raises on purpose."""


class SinkUnavailable(SinkError):  # noqa: N818 - it names a state, not a mistake
    """The destination does not take events at present; the same batch will come again.

    Args:
        message: what was found.
        retry_after: seconds that the destination asked us to wait, if it did.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SinkBroken(SinkError):  # noqa: N818 - as above
    """This process cannot go on; it exits and is started anew."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """One event with all that is known about it.

    `id` names it for ever: an EventId, or a StatsKey for Stats. `tags` are what the streams
    attached: the version and the operator's tags. `position` is the event's place in its record.
    """

    id: EventId | StatsKey
    origin: Origin
    tags: dict[str, str]
    event: AnyEvent
    topic: str
    partition: int
    offset: int
    incarnation: int
    position: int


class FrameRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that holds a frame.

    `incarnation` counts how often its topic was made anew, `redriven` how often the record was
    sent once more on purpose.
    """

    frame: Frame
    topic: str
    partition: int
    offset: int
    incarnation: int = 0
    timestamp_ms: int = 0
    redriven: int = 0

    @property
    def count(self) -> int:
        """How many events it holds."""
        return len(self.frame)

    def envelopes(self) -> Iterator[Envelope]:
        """Yield its events."""
        frame = self.frame
        for position, (index, event) in enumerate(frame.events()):
            yield _envelope(self, frame.event_id(index), frame.origin, frame.tags, event, position)


class StatsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that holds Stats of one emitter, less those that were known already."""

    frame: StatsFrame
    topic: str
    partition: int
    offset: int
    incarnation: int = 0
    timestamp_ms: int = 0
    redriven: int = 0

    @property
    def count(self) -> int:
        """How many Stats it holds."""
        return len(self.frame.stats)

    def envelopes(self) -> Iterator[Envelope]:
        """Yield its Stats."""
        frame = self.frame
        for position, stats in enumerate(frame.stats):
            key = stats.key(frame.emitter)
            yield _envelope(self, key, frame.origin, frame.tags, stats, position)


Record: TypeAlias = FrameRecord | StatsRecord


def _envelope(
    record: Record,
    id: EventId | StatsKey,  # noqa: A002 - the field's name
    origin: Origin,
    tags: dict[str, str],
    event: AnyEvent,
    position: int,
) -> Envelope:
    return Envelope(
        id=id,
        origin=origin,
        tags=tags,
        event=event,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        incarnation=record.incarnation,
        position=position,
    )


class Batch(msgspec.Struct, frozen=True):
    """What a sink writes at once: records in the order of their partitions' logs.

    Iterating yields every event as an Envelope. A sink in a hurry reads `records` instead.
    `replay` is the id of the replay that they come from, "" for live traffic: a sink that can, marks
    what it writes with it.
    """

    records: Sequence[Record] = ()
    replay: str = ""

    def __iter__(self) -> Iterator[Envelope]:
        for record in self.records:
            yield from record.envelopes()

    def __len__(self) -> int:
        return sum(record.count for record in self.records)


class Rejected(msgspec.Struct, frozen=True):
    """An event that the destination refuses for good: it becomes a dead letter.

    `reason` is a word that metrics count by, such as `too_old`; `message` is for people.
    """

    envelope: Envelope
    reason: str
    message: str


@runtime_checkable
class Sink(Protocol):
    """A destination of events.

    Its class is registered as an entry point of the group `mlops_events.sinks` under its name and
    is made without arguments: it reads its settings with `mlops_events.schemas.settings.load`.
    """

    @property
    def name(self) -> str:
        """The service's noun: its topic is `<prefix>.sink.<name>.v1`."""
        ...

    async def check(self) -> None:
        """Ask whether the destination would take events, without writing any.

        Raises:
            SinkUnavailable: not at present.
            SinkBroken: never, as things are configured.
        """
        ...

    async def open(self) -> None:
        """Get ready to write; called before `write`, and again after `close`.

        Raises:
            SinkUnavailable: not at present.
            SinkBroken: never, as things are configured.
        """
        ...

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Write all events of the batch, for good once this returns.

        The same events may come again, alone or among others: whoever can, writes them once.

        Returns:
            The events that the destination refuses for good; all others are written.

        Raises:
            SinkUnavailable: not at present; the same batch will come again.
            SinkBroken: never by this process.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; may be called twice, and without `open`."""
        ...


@runtime_checkable
class ReplaySink(Protocol):
    """What a sink has too if it matters to it that it is given a replay.

    A replay opens the sink in a process of its own, beside the one that delivers live traffic.
    Sinks without this method are used as they are: events come under their old ids, and every
    batch says in `Batch.replay` where it comes from.
    """

    def expect_replay(self, replay: str) -> None:
        """Get ready to be given this replay and nothing else; called once, before `open`.

        Raises:
            ConfigError: nothing can be replayed into this sink; the message says why.
        """
        ...


@runtime_checkable
class ExclusiveSink(Protocol):
    """What a sink has too if a part of its destination bears one writer only."""

    async def give_up(self) -> None:
        """Let go of what was written to: another process may hold its partitions from now on.

        Called before partitions are given up, also during a write, which must then change nothing
        any more.
        """
        ...


@runtime_checkable
class ReadsBack(Protocol):
    """A sink that can be asked what its destination has; `sinks check` does."""

    async def find(self, id: EventId) -> bool:  # noqa: A002 - what it is
        """Say whether the destination has this event.

        Raises:
            SinkUnavailable: not at present.
        """
        ...


def installed_sinks() -> dict[str, EntryPoint]:
    """Return the entry points of all installed sinks by name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda p: p.name)}


def load_sink(name: str) -> Sink:
    """Make the installed sink of this name, which reads its settings itself.

    Raises:
        ConfigError: there is none, its settings cannot be used, or it does not load.
    """
    installed = installed_sinks()
    if name not in installed:
        raise ConfigError(f"no sink named {name!r}; installed sinks: {', '.join(installed)}")
    try:
        make = installed[name].load()
    except ImportError as error:
        raise ConfigError(
            f"sink {name!r} does not load: {error}; is its client installed (mlops-events[{name}])?"
        ) from error
    sink = make()
    if not isinstance(sink, Sink):
        raise ConfigError(f"sink {name!r}: {installed[name].value} makes no Sink, but {sink!r}")
    return sink
