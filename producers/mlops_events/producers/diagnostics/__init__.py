"""What can be asked of a node: its GPUs, the memory that is left on them."""

from mlops_events.producers.diagnostics.cuda import CUDAMetrics, CUDAMetricsCollector
from mlops_events.producers.diagnostics.memory_risk import MemoryRisk, Thresholds, memory_risks

__all__ = ["CUDAMetrics", "CUDAMetricsCollector", "MemoryRisk", "Thresholds", "memory_risks"]
