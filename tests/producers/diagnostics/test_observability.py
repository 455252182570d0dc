"""What a feedback loop gets for its observations, and what is emitted of them."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlops_events.producers import Emitter, EmitterSettings
from mlops_events.producers.diagnostics import (
    EnvironmentInfo,
    ReinforcementObservabilityManager,
    SystemStats,
)
from mlops_events.producers.testing import MemoryTransport

TS = 1_767_225_600_000_000_000


@pytest.fixture
def transport() -> MemoryTransport:
    """Where frames go."""
    return MemoryTransport()


@pytest.fixture
def events(transport: MemoryTransport) -> Iterator[Emitter]:
    """A miner's emitter."""
    with Emitter(
        run="demo",
        role="miner",
        uid=12,
        transport=transport,
        settings=EmitterSettings(),
        announce=False,
    ) as events:
        yield events


def manager(events: Any, **options: Any) -> ReinforcementObservabilityManager:
    """Without a GPU, so that no thread is started."""
    return ReinforcementObservabilityManager(events, gpu=False, clock=lambda: TS, **options)


def test_the_payload_has_data_machine_and_origin(events: Emitter) -> None:
    """All that a feedback loop may want to look at."""
    payload = manager(events).collect_observation("episode", {"reward": 0.5, "won": True}, step=3)

    assert (payload.event_name, payload.ts, payload.step) == ("episode", TS, 3)
    assert payload.event_data == {"reward": 0.5, "won": True}
    assert payload.origin == events.origin
    assert payload.system.memory_total
    assert payload.system.process_memory
    assert payload.system.cpu_percent is not None
    assert payload.environment.python == ".".join(map(str, sys.version_info[:3]))
    assert payload.environment.node


def test_it_is_emitted_with_the_nodes_origin(events: Emitter, transport: MemoryTransport) -> None:
    """As one observation: the data, the figures beside it, versions as tags."""
    payload = manager(events).collect_observation("episode", {"reward": 0.5}, step=3)
    assert events.flush()
    (frame,) = transport.frames("observation")
    (event,) = transport.observations()

    assert (frame.origin.run, frame.origin.role, frame.origin.uid) == ("demo", "miner", 12)
    assert (event.name, event.step, event.ts) == ("episode", 3, TS)
    assert event.fields == {**payload.system.known(), "reward": 0.5}
    assert event.tags is not None
    assert event.tags["python"] == payload.environment.python


def test_the_programs_own_value_stands_before_the_machines(
    events: Emitter, transport: MemoryTransport
) -> None:
    """Where both have a name."""
    manager(events).collect_observation("episode", {"cpu_percent": -1.0})
    assert events.flush()

    assert transport.observations()[0].fields["cpu_percent"] == -1.0


class Odd:
    """An object that has no text even."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def test_what_cannot_be_encoded_is_left_out_and_counted(
    events: Emitter, transport: MemoryTransport
) -> None:
    """The rest goes its way, and the payload is what was emitted."""
    observed = manager(events)
    data: dict[Any, Any] = {"reward": 0.5, "model": object(), "odd": Odd(), 3: 2**70}
    payloads = [observed.collect_observation("episode", data) for _ in range(2)]
    assert events.flush()

    assert payloads[0].event_data == {"reward": 0.5, "3": float(2**70)}
    assert payloads[0].skipped == ("model", "odd")
    assert observed.stats().skipped == {"model": 2, "odd": 2}
    assert [event.fields["reward"] for event in transport.observations()] == [0.5, 0.5]
    assert msgspec.json.decode(msgspec.json.encode(payloads[0]))["event_data"]["reward"] == 0.5


@pytest.mark.parametrize("data", [None, 7, "text", [1, 2, 3], Odd()])
def test_data_that_is_none_does_not_raise(events: Emitter, data: Any) -> None:
    """It is counted, and the machine's figures are there."""
    observed = manager(events)
    payload = observed.collect_observation("episode", data)

    assert payload.event_data == {}
    assert payload.system.memory_total
    assert observed.stats().skipped == {"event_data": 1}


