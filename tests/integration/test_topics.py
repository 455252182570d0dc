"""Topics as an operator sees them: checked and mended, how far groups are behind, what is in them."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import OffsetAndMetadata

from mlops_events.control.lag import measure
from mlops_events.control.topics import create_topics, list_topics
from mlops_events.control.topicscheck import check
from mlops_events.schemas import FrameEncoder, Origin
from mlops_events.schemas.frame import Free
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import TopicSpec, origin_key, raw_headers, topic_specs
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.checkpoint import Checkpoint, split
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

PARTITIONS = 4
DAY_MS = 86_400_000
REAL_KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)


class Lab:
    """Topics on a broker, and the programs that an operator starts."""

    def __init__(self, kafka: KafkaSettings, processes: Any, until: Any) -> None:
        self.kafka = kafka
        self.topics = kafka.topics
        self.specs: list[TopicSpec] = topic_specs(
            self.topics, sinks=["console"], partitions=PARTITIONS, replication=1
        )
        self.producer: Any = None
        self.admin: Any = None
        self._processes = processes
        self._until = until

    async def open(self) -> None:
        """Create the topics and connect."""
        await create_topics(self.kafka, self.specs)
        self.producer = AIOKafkaProducer(bootstrap_servers=self.kafka.brokers, acks="all")
        self.admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.brokers)
        await self.producer.start()
        await self.admin.start()

    async def close(self) -> None:
        """Disconnect."""
        await self.producer.stop()
        await self.admin.close()

    def start(self, *arguments: str) -> Any:
        """Start a command."""
        return self._processes.start(
            *(sys.executable, "-m", "mlops_events.control", *arguments),
            env={
                "MLOPS_EVENTS_KAFKA_BROKERS": self.kafka.brokers,
                "MLOPS_EVENTS_KAFKA_PREFIX": self.kafka.prefix,
                "MLOPS_EVENTS_KAFKA_EMBEDDED": str(int(self.kafka.embedded)),
                "MLOPS_EVENTS_KAFKA_PARTITIONS": str(PARTITIONS),
                "MLOPS_EVENTS_KAFKA_REPLICATION": "1",
                "MLOPS_EVENTS_STREAM_SINKS": "console",
                "COLUMNS": "80",
            },
        )

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command to its end, and return its exit code and what it printed."""
        process = self.start(*arguments)
        code = await asyncio.to_thread(process.wait)
        return code, process.stdout(), process.stderr()

    async def json(self, *arguments: str, code: int = 0) -> Any:
        """Run a command that prints JSON."""
        found, out, said = await self.run(*arguments, "--json")
        assert found == code, said
        return json.loads(out)

    async def configure(self, **changed: dict[str, str]) -> None:
        """Give topics the settings of their specs, with changes by topic, and wait for them."""
        wanted = {spec.name: {**spec.config, **changed.get(spec.name, {})} for spec in self.specs}
        await self.admin.alter_configs(
            [
                ConfigResource(ConfigResourceType.TOPIC, topic, configs=config)
                for topic, config in wanted.items()
            ]
        )

        async def known() -> bool:
            there = {topic.name: topic.config for topic in await list_topics(self.kafka)}
            return all(config.items() <= there[topic].items() for topic, config in wanted.items())

        await self._until(known)

    async def send(self, *losses: float, uid: int, partition: int = 0, **tags: str) -> None:
        """Send frames of one observation each."""
        origin = Origin(run=f"run-{uid % 2}", role="miner", uid=uid, version="1.2")
        emitter = os.urandom(16)
        encoder = FrameEncoder(emitter=emitter, kind="observation", origin=origin)
        for seq, loss in enumerate(losses):
            event = ENCODER.encode(Free(1, seq, "training", {"loss": loss}, dict(tags)))
            value = encoder.encode([event], seq=seq, closed_ns=1, accepted=seq + 1, dropped=0)
            await self.producer.send_and_wait(
                self.topics.raw("observation"),
                value,
                key=origin_key(origin),
                headers=raw_headers(origin, kind="observation", emitter=emitter, seq=seq, count=1),
                partition=partition,
            )

    async def commit(self, group: str, topic: str, offset: int) -> Any:
        """Commit for a group in partition 0, and return its member, which stays."""
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=self.kafka.brokers,
            group_id=group,
            client_id="the-member",
            enable_auto_commit=False,
            session_timeout_ms=6000 if not self.kafka.embedded else 2000,
            heartbeat_interval_ms=500,
        )
        await consumer.start()
        await consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(offset, "")})
        return consumer

    async def checkpoint(self, state: PartitionState, *, partitions: int = PARTITIONS) -> None:
        """Write the stream's checkpoint of partition 0 of the observations."""
        checkpoint = Checkpoint(
            group=f"{self.kafka.prefix}.stream",
            topic=self.topics.raw("observation"),
            partition=0,
            partitions=partitions,
            incarnation=0,
            next=state.next,
            state=state.encode(),
        )
        for chunk in split(checkpoint):
            await self.producer.send_and_wait(self.topics.checkpoints, chunk, partition=0)

    def state(self, *, lost: int = 0) -> PartitionState:
        """Return a state that lost records to retention."""
        state = PartitionState(
            StreamSettings(), topics=self.topics, kind="observation", partition=0
        )
        state.restart_at(lost, expired=lost)
        return state


