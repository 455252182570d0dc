"""The wandb sink as a process on a real Kafka, against a stand-in for W&B's backend."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import requests
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from mlops_events.schemas import Origin
from mlops_events.schemas.frame import FrameEncoder, Free
from mlops_events.schemas.topics import Topics, raw_headers, topic_specs, wandb_key
from mlops_events.schemas.values import ENCODER

BACKEND = Path(__file__).parents[1] / "sinks" / "wandb" / "backend.py"
KILLS = int(os.environ.get("PYTEST_WANDB_KILLS", "3"))
NODES = 4
SINK = """
import logging, sys
from mlops_events.sinks.service import run_sink

logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")
logging.getLogger("aiokafka").setLevel("CRITICAL")
if __name__ == "__main__":
    sys.exit(run_sink("wandb"))
"""


class Lab:
    """Nodes whose frames lie in the sink's topic, the sink's process, and the backend."""

    def __init__(self, address: str, prefix: str, url: str, folder: Path, processes: Any) -> None:
        self.url = url
        self.sent = dict.fromkeys(range(NODES), 0)
        self.producer: Any = None
        self._address = address
        self._prefix = prefix
        self._folder = folder
        self._processes = processes
        self._emitters = {uid: os.urandom(16) for uid in range(NODES)}
        self._seq = 0

    async def open(self) -> None:
        """Create the topics and connect a producer."""
        specs = topic_specs(Topics(self._prefix), sinks=["wandb"], partitions=2, replication=1)
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        try:
            await admin.create_topics(
                [
                    NewTopic(s.name, s.partitions, s.replication, topic_configs=s.config)
                    for s in specs
                ]
            )
        finally:
            await admin.close()
        self.producer = AIOKafkaProducer(bootstrap_servers=self._address, acks="all")
        await self.producer.start()

    def start(self, **environ: str) -> Any:
        """Start the sink."""
        script = self._folder / "sink.py"
        script.write_text(SINK)
        return self._processes.start(
            sys.executable,
            script,
            env={
                "MLOPS_EVENTS_KAFKA_BROKERS": self._address,
                "MLOPS_EVENTS_KAFKA_PREFIX": self._prefix,
                "MLOPS_EVENTS_SINK_MAX_AGE_S": "0.2",
                "MLOPS_EVENTS_SINK_INSTANCE_ID": "one",
                "MLOPS_EVENTS_WANDB_BASE_URL": self.url,
                "MLOPS_EVENTS_WANDB_API_KEY": "0" * 40,
                "MLOPS_EVENTS_WANDB_FOLDER": str(self._folder / "wandb-sink"),
                "MLOPS_EVENTS_WANDB_TRANSMIT_S": "1",
                **environ,
            },
        )

    async def send(self, events: int = 5) -> None:
        """Send a frame of each node; the loss of an event is its number."""
        for uid, emitter in self._emitters.items():
            origin = Origin(run="r", role="miner", uid=uid, version="1.0")
            numbers = range(self.sent[uid], self.sent[uid] + events)
            value = FrameEncoder(emitter=emitter, kind="observation", origin=origin).encode(
                [ENCODER.encode(Free(time.time_ns(), n, "t", {"loss": n})) for n in numbers],
                seq=self._seq,
                closed_ns=time.time_ns(),
                accepted=self.sent[uid] + events,
                dropped=0,
            )
            headers = raw_headers(
                origin, kind="observation", emitter=emitter, seq=self._seq, count=events
            )
            topic = Topics(self._prefix).sink("wandb")
            await self.producer.send_and_wait(topic, value, key=wandb_key(origin), headers=headers)
            self.sent[uid] += events
        self._seq += 1

    async def runs(self) -> dict[int, list[int]]:
        """Return what the backend holds of each node, in the order of the steps."""
        found = await asyncio.to_thread(requests.get, f"{self.url}/test/runs", timeout=30)
        return {
            int(run["config"]["mlops_events"]["uid"]): [row["t/loss"] for row in run["history"]]
            for run in found.json().values()
        }

    async def is_there(self) -> bool:
        """Whether everything that was sent is there."""
        runs = await self.runs()
        return all(len(runs.get(uid, ())) >= count for uid, count in self.sent.items())

    def set(self, **knobs: Any) -> None:
        """Turn knobs of the backend."""
        requests.post(f"{self.url}/test/set", json=knobs, timeout=30).raise_for_status()


@pytest.fixture
async def lab(
    kafka: str, prefix: str, tmp_path: Path, processes: Any, until: Any
) -> AsyncIterator[Lab]:
    """Return topics, a backend, and nothing that reads yet."""
    program = processes.start(sys.executable, BACKEND)
    port = await until(lambda: program.stdout().strip())
    lab = Lab(kafka, prefix, f"http://127.0.0.1:{port}", tmp_path, processes)
    await lab.open()
    yield lab
    await lab.producer.stop()


async def test_a_sink_that_is_killed_in_its_batches_loses_and_doubles_nothing(
    lab: Lab, until: Any
) -> None:
    """kill -9 while rows are on their way: each is a row of its run once (row 24)."""
    await lab.send()
    sink = lab.start()
    await until(lab.is_there)
    for kill in range(KILLS):
        for _ in range(10):
            await lab.send()
            await asyncio.sleep(0.15)
        before = sum(map(len, (await lab.runs()).values()))
        await asyncio.sleep(0.4 * (kill % 4))
        sink.kill()
        await lab.send()
        sink = lab.start()

        async def moved(before: int = before) -> bool:
            return sum(map(len, (await lab.runs()).values())) > before

        await until(moved)
    await until(lab.is_there)
    sink.signal(signal.SIGTERM)

    assert await asyncio.to_thread(sink.wait, within=40) == 0
    assert await lab.runs() == {uid: list(range(count)) for uid, count in lab.sent.items()}
    found = (await asyncio.to_thread(requests.get, f"{lab.url}/test/runs", timeout=30)).json()
    assert [(r["changed"], r["gaps"]) for r in found.values()] == [(0, 0)] * NODES


async def test_an_outage_under_load_heals(lab: Lab, until: Any) -> None:
    """The process stays, and goes on with the same batch; every event is there once."""
    await lab.send()
    sink = lab.start(MLOPS_EVENTS_WANDB_CONFIRM_S="3", MLOPS_EVENTS_WANDB_TIMEOUT_S="3")
    await until(lab.is_there)
    lab.set(down=True)
    for _ in range(5):
        await lab.send()
    await until(lambda: "the sink is unavailable" in sink.stderr())
    lab.set(down=False)
    await lab.send()
    await until(lab.is_there)

    assert sink.poll() is None
    assert await lab.runs() == {uid: list(range(count)) for uid, count in lab.sent.items()}
