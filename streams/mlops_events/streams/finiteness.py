"""Notices when a series becomes NaN or infinite, and when it is finite again."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from math import isfinite, isnan
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from mlops_events.schemas.events import Log
from mlops_events.schemas.frame import Frame
from mlops_events.streams.derived import DerivedLog, derive_emitter
from mlops_events.streams.sampling import Group

__all__ = ["LOGGER", "MAX_BAD", "Bad", "SeriesName", "Turn", "find_turns", "tell"]

LOGGER: Final = "mlops_events.streams"
MAX_BAD: Final = 1000
"""Series of one emitter that are remembered as not finite."""

_RECOVERED_NS: Final = 10_000_000_000
"""A series has recovered when it is finite again for so long."""

SeriesName: TypeAlias = tuple[str, str]
"""The names of the event and of the field."""


class Bad(msgspec.Struct, array_like=True):
    """A series that is not finite: when it was so last, and its last finite sample before."""

    newest: int
    last_finite: float | None


class Turn(NamedTuple):
    """A sample with which a series became something else than it was."""

    event: Any
    name: str
    field: str
    what: Literal["not finite", "finite again"]
    value: float
    last_finite: float | None


class _Ordered(NamedTuple):
    ts: int
    place: int
    series: SeriesName
    event: Any
    numbers: Sequence[float]


def find_turns(
    groups: Sequence[Group],
    bad: MutableMapping[SeriesName, Bad],
    *,
    places: Callable[[], Mapping[int, int]],
    last_finite: Callable[[SeriesName, int], float | None],
) -> tuple[list[Turn], int]:
    """Return what happened to series in a new frame, and how often it was too much to remember.

    A series that was finite so far turns with its first sample that is not; one that is not turns
    with the first sample that is finite 10 s of event time after the last that was not.

    Args:
        groups: the samples of the frame.
        bad: the series that are not finite; kept up to date, at most MAX_BAD.
        places: returns where each event stands in the frame, by the id of the object.
        last_finite: returns the newest sample of a series, before this frame and up to a time.
    """
    new = {(group.name, field) for group in groups for _, field, _ in group.not_finite()}
    if not new and not bad:
        return [], 0
    where = places()
    ordered = [
        _Ordered(event.ts, where[id(event)], series, event, numbers)
        for group in groups
        for series in group.series()
        if series in new or series in bad
        for event, _, numbers in group.column(series[1])
    ]
    ordered.sort(key=lambda one: one[:2])
    turns: list[Turn] = []
    finite: dict[SeriesName, float] = {}
    untold = 0
    for ts, _, series, event, numbers in ordered:
        known = bad.get(series)
        value = next((n for n in numbers if not isfinite(n)), None)
        if value is None:
            finite[series] = float(numbers[-1])
            if known is not None and ts - known.newest >= _RECOVERED_NS:
                del bad[series]
                turns.append(
                    Turn(event, *series, "finite again", finite[series], known.last_finite)
                )
        elif known is not None:
            known.newest = max(known.newest, ts)
        elif len(bad) >= MAX_BAD:
            untold += 1
        else:
            before = finite[series] if series in finite else last_finite(series, ts)
            bad[series] = Bad(ts, before)
            turns.append(Turn(event, *series, "not finite", value, before))
    return turns, untold


def tell(turn: Turn, frame: Frame, index: int) -> DerivedLog:
    """Return the line of log that says what happened, the same whenever it is made.

    Args:
        turn: what happened.
        frame: with the event.
        index: of the event in the frame.
    """
    event = turn.event
    step = "" if event.step is None else f" at step {event.step}"
    good = turn.what == "finite again"
    verb = "is finite again" if good else f"became {_word(turn.value)}"
    return DerivedLog(
        emitter=derive_emitter(
            "finiteness",
            *(frame.emitter, frame.kind, frame.seq, index),
            *(turn.name, turn.field, turn.what),
        ),
        origin=frame.origin,
        log=Log(
            ts=event.ts,
            level="info" if good else "warning",
            message=f"{turn.field} {verb}{step}",
            logger=LOGGER,
            fields={
                "name": turn.name,
                "field": turn.field,
                "value": turn.value,
                "step": event.step,
                "last_finite": turn.last_finite,
            },
            step=event.step,
        ),
    )


def _word(value: float) -> str:
    return "NaN" if isnan(value) else "infinite" if value > 0 else "minus infinity"
