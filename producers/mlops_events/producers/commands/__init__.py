"""The commands of mlops-emit, a file for each group; only this package imports typer."""

from mlops_events.producers.commands import events, lines, simulate
from mlops_events.producers.commands.root import Abort, UsageError, app, explain

__all__ = ["Abort", "UsageError", "app", "events", "explain", "lines", "simulate"]
