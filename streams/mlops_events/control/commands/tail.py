"""The command that prints events as they arrive."""

import asyncio
import sys
from typing import Annotated, Any, get_args

import msgspec
import typer

from mlops_events.control.commands.options import AsJson, Brokers, DataFolder, examples
from mlops_events.control.commands.root import app
from mlops_events.control.folder import DEFAULT_FOLDER, kafka_of
from mlops_events.control.logs import log_to
from mlops_events.control.truth import plain
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import Kind
from mlops_events.sinks.base import Envelope

__all__ = ["tail"]


@app.command(
    epilog=examples(
        "mlops-pipeline tail",
        "mlops-pipeline tail --kind log --kind stats --run llama-7b-42",
        "mlops-pipeline tail --from-start --json",
    )
)
def tail(
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="run, observation, profile, log or stats; all if none."),
    ] = None,
    only: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only this run.")] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with what the topics hold.")
    ] = False,
    data: DataFolder = DEFAULT_FOLDER,
    brokers: Brokers = None,
    as_json: AsJson = False,
) -> int:
    """Print events as they arrive in Kafka, until Ctrl-C."""
    from mlops_events.control.tail import follow
    from mlops_events.sinks.console import render

    log_to(sys.stderr, level="WARNING")
    known: tuple[Kind, ...] = get_args(Kind)
    kinds: list[Kind] = [found for found in known if not kind or found in kind]
    strange = set(kind or ()) - set(known)
    if strange:
        raise ConfigError(f"no kind {', '.join(strange)}; kinds: {', '.join(known)}")
    kafka = kafka_of(data, brokers=brokers)

    async def work() -> None:
        async for envelope in follow(kafka, kinds=kinds, run=only, from_start=from_start):
            typer.echo(msgspec.json.encode(_shown(envelope)) if as_json else render(envelope))

    asyncio.run(work())
    return 0


def _shown(envelope: Envelope) -> dict[str, Any]:
    """Return an event as JSON that people and jq can read."""
    event = plain(msgspec.structs.asdict(envelope.event))
    return {
        "id": str(envelope.id),
        "kind": type(envelope.event).__name__.lower(),
        "origin": msgspec.to_builtins(envelope.origin),
        **event,
    }
