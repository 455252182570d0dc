"""Rules for windows: what their texts stand for, and which are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.streams.by import By, parse_rules

S = 10**9


@pytest.mark.parametrize(
    ("text", "rule", "label"),
    [
        ("time:10s", By("time", 10 * S), "time:10s"),
        (" time : 1.5s ", By("time", 1_500_000_000), "time:1500ms"),
        ("time:60s", By("time", 60 * S), "time:1min"),
        ("time:1ms", By("time", 1_000_000), "time:1ms"),
        ("time:1000001ns", By("time", 1_000_001), "time:1000001ns"),
        ("time:1d", By("time", 86_400 * S), "time:24h"),
        ("field:window", By("window", 1), "field:window"),
        ("field:global_step/100", By("global_step", 100), "field:global_step/100"),
        ("field:window/1", By("window", 1), "field:window"),
        ("field: window / 20 ", By("window", 20), "field:window/20"),
        ("field:train/step/1", By("train/step", 1), "field:train/step/1"),
        ("field:a:b", By("a:b", 1), "field:a:b"),
        (f"field:n/{2**62}", By("n", 2**62), f"field:n/{2**62}"),
    ],
)
def test_a_text_stands_for_a_rule(text: str, rule: By, label: str) -> None:
    """Its label is the same text for equal rules."""
    assert By.parse(text) == rule
    assert rule.label == label
    assert By.parse(label) == rule


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is no rule for windows; write time:10s, field:NAME or field:NAME/SIZE"),
        ("10s", "'10s' is no rule"),
        ("step/100", "'step/100' is no rule"),
        ("tim:10s", "'tim:10s' is no rule"),
        ("time:", "'' is no duration"),
        ("time:10", "'10' is no duration"),
        ("time:0s", "has 1ms to 24h"),
        ("time:999us", "has 1ms to 24h"),
        ("time:25h", "has 1ms to 24h"),
        ("time:-1s", "has 1ms to 24h"),
        ("field:", "names no field"),
        ("field:/10", "names no field"),
        ("field:time", "names no field"),
        ("field:time/10", "names no field"),
        ("field:step/", "'' is no size"),
        ("field:step/0", "size of 1 to"),
        ("field:step/-5", "'-5' is no size"),
        ("field:step/1.5", "'1.5' is no size"),
        ("field:step/\u0663", "is no size"),
        (f"field:step/{2**62 + 1}", "size of 1 to"),
        ("field:train/step", "'step' is no size .* such as field:train/step/1"),
    ],
)
def test_a_text_that_is_no_rule_is_refused(text: str, problem: str) -> None:
    """The message says what was found and what to write."""
    with pytest.raises(ValueError, match=problem):
        By.parse(text)


@pytest.mark.parametrize(
    "texts", [("time:10s", "time:10000ms"), ("field:a", "time:1s", "field:a/1")], ids=str
)
def test_no_rule_may_be_named_twice(texts: tuple[str, ...]) -> None:
    """However it is written; two sizes are two rules."""
    with pytest.raises(ValueError, match="names a rule twice"):
        parse_rules(texts)

    assert len(parse_rules(("time:1s", "time:10s", "field:a", "field:a/10"))) == 4


@given(st.integers(10**6, 86_400 * S))
def test_the_label_of_a_size_is_exact(size: int) -> None:
    """Nothing of a nanosecond is lost."""
    assert By.parse(By("time", size).label).size == size
