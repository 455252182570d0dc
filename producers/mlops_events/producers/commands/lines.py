"""The command that sends events of JSON lines."""

import sys
from typing import Annotated

import msgspec
import typer

from mlops_events.producers import arguments
from mlops_events.producers.commands.options import (
    AsJson,
    Brokers,
    Role,
    RunId,
    Tags,
    Uid,
    Version,
    examples,
    settings_of,
)
from mlops_events.producers.commands.root import app

__all__ = ["lines"]


@app.command(
    epilog=examples(
        "mlops-emit lines --run demo < events.jsonl",
        """echo '{"kind":"observation","name":"training","fields":{"loss":0.5},"ts":"2026-01-31T12:00:00Z"}' | mlops-emit lines --run demo""",
        "mlops-emit lines --schema",
    )
)
def lines(
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a line.")
    ] = False,
    run: RunId = None,
    role: Role = None,
    uid: Uid = None,
    version: Version = None,
    tag: Tags = None,
    brokers: Brokers = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long the broker may take nothing.")
    ] = "30s",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check the lines, send nothing.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Send the events of JSON lines from standard input; bad ones are told and passed over."""
    from mlops_events.producers import importing

    if schema:
        typer.echo(msgspec.json.format(msgspec.json.encode(importing.schema())))
        return 0
    settings = settings_of(
        run=run,
        role=role,
        uid=uid,
        version=version,
        tag=tag,
        brokers=brokers,
        required=not dry_run,
    )
    report = importing.run(
        sys.stdin.buffer,
        settings,
        timeout_s=arguments.duration(timeout) / 1e9,
        dry_run=dry_run,
    )
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        typer.echo(importing.summary(report, dry_run=dry_run))
    return 1 if report.bad or report.error else 0
