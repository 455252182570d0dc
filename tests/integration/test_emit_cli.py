"""mlops-emit against a real Kafka: what it says is there is there."""

import json
import signal
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from mlops_events.control.topics import create_topics
from mlops_events.producers.truth import plain
from mlops_events.schemas import Frame, Observation, decode_frame
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import topic_specs

EMIT = (sys.executable, "-m", "mlops_events.producers")
PARTITIONS = 2


@pytest.fixture
async def settings(kafka: str, prefix: str) -> KafkaSettings:
    """A real Kafka, with topics of the test's own."""
    settings = KafkaSettings(brokers=kafka, prefix=prefix, partitions=PARTITIONS, replication=1)
    await create_topics(
        settings, topic_specs(settings.topics, sinks=(), partitions=PARTITIONS, replication=1)
    )
    return settings


def environ(settings: KafkaSettings) -> dict[str, str]:
    """What tells mlops-emit which Kafka it is."""
    return {
        "MLOPS_EVENTS_KAFKA_BROKERS": settings.brokers,
        "MLOPS_EVENTS_KAFKA_PREFIX": settings.prefix,
    }


async def read(settings: KafkaSettings) -> list[Frame]:
    """All frames of the raw topics."""
    frames: list[Frame] = []
    async with AIOKafkaConsumer(bootstrap_servers=settings.brokers) as consumer:
        parts = [
            TopicPartition(topic, number)
            for topic in settings.topics.raws
            for number in range(PARTITIONS)
        ]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        ends = await consumer.end_offsets(parts)
        for part in parts:
            while await consumer.position(part) < ends[part]:
                for records in (await consumer.getmany(part, timeout_ms=1_000)).values():
                    frames += [decode_frame(record.value) for record in records]
    return frames


async def test_exit_0_means_that_the_broker_has_it(settings: KafkaSettings, processes: Any) -> None:
    """With its values, its origin and the id that was printed; and nothing else is to come."""
    process = processes.start(
        *(*EMIT, "observation", "training", "loss=0.5", "lr=nan", "--step", "7"),
        *("--run", "demo", "--role", "miner", "--uid", "12", "--version", "1.4.0"),
        env=environ(settings),
    )
    code = process.wait()
    frames = await read(settings)

    assert (code, process.stderr()) == (0, "")
    [frame] = [frame for frame in frames if len(frame)]
    [(index, event)] = frame.events()
    assert isinstance(event, Observation)
    assert (event.name, event.step, plain(event.fields)) == (
        "training",
        7,
        {"loss": 0.5, "lr": "NaN"},
    )
    assert (frame.origin.run, frame.origin.role, frame.origin.uid) == ("demo", "miner", 12)
    assert process.stdout() == f"{settings.brokers} has observation {frame.event_id(index)}\n"
    assert [f.end for f in frames if f.kind == "observation"][-1]


async def test_profile_and_log_arrive_too(settings: KafkaSettings, processes: Any) -> None:
    """Each in the topic of its kind; --json tells the id."""
    commands = [("profile", "forward", "12ms"), ("log", "info", "hello", "peer=12")]
    started = [processes.start(*EMIT, *c, "--json", env=environ(settings)) for c in commands]
    codes = [process.wait() for process in started]
    frames = await read(settings)

    assert codes == [0, 0]
    for process, kind in zip(started, ("profile", "log"), strict=True):
        [frame] = [frame for frame in frames if frame.kind == kind and len(frame)]
        [(index, event)] = frame.events()
        found = json.loads(process.stdout())
        assert found["acked"] is True
        assert found["topic"] == settings.topics.raw(frame.kind)
        assert found["id"] == str(frame.event_id(index))
        assert {k: v for k, v in found["event"].items() if v} == {
            k: v for k, v in msgspec.structs.asdict(event).items() if v
        }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_simulated_events_are_all_there_when_it_is_told_to_end(
    settings: KafkaSettings, processes: Any, until: Any, tmp_path: Path, number: int
) -> None:
    """The truth is complete, Kafka holds exactly that, and every emitter ended."""
    truth = tmp_path / "truth.jsonl"
    process = processes.start(
        *(*EMIT, "simulate", "--nodes", "4", "--rate", "50", "--truth", truth, "--json"),
        env=environ(settings),
    )
    await until(lambda: truth.exists() and truth.read_text().count("\n") > 500)
    process.signal(number)
    code = process.wait()
    lines = [json.loads(line) for line in truth.read_text().splitlines()]
    frames = await read(settings)

    assert code == 0
    assert process.stderr() == (
        f"simulating 4 nodes of run 'simulation' to {settings.brokers}; Ctrl-C ends it\n"
    )
    true: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for line in lines:
        if line.pop("t") == "event":
            true[line.pop("emitter"), line.pop("kind")].append(line)
    got: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for frame in sorted(frames, key=lambda frame: frame.seq):
        for _, event in frame.events():
            got[frame.emitter.hex(), frame.kind].append(plain(msgspec.structs.asdict(event)))
    assert got == true
    assert len(json.loads(process.stdout())) == 6
    assert json.loads(process.stdout())["sent"] == sum(map(len, true.values()))
    assert [line["ended"] for line in lines[-4:]] == [True] * 4
