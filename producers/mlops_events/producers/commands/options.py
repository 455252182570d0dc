"""Options that several commands have, and the settings that they make."""

from collections.abc import Sequence
from typing import Annotated

import typer

from mlops_events.producers import arguments
from mlops_events.producers.publishing import Publisher
from mlops_events.producers.settings import EmitterSettings
from mlops_events.schemas.settings import load, variable

__all__ = [
    "AsJson",
    "Brokers",
    "DryRun",
    "Emit",
    "Role",
    "RunId",
    "Step",
    "Tags",
    "Timeout",
    "Uid",
    "Version",
    "complain",
    "examples",
    "publisher_of",
    "settings_of",
]

RunId = Annotated[str | None, typer.Option("--run", metavar="ID", help="The run it belongs to.")]
Role = Annotated[str | None, typer.Option(metavar="R", help="What the node does: miner, ...")]
Uid = Annotated[str | None, typer.Option(metavar="N", help="The node's number or name.")]
Version = Annotated[str | None, typer.Option(metavar="V", help="Version of the node's software.")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="K=V", help="A tag; may be given again.")
]
Brokers = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="HOST:PORT,...; else MLOPS_EVENTS_KAFKA_BROKERS."),
]
Timeout = Annotated[str, typer.Option(metavar="TIME", help="How long the broker may take.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the event and send nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Emit = Annotated[bool, typer.Option("--emit", help="Publish it as events, too.")]
Step = Annotated[int | None, typer.Option(metavar="N", help="The training step.")]


def examples(*lines: str) -> str:
    """Return the end of a command's help."""
    return "\n\n".join(("Examples:", *lines))


def settings_of(
    *,
    brokers: str | None,
    run: str | None = None,
    role: str | None = None,
    uid: str | None = None,
    version: str | None = None,
    tag: Sequence[str] | None = None,
    required: bool = True,
) -> EmitterSettings:
    """Return an emitter's settings: the options, else the environment.

    Raises:
        ConfigError: a setting is wrong.
        ArgumentError: a tag is none, or there are no brokers and they are required.
    """
    settings = load(
        EmitterSettings,
        "",
        arguments={
            "run_id": run,
            "role": role,
            "uid": uid,
            "version": version,
            "tags": arguments.tags(tag or ()) or None,
            "kafka": {"brokers": brokers},
        },
        unknown="warn",
    )
    if required and not settings.kafka.brokers:
        raise arguments.ArgumentError(
            f"no brokers; give --brokers HOST:PORT or set {variable('kafka', 'brokers')}"
        )
    return settings


def publisher_of(
    wanted: bool,
    *,
    timeout: str,
    brokers: str | None,
    run: str | None,
    role: str | None,
    uid: str | None,
    version: str | None,
    tag: Sequence[str] | None,
) -> Publisher | None:
    """Return what publishes a command's events, None if it was not asked to.

    Raises:
        ConfigError: a setting is wrong.
        ArgumentError: an option is wrong, or there are no brokers.
    """
    if not wanted:
        return None
    settings = settings_of(run=run, role=role, uid=uid, version=version, tag=tag, brokers=brokers)
    return Publisher(settings, timeout_s=arguments.duration(timeout) / 1e9)


def complain(error: str) -> int:
    """Say on standard error what went wrong, if anything did; return the exit code."""
    if error:
        typer.echo(f"mlops-emit: {error}", err=True)
    return 1 if error else 0
