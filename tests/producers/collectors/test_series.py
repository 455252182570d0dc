"""The collectors of an emitter: what they emit, when, and what stops them."""

import json
import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mlops_events.producers import Emitter, EmitterSettings
from mlops_events.producers.collectors.series import Collectors
from mlops_events.producers.testing import MemoryTransport

QUICK = 0.01


class Events:
    """Keeps what is emitted."""

    def __init__(self) -> None:
        self.observed: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        self.logged: list[tuple[str, str, dict[str, Any]]] = []

    def observe(self, name: str, fields: Any, *, tags: Any = None) -> None:
        self.observed.append((name, dict(fields), dict(tags or {})))

    def log(self, level: str, message: str, /, **fields: Any) -> None:
        self.logged.append((level, message, fields))

    def names(self) -> set[str]:
        """What was observed so far."""
        return {name for name, _, _ in self.observed}


@pytest.fixture
def events() -> Events:
    """What takes the events."""
    return Events()


@pytest.fixture
def collect(events: Events) -> Iterator[Any]:
    """A function that starts collectors; they stop with the test."""
    made: list[Collectors] = []

    def collect(**wanted: bool) -> Collectors:
        made.append(Collectors(events, every_s=QUICK, **wanted))
        made[-1].start()
        return made[-1]

    yield collect
    for one in made:
        one.stop()


