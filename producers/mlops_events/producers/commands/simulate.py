"""The command that simulates a fleet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mlops_events.producers import arguments
from mlops_events.producers.commands.options import (
    AsJson,
    Brokers,
    RunId,
    Tags,
    examples,
    settings_of,
)
from mlops_events.producers.commands.root import app
from mlops_events.producers.simulate import FleetSettings, run_fleet, wall_clock
from mlops_events.producers.stats import EmitterStats
from mlops_events.producers.stop import until_told_to_stop
from mlops_events.producers.truth import Truth
from mlops_events.schemas.settings import load

__all__ = ["simulate"]


@app.command(
    epilog=examples(
        "mlops-emit simulate --nodes 8 --for 60s --brokers 127.0.0.1:9092",
        "mlops-emit simulate --nodes 4 --seed 7 --truth truth.jsonl",
    )
)
def simulate(
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="How many nodes.", show_default="8")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long; else until Ctrl-C.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="The same seed gives the same values.", show_default="0"),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="R", help="Observations a second of a node.", show_default="10"),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append what is emitted, as JSON lines."),
    ] = None,
    close_timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long the end may take.", show_default="5s"),
    ] = None,
    run: RunId = None,
    tag: Tags = None,
    brokers: Brokers = None,
    as_json: AsJson = False,
) -> int:
    """Simulate a fleet: miners and validators with wrong clocks, crashes and upgrades."""
    settings = settings_of(brokers=brokers)
    if settings.disabled:
        raise arguments.ArgumentError("MLOPS_EVENTS_DISABLED is set; unset it to simulate")
    fleet = load(
        FleetSettings,
        "simulate",
        arguments={
            "nodes": nodes,
            "duration_s": _seconds(duration),
            "seed": seed,
            "rate": rate,
            "close_timeout_s": _seconds(close_timeout),
            "run": run or settings.run_id or None,
            "tags": arguments.tags(tag or ()) or None,
        },
        unknown="warn",
    )
    typer.echo(
        f"simulating {fleet.nodes} nodes of run {fleet.run!r} to {settings.kafka.brokers}; "
        "Ctrl-C ends it",
        err=True,
    )
    with Truth(truth) as written:
        accounts = run_fleet(
            fleet,
            emitter=settings,
            truth=written,
            clock=wall_clock(),
            pause=until_told_to_stop(),
        )
    return _account(accounts, as_json=as_json)


def _seconds(text: str | None) -> float | None:
    return None if text is None else arguments.duration(text) / 1e9


def _account(accounts: Sequence[EmitterStats], *, as_json: bool) -> int:
    """Print what became of a fleet's events and return the exit code."""
    total = {
        "emitters": len(accounts),
        "ended": sum(account.ended for account in accounts),
        "emitted": sum(account.emitted for account in accounts),
        "sent": sum(account.sent for account in accounts),
        "lost": sum(account.lost for account in accounts),
        "dropped": sum(account.dropped for account in accounts),
    }
    if as_json:
        typer.echo(msgspec.json.encode(total))
    else:
        typer.echo(", ".join(f"{count} {what}" for what, count in total.items()))
    unsent = total["emitted"] - total["sent"]
    if unsent:
        reason = next((account.error for account in accounts if account.error), "no answer in time")
        typer.echo(
            f"mlops-emit: {unsent} events were not acknowledged: {reason}; "
            "check the broker, or give it longer with --close-timeout",
            err=True,
        )
    return 1 if unsent else 0
