"""The commands of mlops-pipeline; the only module here that imports typer."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import msgspec
import typer

from mlops_events.control.folder import DEFAULT_FOLDER, kafka_of, take_folder
from mlops_events.control.logs import log_to
from mlops_events.control.truth import plain
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import Kind
from mlops_events.schemas.settings import CONFIG, KafkaSettings, explain, load, variable
from mlops_events.schemas.sources import Setting
from mlops_events.schemas.text import duration_ns
from mlops_events.schemas.topics import topic_specs
from mlops_events.sinks.base import Envelope, installed_sinks
from mlops_events.streams.settings import StreamSettings

__all__ = ["run"]

# The base of typer's errors about the command line. Typer has taken Click in, so where that class
# is found depends on its version.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
topics_app = typer.Typer(help="The topics: list them, create them.")
config_app = typer.Typer(help="The settings: what is in force, and what is wrong.")
sinks_app = typer.Typer(help="The sinks that are installed.")
app.add_typer(topics_app, name="topics")
app.add_typer(config_app, name="config")
app.add_typer(sinks_app, name="sinks")

Brokers = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="HOST:PORT,...; else MLOPS_EVENTS_KAFKA_BROKERS."),
]
DataFolder = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="The data folder of `up`, to find its broker.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code.

    Raises:
        MlopsEventsError: it cannot be done.
        KeyboardInterrupt: somebody had enough.
    """
    try:
        code = app(list(arguments), prog_name="mlops-pipeline", standalone_mode=False)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "mlops-pipeline"
        typer.echo(f"{error.format_message().rstrip('.')}; see '{command} --help'", err=True)
        return 2
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    return code if isinstance(code, int) else 0


def _examples(*lines: str) -> str:
    return "\n\n".join(("Examples:", *lines))


@app.callback()
def about() -> None:
    """Run the pipeline from Kafka's topics to the sinks, and look into it.

    Exit codes: 0 done, 1 not done, 2 wrong usage or settings. Settings are read from
    MLOPS_EVENTS_*; options win over them.
    """


