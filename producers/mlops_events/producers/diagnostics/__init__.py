"""What can be asked of a node: its GPUs, the memory that is left on them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlops_events.producers.diagnostics.cuda import CUDAMetrics, CUDAMetricsCollector
    from mlops_events.producers.diagnostics.memory_risk import MemoryRisk, Thresholds, memory_risks

__all__ = ["CUDAMetrics", "CUDAMetricsCollector", "MemoryRisk", "Thresholds", "memory_risks"]

_MODULES = {
    "CUDAMetrics": "cuda",
    "CUDAMetricsCollector": "cuda",
    "MemoryRisk": "memory_risk",
    "Thresholds": "memory_risk",
    "memory_risks": "memory_risk",
}


def __getattr__(name: str) -> Any:
    """Import a diagnosis only when it is asked for."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
