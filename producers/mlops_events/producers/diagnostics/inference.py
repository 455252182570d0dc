"""Measures how fast a model generates: warm-up, timed runs, the median of their rates."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from mlops_events.schemas.errors import MlopsEventsError

__all__ = [
    "DEFAULT_MODEL",
    "Backend",
    "InferenceBenchmark",
    "InferenceEngine",
    "InferenceRun",
    "InferenceUnavailableError",
    "measure",
    "run_inference_benchmark",
]

Backend: TypeAlias = Literal["unsloth", "transformers"]

DEFAULT_MODEL = "unsloth/mistral-7b-v0.1-bnb-4bit"
DEFAULT_PROMPT = "A training run on many machines writes what it measures"
_S = 1e9


class InferenceUnavailableError(MlopsEventsError):
    """A model cannot be run here; the text says what is missing."""


class InferenceEngine(Protocol):
    """A model that is loaded and generates.

    `model`, `device` and `dtype` are what really runs, which need not be what was asked for.
    """

    backend: str
    model: str
    device: str
    dtype: str
    prompt_tokens: int
    memory_of: Literal["GPU", "process"]

    def generate(self, new_tokens: int, first: Callable[[], None], /) -> int:
        """Generate, and return how many tokens are new once all are there.

        Args:
            new_tokens: how many are wanted.
            first: called when the first of them is there.
        """
        ...

    def peak_memory(self) -> int | None:
        """Return the most bytes that were in use at once since it was loaded."""
        ...


class InferenceRun(msgspec.Struct, frozen=True, kw_only=True):
    """A timed run; `first_token_ns` is None where the first token was not told apart."""

    new_tokens: int
    duration_ns: int
    first_token_ns: int | None

    @property
    def tokens_per_second(self) -> float:
        """New tokens over the whole run, the reading of the prompt included."""
        return self.new_tokens / max(self.duration_ns, 1) * _S


class InferenceBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a model generates.

    `tokens_per_second` and `first_token_s` are medians of the runs, `slowest` and `fastest` the least
    and the most tokens per second. Only new tokens count, and no warm-up. `peak_memory` is in bytes, of
    what `memory_of` says. `load_s` includes the imports.
    """

    backend: str
    model: str
    device: str
    dtype: str
    prompt_tokens: int
    new_tokens: int
    warmup: int
    runs: tuple[InferenceRun, ...]
    tokens_per_second: float
    slowest: float
    fastest: float
    first_token_s: float | None
    load_s: float
    peak_memory: int | None
    memory_of: Literal["GPU", "process"]


def run_inference_benchmark(
    model: str = DEFAULT_MODEL,
    *,
    backend: Backend = "unsloth",
    prompt: str = DEFAULT_PROMPT,
    new_tokens: int = 128,
    runs: int = 5,
    warmup: int = 1,
    load_in_4bit: bool = True,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> InferenceBenchmark:
    """Load a model and return how fast it generates; it is fetched if it is not here yet.

    Args:
        model: a name on Hugging Face, or a folder.
        backend: "unsloth" takes its FastLanguageModel and a GPU; "transformers" a CPU as well.
        prompt: what it goes on with.
        new_tokens: how many tokens each run generates.
        runs: how many of them are timed.
        warmup: how many go before and are not.
        load_in_4bit: with unsloth, have weights of 16 bits made smaller.
        clock: nanoseconds that never go back.

    Raises:
        InferenceUnavailableError: something is missing, or the model cannot be loaded.
        ValueError: a number is too small.
    """
    if new_tokens < 1 or runs < 1 or warmup < 0:
        raise ValueError("new_tokens and runs must be at least 1, and warmup 0")
    from mlops_events.producers.diagnostics.inference_engines import load_engine

    began = clock()
    engine = load_engine(model, backend=backend, prompt=prompt, load_in_4bit=load_in_4bit)
    load_s = (clock() - began) / _S
    return measure(
        engine, new_tokens=new_tokens, runs=runs, warmup=warmup, load_s=load_s, clock=clock
    )


def measure(
    engine: InferenceEngine,
    *,
    new_tokens: int,
    runs: int,
    warmup: int,
    load_s: float,
    clock: Callable[[], int],
) -> InferenceBenchmark:
    """Return how fast an engine generates, by a clock in nanoseconds."""
    for _ in range(warmup):
        engine.generate(new_tokens, _nothing)
    timed = tuple(_timed(engine, new_tokens, clock) for _ in range(runs))
    rates = [run.tokens_per_second for run in timed]
    return InferenceBenchmark(
        backend=engine.backend,
        model=engine.model,
        device=engine.device,
        dtype=engine.dtype,
        prompt_tokens=engine.prompt_tokens,
        new_tokens=new_tokens,
        warmup=warmup,
        runs=timed,
        tokens_per_second=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        first_token_s=_median_s([run.first_token_ns for run in timed]),
        load_s=load_s,
        peak_memory=engine.peak_memory(),
        memory_of=engine.memory_of,
    )


def _timed(engine: InferenceEngine, new_tokens: int, clock: Callable[[], int]) -> InferenceRun:
    firsts: list[int] = []
    began = clock()
    generated = engine.generate(new_tokens, lambda: firsts.append(clock()))
    duration = clock() - began
    return InferenceRun(
        new_tokens=generated,
        duration_ns=duration,
        first_token_ns=firsts[0] - began if firsts else None,
    )


def _median_s(times: Sequence[int | None]) -> float | None:
    known = [time_ns for time_ns in times if time_ns is not None]
    return statistics.median(known) / _S if known else None


def _nothing() -> None:
    pass
