"""CUDAMetrics: what each GPU tells now."""

import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mlops_events.producers.diagnostics import CUDAMetrics, CUDAMetricsCollector


@pytest.fixture
def collector() -> Iterator[CUDAMetricsCollector]:
    """A collector; closed with the test."""
    collector = CUDAMetricsCollector()
    yield collector
    collector.close()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that has versions and nothing else."""
    module = SimpleNamespace(
        version=SimpleNamespace(cuda="12.8"),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91002)),
    )
    monkeypatch.setitem(sys.modules, "torch", module)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where torch cannot be imported."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("torch")
def test_the_fields_that_programs_know(nvml: Any, collector: CUDAMetricsCollector) -> None:
    """MiB, watts, percent; CUDA's version is the driver's, torch's is its own."""
    nvml.play("cuda=13000")

    assert collector.collect_metrics() == [
        CUDAMetrics(
            gpu="0",
            gpu_name="NVIDIA H200",
            uuid="GPU-00000000-0000-0000-0000-000000000000",
            driver_version="580.65.06",
            cuda_version="13.0",
            compute_capability="9.0",
            memory_total_mb=81920,
            memory_free_mb=71680,
            memory_used_mb=10240,
            temperature=65,
            power_draw=250,
            utilization_gpu=37,
            utilization_memory=20,
            pytorch_cuda_version="12.8",
            pytorch_cudnn_version=91002,
        )
    ]


@pytest.mark.usefixtures("no_torch")
def test_without_torch_the_rest_is_told(nvml: Any, collector: CUDAMetricsCollector) -> None:
    """Whether it is not installed or broken."""
    nvml.play("count=2")

    found = collector.collect_metrics()

    assert [one.pytorch_cuda_version for one in found] == [None, None]
    assert [one.temperature for one in found] == [65, 65]


@pytest.mark.usefixtures("no_torch")
def test_instances_and_lost_gpus_are_told_as_such(
    nvml: Any, collector: CUDAMetricsCollector
) -> None:
    """Each with what is known of it."""
    nvml.play("count=2 mig@0=1 error.gpu@1=15")

    found = collector.collect_metrics()

    assert [(one.gpu, one.lost) for one in found] == [("0", False), ("0:0", False), ("1", True)]
    assert found[1].memory_total_mb == 81920
    assert found[2].memory_total_mb is None


@pytest.mark.parametrize(
    ("play", "reason"),
    [("error.init=9", "the NVIDIA driver is not loaded"), ("count=0", "NVML tells of none")],
)
def test_without_gpus_the_list_is_empty_and_one_line_says_why(
    nvml: Any,
    collector: CUDAMetricsCollector,
    caplog: pytest.LogCaptureFixture,
    play: str,
    reason: str,
) -> None:
    """However often it is asked."""
    nvml.play(play)
    with caplog.at_level(logging.WARNING):
        found = [collector.collect_metrics() for _ in range(3)]

    assert found == [[], [], []]
    assert len(caplog.records) == 1
    assert reason in caplog.text


@pytest.mark.usefixtures("no_torch")
def test_it_may_be_used_again_after_it_was_closed(
    nvml: Any, collector: CUDAMetricsCollector
) -> None:
    """NVML is let go and opened again."""
    collector.collect_metrics()
    collector.close()

    assert len(collector.collect_metrics()) == 1
    assert (nvml.calls("init"), nvml.calls("shutdown")) == (2, 1)
