"""Commands about topics."""

import asyncio
import sys
from typing import Annotated

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
from mlops_events.schemas.settings import KafkaSettings, load
from mlops_events.schemas.topics import topic_specs
from mlops_events.streams.settings import StreamSettings

__all__ = ["create", "list_"]

topics_app = typer.Typer(help="The topics: list them, create them.")
app.add_typer(topics_app, name="topics")


@topics_app.command("list", epilog=examples("mlops-pipeline topics list --json"))
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


@topics_app.command(epilog=examples("mlops-pipeline topics create --brokers 127.0.0.1:9092"))
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
    use(config)
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
