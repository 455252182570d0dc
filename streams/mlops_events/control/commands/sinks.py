"""Commands about sinks."""

import msgspec
import typer

from mlops_events.control.commands.options import AsJson, examples
from mlops_events.control.commands.root import app
from mlops_events.sinks.base import installed_sinks

__all__ = ["list_sinks"]

sinks_app = typer.Typer(help="The sinks that are installed.")
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
