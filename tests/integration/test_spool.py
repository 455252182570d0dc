"""The spool and a real Kafka: the broker is away, the program is killed, and nothing is lost."""

import asyncio
import json
import os
import sys
from collections import Counter
from glob import glob
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from mlops_events.control.topics import create_topics
from mlops_events.schemas.frame import Frame, decode_frame
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import topic_specs

AWAY_S = float(os.environ.get("MLOPS_EVENTS_TEST_SPOOL_AWAY_S", "6"))
"""How long the broker is away; an operator's five minutes by hand."""

RATE = 1000
TRAINER = f"""
import sys, time
from mlops_events.producers import Emitter

first, last = int(sys.argv[1]), int(sys.argv[2])
events = Emitter(run="r", role="miner", uid=7)
start = time.monotonic()
told = 0.0
for i in range(first, last):
    events.observe("training", {{"i": i}}, step=i)
    ahead = start + (i - first) / {RATE} - time.monotonic()
    if ahead > 0:
        time.sleep(ahead)
    if time.monotonic() - told > 0.2:
        told = time.monotonic()
        kind = events.stats().kinds["observation"]
        print(first + kind.sent + kind.spooled, flush=True)
print("done", events.close(30), flush=True)
"""


async def _frames(kafka: KafkaSettings) -> list[Frame]:
    consumer = AIOKafkaConsumer(**kafka.client_options(), enable_auto_commit=False)
    await consumer.start()
    try:
        places = [TopicPartition(t, p) for t in kafka.topics.raws for p in range(kafka.partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(places)
        got = dict.fromkeys(places, 0)
        found = []
        while any(got[place] < end for place, end in ends.items()):
            for place, records in (await consumer.getmany(timeout_ms=1000)).items():
                got[place] = records[-1].offset + 1
                found += [decode_frame(record.value) for record in records]
        return found
    finally:
        await consumer.stop()


def _indices(frames: list[Frame]) -> Counter[int]:
    """Count the events by what they are, frames that came twice once."""
    unique = {(f.emitter, f.seq): f for f in frames if f.kind == "observation"}
    return Counter(
        event.fields["i"]  # type: ignore[union-attr]
        for frame in unique.values()
        for _, event in frame.events()
    )


def segments(spool: Path) -> list[str]:
    """Return the segments there; a folder may go away meanwhile, which `rglob` does not survive."""
    return glob(  # noqa: PTH207
        "**/*.seg", root_dir=spool, recursive=True, include_hidden=True
    )


async def test_what_reached_the_spool_arrives_once_after_kill_9_during_an_outage(
    kafka_broker: Any, prefix: str, processes: Any, until: Any, tmp_path: Path
) -> None:
    """The next process sends what the killed one left, under its old ids."""
    kafka = KafkaSettings(brokers=kafka_broker.address, prefix=prefix, partitions=2, replication=1)
    await create_topics(kafka, topic_specs(kafka.topics, sinks=[], partitions=2, replication=1))
    program = tmp_path / "trainer.py"
    program.write_text(TRAINER)
    spool = tmp_path / "spool"
    env = {
        "MLOPS_EVENTS_KAFKA_BROKERS": kafka.brokers,
        "MLOPS_EVENTS_KAFKA_PREFIX": prefix,
        "MLOPS_EVENTS_SPOOL_DIR": str(spool),
        "MLOPS_EVENTS_LINGER_S": "0.2",
    }

    killed = processes.start(sys.executable, program, 0, 10_000_000, env=env)
    await until(lambda: len(killed.stdout().split()) > 5)
    await asyncio.to_thread(kafka_broker.stop)
    await asyncio.sleep(AWAY_S / 2)
    killed.kill()
    kept = int(killed.stdout().split()[-1])
    last = kept + 1_000_000
    assert segments(spool)
    after = processes.start(sys.executable, program, last, last + round(AWAY_S * RATE), env=env)
    await asyncio.sleep(AWAY_S / 2)
    await asyncio.to_thread(kafka_broker.start)
    assert after.wait(within=AWAY_S + 90) == 0
    assert after.stdout().split()[-2:] == ["done", "True"]
    tidy = processes.start(sys.executable, program, last * 2, last * 2 + 2000, env=env)
    await until(lambda: not segments(spool))
    assert tidy.wait() == 0

    frames = await _frames(kafka)
    counts = _indices(frames)
    assert set(counts.values()) == {1}
    missing = [i for i in range(kept) if i not in counts]
    assert missing == []
    assert all(i in counts for i in range(last, last + round(AWAY_S * RATE)))
    emitters = {f.emitter for f in frames if f.kind == "observation"}
    assert len(emitters) == 3
    for emitter in emitters:
        seqs = {f.seq for f in frames if f.kind == "observation" and f.emitter == emitter}
        assert seqs == set(range(len(seqs)))


async def test_a_program_that_ends_during_an_outage_leaves_its_last_frame_too(
    kafka_broker: Any, prefix: str, processes: Any, until: Any, tmp_path: Path
) -> None:
    """Its tail is known once the next process has sent what it left."""
    kafka = KafkaSettings(brokers=kafka_broker.address, prefix=prefix, partitions=2, replication=1)
    await create_topics(kafka, topic_specs(kafka.topics, sinks=[], partitions=2, replication=1))
    await asyncio.to_thread(kafka_broker.stop)
    program = tmp_path / "trainer.py"
    program.write_text(TRAINER.replace("close(30)", "close(1)"))
    spool = tmp_path / "spool"
    env = {
        "MLOPS_EVENTS_KAFKA_BROKERS": kafka.brokers,
        "MLOPS_EVENTS_KAFKA_PREFIX": prefix,
        "MLOPS_EVENTS_SPOOL_DIR": str(spool),
    }
    ended = processes.start(sys.executable, program, 0, 1000, env=env)
    assert ended.wait() == 0
    assert ended.stdout().split()[-2:] == ["done", "False"]
    await asyncio.to_thread(kafka_broker.start)
    following = processes.start(sys.executable, program, 5000, 8000, env=env)
    await until(lambda: not segments(spool))
    assert following.wait() == 0

    frames = await _frames(kafka)
    assert _indices(frames) == Counter([*range(1000), *range(5000, 8000)])
    for emitter in {f.emitter for f in frames}:
        kinds = {f.kind: f for f in frames if f.emitter == emitter and f.end}
        assert set(kinds) == {"run", "observation"}
        assert kinds["observation"].accepted in (1000, 3000)


async def test_a_backlog_is_shown_and_drained_by_hand(
    kafka_broker: Any, prefix: str, processes: Any, until: Any, tmp_path: Path
) -> None:
    """What a killed program left; while the broker is away nothing of it goes."""
    kafka = KafkaSettings(brokers=kafka_broker.address, prefix=prefix, partitions=2, replication=1)
    await create_topics(kafka, topic_specs(kafka.topics, sinks=[], partitions=2, replication=1))
    await asyncio.to_thread(kafka_broker.stop)
    program = tmp_path / "trainer.py"
    program.write_text(TRAINER)
    spool = tmp_path / "spool"
    env = {
        "MLOPS_EVENTS_KAFKA_BROKERS": kafka.brokers,
        "MLOPS_EVENTS_KAFKA_PREFIX": prefix,
        "MLOPS_EVENTS_SPOOL_DIR": str(spool),
        "MLOPS_EVENTS_LINGER_S": "0.2",
    }
    own = (sys.executable, "-m", "mlops_events.producers", "spool")
    trainer = processes.start(sys.executable, program, 0, 10_000_000, env=env)
    await until(lambda: len(trainer.stdout().split()) > 5)
    live = processes.start(*own, "--json", env=env)
    assert await asyncio.to_thread(live.wait) == 0
    trainer.kill()
    await asyncio.to_thread(trainer.wait)
    kept = int(trainer.stdout().split()[-1])

    away = processes.start(*own, spool, "--drain", "--timeout", "1s", env=env)
    assert await asyncio.to_thread(away.wait) == 1
    left = processes.start(*own, "--json", env=env)
    assert await asyncio.to_thread(left.wait) == 1
    await asyncio.to_thread(kafka_broker.start)
    drained = processes.start(*own, "--drain", "--timeout", "60s", env=env)
    assert await asyncio.to_thread(drained.wait, within=90) == 0, drained.stderr()
    counts = _indices(await _frames(kafka))

    assert {one["live"] for one in json.loads(live.stdout())["waiting"]} == {True}
    assert kafka.brokers in away.stderr()
    waiting = json.loads(left.stdout())["waiting"]
    assert {one["live"] for one in waiting} == {False}
    (observed,) = [one["events"] for one in waiting if one["kind"] == "observation"]
    assert observed >= kept
    assert counts == dict.fromkeys(range(observed), 1)
    assert drained.stdout().splitlines()[-1] == f"nothing waits in {spool}"
    assert segments(spool) == []
