"""Commands about topics."""

import asyncio
import shutil
import sys
import time
from typing import Annotated, get_args

import msgspec
import typer

from mlops_events.control.commands.options import (
    AsJson,
    Brokers,
    ConfigFile,
    DataFolder,
    examples,
    seconds,
    use,
)
from mlops_events.control.commands.root import app
from mlops_events.control.folder import DEFAULT_FOLDER, kafka_of
from mlops_events.control.logs import log_to
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import RawKind
from mlops_events.schemas.settings import KafkaSettings, load
from mlops_events.schemas.topics import TopicSpec, topic_specs
from mlops_events.streams.settings import StreamSettings

__all__ = ["cardinality", "check", "create", "lag", "list_"]

_COUNTED_S = 30.0
"""How old the counts of a report that is shown again and again may be."""

topics_app = typer.Typer(help="The topics: create them, check them, see what is in them.")
app.add_typer(topics_app, name="topics")

SinkNames = Annotated[
    list[str] | None,
    typer.Option("--sink", metavar="NAME", help="A sink to come; those of the stream if none."),
]


@topics_app.command("list", epilog=examples("mlops-pipeline topics list --json"))
def list_(
    data: DataFolder = DEFAULT_FOLDER,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """List the topics below the prefix: how much they hold, since when, and how long."""
    from mlops_events.control.topicsizes import list_sizes
    from mlops_events.control.topicstext import list_text

    log_to(sys.stderr, level="CRITICAL")  # aiokafka repeats what the command says once
    use(config)
    found = asyncio.run(list_sizes(kafka_of(data, brokers=brokers)))
    now_ms = round(time.time() * 1000)
    typer.echo(
        msgspec.json.encode(found) if as_json else list_text(found, now_ms=now_ms, width=_width())
    )
    return 0


@topics_app.command(
    epilog=examples(
        "mlops-pipeline topics create --brokers 127.0.0.1:9092",
        "mlops-pipeline topics create --sink loki --retention 3d --dry-run",
    )
)
def create(
    sink_name: SinkNames = None,
    retention: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Of raw events; else MLOPS_EVENTS_STREAM_KEEP_S."),
    ] = None,
    sink_retention: Annotated[
        str, typer.Option(metavar="TIME", help="Of what waits for sinks.")
    ] = "3d",
    letter_retention: Annotated[str, typer.Option(metavar="TIME", help="Of dead letters.")] = "30d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands of Kafka's tools instead.")
    ] = False,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Create the topics that are missing, and check those that are there.

    With --dry-run nothing is created; without brokers it then prints all topics.
    """
    from mlops_events.control.topics import create_topics, list_topics
    from mlops_events.control.topicstext import creation_text

    log_to(sys.stderr, level="CRITICAL")  # aiokafka repeats what the command says once
    use(config)
    kafka = load(KafkaSettings, "kafka", arguments={"brokers": brokers})
    stream = load(StreamSettings, "stream")
    specs = topic_specs(
        kafka.topics,
        sinks=sorted({*stream.sinks, *(sink_name or ())}),
        partitions=kafka.partitions,
        replication=kafka.replication,
        raw_retention_ms=_ms(retention) if retention else round(stream.keep_s * 1000),
        sink_retention_ms=_ms(sink_retention),
        letter_retention_ms=_ms(letter_retention),
    )
    if dry_run:
        there = {t.name for t in asyncio.run(list_topics(kafka))} if kafka.brokers else set[str]()
        missing: list[TopicSpec] = [spec for spec in specs if spec.name not in there]
        text = creation_text(missing, kafka, width=_width())
        typer.echo(msgspec.json.encode(missing) if as_json else text or "nothing is missing")
        return 0
    found = asyncio.run(create_topics(kafka, specs))
    if as_json:
        typer.echo(msgspec.json.encode(found))
        return 0
    for topic in found:
        did = "created" if topic.created else "there"
        typer.echo(f"{topic.name}: {did}, {topic.partitions} partitions")
    return 0


@topics_app.command(
    epilog=examples("mlops-pipeline topics check", "mlops-pipeline topics check --sink loki --json")
)
def check(
    sink_name: SinkNames = None,
    data: DataFolder = DEFAULT_FOLDER,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Compare the topics with what the guarantees rest on, and say how to mend what differs.

    Exit code 1 if a guarantee does not hold; services refuse to start then. Advice alone is 0.
    """
    from mlops_events.control.topicscheck import check as look
    from mlops_events.control.topicstext import check_text

    log_to(sys.stderr, level="CRITICAL")  # aiokafka repeats what the command says once
    use(config)
    kafka = kafka_of(data, brokers=brokers)
    stream = load(StreamSettings, "stream")
    group = stream.group or f"{kafka.prefix}.stream"
    found = asyncio.run(look(kafka, group=group, sinks={*stream.sinks, *(sink_name or ())}))
    typer.echo(msgspec.json.encode(found) if as_json else check_text(found, kafka, width=_width()))
    return 1 if any(fault.serious for fault in found.faults) else 0


