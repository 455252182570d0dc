"""Samples that are no number: counted apart, the first one kept."""

import math

import pytest

from mlops_events.streams.nonfinite import At, NonFinite, all_finite

EVENTS: list[tuple[At, int | None]] = [((30, 1), 3), ((10, 2), 1), ((20, 0), 2)]


@pytest.mark.parametrize("order", [EVENTS, EVENTS[::-1], sorted(EVENTS)])
def test_the_first_one_is_kept_in_any_order(order: list[tuple[At, int | None]]) -> None:
    """First by event time, so a frame that comes late may hold it."""
    (at, step), *others = order
    bad = NonFinite(1, at, step)
    for at, step in others:
        bad.note(2, at=at, step=step)

    assert bad == NonFinite(5, (10, 2), 1)


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [
        ([], True),
        ([1, 2.5, -3], True),
        ([1.0, math.nan], False),
        ([math.inf, 1.0], False),
        ([math.inf, -math.inf], False),
        ([2**64 - 1], True),
    ],
)
def test_numbers_are_looked_at_together(numbers: list[float], finite: bool) -> None:
    """One sum tells it of all."""
    assert all_finite(numbers) is finite
