"""GPUs as the fields and tags of events."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mlops_events.producers.collectors.gpu import GPUCollector, fields_of, tags_of
from mlops_events.producers.nvml import GPU, NVML, System
from mlops_events.schemas.catalog import METRICS

MIB = 1 << 20


@pytest.fixture
def collector(nvml: Any) -> Iterator[GPUCollector]:
    """A collector on the stand-in, in an environment without settings."""
    nvml.play("count=4 mig=0 used@2=70000")
    collector = GPUCollector(NVML(), environ={})
    yield collector
    collector.close()


def test_names_are_the_catalogues(collector: GPUCollector) -> None:
    """All but the reasons, which are text."""
    known = {metric.name for metric in METRICS if metric.group == "gpu"}

    assert set(collector.sample()[0].fields) - known == {"gpu_throttle_reasons"}


def test_a_gpu_is_told_by_number_name_and_uuid(collector: GPUCollector) -> None:
    """And by what drives it."""
    assert collector.sample()[2].tags == {
        "gpu": "2",
        "name": "NVIDIA H200",
        "uuid": "GPU-00000000-0000-0000-0000-000000000002",
        "driver": "580.65.06",
        "cuda": "13.0",
    }


def test_what_is_not_told_is_no_field() -> None:
    """Not even as None."""
    assert fields_of(GPU(index=0, temperature=40)) == {"gpu_temperature": 40}
    assert tags_of(GPU(index=3, parent=1), System()) == {"gpu": "1:3"}


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [((), 0), (("idle", "application_clocks"), 0), (("idle", "hardware_thermal"), 1)],
)
def test_throttled_is_by_heat_or_power(reasons: tuple[str, ...], throttled: int) -> None:
    """An idle GPU is none."""
    found = fields_of(GPU(index=0, throttle_reasons=reasons))

    assert found == {"gpu_throttled": throttled, "gpu_throttle_reasons": ",".join(reasons)}


def test_torch_is_put_to_the_gpu_that_it_uses(
    collector: GPUCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device 0 may be any GPU; the uuid tells."""
    figures = {"all": {"current": 8 * MIB, "peak": 9 * MIB}}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_stats_as_nested_dict=lambda device: {
            "allocated_bytes": {"all": {"current": 6 * MIB, "peak": 7 * MIB}},
            "reserved_bytes": figures,
            "segment": {"all": {"current": 3}},
        },
        get_device_properties=lambda device: SimpleNamespace(
            total_memory=100 * MIB, uuid="00000000-0000-0000-0000-000000000002"
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    samples = collector.sample()

    assert [sample.own for sample in samples] == [False, False, True, False]
    assert {k: v for k, v in samples[2].fields.items() if k not in samples[0].fields} == {
        "gpu_memory_allocated": 6 * MIB,
        "gpu_memory_reserved": 8 * MIB,
        "gpu_memory_peak": 7 * MIB,
        "gpu_memory_segments": 3,
        "gpu_memory_fragmentation": 0.02,
    }


def test_readings_leave_nothing_in_memory(collector: GPUCollector) -> None:
    """A program runs for months."""
    import gc
    import tracemalloc

    for _ in range(100):
        collector.sample()
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(500):
        collector.sample()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert after - before < 20_000
