"""What can be asked of a node: its GPUs, the memory left on them, unsloth, the state of a feedback loop."""

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
    "ReinforcementObservabilityManager",
    "SystemStats",
    "Thresholds",
    "UnslothInstallation",
    "check_unsloth_installation",
    "memory_risks",
    "run_inference_benchmark",
]
