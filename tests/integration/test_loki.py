"""The loki sink on a real VictoriaLogs, which speaks Loki's push API, and behind a real Kafka."""

import asyncio
import os
import sys
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from mlops_events.control.topics import create_topics
from mlops_events.schemas.events import Log, Origin
from mlops_events.schemas.frame import FrameEncoder
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import origin_key, raw_headers, topic_specs
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import Batch, Rejected, SinkUnavailable
from mlops_events.sinks.loki import LokiSink
from mlops_events.sinks.loki_settings import LokiSettings
from mlops_events.sinks.testing import frame_record

NS = 1_000_000_000
KILLS = int(os.environ.get("MLOPS_EVENTS_TEST_KILLS", "3"))


def settings(victorialogs: Any, **more: Any) -> LokiSettings:
    """Return the settings for a test's tenant."""
    return LokiSettings(
        **{
            "url": victorialogs.url,
            "ready_path": victorialogs.ready_path,
            "tenant": victorialogs.tenant,
            **more,
        }
    )


def logs(count: int, *, start: int = 0) -> list[Log]:
    """Return lines of the last seconds."""
    now = time.time_ns() - NS
    return [
        Log(ts=now + k * 1000, level="info", message=f"line {k}")
        for k in range(start, start + count)
    ]


async def write(sink: LokiSink, *events: Log, **where: Any) -> list[Rejected]:
    """Write lines of one frame."""
    await sink.open()
    return list(await sink.write(Batch([frame_record(events, kind="log", **where)])))


def messages(victorialogs: Any) -> list[str]:
    """Return the messages that are stored, in the order of time."""
    return [row["_msg"] for row in victorialogs.query("* | sort by (_time)")]


async def test_lines_are_found_by_label_and_metadata(victorialogs: Any) -> None:
    """As people ask for them: role, level, run, version, and the time to the nanosecond."""
    sink = LokiSink(settings(victorialogs))
    await sink.check()
    ts = time.time_ns() - NS
    origin = Origin(run="llama", role="miner", uid=7, version="1.2.3", environment="prod")
    event = Log(
        ts=ts,
        level="error",
        message="peer is slow",
        fields={"peer": 12},
        step=3,
        trace_id="ab" * 16,
    )
    assert await write(sink, event, origin=origin) == []
    await sink.close()

    (row,) = victorialogs.query('{role="miner",level="error",env="prod",uid="7"} run:=llama')
    assert row["_msg"] == '{"message":"peer is slow","peer":12}'
    assert (row["version"], row["step"], row["trace_id"]) == ("1.2.3", "3", "ab" * 16)
    assert row["_time"].rstrip("Z").endswith(f"{ts % NS:09d}".rstrip("0"))


async def test_a_large_batch_arrives_whole(victorialogs: Any) -> None:
    """5,000 lines in several requests."""
    sink = LokiSink(settings(victorialogs))
    events = logs(4_000)
    assert await write(sink, *events) == []
    await sink.close()

    found = victorialogs.query("* | stats count() n, count_uniq(id) ids")
    assert (found[0]["n"], found[0]["ids"]) == ("4000", "4000")


async def test_a_server_that_was_stopped_has_every_line_once_it_is_back(victorialogs: Any) -> None:
    """Meanwhile the batch is kept and the reason told."""
    sink = LokiSink(settings(victorialogs))
    await write(sink, *logs(10))
    victorialogs.stop()
    with pytest.raises(SinkUnavailable, match="no answer"):
        await write(sink, *logs(10, start=10), seq=1, offset=1)
    victorialogs.start()
    await write(sink, *logs(10, start=10), seq=1, offset=1)
    await sink.close()

    assert sorted(messages(victorialogs)) == sorted(f"line {k}" for k in range(20))


