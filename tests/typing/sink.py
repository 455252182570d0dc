"""A sink in somebody else's package."""

from collections.abc import Sequence
from typing import assert_never, assert_type

from mlops_events.schemas import EventId, Log, Observation, Profile, Run, Stats, StatsKey
from mlops_events.sinks import Batch, Rejected, Sink, SinkBroken, SinkUnavailable, load_sink

__all__ = ["PrintSink", "deliver_to", "registered"]


class PrintSink:
    """Prints what it is given; registered as `print` by an entry point."""

    name = "print"

    async def check(self) -> None:
        """Say whether it could be written to."""
        raise SinkUnavailable("no printer", retry_after=3.0)

    async def open(self) -> None:
        """Get ready."""
        raise SinkBroken("no paper")

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Write what can be written, and name what never can."""
        rejected = []
        for envelope in batch:
            assert_type(envelope.id, EventId | StatsKey)
            match envelope.event:
                case Observation(name=name) | Profile(name=name) | Stats(name=name):
                    print(envelope.origin.role, name, envelope.tags)
                case Run():
                    continue
                case Log():
                    rejected.append(Rejected(envelope, "log", "this printer takes no logs"))
                case never:
                    assert_never(never)
        return rejected

    async def close(self) -> None:
        """Let go."""


def registered() -> Sink:
    """Find a sink by its name."""
    return load_sink("print")


def deliver_to() -> Sink:
    """A class of the right shape is a sink without inheriting from one."""
    return PrintSink()
