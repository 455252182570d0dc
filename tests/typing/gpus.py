"""How a program asks for figures of its machine and GPUs, as the type checkers see it."""

from typing import Any, assert_type

from mlops_events.producers import Emitter, EmitterSettings
from mlops_events.producers.diagnostics import (
    CUDAMetrics,
    CUDAMetricsCollector,
    MemoryRisk,
    Thresholds,
    memory_risks,
)
from mlops_events.producers.nvml import GPU, NVML

__all__ = ["attach", "identify", "judge", "read"]


def attach(settings: EmitterSettings) -> None:
    """Series of their own, and figures beside a program's."""
    with Emitter(settings=settings, system=True, gpu=True) as events:
        figures = assert_type(events.latest(system=True, gpu=True), dict[str, Any])
        events.observe("training", {"loss": 0.5, **figures})


def read() -> list[tuple[str | None, float | None, int | None]]:
    """GPUs, as `cuda-metrics` shows them."""
    collector = CUDAMetricsCollector()
    found = assert_type(collector.collect_metrics(), list[CUDAMetrics])
    collector.close()
    return [(one.gpu_name, one.memory_free_mb, one.utilization_memory) for one in found]


def judge(nvml: NVML) -> list[MemoryRisk]:
    """Memory that is left."""
    return memory_risks(nvml, Thresholds(min_free_ratio=0.2), all_devices=True)


def identify(gpu: GPU) -> tuple[str, str | None]:
    """Which GPU it is, and where it is plugged in."""
    return gpu.place, gpu.bus_id
