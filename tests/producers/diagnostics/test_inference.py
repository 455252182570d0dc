"""The arithmetic of the benchmark, against an engine that takes as long as a test says."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import pytest

from mlops_events.producers.diagnostics.inference import (
    InferenceBenchmark,
    InferenceUnavailableError,
    measure,
    run_inference_benchmark,
)

MS = 1_000_000


class Clock:
    """Nanoseconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 7

    def __call__(self) -> int:
        return self.now


class Engine:
    """Takes some milliseconds to the first token, and some for each that follows."""

    backend = "none"
    model = "tiny"
    device = "cpu"
    dtype = "float32"
    prompt_tokens = 9
    memory_of: Literal["GPU", "process"] = "process"

    def __init__(
        self, clock: Clock, each_ms: Sequence[int], *, first_ms: int = 100, made: int | None = None
    ) -> None:
        self._clock = clock
        self._each_ms: Iterator[int] = iter(each_ms)
        self._first_ms = first_ms
        self._made = made
        self.asked: list[int] = []

    def generate(self, new_tokens: int, first: Callable[[], None], /) -> int:
        self.asked.append(new_tokens)
        each = next(self._each_ms)
        made = new_tokens if self._made is None else self._made
        if made:
            self._clock.now += self._first_ms * MS
            first()
        self._clock.now += max(0, made - 1) * each * MS
        return made

    def peak_memory(self) -> int | None:
        return 1 << 30


def bench(engine: Engine, clock: Clock, **options: int) -> InferenceBenchmark:
    """Measure 11 tokens, three times after one."""
    numbers = {"new_tokens": 11, "runs": 3, "warmup": 1, **options}
    return measure(engine, load_s=2.5, clock=clock, **numbers)


def test_the_rate_is_new_tokens_by_time() -> None:
    """100 ms and then ten times 40 ms are 11 tokens in half a second."""
    clock = Clock()
    found = bench(Engine(clock, [40, 40, 40, 40]), clock)

    assert found.tokens_per_second == pytest.approx(22)
    assert found.first_token_s == pytest.approx(0.1)
    assert [(run.new_tokens, run.duration_ns) for run in found.runs] == [(11, 500 * MS)] * 3
    assert (found.prompt_tokens, found.peak_memory, found.load_s) == (9, 1 << 30, 2.5)


def test_the_warm_up_does_not_count() -> None:
    """However slow it is."""
    clock = Clock()
    engine = Engine(clock, [9000, 9000, 40, 40])
    found = bench(engine, clock, warmup=2, runs=2)

    assert engine.asked == [11] * 4
    assert found.tokens_per_second == pytest.approx(22)
    assert (found.warmup, len(found.runs)) == (2, 2)


def test_the_median_bears_a_run_that_was_disturbed() -> None:
    """And tells the slowest and the fastest."""
    clock = Clock()
    found = bench(Engine(clock, [0, 40, 990, 90]), clock)

    assert found.tokens_per_second == pytest.approx(11)
    assert found.slowest == pytest.approx(1.1)
    assert found.fastest == pytest.approx(22)


def test_tokens_that_were_made_count_not_those_that_were_wanted() -> None:
    """A model may stop early."""
    clock = Clock()
    found = bench(Engine(clock, [50] * 4, made=3), clock)

    assert {run.new_tokens for run in found.runs} == {3}
    assert found.tokens_per_second == pytest.approx(15)


def test_a_model_that_says_nothing_has_a_rate_of_none() -> None:
    """And no first token; there is no division by zero."""
    clock = Clock()
    found = bench(Engine(clock, [50] * 4, made=0), clock)

    assert found.tokens_per_second == 0
    assert found.first_token_s is None


@pytest.mark.parametrize("numbers", [{"new_tokens": 0}, {"runs": 0}, {"warmup": -1}])
def test_numbers_that_are_too_small_are_refused(numbers: dict[str, int]) -> None:
    """Before anything is loaded."""
    with pytest.raises(ValueError, match="at least 1"):
        run_inference_benchmark("tiny", **numbers)  # type: ignore[arg-type]


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With how to get it."""
    monkeypatch.setattr(
        "mlops_events.producers.diagnostics.inference_engines.find_spec", lambda name: None
    )
    with pytest.raises(InferenceUnavailableError, match=r"torch is not installed; run: pip"):
        run_inference_benchmark("tiny", backend="transformers")
