"""How likely a GPU is to run out of memory."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mlops_events.producers.collectors.torch_memory import TorchMemory
from mlops_events.producers.diagnostics.memory_risk import (
    Level,
    Thresholds,
    assess,
    memory_risks,
    worst,
)
from mlops_events.producers.nvml import GPU, NVML

GIB = 1 << 30


def gpu(free_gib: float, total_gib: float = 80) -> GPU:
    """A GPU with so much memory."""
    return GPU(index=0, memory_total=int(total_gib * GIB), memory_free=int(free_gib * GIB))


def torch(*, allocated_gib: float, reserved_gib: float) -> TorchMemory:
    """What torch holds of 80 GiB."""
    return TorchMemory(
        device=0,
        uuid="1",
        total=80 * GIB,
        allocated=int(allocated_gib * GIB),
        reserved=int(reserved_gib * GIB),
        peak=0,
        segments=1,
    )


@pytest.mark.parametrize(
    ("free", "total", "level"),
    [
        (7.9, 80, "critical"),
        (8, 80, "warning"),
        (11.9, 80, "warning"),
        (12, 80, "ok"),
        (0.9, 4, "critical"),
        (1, 4, "warning"),
        (1.5, 4, "ok"),
        (0, 80, "critical"),
    ],
)
def test_the_greater_of_ratio_and_bytes_counts(free: float, total: float, level: Level) -> None:
    """A tenth of a large GPU, a GiB of a small one; a warning at 1.5 times that."""
    assert assess(gpu(free, total), None, Thresholds()).level == level


@pytest.mark.parametrize(
    ("thresholds", "level"),
    [
        (Thresholds(min_free_ratio=0.5), "critical"),
        (Thresholds(min_free_ratio=0.3), "warning"),
        (Thresholds(min_free_bytes=33 * GIB), "critical"),
        (Thresholds(min_free_ratio=0.3, warning_factor=1), "ok"),
        (Thresholds(min_free_ratio=0, min_free_bytes=0), "ok"),
    ],
)
def test_thresholds_can_be_set(thresholds: Thresholds, level: Level) -> None:
    """Of 80 GiB, 32 are free."""
    assert assess(gpu(32), None, thresholds).level == level


def test_the_judgement_says_why_and_what_to_do() -> None:
    """In words."""
    found = assess(gpu(4), None, Thresholds())

    assert found.free_ratio == 0.05
    assert found.reasons == ("4.0 GiB of 80.0 GiB are free, less than 10% of it",)
    assert any("smaller batch" in advice for advice in found.recommendations)


@pytest.mark.parametrize(
    ("reserved", "level", "fragmentation"), [(26, "ok", 0.2), (27, "warning", 0.2125)]
)
def test_memory_that_torch_keeps_unused_is_a_warning(
    reserved: float, level: Level, fragmentation: float
) -> None:
    """Of 80 GiB, tensors have 10."""
    held = torch(allocated_gib=10, reserved_gib=reserved)

    found = assess(gpu(40), held, Thresholds())

    assert (found.level, found.fragmentation) == (level, fragmentation)
    assert any("expandable_segments" in advice for advice in found.recommendations) == (
        level == "warning"
    )


def test_fragmentation_does_not_hide_what_is_worse() -> None:
    """Both are told."""
    found = assess(gpu(1), torch(allocated_gib=10, reserved_gib=70), Thresholds())

    assert found.level == "critical"
    assert len(found.reasons) == 2


@pytest.mark.parametrize(
    "silent", [GPU(index=0), GPU(index=0, memory_total=0, memory_free=0), GPU(index=0, lost=True)]
)
def test_what_is_not_told_is_unknown(silent: GPU) -> None:
    """Never ok."""
    assert assess(silent, None, Thresholds()).level == "unknown"


@pytest.mark.parametrize(
    ("levels", "found"),
    [
        ([], "unknown"),
        (["ok", "ok"], "ok"),
        (["ok", "unknown"], "unknown"),
        (["unknown", "warning"], "warning"),
        (["critical", "warning", "ok"], "critical"),
    ],
)
def test_the_worst_counts(levels: list[Level], found: Level) -> None:
    """Unknown is no all-clear."""
    assert worst(levels) == found


def test_the_gpus_that_a_process_may_use_are_judged(nvml: Any) -> None:
    """Or all; what torch holds counts on its own GPU."""
    nvml.play("count=3 used@1=80000")
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_stats_as_nested_dict=lambda device: {
            "allocated_bytes": {"all": {"current": 1 * GIB, "peak": 2 * GIB}},
            "reserved_bytes": {"all": {"current": 41 * GIB, "peak": 41 * GIB}},
        },
        get_device_properties=lambda device: SimpleNamespace(
            total_memory=80 * GIB, uuid="00000000-0000-0000-0000-000000000002"
        ),
    )
    reader = NVML()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        seen = memory_risks(reader, environ={"CUDA_VISIBLE_DEVICES": "2,0"})
        everything = memory_risks(reader, all_devices=True, environ={"CUDA_VISIBLE_DEVICES": "2"})
    reader.close()

    assert [(risk.gpu, risk.level) for risk in seen] == [("2", "warning"), ("0", "ok")]
    assert seen[0].fragmentation == 0.5
    assert [risk.level for risk in everything] == ["ok", "critical", "warning"]
