"""A program that changes the import lines of its calls for InfluxDB, Loki and W&B."""

import logging
from typing import assert_type

from mlops_events.producers.compat import (
    MetricsLogger,
    PipelineRun,
    initialize_wandb,
    log_with_context,
    setup_loki_logger,
)

__all__ = ["mine"]


def mine(config: object) -> None:
    """Every call."""
    logger = setup_loki_logger(service="miner", uid="12", version="1.4.0", environment="finney")
    assert_type(logger, logging.Logger)
    log_with_context(logger, "info", "window done", window=7)
    with initialize_wandb("M", "12", config, "miner", "mining") as run:
        assert_type(run, PipelineRun)
        run.log({"loss": 0.5}, step=3, commit=True)
        run.config.update({"current_version": "1.4.0"}, allow_val_change=True)
        run.summary["best"] = 0.5
        print(run.id, run.name, run.project, run.url, run.step, run.resumed, run.disabled)
        run.finish(exit_code=0)
    metrics = MetricsLogger(prefix="M", uid="12", role="miner", config=config)
    metrics.log("step", {}, {"loss": 0.5}, with_system_metrics=True, with_gpu_metrics=True)
    assert_type(metrics.flush(), bool)
    metrics.close()
