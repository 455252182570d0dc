"""The commands of mlops-emit, a file for each group; only this package imports typer."""

from mlops_events.producers.commands import (
    cuda_metrics,
    diagnose_unsloth,
    doctor,
    events,
    lines,
    memory_risk,
    run_analysis,
    simulate,
    spool,
)
from mlops_events.producers.commands.root import Abort, UsageError, app, explain

__all__ = [
    "Abort",
    "UsageError",
    "app",
    "cuda_metrics",
    "diagnose_unsloth",
    "doctor",
    "events",
    "explain",
    "lines",
    "memory_risk",
    "run_analysis",
    "simulate",
    "spool",
]
