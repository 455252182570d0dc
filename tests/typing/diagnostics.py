"""How a program diagnoses its node, as the type checkers see it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

from mlops_events.producers.diagnostics import (
    EnvironmentInfo,
    InferenceBenchmark,
    InferenceUnavailableError,
    ObservabilityEmitter,
    ObservabilityPayload,
    PerformanceAnalyzer,
    PerformanceReport,
    ReinforcementObservabilityManager,
    SystemStats,
    UnslothInstallation,
    check_unsloth_installation,
    read_report,
    run_inference_benchmark,
)

__all__ = ["Own", "benchmark", "episodes", "figures", "own", "profile", "ready"]


def episodes(rewards: list[float]) -> float:
    """A feedback loop: what it observes comes back with the state of the machine."""
    pressure = 0.0
    with ReinforcementObservabilityManager() as observed:
        for episode, reward in enumerate(rewards):
            payload = assert_type(
                observed.collect_observation("episode", {"reward": reward}, step=episode),
                ObservabilityPayload,
            )
            system: SystemStats = payload.system
            environment: EnvironmentInfo = payload.environment
            if environment.torch is not None:
                pressure = max(pressure, system.memory_percent or 0.0)
        failures = observed.stats()
        observed.close(timeout=1.0)
    return pressure + failures.failed + sum(failures.skipped.values()) - failures.collected


def figures(system: SystemStats, environment: EnvironmentInfo) -> list[float | str | None]:
    """All that is told of the machine and of its GPU; None is what is not known."""
    machine = [
        system.cpu_percent,
        system.load_1m,
        system.memory_used,
        system.memory_available,
        system.memory_total,
        system.process_memory,
    ]
    gpu = [
        system.gpu_utilization,
        system.gpu_memory_used,
        system.gpu_memory_free,
        system.gpu_memory_total,
        system.gpu_memory_allocated,
        system.gpu_memory_reserved,
        system.gpu_temperature,
        system.gpu_power,
    ]
    versions = [environment.mlops_events, environment.python, environment.cuda]
    return [*machine, *gpu, *versions]


class Own:
    """An emitter of a program's own."""

    def observe(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        step: int | None = None,
        ts: int | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        """Print it."""
        print(name, fields, step, ts, tags)


def own() -> tuple[str, ...]:
    """Observations that go elsewhere."""
    emitter: ObservabilityEmitter = Own()
    payload = ReinforcementObservabilityManager(emitter, gpu=False).collect_observation("step", {})
    return payload.skipped


def ready() -> bool:
    """Whether unsloth can run here."""
    found = assert_type(check_unsloth_installation(), UnslothInstallation)
    for one in found.findings:
        print(one.level, one.about, one.found, one.expected, one.source, one.advice)
    return found.ready or not (found.missing or found.wrong)


def benchmark(folder: str) -> float:
    """How fast a model is on this machine."""
    try:
        found = assert_type(
            run_inference_benchmark(folder, backend="transformers", runs=3, new_tokens=64),
            InferenceBenchmark,
        )
    except InferenceUnavailableError as error:
        print(error)
        return 0.0
    return found.tokens_per_second


def profile(saved: Path) -> int:
    """What became slower or faster since a report that was saved."""
    report = assert_type(PerformanceAnalyzer(sort="own").run(sorted, [2, 1]), PerformanceReport)
    return len(report.since(read_report(saved)).changes or ())
