"""What people write on the command line, as values."""

import math
from typing import Any

import pytest

from mlops_events.producers.arguments import ArgumentError, duration, fields, level, tags


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0", 0),
        ("18446744073709551616", 2**64),
        ("0.5", 0.5),
        ("1e-4", 1e-4),
        (".5", 0.5),
        ("5.", 5.0),
        ("-inf", -math.inf),
        ("Infinity", math.inf),
        ("true", True),
        ("False", False),
        ("[0.1,2,null,true]", [0.1, 2, None, True]),
        ("[]", []),
        ("", ""),
        ("007", 7.0),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("model.pt", "model.pt"),
        ("a=b", "a=b"),
        ("nano", "nano"),
        ("٣", "٣"),
    ],
)
def test_value_is_what_it_looks_like(text: str, value: Any) -> None:
    """Integers, floats, bools and lists are taken as such, the rest as text."""
    found = fields([f"x={text}"])["x"]

    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_number() -> None:
    """A loss that is not finite is worth telling."""
    assert all(math.isnan(value) for value in fields(["a=nan", "b=NaN"]).values())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["loss"], "'loss' is not FIELD=VALUE, such as loss=0.5"),
        (["=3"], "'=3' is not FIELD=VALUE"),
        (["a=1", "a=2"], "'a' is given twice"),
        (["a=[1,"], r"a=\[1, is no JSON list such as \[0.1,0.2\]"),
        (["a=[nan]"], "is no JSON list"),
    ],
)
def test_what_is_no_field_is_refused(texts: list[str], message: str) -> None:
    """The message says what was found and what would do."""
    with pytest.raises(ArgumentError, match=message):
        fields(texts)


def test_tags_are_text() -> None:
    """A tag that looks like a number stays a text."""
    assert tags(["a=1", "b=true"]) == {"a": "1", "b": "true"}


@pytest.mark.parametrize(
    ("text", "name"), [("info", "info"), ("WARN", "warning"), ("Fatal", "critical")]
)
def test_levels_have_the_names_of_logging(text: str, name: str) -> None:
    """In any case, and as people shorten them."""
    assert level(text) == name


def test_unknown_level_is_refused() -> None:
    """The message lists those that there are."""
    with pytest.raises(ArgumentError, match="no log level 'loud'; levels: debug, info, warning"):
        level("loud")


@pytest.mark.parametrize(
    ("text", "duration_ns"), [("12ms", 12_000_000), ("3.5s", 3_500_000_000), ("2m", 120 * 10**9)]
)
def test_durations_carry_their_unit(text: str, duration_ns: int) -> None:
    """From nanoseconds to weeks."""
    assert duration(text) == duration_ns


@pytest.mark.parametrize("text", ["12", "ms", "-5ms", "1e30w", "12 parsecs", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A number without its unit, or one below zero."""
    with pytest.raises(ArgumentError, match="no duration"):
        duration(text)
