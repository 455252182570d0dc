"""What became slower or faster between two reports."""

from typing import Any

from mlops_events.producers.diagnostics.performance_compare import FunctionTime, compare


def _row(function: str, seconds: float, **given: Any) -> FunctionTime:
    values = {"calls": 1, "own_s": seconds / 2, "cumulative_s": seconds, **given}
    return FunctionTime(function=function, place="", primitive_calls=1, **values)


def test_the_largest_difference_comes_first() -> None:
    """Slower or faster, new or gone."""
    changes = compare(
        [_row("a", 1.0), _row("b", 4.0), _row("old", 0.5)],
        [_row("a", 2.0, calls=3), _row("b", 1.0), _row("fresh", 0.2)],
    )

    assert [(c.function, c.verdict, c.difference_s) for c in changes] == [
        ("b", "faster", -3.0),
        ("a", "slower", 1.0),
        ("old", "gone", -0.5),
        ("fresh", "new", 0.2),
    ]
    assert (changes[1].calls_before, changes[1].calls_after) == (1, 3)


def test_noise_is_no_change() -> None:
    """Below a millisecond, or below a twentieth."""
    assert not compare(
        [_row("a", 1.0), _row("b", 0.0001)],
        [_row("a", 1.04), _row("b", 0.0009)],
    )


def test_own_time_is_compared_on_request() -> None:
    """The cumulative time then counts for nothing."""
    before, after = [_row("a", 1.0, own_s=0.1)], [_row("a", 9.0, own_s=0.1)]

    assert compare(before, after)
    assert not compare(before, after, own=True)