@topics_app.command(
    epilog=examples(
        "mlops-pipeline topics lag",
        "mlops-pipeline topics lag --watch --every 5s",
        "mlops-pipeline topics lag --json | jq '.groups[] | {group, records}'",
    )
)
def lag(
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="How often with --watch.")] = "2s",
    data: DataFolder = DEFAULT_FOLDER,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Show how far the stream and the sinks are behind, and what the stream counted.

    BEHIND is the age of the first record that is not handled yet. The stream commits with its
    checkpoints, so up to 10 s of what it has handled still counts. EXPIRED and LOST were deleted by
    retention before they were handled: exit code 1 then.
    """
    from mlops_events.control.lag import LagReport, measure
    from mlops_events.control.lagtext import lag_text, loss_text

    log_to(sys.stderr, level="CRITICAL")  # aiokafka repeats what the command says once
    use(config)
    kafka = kafka_of(data, brokers=brokers)
    group = load(StreamSettings, "stream").group or f"{kafka.prefix}.stream"
    pause_s = seconds(every)

    def show(report: LagReport) -> str:
        if as_json:
            return msgspec.json.encode(report).decode()
        return lag_text(report, prefix=kafka.prefix, width=_width())

    async def follow() -> LagReport:
        report = await measure(kafka, group=group)
        counted_at = time.monotonic()
        while True:
            if sys.stdout.isatty() and not as_json:
                typer.echo("\033[H\033[2J", nl=False)
            typer.echo(show(report))
            if not watch:
                return report
            sys.stdout.flush()
            await asyncio.sleep(pause_s)
            fresh = time.monotonic() - counted_at > _COUNTED_S
            counted_at = time.monotonic() if fresh else counted_at
            report = await measure(kafka, group=group, counts=None if fresh else report.topics)

    report = asyncio.run(follow())
    loss = loss_text(report)
    if loss:
        typer.echo(loss, err=True)
    return 1 if loss else 0


@topics_app.command(
    epilog=examples(
        "mlops-pipeline topics cardinality --since 1h",
        "mlops-pipeline topics cardinality --kind observation --run llama-7b-42 --limit 50",
        "mlops-pipeline topics cardinality --records 100000 --json",
    )
)
def cardinality(
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="run, observation, profile or log; all if none."),
    ] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="How far back.")] = "1h",
    only_run: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Only this run.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show the N worst.")] = 20,
    records: Annotated[
        int, typer.Option(min=1, metavar="N", help="Read at most N records, the newest.")
    ] = 20_000,
    data: DataFolder = DEFAULT_FOLDER,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Count how many different values tags and fields have in what arrived of late.

    Up to 100,000 values are told apart. What would hurt a metrics store is marked with !.
    """
    from mlops_events.control.cardinality import Cardinality
    from mlops_events.control.cardinality_read import read_cardinality
    from mlops_events.control.cardinality_text import cardinality_text

    log_to(sys.stderr, level="CRITICAL")  # aiokafka repeats what the command says once
    use(config)
    known: tuple[RawKind, ...] = get_args(RawKind)
    kinds: list[RawKind] = [found for found in known if not kind or found in kind]
    strange = set(kind or ()) - set(known)
    if strange:
        raise ConfigError(f"no kind {', '.join(sorted(strange))}; kinds: {', '.join(known)}")
    counted = Cardinality()
    terminal = sys.stderr.isatty()

    def tell(read: int, planned: int, there: int) -> None:
        if terminal:
            typer.echo(
                f"\rread {read:,} of {planned:,} records ({there:,} there)", err=True, nl=False
            )

    read, there = asyncio.run(
        read_cardinality(
            kafka_of(data, brokers=brokers),
            counted,
            kinds=kinds,
            since_ms=round((time.time() - seconds(since)) * 1000),
            run=only_run,
            records=records,
            tell=tell,
        )
    )
    if terminal:
        typer.echo(f"\r{' ' * min(_width() - 1, 60)}\r", err=True, nl=False)
    if read < there:
        typer.echo(f"read the newest {read:,} of {there:,} records; --records reads more", err=True)
    report = counted.report()
    if as_json:
        shown = msgspec.structs.replace(report, spreads=report.spreads[:limit])
        typer.echo(msgspec.json.encode(shown))
    else:
        typer.echo(cardinality_text(report, limit=limit, width=_width()))
    return 0


def _ms(text: str) -> int:
    return round(seconds(text) * 1000)


def _width() -> int:
    return shutil.get_terminal_size().columns
