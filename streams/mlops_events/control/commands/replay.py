"""The command that replays what the raw topics hold into one sink."""

import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from mlops_events.control.commands.options import (
    AsJson,
    Brokers,
    ConfigFile,
    DataFolder,
    examples,
    use,
)
from mlops_events.control.commands.root import app
from mlops_events.control.folder import DEFAULT_FOLDER, kafka_of
from mlops_events.control.logs import log_to
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import load
from mlops_events.schemas.text import duration_ns
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.tag import normalise_version

__all__ = ["replay"]

_INTERRUPTED = 130


@app.command(
    epilog=examples(
        "mlops-pipeline replay observation --sink influxdb --since 2026-01-31T06:00 "
        "--until 2026-01-31T12:00",
        "mlops-pipeline replay run,log --sink sqlite --since -2h --until -1h --run llama-7b-42",
        "mlops-pipeline replay stats --sink sqlite --since -1d --until -2h --dry-run --json",
    )
)
def replay(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="run, observation, profile, log, stats; or K,K.")
    ],
    sink: Annotated[str, typer.Option("--sink", metavar="NAME", help="Where to.")],
    since: Annotated[
        str, typer.Option(metavar="T", help="From this event time: ISO 8601 (UTC), -2h, now.")
    ],
    until: Annotated[str, typer.Option(metavar="T", help="Up to but without this event time.")],
    only_run: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Only this run.")
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", metavar="V", help="Only this version; v1.2 is 1.2.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and count, write nothing.")
    ] = False,
    rate: Annotated[
        str | None, typer.Option(metavar="N/s", help="Write at most so many events a second.")
    ] = None,
    slack: Annotated[
        str, typer.Option(metavar="TIME", help="How much later than its time an event may arrive.")
    ] = "24h",
    margin: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Read so much beyond the range, to tell which windows over fields are whole.",
        ),
    ] = "1h",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with this replay where it was interrupted.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to keep how far it is; else below ~/.local/state."
        ),
    ] = None,
    data: DataFolder = DEFAULT_FOLDER,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Write events of the past into one sink, from Kafka, beside live traffic.

    Aggregates are computed anew from all samples, those that were late included. Nothing is
    written twice where a sink knows events by their ids. Times without a zone are UTC.
    """
    from rich.console import Console

    from mlops_events.control.replay_job import Job, run_job
    from mlops_events.control.replay_request import ReplayRequest, parse_kinds, parse_time
    from mlops_events.control.replay_state import default_path, shown_command
    from mlops_events.control.replay_view import ReplayView
    from mlops_events.sinks.intake import DeliverSettings

    log_to(sys.stderr, level="WARNING")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it says ten times a second
    use(config)
    kafka = kafka_of(data, brokers=brokers)
    now_ns = time.time_ns()
    options = {
        "sink": sink,
        "since": since,
        "until": until,
        "run": only_run,
        "version": version,
        "brokers": brokers,
    }
    command = {
        "kind": kind,
        **{name: value for name, value in options.items() if value is not None},
        "slack": slack,
        "margin": margin,
        **({"dry-run": ""} if dry_run else {}),
    }
    try:
        request = ReplayRequest(
            kinds=parse_kinds(kind),
            sink=sink,
            since_ns=parse_time(since, now_ns=now_ns, option="--since"),
            until_ns=parse_time(until, now_ns=now_ns, option="--until"),
            slack_ns=_duration(slack, "--slack"),
            margin_ns=_duration(margin, "--margin"),
            run=only_run,
            version=None if version is None else normalise_version(version),
            dry_run=dry_run,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    job = Job(
        command=command,
        request=request,
        kafka=kafka,
        stream=load(StreamSettings, "stream"),
        deliver=load(DeliverSettings, "sink"),
        path=state or default_path({**command, "prefix": kafka.prefix}),
        resume=resume,
        rate=_rate(rate),
    )
    with ReplayView(Console(stderr=True)) as view:
        done = asyncio.run(run_job(job, view.show))
    if as_json:
        typer.echo(msgspec.json.encode(_shown(done)))
    else:
        for line in done.account.lines(dry_run=dry_run):
            typer.echo(line)
    if not done.done:
        again = f"mlops-pipeline replay {shown_command(command)}"
        if done.sources:
            again += " --resume" + (f" --state {state}" if state else "")
        typer.echo(f"interrupted; go on with: {again}", err=True)
        return _INTERRUPTED
    return 1 if done.account.off_by else 0


def _duration(text: str, option: str) -> int:
    try:
        return duration_ns(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error


def _rate(text: str | None) -> float:
    """Return how many events a second: `5000/s` or `5000`; 0 is no limit."""
    if text is None:
        return 0.0
    try:
        rate = float(text.strip().removesuffix("/s"))
    except ValueError:
        rate = -1.0
    if not 0 < rate < float("inf"):
        raise ConfigError(f"--rate {text!r} is no rate; write one such as 5000/s")
    return rate


def _shown(state: Any) -> dict[str, Any]:
    """Return a replay's account as JSON that people and jq can read."""
    account = state.account
    request = state.request
    return {
        "id": state.id,
        "done": state.done,
        "kinds": request.kinds,
        "sink": request.sink,
        "since_ns": request.since_ns,
        "until_ns": request.until_ns,
        "dry_run": request.dry_run,
        "seconds": round(state.seconds, 3),
        **msgspec.to_builtins(account),
        "filtered_total": account.filtered.total,
        "off_by": account.off_by,
    }
