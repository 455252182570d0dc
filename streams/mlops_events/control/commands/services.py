"""Commands that run services: all of them on one machine, or one."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from mlops_events.control.commands.options import (
    AsJson,
    Brokers,
    ConfigFile,
    examples,
    seconds,
    use,
)
from mlops_events.control.commands.root import app
from mlops_events.control.folder import DEFAULT_FOLDER, take_folder
from mlops_events.control.logs import log_to
from mlops_events.schemas.settings import KafkaSettings, load
from mlops_events.streams.settings import StreamSettings

__all__ = ["fleet", "sink", "stream", "up"]


@app.command(
    epilog=examples(
        "mlops-pipeline up --simulate 8",
        "mlops-pipeline up --simulate 8 --for 60s --verify --json",
        "mlops-pipeline up --simulate 8 --brokers 127.0.0.1:9092",
    )
)
def up(
    simulate: Annotated[
        int, typer.Option(min=0, max=1000, metavar="N", help="Simulate so many nodes.")
    ] = 0,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long; else until Ctrl-C.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Compare at the end all that is stored with what was simulated."
        ),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder that --verify makes for itself.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=f"The data folder; {DEFAULT_FOLDER} if not verifying."),
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Use this Kafka and not the embedded broker."),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="The broker forgets all at its end; for tests.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed, the same values.")] = 0,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Run everything on this machine: broker, stream, sinks, and simulated nodes if wanted."""
    from rich.console import Console

    from mlops_events.control.up import Up, UpSettings
    from mlops_events.control.view import TerminalDisplay, summary

    log_to(sys.stderr, level="WARNING")
    use(config)
    settings = UpSettings(
        simulate=simulate,
        seed=seed,
        for_s=None if duration is None else seconds(duration),
        verify=verify,
        brokers=brokers or "",
        memory=memory,
    )
    fresh = verify and data is None
    with (
        take_folder(None if fresh else data or DEFAULT_FOLDER, keep=keep) as folder,
        TerminalDisplay(Console(stderr=True)) as display,
    ):

        async def work() -> Any:
            return await Up(settings, folder, display=display).run()

        report = asyncio.run(work())
        if fresh and keep:
            display.say(f"kept {folder}")
    if report is None:
        return 0
    typer.echo(msgspec.json.encode(report).decode() if as_json else summary(report))
    return 0 if report.ok else 1


@app.command(epilog=examples("mlops-pipeline stream", "mlops-pipeline stream --config site.toml"))
def stream(config: ConfigFile = None, brokers: Brokers = None) -> int:
    """Run a stream worker: repeats out, versions on, windows aggregated, events routed."""
    from mlops_events.streams.app import run_stream

    log_to(sys.stderr)
    use(config)
    settings = load(StreamSettings, "stream")
    kafka = load(KafkaSettings, "kafka", arguments={"brokers": brokers})
    return asyncio.run(run_stream(settings, kafka))


@app.command(
    epilog=examples(
        "mlops-pipeline fleet",
        "MLOPS_EVENTS_FLEET_ROSTER='miner=0-255;validator=0,1' mlops-pipeline fleet",
    )
)
def fleet(config: ConfigFile = None, brokers: Brokers = None) -> int:
    """Aggregate over all nodes of a run, role and version; say who is missing and what is new."""
    from mlops_events.streams.fleetprocess import run_fleet
    from mlops_events.streams.fleetsettings import FleetStatsSettings

    log_to(sys.stderr)
    use(config)
    settings = load(FleetStatsSettings, "fleet")
    stream = load(StreamSettings, "stream")
    kafka = load(KafkaSettings, "kafka", arguments={"brokers": brokers})
    return asyncio.run(run_fleet(settings, stream=stream, kafka=kafka))


@app.command(epilog=examples("mlops-pipeline sink sqlite", "mlops-pipeline sink console"))
def sink(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See: mlops-pipeline sinks list.")],
    config: ConfigFile = None,
    brokers: Brokers = None,
) -> int:
    """Deliver one sink's topic to it."""
    from mlops_events.sinks.intake import DeliverSettings
    from mlops_events.sinks.service import run_sink

    log_to(sys.stderr)
    use(config)
    kafka = load(KafkaSettings, "kafka", arguments={"brokers": brokers})
    return run_sink(name, kafka=kafka, settings=load(DeliverSettings, "sink"))