@pytest.mark.parametrize(("name", "text"), [(7, "7"), ("\ud800", "?"), (Odd(), "<Odd>")])
def test_a_name_that_is_no_text_becomes_one(
    events: Emitter, transport: MemoryTransport, name: Any, text: str
) -> None:
    """As far as it has any."""
    assert manager(events).collect_observation(name, {"reward": 1}).event_name == text
    assert events.flush()
    assert [event.name for event in transport.observations()] == [text]


class OnDevice:
    """A scalar on a GPU, which must not be read."""

    is_cuda = True
    device = "cuda:0"

    def item(self) -> float:
        raise AssertionError("the GPU was waited for")


class Own:
    """Somebody's own emitter, that may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self._error = error

    def observe(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        step: int | None = None,
        ts: int | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        if self._error is not None:
            raise self._error
        self.seen.append((name, dict(fields)))


def test_scalars_on_a_gpu_are_not_waited_for() -> None:
    """They are handed on as they are."""
    own, loss = Own(), OnDevice()
    payload = manager(own).collect_observation("episode", {"reward": 0.5, "loss": loss})

    assert payload.event_data == {"reward": 0.5, "loss": loss}
    assert own.seen[0][1]["loss"] is loss
    assert payload.origin is None


def test_an_emitter_that_raises_is_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The loop gets its payload all the same."""
    observed = manager(Own(OSError("away")))
    payloads = [observed.collect_observation("episode", {"reward": n}) for n in range(3)]

    assert [payload.event_data["reward"] for payload in payloads] == [0, 1, 2]
    assert (observed.stats().collected, observed.stats().failed) == (3, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "observations are returned but not emitted: OSError('away')"
    ]


def test_any_thread_may_observe(events: Emitter, transport: MemoryTransport) -> None:
    """Nothing is lost between them."""
    observed = manager(events)
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        start.wait(30)
        for n in range(50):
            observed.collect_observation("episode", {"reward": thread * 50 + n})

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events.flush(30)

    assert sorted(e.fields["reward"] for e in transport.observations()) == list(range(200))
    assert observed.stats().collected == 200


def test_without_a_broker_the_loop_goes_on() -> None:
    """In a program that sets nothing at all; torch is not imported for the environment."""
    code = """
import json, sys
from mlops_events.producers.diagnostics import ReinforcementObservabilityManager
with ReinforcementObservabilityManager(gpu=False) as observed:
    payload = observed.collect_observation("episode", {"reward": 0.5, "model": object()})
print(json.dumps([payload.event_data, payload.skipped, payload.system.memory_total > 0,
                  payload.origin.node != "", "torch" in sys.modules, "pynvml" in sys.modules]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MLOPS_EVENTS_DISABLED": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stderr == ""
    assert json.loads(done.stdout) == [{"reward": 0.5}, ["model"], True, True, False, False]


def test_the_gpus_figures_come_with_time(nvml_folder: Path) -> None:
    """They are read by a thread that nobody waits for."""
    code = """
import time
from mlops_events.producers.diagnostics import ReinforcementObservabilityManager
observed = ReinforcementObservabilityManager()
first = observed.collect_observation("episode", {"reward": 0.5}).system
while observed.collect_observation("episode", {"reward": 0.5}).system.gpu_temperature is None:
    time.sleep(0.01)
print(first.gpu_temperature, observed.collect_observation("episode", {}).system.gpu_temperature)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "MLOPS_EVENTS_DISABLED": "1",
            "LD_LIBRARY_PATH": str(nvml_folder),
            "NVML_STANDIN": "count=1 temperature=71",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("None 71\n", "")


def test_what_is_known_of_the_machine_is_in_the_catalogue() -> None:
    """Figures have the names that sinks and dashboards know."""
    from mlops_events.schemas import catalog

    text = catalog.describe()
    assert all(f"`{name}`" in text for name in SystemStats.__struct_fields__)
    assert EnvironmentInfo.of_this_process().tags()["python"]
