"""The commands of mlops-emit; the only module that imports typer."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import msgspec
import typer

from mlops_events.producers import arguments, oneshot
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.simulate import FleetSettings, run_fleet, wall_clock
from mlops_events.producers.stats import EmitterStats
from mlops_events.producers.stop import until_told_to_stop
from mlops_events.producers.truth import Truth
from mlops_events.producers.workload import Event
from mlops_events.schemas.events import Log, Observation, Profile
from mlops_events.schemas.settings import load, variable

__all__ = ["Abort", "UsageError", "app", "explain"]

# The base of typer's errors about the command line. Typer has taken Click in, so where that class
# is found depends on its version.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
Abort = typer.Abort

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    no_args_is_help=False,
)

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
Step = Annotated[int | None, typer.Option(metavar="N", help="The training step.")]


def explain(error: typer.BadParameter) -> str:
    """Return in one line what is wrong on the command line and where to read more."""
    command = error.ctx.command_path if error.ctx is not None else "mlops-emit"
    return f"{error.format_message().rstrip('.')}; see '{command} --help'"


def _examples(*lines: str) -> str:
    return "\n\n".join(("Examples:", *lines))


@app.callback()
def about() -> None:
    """Send events from a shell, and simulate nodes that do.

    Exit codes: 0 the broker has it, 1 it has not, 2 wrong usage. Settings are read from
    MLOPS_EVENTS_* as in a program; options win over them.
    """


@app.command(
    epilog=_examples(
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
        _settings(
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
    epilog=_examples(
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
        _settings(
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
    epilog=_examples(
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
        _settings(
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
    epilog=_examples(
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
    settings = _settings(
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


@app.command(
    epilog=_examples(
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
    settings = _settings(brokers=brokers)
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


def _settings(
    *,
    brokers: str | None,
    run: str | None = None,
    role: str | None = None,
    uid: str | None = None,
    version: str | None = None,
    tag: Sequence[str] | None = None,
    required: bool = True,
) -> EmitterSettings:
    """Return an emitter's settings: the options, else the environment."""
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
