"""Whether a stream worker's memory stays level: so many series at a steady load, for ten minutes.

python benchmarks/stream_memory.py [--minutes 10] [--series 100000] [--brokers HOST:PORT]

Every series has a sample each ten seconds; a thousand emitters send a frame every five. The worker is
a process on a real Apache Kafka, which is started unless there is one. Prints its resident memory every
half minute. Level means: the last third is at most a tenth above the second one.
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

import psutil
from aiokafka import AIOKafkaProducer

from mlops_events.control.topics import create_topics
from mlops_events.schemas.events import Origin
from mlops_events.schemas.frame import FrameEncoder, Row, Series
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import origin_key, raw_headers, topic_specs
from mlops_events.schemas.values import ENCODER

ROOT = Path(__file__).parents[1]
EMITTERS = 1_000
FIELDS = 10
EVERY_S = 5.0
LIMIT = 1.1


class Node:
    """An emitter with some names of ten fields each; half of the names are in each frame."""

    def __init__(self, uid: int, names: int) -> None:
        self.origin = Origin(run="memory", role="miner", uid=uid, version="1.0.0")
        self.id = secrets.token_bytes(16)
        self._encoder = FrameEncoder(emitter=self.id, kind="observation", origin=self.origin)
        self._series = [
            Series(k, f"name_{k}", [f"field_{i}" for i in range(FIELDS)]) for k in range(names)
        ]
        self.seq = 0
        self._accepted = 0

    def frame(self) -> tuple[bytes, int]:
        """Return the next frame and how many events are in it."""
        now = time.time_ns()
        series = self._series[self.seq % 2 :: 2] or self._series
        rows = [
            ENCODER.encode(Row(one.sid, now, self.seq, [now % 7 / 7] * FIELDS)) for one in series
        ]
        self._accepted += len(rows)
        value = self._encoder.encode(
            rows,
            seq=self.seq,
            closed_ns=now,
            accepted=self._accepted,
            dropped=0,
            series=series,
        )
        self.seq += 1
        return value, len(rows)


async def load(kafka: KafkaSettings, series: int, until: float) -> int:
    """Send frames at a steady pace; return the number of events."""
    nodes = [Node(uid, max(1, series // EMITTERS // FIELDS)) for uid in range(EMITTERS)]
    producer = AIOKafkaProducer(**kafka.client_options(), compression_type="zstd")
    await producer.start()
    events, turn, start = 0, 0, time.monotonic()
    try:
        while time.monotonic() < until:
            node = nodes[turn % EMITTERS]
            value, count = node.frame()
            events += count
            headers = raw_headers(
                node.origin, kind="observation", emitter=node.id, seq=node.seq - 1, count=count
            )
            await producer.send(
                kafka.topics.raw("observation"),
                value,
                key=origin_key(node.origin),
                headers=headers,
            )
            turn += 1
            ahead = start + turn * EVERY_S / EMITTERS - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)
    finally:
        await producer.stop()
    return events


async def watch(process: psutil.Process, until: float) -> list[int]:
    """Return the resident memory in MiB, every half minute."""
    found: list[int] = []
    while time.monotonic() < until:
        await asyncio.sleep(30)
        found.append(process.memory_info().rss >> 20)
        print(f"{len(found) * 0.5:5.1f} min  {found[-1]} MiB", flush=True)
    return found


def start_worker(kafka: KafkaSettings) -> "subprocess.Popen[bytes]":
    """Start a stream worker."""
    return subprocess.Popen(
        [sys.executable, "-m", "mlops_events.control", "stream"],
        env={
            **os.environ,
            "MLOPS_EVENTS_KAFKA_BROKERS": kafka.brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": kafka.prefix,
        },
        stderr=subprocess.DEVNULL,
    )


async def measure(kafka: KafkaSettings, series: int, minutes: float) -> dict[str, object]:
    """Run the worker under load and return the figures."""
    await create_topics(
        kafka, topic_specs(kafka.topics, sinks=["sqlite"], partitions=6, replication=1)
    )
    worker = start_worker(kafka)
    until = time.monotonic() + minutes * 60
    try:
        process = psutil.Process(worker.pid)
        events, memory = await asyncio.gather(load(kafka, series, until), watch(process, until))
        cpu = process.cpu_times()
    finally:
        worker.terminate()
        await asyncio.to_thread(worker.wait)
    third = max(1, len(memory) // 3)
    before, after = (
        statistics.mean(memory[third : 2 * third] or memory),
        statistics.mean(memory[-third:]),
    )
    return {
        "series": series,
        "minutes": minutes,
        "events_per_s": round(events / minutes / 60),
        "memory_mib": memory,
        "second_third_mib": round(before),
        "last_third_mib": round(after),
        "ratio": round(after / before, 3),
        "limit": LIMIT,
        "worker_cores": round((cpu.user + cpu.system) / minutes / 60, 2),
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
    """Measure, print and store; 1 if memory grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", default="")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--series", type=int, default=100_000)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with broker(options.brokers) as address:
        kafka = KafkaSettings(
            brokers=address,
            prefix=f"bench.{secrets.token_hex(4)}",
            partitions=6,
            replication=1,
        )
        result = asyncio.run(measure(kafka, options.series, options.minutes))
    folder = Path(__file__).parent / "results"
    (folder / "stream_memory.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return int(float(str(result["ratio"])) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
