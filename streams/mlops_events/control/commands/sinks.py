"""Commands about sinks."""

import asyncio
import sys
from typing import Annotated

import msgspec
import typer

from mlops_events.control.commands.options import AsJson, ConfigFile, examples, use
from mlops_events.control.commands.root import app
from mlops_events.control.logs import log_to
from mlops_events.sinks.base import installed_sinks, load_sink

__all__ = ["check", "list_sinks"]

sinks_app = typer.Typer(help="The sinks: list them, check them.")
app.add_typer(sinks_app, name="sinks")


@sinks_app.command("list", epilog=examples("mlops-pipeline sinks list"))
def list_sinks(as_json: AsJson = False) -> int:
    """List the sinks that are installed, ours and others'."""
    found = {name: point.value for name, point in installed_sinks().items()}
    if as_json:
        typer.echo(msgspec.json.encode(found))
        return 0
    for name, place in found.items():
        typer.echo(f"{name}: {place}")
    return 0


@sinks_app.command(
    epilog=examples(
        "mlops-pipeline sinks check influxdb",
        "mlops-pipeline sinks check loki --write",
        "mlops-pipeline sinks check sqlite --write --json",
    )
)
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See: mlops-pipeline sinks list.")],
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Write a probe of the run mlops-events-check, and read it back."
        ),
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Connect to a sink's destination as it is set up here, and say what is wrong."""
    from mlops_events.control.sinkcheck import check_sink

    log_to(sys.stderr, level="CRITICAL")
    use(config)
    report = asyncio.run(check_sink(load_sink(name), write=write))
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        for step in report.steps:
            mark = "-" if step.skipped else "ok" if step.ok else "FAULT"
            typer.echo(f"{mark:5} {step.name}{f': {step.message}' if step.message else ''}")
    return 0 if report.ok else 1