@app.command(
    epilog=_examples(
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
    _use(config)
    settings = UpSettings(
        simulate=simulate,
        seed=seed,
        for_s=None if duration is None else _seconds(duration),
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


@app.command(epilog=_examples("mlops-pipeline stream", "mlops-pipeline stream --config site.toml"))
def stream(config: ConfigFile = None, brokers: Brokers = None) -> int:
    """Run a stream worker: repeats out, versions on, windows aggregated, events routed."""
    from mlops_events.streams.app import run_stream

    log_to(sys.stderr)
    _use(config)
    settings = load(StreamSettings, "stream")
    kafka = load(KafkaSettings, "kafka", arguments={"brokers": brokers})
    return asyncio.run(run_stream(settings, kafka))


@app.command(epilog=_examples("mlops-pipeline sink sqlite", "mlops-pipeline sink console"))
def sink(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See: mlops-pipeline sinks list.")],
    config: ConfigFile = None,
    brokers: Brokers = None,
) -> int:
    """Deliver one sink's topic to it."""
    from mlops_events.sinks.intake import DeliverSettings
    from mlops_events.sinks.service import run_sink

    log_to(sys.stderr)
    _use(config)
    kafka = load(KafkaSettings, "kafka", arguments={"brokers": brokers})
    return run_sink(name, kafka=kafka, settings=load(DeliverSettings, "sink"))


@app.command(
    epilog=_examples(
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


@topics_app.command("list", epilog=_examples("mlops-pipeline topics list --json"))
def list_(
    data: DataFolder = DEFAULT_FOLDER, brokers: Brokers = None, as_json: AsJson = False
) -> int:
    """List the topics below the prefix."""
    from mlops_events.control.topics import list_topics

    log_to(sys.stderr, level="WARNING")
    found = asyncio.run(list_topics(kafka_of(data, brokers=brokers)))
    if as_json:
        typer.echo(msgspec.json.encode(found))
        return 0
    for topic in found:
        hours = int(topic.config.get("retention.ms", -1)) / 3_600_000
        kept = f", kept {hours:g} h" if hours > 0 else ""
        typer.echo(f"{topic.name}: {topic.partitions} partitions{kept}")
    return 0


@topics_app.command(epilog=_examples("mlops-pipeline topics create --brokers 127.0.0.1:9092"))
def create(
    sink_name: Annotated[
        list[str] | None,
        typer.Option("--sink", metavar="NAME", help="A sink to come; those of the stream if none."),
    ] = None,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Create the topics that are missing, and check those that are there."""
    from mlops_events.control.topics import create_topics

    log_to(sys.stderr, level="WARNING")
    _use(config)
    kafka = load(KafkaSettings, "kafka", arguments={"brokers": brokers})
    stream = load(StreamSettings, "stream")
    specs = topic_specs(
        kafka.topics,
        sinks=sorted({*stream.sinks, *(sink_name or ())}),
        partitions=kafka.partitions,
        replication=kafka.replication,
        raw_retention_ms=round(stream.keep_s * 1000),
    )
    found = asyncio.run(create_topics(kafka, specs))
    if as_json:
        typer.echo(msgspec.json.encode(found))
        return 0
    for topic in found:
        did = "created" if topic.created else "there"
        typer.echo(f"{topic.name}: {did}, {topic.partitions} partitions")
    return 0


@config_app.command(epilog=_examples("mlops-pipeline config show --config site.toml"))
def show(config: ConfigFile = None, as_json: AsJson = False) -> int:
    """Show every setting in force and where it came from."""
    _use(config)
    settings = _settings()
    if as_json:
        typer.echo(msgspec.json.encode([msgspec.to_builtins(s, enc_hook=str) for s in settings]))
        return 0
    width = max(len(s.variable or s.name) for s in settings)
    for setting in settings:
        name = setting.variable or setting.name
        place = f"{setting.source} {setting.place}".strip()
        typer.echo(f"{name:{width}}  {setting.problem or setting.value!r}  ({place})")
    return 0


@config_app.command(epilog=_examples("mlops-pipeline config check --config site.toml"))
def check(config: ConfigFile = None) -> int:
    """Say what is wrong with the settings; exit code 2 if anything is."""
    _use(config)
    settings = _settings()
    problems = [setting.problem for setting in settings if setting.problem]
    installed = installed_sinks()
    for setting in settings:
        for name in setting.value if setting.variable == variable("stream", "sinks") else ():
            if not setting.problem and name not in installed:
                typer.echo(
                    f"note: no sink named {name!r} is installed here; there are: "
                    f"{', '.join(installed)}",
                    err=True,
                )
    for problem in dict.fromkeys(problems):
        typer.echo(problem, err=True)
    if not problems:
        typer.echo("all settings can be used")
    return 2 if problems else 0


def _use(config: Path | None) -> None:
    """Have everything in this process and below it read this file of settings."""
    if config is not None:
        os.environ[CONFIG] = str(config.resolve())


def _settings() -> list[Setting]:
    from mlops_events.control.store import StoreSettings
    from mlops_events.sinks.console import ConsoleSettings
    from mlops_events.sinks.intake import DeliverSettings
    from mlops_events.sinks.sqlite import SQLiteSettings

    structs: dict[str, type[msgspec.Struct]] = {
        "kafka": KafkaSettings,
        "stream": StreamSettings,
        "sink": DeliverSettings,
        "sqlite": SQLiteSettings,
        "console": ConsoleSettings,
        "store": StoreSettings,
    }
    return [s for prefix, struct in structs.items() for s in explain(struct, prefix)]


@sinks_app.command("list", epilog=_examples("mlops-pipeline sinks list"))
def list_sinks(as_json: AsJson = False) -> int:
    """List the sinks that are installed, ours and others'."""
    found = {name: point.value for name, point in installed_sinks().items()}
    if as_json:
        typer.echo(msgspec.json.encode(found))
        return 0
    for name, place in found.items():
        typer.echo(f"{name}: {place}")
    return 0


def _seconds(text: str) -> float:
    try:
        found = duration_ns(text) / 1e9
    except ValueError as error:
        raise ConfigError(f"{text!r} is no duration; write one such as 60s or 5m") from error
    if found <= 0:
        raise ConfigError(f"{text!r} is no time to run")
    return found


def _shown(envelope: Envelope) -> dict[str, Any]:
    """Return an event as JSON that people and jq can read."""
    event = plain(msgspec.structs.asdict(envelope.event))
    return {
        "id": str(envelope.id),
        "kind": type(envelope.event).__name__.lower(),
        "origin": msgspec.to_builtins(envelope.origin),
        **event,
    }
