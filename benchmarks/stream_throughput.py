"""Events a second of one stream worker, beside a bare aiokafka loop that does the same.

python benchmarks/stream_throughput.py [--brokers HOST:PORT] [--rounds 3] [--events 1 5 20 100]

Both read the same topic of frames, fold it with the same steps and produce the same outputs to the
same topics. The clock starts when both have what they need, the bare loop with its first records, the
worker with its partitions; it stops when every output is acknowledged. What differs is the worker
around it: Faust, the guard against holes, checkpoints and commits. They take turns; a ratio is that of
the medians. With --pair two workers, processes of one group, share the partitions; they are timed by
their outputs, from the first to the last. On two cores they and the broker share what there is.
Without --brokers a real Apache Kafka is started (Java 17 and Maven) and stopped again.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from mlops_events.control.topics import create_topics
from mlops_events.schemas.events import Origin
from mlops_events.schemas.frame import FrameEncoder, Row, Series
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import origin_key, raw_headers, topic_specs
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.app import build_app
from mlops_events.streams.clients import count_partitions, make_producer, place_keys
from mlops_events.streams.logreader import TopicPartition as Place
from mlops_events.streams.offsets import InOrderCommits
from mlops_events.streams.outbox import Outbox
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState
from mlops_events.streams.worker import Worker

LIMIT = 0.7
ROOT = Path(__file__).parents[1]
PARTITIONS = 6
NODES = 24
FIELDS = [f"field_{i}" for i in range(12)]
RECORDS = {1: 60_000, 5: 40_000, 20: 20_000, 100: 6_000}
SLICE = 100


async def fill(kafka: KafkaSettings, events: int, records: int) -> int:
    """Write frames of so many events from many nodes; return the number of events."""
    start = time.time_ns() - 600 * 10**9
    producer = AIOKafkaProducer(
        **kafka.client_options(), acks="all", compression_type="zstd", max_batch_size=256 << 10
    )
    await producer.start()
    nodes = []
    for uid in range(NODES):
        origin = Origin(run="bench", role="miner", uid=uid, version="1.0.0")
        name = secrets.token_bytes(16)
        nodes.append((origin, name, FrameEncoder(emitter=name, kind="observation", origin=origin)))
    series = [Series(0, "training", FIELDS, {"phase": "train", "device": "cuda:0"})]
    values = [i / 7 for i in range(len(FIELDS))]
    for k in range(records):
        origin, name, encoder = nodes[k % NODES]
        seq = k // NODES
        ts = start + seq * events * 20_000_000
        rows = [
            ENCODER.encode(Row(0, ts + i * 20_000_000, seq * events + i, values))
            for i in range(events)
        ]
        value = encoder.encode(
            rows,
            seq=seq,
            closed_ns=ts + events * 20_000_000,
            accepted=(seq + 1) * events,
            dropped=0,
            series=series,
        )
        await producer.send(
            kafka.topics.raw("observation"),
            value,
            key=origin_key(origin),
            headers=raw_headers(origin, kind="observation", emitter=name, seq=seq, count=events),
        )
    await producer.stop()
    return records * events


async def ends(kafka: KafkaSettings) -> dict[int, int]:
    """Return where the partitions end."""
    consumer = AIOKafkaConsumer(**kafka.client_options())
    await consumer.start()
    try:
        topic = kafka.topics.raw("observation")
        found = await consumer.end_offsets([TopicPartition(topic, p) for p in range(PARTITIONS)])
        return {tp.partition: end for tp, end in found.items()}
    finally:
        await consumer.stop()


async def bare(kafka: KafkaSettings, until: dict[int, int]) -> float:
    """Do it with aiokafka alone; return the seconds it took."""
    settings = StreamSettings()
    topics = kafka.topics
    producer = make_producer(kafka)
    await producer.start()
    places = place_keys(
        await count_partitions(
            producer, [*topics.raws, topics.sink("sqlite"), topics.stats, topics.dead_letters]
        )
    )
    outbox = Outbox(producer)
    sending = asyncio.create_task(outbox.run())
    consumer = AIOKafkaConsumer(**kafka.client_options(), enable_auto_commit=False)
    await consumer.start()
    topic = topics.raw("observation")
    consumer.assign([TopicPartition(topic, p) for p in until])
    await consumer.seek_to_beginning()
    states = {
        p: PartitionState(settings, topics=topics, kind="observation", partition=p) for p in until
    }
    commits = {p: InOrderCommits(0) for p in until}
    began = 0.0
    try:
        while any(commits[p].done < end for p, end in until.items()):
            polled = await consumer.getmany(timeout_ms=20, max_records=8000)
            began = began or (time.perf_counter() if polled else 0.0)
            for tp, records in polled.items():
                for k in range(0, len(records), SLICE):
                    run = records[k : k + SLICE]
                    ticket = commits[tp.partition].open(run[-1].offset + 1)
                    for record in run:
                        for output in states[tp.partition].fold(
                            record.offset, record.timestamp, record.value
                        ):
                            outbox.put(
                                places(output.topic, output.key),
                                key=output.key,
                                value=output.value,
                                headers=output.headers,
                                ticket=ticket,
                            )
                    ticket.acknowledge()
                    await asyncio.sleep(0)
                    while outbox.full:
                        await outbox.moved()
        return time.perf_counter() - began
    finally:
        sending.cancel()
        await consumer.stop()
        await producer.stop()


async def ready(worker: Worker) -> None:
    """Wait until the worker has its partitions and what is known of them."""
    # Nobody else needs to know the parts, and no event tells of them.
    while not (worker.ready and worker._parts):  # noqa: SLF001, ASYNC110
        await asyncio.sleep(0.001)


def done(worker: Worker, place: Place) -> int:
    """Return below which offset everything is acknowledged."""
    part = worker._parts.get(place)  # noqa: SLF001 - as above
    return 0 if part is None else part.commits.done


async def with_faust(kafka: KafkaSettings, until: dict[int, int]) -> float:
    """Do it with the worker as it is; return the seconds it took."""
    app = build_app(StreamSettings(group=f"bench-{secrets.token_hex(4)}"), kafka)
    worker = await app.open()
    topic = kafka.topics.raw("observation")
    running = [asyncio.create_task(worker.run()), asyncio.create_task(app.start())]
    try:
        await asyncio.wait_for(ready(worker), 60)
        began = time.perf_counter()
        while any(  # noqa: ASYNC110
            done(worker, Place(topic, p)) < end for p, end in until.items()
        ):
            await asyncio.sleep(0.01)
        return time.perf_counter() - began
    finally:
        await worker.drain(within_s=10)
        running[0].cancel()
        await app.stop()
        await app.close()


async def count_records(consumer: Any, places: list[TopicPartition]) -> int:
    """Return how many records the partitions hold."""
    return sum((await consumer.end_offsets(places)).values())


def start_pair(kafka: KafkaSettings) -> "list[subprocess.Popen[bytes]]":
    """Start two workers of a fresh group."""
    environment = {
        **os.environ,
        "MLOPS_EVENTS_KAFKA_BROKERS": kafka.brokers,
        "MLOPS_EVENTS_KAFKA_PREFIX": kafka.prefix,
        "MLOPS_EVENTS_STREAM_GROUP": f"bench.{secrets.token_hex(4)}",
    }
    return [
        subprocess.Popen(
            [sys.executable, "-m", "mlops_events.control", "stream"],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]


async def with_pair(kafka: KafkaSettings, frames: int) -> float:
    """Do it with two worker processes of one group; return the seconds it took."""
    consumer = AIOKafkaConsumer(**kafka.client_options(), enable_auto_commit=False)
    await consumer.start()
    places = [TopicPartition(kafka.topics.sink("sqlite"), p) for p in range(PARTITIONS)]
    stats = [TopicPartition(kafka.topics.stats, p) for p in range(PARTITIONS)]
    before = await count_records(consumer, places)
    told = await count_records(consumer, stats)
    workers = start_pair(kafka)
    try:
        began = 0.0
        while True:
            now = await count_records(consumer, places) - before
            began = began or (time.perf_counter() if now else 0.0)
            done_stats = await count_records(consumer, stats) - told
            if now - done_stats >= frames:  # the rest in the sink's topic are Stats
                return time.perf_counter() - began
            if any(worker.poll() is not None for worker in workers):
                raise SystemExit("a worker ended; run mlops-pipeline stream to see why")
            await asyncio.sleep(0.02)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            await asyncio.to_thread(worker.wait)
        await consumer.stop()


async def measure(kafka: KafkaSettings, events: int, rounds: int, *, pair: bool) -> dict[str, Any]:
    """Measure one size of frames."""
    specs = topic_specs(kafka.topics, sinks=["sqlite"], partitions=PARTITIONS, replication=1)
    await create_topics(kafka, specs)
    total = await fill(kafka, events, RECORDS[events])
    until = await ends(kafka)
    rates: dict[str, list[float]] = {"bare": [], "worker": []}
    for _ in range(rounds):
        rates["bare"].append(total / await bare(kafka, until))
        rates["worker"].append(total / await with_faust(kafka, until))
        if pair:
            seconds = await with_pair(kafka, RECORDS[events])
            rates.setdefault("pair", []).append(total / seconds)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return {
        "events_per_frame": events,
        "frames": RECORDS[events],
        "bare_events_per_s": round(medians["bare"]),
        "worker_events_per_s": round(medians["worker"]),
        "ratio": round(medians["worker"] / medians["bare"], 2),
        "ratios": [round(w / b, 2) for w, b in zip(rates["worker"], rates["bare"], strict=True)],
        **({"pair_ratio": round(medians["pair"] / medians["bare"], 2)} if pair else {}),
    }


@contextlib.contextmanager
def broker(brokers: str) -> Iterator[str]:
    """Start a Kafka unless there is one."""
    if brokers:
        yield brokers
        return
    script = str(ROOT / "tests" / "services" / "kafka.sh")
    folder = tempfile.mkdtemp(prefix="mlops-events-bench-")
    port = 20_000 + os.getpid() % 10_000
    try:
        subprocess.run(["bash", script, "start", folder, str(port)], check=True)  # noqa: S607
        yield f"127.0.0.1:{port}"
    finally:
        subprocess.run(["bash", script, "stop", folder], check=False)  # noqa: S607
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, nargs="+", choices=RECORDS, default=list(RECORDS))
    parser.add_argument("--pair", action="store_true", help="two workers, too")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    found = []
    with broker(arguments.brokers) as address:
        for events in arguments.events:
            kafka = KafkaSettings(
                brokers=address,
                prefix=f"bench.{secrets.token_hex(4)}",
                partitions=PARTITIONS,
                replication=1,
            )
            result = asyncio.run(measure(kafka, events, arguments.rounds, pair=arguments.pair))
            found.append(result)
            print(
                f"{events:4} events a frame: bare {result['bare_events_per_s']:9,}/s, "
                f"worker {result['worker_events_per_s']:9,}/s, ratio {result['ratio']:.2f} "
                f"(rounds {result['ratios']}), target {LIMIT}"
                + (f"; a pair of workers {result['pair_ratio']:.2f}" if arguments.pair else ""),
                flush=True,
            )
    results = {"limit": LIMIT, "python": sys.version.split()[0], "sizes": found}
    path = Path(__file__).parent / "results" / "stream_throughput.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    return int(any(result["ratio"] < LIMIT for result in found))


if __name__ == "__main__":
    sys.exit(main())
