"""A series that a program declares beforehand: the fastest way in, for hot loops."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from mlops_events.producers.buffer import MALFORMED, Buffer
from mlops_events.producers.series import SeriesTable
from mlops_events.producers.thinning import Thinning
from mlops_events.schemas.values import ENCODER

__all__ = ["Declared", "DeclaredSeries", "declare"]

Odd: TypeAlias = Callable[[str, Mapping[str, Any], Any, Mapping[str, Any] | None], None]


class DeclaredSeries(Protocol):
    """Emits an observation: `series(loss, lr, step=step)`.

    A call with another number of values than there are fields is dropped and counted.
    """

    def __call__(self, *values: Any, step: int | None = None) -> None:
        """Emit the values of the fields, in their order."""
        ...


class Declared(NamedTuple):
    """A series, and what makes it belong to an emitter; again after a fork, when it is another."""

    emit: DeclaredSeries
    bind: Callable[[SeriesTable, Buffer], None]


def declare(
    name: str,
    fields: tuple[str, ...],
    *,
    tags: Mapping[str, str] | None,
    sample_rate: float,
    odd: Odd,
) -> Declared:
    """Declare a series.

    Args:
        name: of the observations.
        fields: what the values are called.
        tags: of all of them.
        sample_rate: the share of calls that is emitted, told as the tag `sample_rate`.
        odd: emits one whose values cannot be encoded as they are.

    Raises:
        ValueError: the sample rate is no share.
    """
    marks: dict[str, Any] = dict(tags or {})
    if sample_rate != 1:
        marks["sample_rate"] = f"{sample_rate:g}"
    take = Thinning(sample_rate).take
    encode = ENCODER.encode
    width, sid = -1, 0
    buffer: Buffer
    now: Callable[[], int]
    append: Callable[[Any], None]

    def bind(table: SeriesTable, lane_buffer: Buffer) -> None:
        nonlocal width, sid, buffer, now, append
        buffer = lane_buffer
        found = table.declare(name, fields, marks or None)
        # Without an id, since there are too many series, every call takes the slow way.
        width = -1 if found is None else found[1]
        if found is not None:
            sid, now, append = found[3], found[4], found[6]

    def slowly(values: tuple[Any, ...], step: Any) -> None:
        if len(values) != len(fields):
            buffer.dropped.add(MALFORMED)
            return
        odd(name, dict(zip(fields, values, strict=True)), step, marks)

    def emit(*values: Any, step: int | None = None) -> None:
        # Names of a function around cost half of what attributes of an object do.
        if len(values) != width or (type(step) is not int and step is not None):
            slowly(values, step)
            return
        try:
            encoded = encode(values)
        except Exception:  # values may be anybody's objects
            slowly(values, step)
            return
        buffer.room = room = buffer.room - len(encoded)
        if room < 0:
            buffer.crowded((sid, now(), step, encoded))
        else:
            append((sid, now(), step, encoded))

    def emit_some(*values: Any, step: int | None = None) -> None:
        if take():
            emit(*values, step=step)

    return Declared(emit if sample_rate == 1 else emit_some, bind)
