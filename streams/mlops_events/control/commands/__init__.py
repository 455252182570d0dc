"""The commands of mlops-pipeline, a file for each group; only this package imports typer."""

from mlops_events.control.commands import (
    deadletters,
    replay,
    services,
    settings,
    sinks,
    tail,
    topics,
)
from mlops_events.control.commands.root import run

__all__ = ["deadletters", "replay", "run", "services", "settings", "sinks", "tail", "topics"]
