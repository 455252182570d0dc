"""The calls of before, through Kafka, the stream and the sinks, into stores: as the guide says."""

import asyncio
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from mlops_events.control.topics import create_topics
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import topic_specs

ROOT = Path(__file__).parents[2]
MINER = ROOT / "examples" / "shims_miner.py"
BACKEND = ROOT / "tests" / "sinks" / "wandb" / "backend.py"
SINKS = ("influxdb", "loki", "wandb")
OWN = (sys.executable, "-m", "mlops_events.control")


class Stores:
    """What has arrived where."""

    def __init__(self, influxdb: Any, victorialogs: Any, wandb_url: str) -> None:
        self._influxdb = influxdb
        self._victorialogs = victorialogs
        self._wandb_url = wandb_url

    def environ(self, folder: Path) -> dict[str, str]:
        """Return the settings of the sinks."""
        influxdb, victorialogs = self._influxdb, self._victorialogs
        return {
            "INFLUXDB_URL": influxdb.url,
            "INFLUXDB_TOKEN": influxdb.token,
            "INFLUXDB_DATABASE": influxdb.database,
            "MLOPS_EVENTS_LOKI_URL": victorialogs.url,
            "MLOPS_EVENTS_LOKI_READY_PATH": victorialogs.ready_path,
            "MLOPS_EVENTS_LOKI_TENANT": victorialogs.tenant,
            "MLOPS_EVENTS_WANDB_BASE_URL": self._wandb_url,
            "MLOPS_EVENTS_WANDB_API_KEY": "0" * 40,
            "MLOPS_EVENTS_WANDB_FOLDER": str(folder / "wandb-sink"),
            "MLOPS_EVENTS_WANDB_VERSION_PREFIX": "both",
        }

    def points(self, measurement: str) -> list[dict[str, Any]]:
        """Return the points of a measurement, oldest first."""
        found: list[dict[str, Any]] = self._influxdb.query(
            f'SELECT * FROM "{measurement}" GROUP BY *'  # noqa: S608 - our own names
        )
        return found

    def lines(self) -> list[dict[str, str]]:
        """Return the miner's lines, oldest first."""
        found: list[dict[str, str]] = self._victorialogs.query(
            '{role="miner",uid="12"} "Completed window" | sort by (_time)'
        )
        return found

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs at W&B."""
        answer = requests.get(f"{self._wandb_url}/test/runs", timeout=30)
        return list(answer.json().values())


@pytest.fixture
async def stores(influxdb: Any, victorialogs: Any, processes: Any, until: Any) -> Stores:
    """Return a real InfluxDB, a real VictoriaLogs, and a stand-in for W&B's backend."""
    backend = processes.start(sys.executable, BACKEND)
    port = await until(lambda: backend.stdout().strip())
    return Stores(influxdb, victorialogs, f"http://127.0.0.1:{port}")


async def test_a_miner_with_the_calls_of_before_is_in_every_store(
    kafka: str, prefix: str, stores: Stores, processes: Any, until: Any, tmp_path: Path
) -> None:
    """docs/migrating.md: measurements, tags, statistics of lists, lines, names of metrics."""
    settings = KafkaSettings(brokers=kafka, prefix=prefix, partitions=2, replication=1)
    specs = topic_specs(settings.topics, sinks=SINKS, partitions=2, replication=1)
    await create_topics(settings, specs)
    env = {
        "MLOPS_EVENTS_KAFKA_BROKERS": kafka,
        "MLOPS_EVENTS_KAFKA_PREFIX": prefix,
        "MLOPS_EVENTS_STREAM_SINKS": ",".join(SINKS),
        "MLOPS_EVENTS_STREAM_LATENESS_S": "1",
        **stores.environ(tmp_path),
    }
    services = [processes.start(*OWN, "stream", env=env)]
    services += [processes.start(*OWN, "sink", name, env=env) for name in SINKS]
    miner = processes.start(
        sys.executable,
        MINER,
        env={
            "MLOPS_EVENTS_KAFKA_BROKERS": kafka,
            "MLOPS_EVENTS_KAFKA_PREFIX": prefix,
            "MLOPS_EVENTS_RUN_ID": "subnet-3",
        },
    )
    assert await asyncio.to_thread(miner.wait, within=90) == 0, miner.stderr()

    def arrived() -> bool:
        for service in services:
            assert service.poll() is None, service.stderr()
        windows = stores.points("Mtraining_step_10s")
        return (
            len(stores.points("Mtraining_step")) == len(stores.lines()) == 5
            and sum(window["batch_losses_count"] for window in windows) == 50
            and all(window["batch_losses_final"] for window in windows)
            and [len(run["history"]) for run in stores.runs()] == [10]
        )

    await until(arrived, within=180, every=0.5)
    points = stores.points("Mtraining_step")
    lines = stores.lines()
    (run,) = stores.runs()
    rows, calls = run["history"][1::2], run["history"][::2]

    # InfluxDB: the point of each call, its tags, and the statistics of its list
    assert [(point["window"], point["global_step"]) for point in points] == [
        (n, 10 * n + 10) for n in range(5)
    ]
    who = {"run": "subnet-3", "role": "miner", "uid": "12", "version": "1.4.0", "group": "miner"}
    assert all(point.items() >= who.items() for point in points)
    for point, row in zip(points, rows, strict=True):
        losses = row["latest/Mtraining_step/batch_losses"]
        assert len(losses) == 10
        assert point["batch_losses_min"] == min(losses)
        assert point["batch_losses_max"] == max(losses)
        assert point["batch_losses_mean"] == pytest.approx(statistics.fmean(losses))
        assert point["batch_losses_median"] == pytest.approx(statistics.median(losses))
    assert len(stores.points("metrics")) == 5

    # Loki: the same lines, with the labels that the guide names
    assert [json.loads(line["_msg"]) for line in lines] == [
        {"message": f"Completed window {n}", "window": n, "loss": point["loss"]}
        for n, point in enumerate(points)
    ]
    assert [(line["level"], line["role"], line["version"]) for line in lines] == [
        ("info", "miner", "1.4.0")
    ] * 5

    # W&B: the keys of before, below the version and below `latest`; the configuration once
    assert [call["v1.4.0/miner/loss"] for call in calls] == [point["loss"] for point in points]
    assert [call["latest/miner/window"] for call in calls] == list(range(5))
    assert [row["v1.4.0/Mtraining_step/loss"] for row in rows] == [p["loss"] for p in points]
    assert [row["global_step"] for row in rows] == [10, 20, 30, 40, 50]
    assert (run["displayName"], run["groupName"], run["jobType"]) == ("M12", "miner", "mining")
    assert run["config"]["windows"] == 5
    assert (run["config"]["current_version"], run["gaps"], run["changed"]) == ("1.4.0", 0, 0)
