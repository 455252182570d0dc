"""JSON text that keeps NaN and the infinities."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.sinks.jsontext import from_json, to_json

texts = st.one_of(
    st.text(),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "~NaN", "~~-Infinity", "~", "nan", "null"]),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), texts),
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal to the type and the sign, NaN equal to itself."""
    if isinstance(a, float) and isinstance(b, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and bool(a == b)


def without_nan_signs(value: Any) -> Any:
    """The value with every NaN a positive one: its sign says nothing."""
    if isinstance(value, float) and value != value:
        return math.nan
    if isinstance(value, list):
        return [without_nan_signs(item) for item in value]
    if isinstance(value, dict):
        return {key: without_nan_signs(item) for key, item in value.items()}
    return value


@given(values)
def test_values_come_back_as_they_were(value: Any) -> None:
    """What trainers log is read back equal, NaN and infinities included."""
    assert same(from_json(to_json(value)), without_nan_signs(value))


@given(values)
def test_the_text_is_json(value: Any) -> None:
    """Any JSON reader takes the text."""
    json.loads(to_json(value), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1.0, 0.1, 3], "[1.0,0.1,3]"),
        ({"loss": math.nan}, '{"loss":"NaN"}'),
        ([math.inf, -math.inf], '["Infinity","-Infinity"]'),
        (["NaN", "~NaN", "~~", "name"], '["~NaN","~~NaN","~~","name"]'),
        ([None, "null"], '[null,"null"]'),
    ],
)
def test_numbers_that_json_lacks_become_words(value: Any, text: str) -> None:
    """They are texts that people can search for; such texts themselves get a tilde."""
    assert to_json(value) == text


def test_what_json_cannot_hold_is_refused() -> None:
    """An event with such a value becomes a dead letter."""
    with pytest.raises(TypeError):
        to_json([object()])
