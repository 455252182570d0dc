"""Checks that the streams said of every series when it first became NaN or infinite."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from mlops_events.control.truth import TrueEvent, samples_of
from mlops_events.schemas.events import Log
from mlops_events.streams.finiteness import LOGGER

__all__ = ["Turn", "first_turns", "turn_of"]


class Turn(NamedTuple):
    """A sample of a series that was not finite, at a time in nanoseconds."""

    ts: int
    name: str
    field: str


def first_turns(events: Iterable[TrueEvent]) -> set[Turn]:
    """Return the first sample of each series of each emitter that is not finite.

    Args:
        events: those that arrived, of each emitter in the order of their times.
    """
    first: dict[tuple[bytes, str, str], Turn] = {}
    for event in events:
        for name, field, numbers in samples_of(event):
            series = (event.emitter, name, field)
            if series not in first and not all(map(math.isfinite, numbers)):
                first[series] = Turn(event.values["ts"], name, field)
    return set(first.values())


def turn_of(line: Log) -> Turn | None:
    """Return what a line of log says; None if it says something else."""
    if line.logger != LOGGER or line.level != "warning":
        return None
    return Turn(line.ts, line.fields["name"], line.fields["field"])
