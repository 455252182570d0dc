"""Fixtures of the wandb sink's tests: a backend that stands in for W&B's, sinks, and records.

backend      a Backend: .url, .runs(), .counts(), .set(...), .fault(run, ...), .delete(run)
new_sink     new_sink(**settings) -> WandbSink for that backend; closed with the test
records      records(*rows, ...) -> a FrameRecord at the next offset of one node's partition
run_files    run_files(folder, run_id) -> what wandb's own files of a run hold, row by row
"""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from mlops_events.schemas.events import Origin
from mlops_events.schemas.frame import Free
from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import FrameRecord
from mlops_events.sinks.testing import frame_record
from mlops_events.sinks.wandb import WandbSettings, WandbSink
from mlops_events.sinks.wandb_files import RunFile

PROGRAM = Path(__file__).with_name("backend.py")
KEY = "0" * 40
TS = 1_700_000_000_000_000_000


class Backend:
    """The stand-in for W&B's backend, in a process of its own."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def runs(self) -> dict[str, Any]:
        """Return all runs, each with its history."""
        return self._get("runs")

    def rows(self, run_id: str) -> list[dict[str, Any]]:
        """Return the history of a run."""
        found = self.runs().get(run_id)
        return found["history"] if found else []

    def counts(self) -> dict[str, int]:
        """Return how often what was asked for."""
        return self._get("counts")

    def set(self, **knobs: Any) -> None:
        """Turn knobs for all runs."""
        self._post("set", knobs)

    def fault(self, run_id: str, **fault: Any) -> None:
        """Answer the uploads of one run in another way; without arguments as usual."""
        self._post(f"fault/{run_id}", fault)

    def delete(self, run_id: str) -> None:
        """Delete a run."""
        self._post(f"delete/{run_id}", {})

    def _get(self, what: str) -> Any:
        return requests.get(f"{self.url}/test/{what}", timeout=30).json()

    def _post(self, what: str, value: Any) -> None:
        requests.post(f"{self.url}/test/{what}", json=value, timeout=30).raise_for_status()


@pytest.fixture
def backend(processes: Any, until: Any) -> Backend:
    """Start a backend for this test alone."""
    process = processes.start(sys.executable, PROGRAM)
    return Backend(int(until.sync(lambda: process.stdout().strip())))


@pytest.fixture
async def new_sink(backend: Backend, tmp_path: Path) -> AsyncIterator[Callable[..., WandbSink]]:
    """Return a function that makes sinks for the backend."""
    sinks: list[WandbSink] = []

    def make(**settings: Any) -> WandbSink:
        defaults: dict[str, Any] = {
            "base_url": backend.url,
            "api_key": Secret(KEY),
            "folder": tmp_path / "wandb-sink",
            "transmit_s": 1,
        }
        sinks.append(WandbSink(WandbSettings(**{**defaults, **settings})))
        return sinks[-1]

    yield make
    for sink in sinks:
        await asyncio.wait_for(sink.close(), 60)


@pytest.fixture
def records() -> Callable[..., FrameRecord]:
    """Return a function that makes records of one partition, each at the next offset."""
    offsets = iter(range(10**9))

    def make(*fields: dict[str, Any], uid: int | str = 7, **where: Any) -> FrameRecord:
        number = next(offsets)
        origin = Origin(run="llama", role="miner", uid=uid, version="1.2.3")
        events = [Free(TS + number, number, "training", values) for values in fields]
        return frame_record(events, **{"origin": origin, "offset": number, "seq": number, **where})

    return make


@pytest.fixture
def run_files() -> Callable[[Path, str], list[RunFile]]:
    """Return a function that reads wandb's files of a run; `.lines`, `.config`, and `.all_rows`."""

    def read(folder: Path, run_id: str) -> list[Any]:
        paths = sorted(folder.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))
        return [RunFile(path) for path in paths]

    return read


@pytest.fixture(autouse=True)
def _no_wandb_outlives_a_test(until: Any) -> Iterator[None]:
    """See that wandb's process ends with the test."""
    yield
    until.sync(lambda: not _cores(), within=20)
    until.sync(lambda: not any(t.name == "NetStatThr" for t in threading.enumerate()), within=30)
    for thing in gc.get_objects():  # wandb does not ask how a process ended that was killed
        if isinstance(thing, subprocess.Popen) and "wandb" in str(thing.args):
            thing.wait(20)


def _cores() -> list[str]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "wandb" in child.name() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.name())
        except psutil.NoSuchProcess:
            continue
    return found