@pytest.fixture
async def lab(kafka: str, prefix: str, processes: Any, until: Any) -> AsyncIterator[Lab]:
    """Return topics on a real Kafka."""
    kafka_settings = KafkaSettings(
        brokers=kafka, prefix=prefix, partitions=PARTITIONS, replication=1
    )
    lab = Lab(kafka_settings, processes, until)
    await lab.open()
    yield lab
    await lab.close()


@pytest.fixture(params=[REAL_KAFKA, "embedded_broker"])
async def any_lab(
    request: pytest.FixtureRequest, prefix: str, processes: Any, until: Any
) -> AsyncIterator[Lab]:
    """Return topics on both brokers, one after the other."""
    embedded = request.param != "kafka"
    found = request.getfixturevalue(request.param)
    address = found.address if embedded else found
    lab = Lab(
        KafkaSettings(
            brokers=address,
            prefix=prefix,
            embedded=embedded,
            partitions=PARTITIONS,
            replication=1,
        ),
        processes,
        until,
    )
    await lab.open()
    yield lab
    await lab.close()


async def test_services_refuse_topics_that_break_a_guarantee_until_they_are_mended(
    lab: Lab, until: Any
) -> None:
    """The check, the stream and the sink name each fault; mended, all three are content."""
    log, run = lab.topics.raw("log"), lab.topics.raw("run")
    sink, checkpoints = lab.topics.sink("console"), lab.topics.checkpoints
    await lab.configure(
        **{
            log: {"retention.ms": str(DAY_MS // 2)},
            run: {"message.timestamp.type": "CreateTime"},
            sink: {"max.message.bytes": "1000000"},
            checkpoints: {"cleanup.policy": "compact", "retention.ms": str(DAY_MS)},
        }
    )
    faults = {
        (log, "retention.ms", "86400000"),
        (run, "message.timestamp.type", "LogAppendTime"),
        (sink, "max.message.bytes", "2097152"),
        (checkpoints, "cleanup.policy", "delete"),
        (checkpoints, "retention.ms", "691200000"),
    }
    found = await lab.json("topics", "check", code=1)
    stream = await lab.run("stream")
    delivery = await lab.run("sink", "console")
    await lab.configure()
    mended = await lab.json("topics", "check")
    worker, reader = lab.start("stream"), lab.start("sink", "console")
    await until(lambda: "partitions loaded" in worker.stderr())
    await lab.send(1.5, uid=1)
    await until(lambda: "1.5" in reader.stdout())

    serious = [fault for fault in found["faults"] if fault["serious"]]
    assert {(f["topic"], f["setting"], f["value"]) for f in serious} == faults
    assert {f["setting"] for f in mended["faults"]} == {"replication"}
    assert stream[0] == delivery[0] == 2
    for topic, setting, value in faults:
        mend = f"--entity-name {topic} --add-config {setting}={value}"
        assert any(mend in fault["mend"] for fault in serious)
        assert mend in stream[2]
        assert (mend in delivery[2]) == (topic == sink)


async def test_missing_topics_are_faults(lab: Lab) -> None:
    """With how to create them; a sink that is to come is asked for."""
    code, text, _ = await lab.run("topics", "check", "--sink", "loki")

    assert code == 1
    assert f"  {lab.topics.sink('loki')}" in text
    assert "mlops-pipeline topics create" in text
    assert "1 fault, " in text


async def test_partitions_that_were_added_everywhere_are_refused_by_their_checkpoints(
    lab: Lab, until: Any
) -> None:
    """All topics agree, but the state was kept for other partitions."""
    await lab.checkpoint(lab.state())
    more = {
        topic: NewPartitions(PARTITIONS + 2) for topic in [*lab.topics.raws, lab.topics.checkpoints]
    }
    await lab.admin.create_partitions(more)

    async def serious() -> list[Any]:
        """The broker may tell of the new partitions a moment later."""
        found = await check(lab.kafka, group=f"{lab.kafka.prefix}.stream", sinks=["console"])
        return [fault for fault in found.faults if fault.serious]

    (fault,) = await until(serious)
    code, _, said = await lab.run("stream")

    assert (fault.topic, fault.setting) == (lab.topics.raw("observation"), "partitions")
    assert (fault.found, fault.needed) == ("6", "4, as its checkpoints say")
    assert f"MLOPS_EVENTS_KAFKA_PREFIX={lab.kafka.prefix}.2" in fault.mend
    assert code == 2
    assert "has 6 partitions, its checkpoints were written when it had 4" in said
    assert "topics with another prefix" in said


async def test_partitions_added_to_one_topic_are_refused(lab: Lab) -> None:
    """It is named, with what mends it."""
    topic = lab.topics.raw("log")
    await lab.admin.create_partitions({topic: NewPartitions(PARTITIONS + 1)})
    code, _, said = await lab.run("stream")

    assert code == 2
    assert f"{topic}: partitions is 5, needed: 4" in said
    assert f"MLOPS_EVENTS_KAFKA_PREFIX={lab.kafka.prefix}.2" in said


async def test_the_embedded_broker_is_checked_as_far_as_it_tells(
    embedded_broker: Any, prefix: str, processes: Any, until: Any
) -> None:
    """Partitions, and what is missing."""
    lab = Lab(
        KafkaSettings(
            brokers=embedded_broker.address,
            prefix=prefix,
            embedded=True,
            partitions=PARTITIONS,
            replication=1,
        ),
        processes,
        until,
    )
    before = await check(lab.kafka, group="g", sinks=["console"])
    await lab.open()
    after = await check(lab.kafka, group="g", sinks=["console"])
    await lab.close()

    assert {fault.setting for fault in before.faults} == {"topic"}
    assert not [fault for fault in after.faults if fault.serious]
    assert len(after.unread) == len(lab.specs)


async def test_the_lag_of_groups_is_what_they_have_not_committed(any_lab: Lab) -> None:
    """Records, their age, members; and what the newest checkpoint has counted."""
    lab = any_lab
    stream = f"{lab.kafka.prefix}.stream"
    await lab.send(*range(10), uid=1)
    member = await lab.commit(stream, lab.topics.raw("observation"), 4)
    await lab.checkpoint(lab.state())
    found = await measure(lab.kafka, group=stream)
    await member.stop()
    groups = {(lag.group, lag.topic): lag for lag in found.groups}
    observation = groups[stream, lab.topics.raw("observation")]
    sink = groups[f"{lab.kafka.prefix}.sink.console", lab.topics.sink("console")]

    assert len(groups) == 5
    assert (observation.records, observation.expired) == (6, 0)
    assert 0 < (observation.behind_s or 0) < 90
    first = observation.partitions[0]
    assert (first.committed, first.start, first.end) == (4, 0, 10)
    client = "" if lab.kafka.embedded else "the-member"  # that broker does not tell it
    assert [found.client for found in observation.members] == [client]
    assert (sink.records, sink.members) == (0, [])
    (counts,) = found.topics
    assert (counts.topic, counts.lost_by_retention) == (observation.topic, 0)


async def test_what_retention_took_makes_the_lag_a_failure(lab: Lab) -> None:
    """Counted by the stream already, or passed a commit just now."""
    topic = lab.topics.raw("observation")
    await lab.send(*range(10), uid=1)
    member = await lab.commit(f"{lab.kafka.prefix}.stream", topic, 2)
    await member.stop()
    await lab.admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=5)})
    await lab.checkpoint(lab.state(lost=1200))
    code, out, said = await lab.run("topics", "lag")

    assert code == 1
    assert "1,200" in out
    assert "1,203 records were deleted by retention before they were handled" in said
    assert topic in said


