"""Options that several commands have, and what is made of them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import CONFIG
from mlops_events.schemas.text import duration_ns

__all__ = ["AsJson", "Brokers", "ConfigFile", "DataFolder", "examples", "seconds", "use"]

Brokers = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="HOST:PORT,...; else MLOPS_EVENTS_KAFKA_BROKERS."),
]
DataFolder = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="The data folder of `up`, to find its broker.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def examples(*lines: str) -> str:
    """Return the end of a command's help."""
    return "\n\n".join(("Examples:", *lines))


def use(config: Path | None) -> None:
    """Have everything in this process and below it read this file of settings."""
    if config is not None:
        os.environ[CONFIG] = str(config.resolve())


def seconds(text: str) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigError: it is none, or nothing.
    """
    try:
        found = duration_ns(text) / 1e9
    except ValueError as error:
        raise ConfigError(f"{text!r} is no duration; write one such as 60s or 5m") from error
    if found <= 0:
        raise ConfigError(f"{text!r} is no time to run")
    return found