async def test_a_server_that_hangs_is_left_after_the_timeout(victorialogs: Any) -> None:
    """It takes connections and never answers; the lines come again when it does."""
    sink = LokiSink(settings(victorialogs, timeout_s=1.0))
    events = logs(10)
    victorialogs.freeze()
    with pytest.raises(SinkUnavailable, match="no answer"):
        await write(sink, *events)
    victorialogs.thaw()
    await write(sink, *events)
    await sink.close()

    found = victorialogs.query("* | stats count_uniq(id) ids")
    assert found[0]["ids"] == "10"


async def test_a_server_without_room_keeps_the_batch(victorialogs: Any) -> None:
    """It answers 429 to every push while it is read-only."""
    victorialogs.stop()
    victorialogs.start(VICTORIALOGS_FLAGS="-storage.minFreeDiskSpaceBytes=900GiB")
    sink = LokiSink(settings(victorialogs))
    with pytest.raises(SinkUnavailable, match="answered 429"):
        await write(sink, *logs(1))
    await sink.close()


async def test_a_wrong_path_is_told(victorialogs: Any) -> None:
    """VictoriaLogs wants /insert before the path of the push."""
    sink = LokiSink(settings(victorialogs, url=victorialogs.url.removesuffix("/insert")))
    with pytest.raises(SinkUnavailable):
        await sink.check()


async def test_kill_9_of_the_sink_loses_nothing(
    kafka: str, prefix: str, victorialogs: Any, processes: Any, until: Any
) -> None:
    """Killed in the middle of batches, each line is stored at least once."""
    found = KafkaSettings(brokers=kafka, prefix=prefix, partitions=2, replication=1)
    await create_topics(
        found, topic_specs(found.topics, sinks=["loki"], partitions=2, replication=1)
    )
    env = {
        "MLOPS_EVENTS_KAFKA_BROKERS": kafka,
        "MLOPS_EVENTS_KAFKA_PREFIX": prefix,
        "MLOPS_EVENTS_LOKI_URL": victorialogs.url,
        "MLOPS_EVENTS_LOKI_READY_PATH": victorialogs.ready_path,
        "MLOPS_EVENTS_LOKI_TENANT": victorialogs.tenant,
        "MLOPS_EVENTS_SINK_MAX_EVENTS": "50",
        "MLOPS_EVENTS_SINK_INSTANCE_ID": "loki-1",
    }
    command = (sys.executable, "-m", "mlops_events.control", "sink", "loki")
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    sent = 0
    encoders = [
        FrameEncoder(emitter=bytes([n]) * 16, kind="log", origin=Origin(role="miner", uid=n))
        for n in range(4)
    ]
    try:
        for seq in range(KILLS * 20 + 40):
            for n, encoder in enumerate(encoders):
                origin = Origin(role="miner", uid=n)
                events = [
                    ENCODER.encode(Log(ts=time.time_ns(), level="info", message=f"{n}/{seq}/{k}"))
                    for k in range(10)
                ]
                value = encoder.encode(
                    events, seq=seq, closed_ns=time.time_ns(), accepted=(seq + 1) * 10, dropped=0
                )
                await producer.send_and_wait(
                    found.topics.sink("loki"),
                    value=value,
                    key=origin_key(origin),
                    headers=raw_headers(
                        origin, kind="log", emitter=bytes([n]) * 16, seq=seq, count=10
                    ),
                )
                sent += 10
    finally:
        await producer.stop()

    def ids() -> int:
        rows = victorialogs.query("* | stats count_uniq(id) ids")
        return int(rows[0]["ids"]) if rows else 0

    for kill in range(KILLS):
        process = processes.start(*command, env=env)
        goal = min(sent, ids() + 200 + 10 * kill)
        await until(lambda goal=goal: ids() >= goal)
        process.kill()
    last = processes.start(*command, env=env)
    await until(lambda: ids() == sent)
    last.signal(15)
    assert await asyncio.to_thread(last.wait) == 0

    rows = victorialogs.query("* | fields _msg, id")
    assert len({row["_msg"] for row in rows}) == sent
    assert len(rows) < sent + (KILLS + 1) * 200, "more than batches in hand came twice"