async def test_the_lag_is_shown_again_until_it_is_ended(lab: Lab, until: Any) -> None:
    """One line of JSON each time."""
    process = lab.start("topics", "lag", "--watch", "--every", "100ms", "--json")
    await until(lambda: process.stdout().count("\n") >= 1)
    await lab.send(1.0, 2.0, uid=1)
    await until(lambda: '"end":2' in process.stdout())

    assert process.poll() is None
    first = json.loads(process.stdout().splitlines()[0])
    assert {group["records"] for group in first["groups"]} == {0}


async def test_cardinality_counts_what_is_in_the_topics(any_lab: Lab) -> None:
    """Of all runs or one, within the records that may be read."""
    lab = any_lab
    for uid in range(6):
        await lab.send(1.0, 2.0, uid=uid, partition=uid % PARTITIONS, batch_id=str(uid))
    every = await lab.json("topics", "cardinality", "--limit", "100")
    options = ("--run", "run-1", "--kind", "observation", "--records", "6")
    code, text, said = await lab.run("topics", "cardinality", *options)
    spreads = {(s["place"], s["name"], s["field"]): s for s in every["spreads"]}

    assert (every["events"], every["series"]) == (12, 6)
    assert spreads["origin", "uid", ""]["distinct"] == 6
    assert spreads["event tag", "batch_id", ""]["distinct"] == 6
    assert "sinks make it a field" in every["spreads"][0]["hurts"]
    assert spreads["field", "training", "loss"]["distinct"] == 2
    assert code == 0
    assert text.startswith("3 events in 3 frames, 2 series")
    assert "read the newest 6 of 12 records" in said


