"""Which whole number an event has in a field."""

import math
from typing import Any

import pytest

from mlops_events.schemas.events import Origin, Profile
from mlops_events.schemas.frame import FrameEncoder, Series, decode_frame
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.fieldvalue import reader_of


def number(event: Any, name: str, *, tags: dict[str, Any] | None = None) -> int | None:
    """Return the number that an event of a frame has in a field."""
    profile = isinstance(event, Profile)
    table = [Series(0, "training", ["loss", "window"], tags)]
    data = FrameEncoder(
        emitter=bytes(16), kind="profile" if profile else "observation", origin=Origin()
    ).encode(
        [ENCODER.encode(event)],
        seq=0,
        closed_ns=0,
        accepted=1,
        dropped=0,
        series=() if profile else table,
    )
    frame = decode_frame(data)
    return reader_of(frame, name)(frame.items[0])


VALUES = [
    (7, 7),
    (-7, -7),
    (7.0, 7),
    (2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63)),
    (2**63, None),
    (2.0**63, None),
    (7.5, None),
    (math.nan, None),
    (math.inf, None),
    (True, None),
    ("7", None),
    (None, None),
    ([7], None),
]


@pytest.mark.parametrize(("value", "found"), VALUES, ids=str)
def test_whole_numbers_of_64_bits_count(value: Any, found: int | None) -> None:
    """In rows and in free events, in fields and in tags; nothing else does."""
    row = ("r", 0, 1, 5, [0.5, value])
    free = ("m", 1, 5, "training", {"window": value})
    tagged = ("r", 0, 1, 5, [0.5, 9], {"epoch": value})

    assert number(row, "window") == found
    assert number(free, "window") == found
    assert number(tagged, "epoch") == found
    assert number(("m", 1, 5, "n", {}, {"epoch": value}), "epoch") == found


@pytest.mark.parametrize(
    ("event", "name", "found"),
    [
        (("r", 0, 1, 5, [0.5, 3], {"window": 4}), "window", 3),
        (("r", 0, 1, 5, [0.5, "x"], {"window": 4}), "window", None),
        (("r", 0, 1, 5, [0.5, 3]), "step", 5),
        (("r", 0, 1, 5, [0.5, 3]), "global_step", 5),
        (("r", 0, 1, 5, [0.5, 3], {"step": 8}), "step", 8),
        (("r", 0, 1, None, [0.5, 3]), "step", None),
        (("r", 0, 1, 5, [0.5, 3]), "epoch", None),
        (("m", 1, 5, "n", {"step": 6}), "step", 6),
        (("m", 1, 5, "n", {}), "step", 5),
        (("m", 1, 5, "n", {}), "window", None),
        (Profile(ts=1, name="f", duration_ns=1, step=5), "step", 5),
        (Profile(ts=1, name="f", duration_ns=1, step=5, tags={"step": 8}), "step", 8),
        (Profile(ts=1, name="f", duration_ns=1, step=5), "duration_ns", None),
    ],
    ids=str,
)
def test_fields_come_before_tags_and_tags_before_the_step(
    event: Any, name: str, found: int | None
) -> None:
    """The first that is there decides, also if it is no number; only two names mean the step."""
    assert number(event, name) == found


def test_tags_of_the_series_count_unless_the_row_has_its_own() -> None:
    """As they do everywhere."""
    assert number(("r", 0, 1, None, [0.5, 3]), "epoch", tags={"epoch": 2}) == 2
    assert number(("r", 0, 1, None, [0.5, 3], {"epoch": 4}), "epoch", tags={"epoch": 2}) == 4
    assert number(("r", 0, 1, None, [0.5, 3], {"a": 4}), "epoch", tags={"epoch": 2}) == 2
