"""Reads the times and steps that programs give with their metrics."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from mlops_events.producers.compat.notices import say_once

__all__ = ["nanoseconds", "step_of"]

_STEPS: Final = ("global_step", "step")
_UNITS: Final = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3))
"""A number below the first is a time of our age in seconds, in milliseconds, in microseconds."""


def nanoseconds(timestamp: Any) -> int | None:
    """Return a time in nanoseconds since the epoch; None, which is now, if it cannot be read.

    Args:
        timestamp: seconds, milliseconds, microseconds or nanoseconds as a number, told apart by its
            size, a datetime, or one as ISO 8601 text; UTC where no zone is told.
    """
    if timestamp is None:
        return None
    try:
        if isinstance(timestamp, str):
            timestamp = datetime.fromisoformat(timestamp)
        if isinstance(timestamp, datetime):
            moment = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
            return round(moment.timestamp() * 10**6) * 1000
        for below, factor in _UNITS:
            if abs(timestamp) < below:
                rest = int(round(timestamp % 1 * 10**6) * factor // 10**6)
                return int(timestamp // 1) * factor + rest
        return int(timestamp)
    except (TypeError, ValueError, OverflowError):
        say_once(
            "a timestamp of type %s cannot be read; the time of the call is taken",
            type(timestamp).__name__,
        )
        return None


def step_of(fields: Mapping[str, Any], tags: Mapping[str, Any]) -> Any:
    """Return `global_step` or `step` of the fields, else of the tags, else None."""
    for values in (fields, tags):
        for name in _STEPS:
            step = values.get(name)
            if isinstance(step, str):
                step = int(step) if step.isascii() and step.isdecimal() else None
            if step is not None and not isinstance(step, bool):
                return step
    return None
