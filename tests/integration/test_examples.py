"""The programs in examples/, as a reader runs them; ddp_gloo.py needs torch and is run by hand."""

import asyncio
import importlib.util
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from mlops_events.control.topics import create_topics
from mlops_events.schemas.events import Log, Observation
from mlops_events.schemas.frame import Frame, decode_frame
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import topic_specs

EXAMPLES = Path(__file__).parents[2] / "examples"
NO_TORCH = importlib.util.find_spec("torch") is None


@pytest.fixture(scope="module")
def topics(kafka: str) -> KafkaSettings:
    """Create the topics of this module; every test has a run of its own in them."""
    settings = KafkaSettings(
        brokers=kafka, prefix=f"test.{uuid.uuid4().hex[:12]}", partitions=1, replication=1
    )
    specs = topic_specs(settings.topics, sinks=[], partitions=1, replication=1)
    asyncio.run(create_topics(settings, specs))
    return settings


async def frames_of(kafka: KafkaSettings, run: str) -> list[Frame]:
    """Return what a run's processes sent."""
    consumer = AIOKafkaConsumer(**kafka.client_options(), enable_auto_commit=False)
    await consumer.start()
    try:
        places = [TopicPartition(topic, 0) for topic in kafka.topics.raws]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(places)
        found = []
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [decode_frame(record.value) for record in records]
    finally:
        await consumer.stop()
    return [frame for frame in found if frame.origin.run == run]


def environment(kafka: KafkaSettings, run: str) -> dict[str, str]:
    """Return what a node sets."""
    return {
        "MLOPS_EVENTS_KAFKA_BROKERS": kafka.brokers,
        "MLOPS_EVENTS_KAFKA_PREFIX": kafka.prefix,
        "MLOPS_EVENTS_RUN_ID": run,
    }


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_that_takes_options_explains_them(name: str, processes: Any) -> None:
    """Also where torch is missing."""
    if name == "embedding.py":
        pytest.skip("it takes none")
    program = processes.start(sys.executable, EXAMPLES / name, "--help")

    assert program.wait() == 0, program.stderr()
    assert "usage:" in program.stdout()


@pytest.mark.parametrize(
    ("name", "options"),
    [("embedding.py", ()), ("train_loop.py", ("--steps", 20, "--plain")), ("shims_miner.py", ())],
)
def test_an_example_works_without_a_broker(
    name: str, options: tuple[object, ...], processes: Any
) -> None:
    """One line says that nothing is sent."""
    program = processes.start(sys.executable, EXAMPLES / name, *map(str, options))

    assert program.wait() == 0
    assert program.stderr().count("no Kafka brokers are set") == 1


async def test_a_miner_and_its_validator_emit_into_one_run(
    topics: KafkaSettings, processes: Any, tmp_path: Path
) -> None:
    """Two processes, each with its role."""
    env = environment(topics, "subnet-1")
    miner, validator = (
        processes.start(sys.executable, EXAMPLES / name, "--folder", tmp_path, env=env)
        for name in ("miner.py", "validator.py")
    )

    assert (miner.wait(), validator.wait()) == (0, 0), miner.stderr() + validator.stderr()
    found = await frames_of(topics, "subnet-1")
    events = [(f.origin.role, event) for f in found for _, event in f.events()]
    names = [(role, e.name) for role, e in events if isinstance(e, Observation)]
    assert names.count(("miner", "training")) == 100
    assert names.count(("miner", "window")) == 5
    assert names.count(("validator", "evaluation")) == 5
    lines = [event for role, event in events if isinstance(event, Log) and role == "validator"]
    assert [line.fields["window"] for line in lines] == [0, 1, 2, 3, 4]


async def test_a_training_loop_emits_every_step(topics: KafkaSettings, processes: Any) -> None:
    """Its run is named in the program."""
    env = environment(topics, "ignored")
    program = processes.start(sys.executable, EXAMPLES / "train_loop.py", "--plain", env=env)

    assert program.wait() == 0, program.stderr()
    found = await frames_of(topics, "train-loop")
    steps = [e.step for f in found for _, e in f.events() if isinstance(e, Observation) if e.fields]
    assert steps == list(range(200))


async def test_a_miner_with_the_calls_of_before_arrives_as_the_guide_says(
    topics: KafkaSettings, processes: Any
) -> None:
    """docs/migrating.md: measurements, tags, lists, lines, names of metrics."""
    program = processes.start(
        sys.executable, EXAMPLES / "shims_miner.py", env=environment(topics, "subnet-2")
    )

    assert program.wait() == 0, program.stderr()
    found = await frames_of(topics, "subnet-2")
    assert len({frame.emitter for frame in found}) == 1
    origin = found[0].origin
    assert (origin.role, origin.uid, origin.version) == ("miner", 12, "1.4.0")
    assert (origin.group, origin.job_type, origin.project) == ("miner", "mining", "subnet")
    events = [event for frame in found for _, event in frame.events()]
    points = [e for e in events if isinstance(e, Observation) and e.name == "Mtraining_step"]
    assert [point.step for point in points] == [10, 20, 30, 40, 50]
    assert set(points[0].fields) == {"loss", "batch_losses", "duration"}
    assert len(points[0].fields["batch_losses"]) == 10
    assert points[0].tags == {"window": 0, "global_step": 10}
    rows = [e for e in events if isinstance(e, Observation) and e.name == "metrics"]
    assert [set(row.fields) for row in rows] == [{"miner/loss", "miner/window"}] * 5
    lines = [e for e in events if isinstance(e, Log)]
    assert [line.message for line in lines] == [f"Completed window {n}" for n in range(5)]


@pytest.mark.skipif(not NO_TORCH, reason="torch is installed: the example would train")
def test_an_example_that_needs_torch_says_so(processes: Any) -> None:
    """In one line, and with an exit code of its own."""
    program = processes.start(sys.executable, EXAMPLES / "ddp_gloo.py")

    assert program.wait() == 2
    assert program.stderr() == "this example needs torch: pip install torch\n"
