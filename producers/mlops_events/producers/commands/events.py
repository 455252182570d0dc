"""The commands that send one event."""

import time
from typing import Annotated

import msgspec
import typer

from mlops_events.producers import arguments, oneshot
from mlops_events.producers.commands.options import (
    AsJson,
    Brokers,
    DryRun,
    Role,
    RunId,
    Step,
    Tags,
    Timeout,
    Uid,
    Version,
    examples,
    settings_of,
)
from mlops_events.producers.commands.root import app
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.workload import Event
from mlops_events.schemas.events import Log, Observation, Profile

__all__ = ["log", "observation", "profile"]


@app.command(
    epilog=examples(
        "mlops-emit observation training loss=0.5 lr=1e-4 --step 100 --run demo",
        "mlops-emit observation eval 'scores=[0.1,0.2]' ok=true --role validator --uid 7",
        "mlops-emit observation training loss=nan --run demo --dry-run",
    )
)
def observation(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What is observed.")],
    field: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE...", help="A number (nan, inf), bool, JSON list, text."
        ),
    ],
    step: Step = None,
    run: RunId = None,
    role: Role = None,
    uid: Uid = None,
    version: Version = None,
    tag: Tags = None,
    brokers: Brokers = None,
    timeout: Timeout = "10s",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Send an observation: values that belong together."""
    values = arguments.fields(field)
    return _send(
        Observation(ts=time.time_ns(), name=name, fields=values, step=step),
        settings_of(
            run=run,
            role=role,
            uid=uid,
            version=version,
            tag=tag,
            brokers=brokers,
            required=not dry_run,
        ),
        timeout=timeout,
        dry_run=dry_run,
        as_json=as_json,
    )


@app.command(
    epilog=examples(
        "mlops-emit profile checkpoint 3.5s --run demo",
        "mlops-emit profile forward 12ms --step 100 --run demo --role miner --uid 12",
    )
)
def profile(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What took the time.")],
    duration: Annotated[str, typer.Argument(metavar="DURATION", help="With its unit: 12ms, 3.5s.")],
    step: Step = None,
    run: RunId = None,
    role: Role = None,
    uid: Uid = None,
    version: Version = None,
    tag: Tags = None,
    brokers: Brokers = None,
    timeout: Timeout = "10s",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Send how long something took; it ended now."""
    duration_ns = arguments.duration(duration)
    return _send(
        Profile(ts=time.time_ns(), name=name, duration_ns=duration_ns, step=step),
        settings_of(
            run=run,
            role=role,
            uid=uid,
            version=version,
            tag=tag,
            brokers=brokers,
            required=not dry_run,
        ),
        timeout=timeout,
        dry_run=dry_run,
        as_json=as_json,
    )


@app.command(
    epilog=examples(
        "mlops-emit log info 'checkpoint written' path=model.pt --run demo",
        "mlops-emit log error 'peer did not answer' peer=12 --role validator",
    )
)
def log(
    level: Annotated[
        str, typer.Argument(metavar="LEVEL", help=f"One of {', '.join(arguments.LEVELS)}.")
    ],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The line of log.")],
    field: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE...]", help="Values beside it."),
    ] = None,
    step: Step = None,
    run: RunId = None,
    role: Role = None,
    uid: Uid = None,
    version: Version = None,
    tag: Tags = None,
    brokers: Brokers = None,
    timeout: Timeout = "10s",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Send a line of log."""
    name = arguments.level(level)
    values = arguments.fields(field or ())
    return _send(
        Log(ts=time.time_ns(), level=name, message=message, fields=values, step=step),
        settings_of(
            run=run,
            role=role,
            uid=uid,
            version=version,
            tag=tag,
            brokers=brokers,
            required=not dry_run,
        ),
        timeout=timeout,
        dry_run=dry_run,
        as_json=as_json,
    )


def _send(
    event: Event, settings: EmitterSettings, *, timeout: str, dry_run: bool, as_json: bool
) -> int:
    timeout_s = arguments.duration(timeout) / 1e9
    report = oneshot.send(event, settings, timeout_s=timeout_s, dry_run=dry_run)
    text = msgspec.json.encode(report)
    if as_json:
        typer.echo(text)
    elif dry_run:
        typer.echo(msgspec.json.format(text))
    elif report.acked:
        typer.echo(f"{report.brokers} has {report.kind} {report.id}")
    if report.error:
        typer.echo(f"mlops-emit: {report.error}", err=True)
    return 1 if report.error else 0
