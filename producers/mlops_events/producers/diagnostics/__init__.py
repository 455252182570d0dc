"""What can be asked of a node: its GPUs, its time, its installation, what a feedback loop sees."""

from mlops_events.producers.diagnostics.cuda import CUDAMetrics, CUDAMetricsCollector
from mlops_events.producers.diagnostics.inference import (
    InferenceBenchmark,
    InferenceUnavailableError,
    run_inference_benchmark,
)
from mlops_events.producers.diagnostics.memory_risk import MemoryRisk, Thresholds, memory_risks
from mlops_events.producers.diagnostics.observability import (
    ObservabilityEmitter,
    ObservabilityPayload,
    ReinforcementObservabilityManager,
)
from mlops_events.producers.diagnostics.performance import (
    PerformanceAnalyzer,
    PerformanceReport,
    read_report,
)
from mlops_events.producers.diagnostics.surroundings import EnvironmentInfo, SystemStats
from mlops_events.producers.diagnostics.unsloth import (
    UnslothInstallation,
    check_unsloth_installation,
)

__all__ = [
    "CUDAMetrics",
    "CUDAMetricsCollector",
    "EnvironmentInfo",
    "InferenceBenchmark",
    "InferenceUnavailableError",
    "MemoryRisk",
    "ObservabilityEmitter",
    "ObservabilityPayload",
    "PerformanceAnalyzer",
    "PerformanceReport",
    "ReinforcementObservabilityManager",
    "SystemStats",
    "Thresholds",
    "UnslothInstallation",
    "check_unsloth_installation",
    "memory_risks",
    "read_report",
    "run_inference_benchmark",
]
