"""Figures of the machine."""

import os
from typing import Any

import psutil
import pytest

from mlops_events.producers.collectors.system import SystemCollector
from mlops_events.schemas.catalog import METRICS


def test_names_are_the_catalogues() -> None:
    """So that every sink has their units."""
    known = {metric.name for metric in METRICS if metric.group == "host"}

    assert set(SystemCollector().sample()) <= known


def test_figures_are_the_systems() -> None:
    """Those that hold still for long enough to compare."""
    found = SystemCollector().sample()

    assert found["memory_total"] == psutil.virtual_memory().total
    assert 0 <= found["cpu_percent"] <= 100
    assert 0 < found["process_memory"] < found["memory_total"]
    assert found["process_threads"] >= 1
    assert found["disk_used"] + found["disk_free"] <= psutil.disk_usage("/").total
    assert found["load_1m"] >= 0


def test_processor_time_is_that_since_the_last_sample() -> None:
    """A process that works all the time uses a processor."""
    collector = SystemCollector()
    begin = os.times()
    while sum(os.times()[:2]) - sum(begin[:2]) < 0.2:
        sum(range(1000))

    assert collector.sample()["process_cpu_percent"] > 0


@pytest.mark.parametrize(
    ("call", "error", "lacks"),
    [
        ("virtual_memory", PermissionError(), "memory_total"),
        ("disk_io_counters", None, "disk_read"),
        ("net_io_counters", ValueError("not enough columns"), "network_sent"),
        ("disk_usage", FileNotFoundError(), "disk_free"),
    ],
)
def test_what_the_system_does_not_tell_is_left_out(
    monkeypatch: pytest.MonkeyPatch, call: str, error: Any, lacks: str
) -> None:
    """Containers hide this and that; the other figures are told."""

    def answer(*_: Any, **__: Any) -> None:
        if isinstance(error, Exception):
            raise error

    collector = SystemCollector()
    monkeypatch.setattr(psutil, call, answer)
    found = collector.sample()

    assert lacks not in found
    assert "cpu_percent" in found