class TestSeries:
    """What is emitted."""

    def test_the_machine_is_one_series(self, events: Events, collect: Any, until: Any) -> None:
        """Sample after sample, and no GPU with it."""
        collect(system=True)
        until.sync(lambda: len(events.observed) >= 3)

        assert events.names() == {"system"}
        assert events.observed[0][1]["memory_total"] > 0

    def test_each_gpu_is_an_event(
        self, nvml: Any, events: Events, collect: Any, until: Any
    ) -> None:
        """Told apart by tags."""
        nvml.play("count=3")
        collect(gpu=True)
        until.sync(lambda: len(events.observed) >= 6)

        assert [tags["gpu"] for _, _, tags in events.observed[:6]] == [*"012012"]
        assert events.names() == {"gpu"}

    def test_a_lost_gpu_is_logged_once_and_once_again_when_it_is_back(
        self, nvml: Any, events: Events, collect: Any, until: Any
    ) -> None:
        """The others go on."""
        nvml.play("count=2")
        collect(gpu=True)
        until.sync(lambda: events.observed)
        nvml.play("count=2 error.gpu@1=15")
        until.sync(lambda: events.logged)
        events.observed.clear()
        until.sync(lambda: len(events.observed) >= 5)
        lost, seen = list(events.logged), {tags["gpu"] for _, _, tags in events.observed}
        nvml.play("count=3")  # another number of GPUs has them looked at anew
        until.sync(lambda: len(events.logged) > 1)

        assert [(level, message) for level, message, _ in events.logged] == [
            ("error", "a GPU has fallen off the bus"),
            ("info", "a GPU is back"),
        ]
        assert lost[0][2]["uuid"] == "GPU-00000000-0000-0000-0000-000000000001"
        assert seen == {"0"}

    def test_a_driver_that_hangs_stops_its_own_series_only(
        self, nvml: Any, events: Events, collect: Any, until: Any
    ) -> None:
        """The machine is still told, and old figures of the GPU are not told as new ones."""
        found = collect(system=True, gpu=True)
        until.sync(lambda: found.latest(system=False, gpu=True))
        nvml.play("delay.temperature=600000")
        until.sync(lambda: not found.latest(system=False, gpu=True))
        events.observed.clear()
        until.sync(lambda: len(events.observed) >= 5)
        names = events.names()
        nvml.play("")

        assert names == {"system"}

    def test_a_machine_without_gpus_is_said_once(
        self, nvml: Any, collect: Any, until: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The reason, and no series."""
        nvml.play("error.init=9")
        with caplog.at_level(logging.WARNING):
            collect(gpu=True)
            until.sync(lambda: caplog.records)
            until.sync(lambda: not _threads("gpu"))

        assert len(caplog.records) == 1
        assert "the NVIDIA driver is not loaded" in caplog.text
        assert nvml.calls("init") == 1


class TestLatest:
    """What is attached to other events."""

    def test_the_first_call_starts_the_readings(self, collect: Any, until: Any) -> None:
        """And returns nothing yet; the series are not emitted for it."""
        found = collect()
        first = found.latest(system=True, gpu=False)
        later = until.sync(lambda: found.latest(system=True, gpu=False))

        assert first == {}
        assert later["memory_total"] > 0
        assert not found._events.observed

    def test_it_is_of_the_processes_own_gpu(
        self, nvml: Any, collect: Any, until: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That of its rank."""
        monkeypatch.setenv("LOCAL_RANK", "1")
        nvml.play("count=2 temperature@1=88")
        found = collect()

        figures = until.sync(lambda: found.latest(system=False, gpu=True))

        assert figures["gpu_temperature"] == 88


class TestEmitter:
    """Collectors beside an emitter."""

    def test_series_and_figures(self, nvml: Any, until: Any) -> None:
        """As arguments; all that is emitted arrives."""
        transport = MemoryTransport()
        settings = EmitterSettings(collect_s=1)
        events = Emitter(run="r", transport=transport, settings=settings, system=True, gpu=True)
        figures = until.sync(
            lambda: (
                (found := events.latest(system=True, gpu=True)).keys()
                >= {"cpu_percent", "gpu_power"}
                and found
            )
        )
        events.close()
        names = {event.name for event in transport.observations()}

        assert figures["gpu_power"] == 250
        assert names == {"system", "gpu"}
        assert events.stats().dropped == 0

    def test_settings_switch_them_on_and_arguments_win(self, until: Any) -> None:
        """Without a run that is announced, too."""
        transport = MemoryTransport()
        settings = EmitterSettings(collect_system=True, collect_gpu=True, collect_s=1)
        with Emitter(transport=transport, settings=settings, gpu=False, announce=False) as events:
            until.sync(lambda: events.flush() and transport.observations())

        assert {event.name for event in transport.observations()} == {"system"}

    def test_nothing_is_emitted_after_the_end(self, until: Any) -> None:
        """Nor counted as dropped."""
        transport = MemoryTransport()
        events = Emitter(
            run="r", transport=transport, settings=EmitterSettings(collect_s=1), system=True
        )
        until.sync(lambda: events.latest(system=True))
        events.close()
        until.sync(lambda: not _threads("system"))

        assert events.stats().dropped == 0

    def test_by_default_nothing_is_collected(self) -> None:
        """No thread, no library."""
        code = """
            import sys, threading
            from mlops_events.producers import Emitter
            from mlops_events.producers.testing import MemoryTransport
            with Emitter(run="r", transport=MemoryTransport()) as events:
                events.observe("x", {"a": 1})
                events.flush()
                print([t.name for t in threading.enumerate() if "mlops" in t.name])
            print([m for m in sys.modules if m in ("psutil", "pynvml") or "collectors" in m])
        """

        assert _run(code) == ["['mlops-events']", "[]"]

    def test_an_emitter_that_is_off_collects_nothing(self) -> None:
        """Not even when it is asked."""
        events = Emitter(settings=EmitterSettings(disabled=True), system=True, gpu=True)

        assert events.latest(system=True, gpu=True) == {}
        assert not _threads("system")

    def test_a_forked_child_collects_only_if_it_emits(self) -> None:
        """The parent goes on."""
        code = """
            import json, os, threading, time
            from mlops_events.producers import Emitter, EmitterSettings
            from mlops_events.producers.testing import MemoryTransport

            transport = MemoryTransport()
            events = Emitter(
                run="r", transport=transport, settings=EmitterSettings(collect_s=1), system=True
            )

            def collected():
                events.flush()
                return any(e.name == "system" for e in transport.observations())

            def wait():
                end = time.monotonic() + 60
                while not collected() and time.monotonic() < end:
                    time.sleep(0.05)
                return collected()

            def threads():
                return [t.name for t in threading.enumerate() if "system" in t.name]

            wait()
            child = os.fork()
            if not child:
                transport.records.clear()
                silent = threads()
                events.observe("x", {"a": 1})
                print(json.dumps([silent, wait(), threads()]), flush=True)
                events.close()
                os._exit(0)
            os.waitpid(child, 0)
            transport.records.clear()
            print(json.dumps([wait(), threads()]))
            events.close()
        """
        child, parent = map(json.loads, _run(code))

        assert child == [[], True, ["mlops-events system"]]
        assert parent == [True, ["mlops-events system"]]


def test_a_program_without_an_emitter_shares_one_sampler() -> None:
    """The first call starts it."""
    code = """
        import threading, time
        from mlops_events.producers.collectors.system import system_sample

        end = time.monotonic() + 60
        while not system_sample() and time.monotonic() < end:
            time.sleep(0.05)
        print("memory_total" in system_sample())
        print([t.name for t in threading.enumerate()][1:])
    """

    assert _run(code) == ["True", "['mlops-events system']"]


def _threads(name: str) -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == f"mlops-events {name}"]


def _run(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
