"""Calls that programs make already, for InfluxDB, Loki and W&B, which go through the pipeline here.

Nothing else of the producers imports this package.
"""

from mlops_events.producers.compat.loki import log_with_context, setup_loki_logger
from mlops_events.producers.compat.metrics import MetricsLogger
from mlops_events.producers.compat.wandbrun import PipelineRun, initialize_wandb

__all__ = [
    "MetricsLogger",
    "PipelineRun",
    "initialize_wandb",
    "log_with_context",
    "setup_loki_logger",
]
