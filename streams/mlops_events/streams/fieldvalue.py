"""Which whole number an event has in a field, for windows over that field."""

from collections.abc import Callable
from typing import Any, Final

from mlops_events.schemas.frame import Frame, Free, Row

__all__ = ["reader_of"]

_MIN: Final = -(2**63)
_MAX: Final = 2**63 - 1
_STEPS: Final = frozenset(("step", "global_step"))
_ABSENT: Final = object()


def reader_of(frame: Frame, name: str) -> Callable[[Any], int | None]:
    """Return what reads the number of a frame's event in the field `name`.

    It is looked for in the event's fields, then in its tags, then, for `step` and `global_step`
    only, in the event's step; the first of these that is there decides. Integers count, and floats
    without a fraction, within 64 bits. None says that the event has no such number.
    """
    positions = {
        sid: series.fields.index(name) if name in series.fields else -1
        for sid, series in frame.series.items()
    }
    by_step = name in _STEPS

    def read(event: Any) -> int | None:
        value, tags = _ABSENT, event.tags
        if isinstance(event, Row):
            position = positions[event.sid]
            if position >= 0:
                return _whole(event.values[position])
            if not tags or name not in tags:
                tags = frame.series[event.sid].tags
        elif isinstance(event, Free):
            value = event.fields.get(name, _ABSENT)
        if value is _ABSENT and tags:
            value = tags.get(name, _ABSENT)
        if value is _ABSENT and by_step:
            value = event.step
        return _whole(value)

    return read


def _whole(value: Any) -> int | None:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and _MIN <= value <= _MAX:
        return value
    return None
