"""`--emit` of the commands that look at a node, against a real Kafka; here for the stand-in of NVML."""

import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from mlops_events.control.topics import create_topics
from mlops_events.schemas import Frame, Log, Observation, Profile, decode_frame
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import topic_specs

EMIT = (sys.executable, "-m", "mlops_events.producers")


@pytest.fixture
async def settings(kafka: str, prefix: str) -> KafkaSettings:
    """A real Kafka, with topics of the test's own."""
    settings = KafkaSettings(brokers=kafka, prefix=prefix, partitions=1, replication=1)
    await create_topics(
        settings, topic_specs(settings.topics, sinks=(), partitions=1, replication=1)
    )
    return settings


async def read(settings: KafkaSettings) -> list[Frame]:
    """All frames of the raw topics that hold events."""
    frames: list[Frame] = []
    async with AIOKafkaConsumer(bootstrap_servers=settings.brokers) as consumer:
        parts = [TopicPartition(topic, 0) for topic in settings.topics.raws]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        ends = await consumer.end_offsets(parts)
        for part in parts:
            while await consumer.position(part) < ends[part]:
                for records in (await consumer.getmany(part, timeout_ms=1_000)).values():
                    frames += [decode_frame(record.value) for record in records]
    return [frame for frame in frames if len(frame)]


async def test_gpus_and_judgements_arrive(
    settings: KafkaSettings, processes: Any, nvml_folder: Path
) -> None:
    """With the node's origin; a GPU that is short of memory is a line of log, too."""
    environ = {
        "MLOPS_EVENTS_KAFKA_BROKERS": settings.brokers,
        "MLOPS_EVENTS_KAFKA_PREFIX": settings.prefix,
        "LD_LIBRARY_PATH": str(nvml_folder),
        "NVML_STANDIN": "count=2 used@1=80000",
    }
    who = ("--run", "demo", "--role", "miner", "--uid", "12", "--timeout", "60s")
    started = [
        processes.start(*EMIT, command, "--emit", "--json", *who, env=environ)
        for command in ("cuda-metrics", "memory-risk")
    ]
    codes = [process.wait() for process in started]
    frames = await read(settings)
    events = [event for frame in frames for _, event in frame.events()]
    observations = [event for event in events if isinstance(event, Observation)]
    [log] = [event for event in events if isinstance(event, Log)]

    assert codes == [0, 3]
    assert [process.stderr() for process in started] == ["", ""]
    assert {(f.origin.run, f.origin.role, f.origin.uid) for f in frames} == {("demo", "miner", 12)}
    assert [
        (event.tags["gpu"], event.fields["gpu_temperature"])
        for event in observations
        if event.name == "gpu"
    ] == [("0", 65), ("1", 65)]
    assert [
        (event.tags["gpu"], event.fields["level"])
        for event in observations
        if event.name == "memory_risk"
    ] == [("0", "ok"), ("1", "critical")]
    assert (log.level, log.message) == ("error", "a GPU is short of memory")
    assert log.fields["gpu"] == "1"


async def test_what_unsloth_lacks_arrives(
    settings: KafkaSettings, processes: Any, nvml_folder: Path
) -> None:
    """One observation of the installation, and a line of log for each thing that is missing."""
    process = processes.start(
        *EMIT,
        *("diagnose-unsloth", "--no-benchmark", "--emit", "--json"),
        *("--run", "demo", "--role", "miner", "--uid", "12", "--timeout", "60s"),
        env={
            "MLOPS_EVENTS_KAFKA_BROKERS": settings.brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": settings.prefix,
            "LD_LIBRARY_PATH": str(nvml_folder),
            "NVML_STANDIN": "count=1",
        },
    )
    code = process.wait()
    events = [event for frame in await read(settings) for _, event in frame.events()]
    [found] = [event for event in events if isinstance(event, Observation)]
    logs = [event for event in events if isinstance(event, Log)]

    assert code == 2
    assert found.name == "unsloth_installation"
    assert (found.fields["ready"], found.fields["gpus"]) == (False, 1)
    assert "unsloth" in found.fields["missing"].split(",")
    assert [log.fields["about"] for log in logs] == found.fields["missing"].split(",")


async def test_the_profile_of_a_target_that_fails_arrives(
    settings: KafkaSettings, processes: Any, tmp_path: Path
) -> None:
    """It is marked as failed; the exit code stays the target's."""
    (tmp_path / "leaving.py").write_text("def leave():\n    raise SystemExit(3)\n")
    process = processes.start(
        *EMIT,
        *("run-analysis", "--emit", "--run", "demo", "--timeout", "60s", "leaving:leave"),
        env={
            "MLOPS_EVENTS_KAFKA_BROKERS": settings.brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": settings.prefix,
        },
        cwd=tmp_path,
    )
    code = process.wait()
    events = [event for frame in await read(settings) for _, event in frame.events()]
    profiles = {event.name: event for event in events if isinstance(event, Profile)}

    assert code == 3
    assert profiles["run-analysis"].failed
    assert "leaving.py:leave" in profiles