async def test_topics_are_listed_with_what_they_hold(any_lab: Lab) -> None:
    """Records, and the time of the oldest."""
    lab = any_lab
    await lab.send(*range(5), uid=1)
    found = {topic["name"]: topic for topic in await lab.json("topics", "list")}

    assert set(found) == {spec.name for spec in lab.specs}
    assert found[lab.topics.raw("observation")]["records"] == 5
    assert found[lab.topics.raw("observation")]["oldest_ms"] > 1_700_000_000_000
    assert found[lab.topics.raw("log")]["oldest_ms"] is None


async def test_topics_are_created_with_the_retention_that_is_asked_for(
    kafka: str, prefix: str, processes: Any, until: Any
) -> None:
    """A dry run prints the commands and creates nothing; too short a time is refused."""
    lab = Lab(KafkaSettings(brokers=kafka, prefix=prefix), processes, until)
    options = ("--retention", "2d", "--sink-retention", "30h", "--letter-retention", "1w")
    _, text, _ = await lab.run("topics", "create", *options, "--dry-run")
    before = await list_topics(lab.kafka)
    short = await lab.run("topics", "create", "--sink-retention", "12h")
    await lab.json("topics", "create", *options)
    kept = {topic.name: topic.config["retention.ms"] for topic in await list_topics(lab.kafka)}
    _, nothing, _ = await lab.run("topics", "create", *options, "--dry-run")

    assert before == []
    assert text.count("--create") == len(lab.specs)
    assert "retention.ms=172800000" in text
    assert short[0] == 2
    assert "12 h" in short[2]
    assert kept[lab.topics.raw("log")] == "172800000"
    assert kept[lab.topics.checkpoints] == "259200000"
    assert kept[lab.topics.sink("console")] == "108000000"
    assert kept[lab.topics.dead_letters] == "604800000"
    assert nothing.strip() == "nothing is missing"
