"""What torch's allocator holds; a stand-in plays torch, which raises where CUDA would be woken."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mlops_events.producers.collectors.torch_memory import TorchMemory, torch_memory

GIB = 1 << 30


class Cuda:
    """torch.cuda of a process that uses CUDA, or not yet."""

    def __init__(self, *, used: bool) -> None:
        self._used = used

    def is_initialized(self) -> bool:
        return self._used

    def device_count(self) -> int:
        assert self._used, "CUDA was woken"
        return 2

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        assert self._used, "CUDA was woken"
        if device == 0:
            return {}

        def all_of(current: int, peak: int) -> dict[str, dict[str, int]]:
            return {"all": {"current": current, "peak": peak}}

        return {
            "allocated_bytes": all_of(6 * GIB, 9 * GIB),
            "reserved_bytes": all_of(10 * GIB, 12 * GIB),
            "segment": all_of(14, 20),
        }

    def get_device_properties(self, device: int) -> SimpleNamespace:
        assert device == 1
        return SimpleNamespace(total_memory=80 * GIB, uuid="00000000-0000-0000-0000-000000000001")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A function that puts a stand-in in torch's place."""

    def put(cuda: Any) -> None:
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    return put


def test_without_torch_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is not imported for this."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    assert torch_memory() == []
    assert "torch" not in sys.modules


def test_while_torch_is_being_imported_there_is_nothing(torch: Any) -> None:
    """Another thread may see half a module."""
    torch(None)

    assert torch_memory() == []


def test_cuda_is_not_woken(torch: Any) -> None:
    """A process that does not use CUDA yet has no context, and gets none."""
    torch(Cuda(used=False))

    assert torch_memory() == []


def test_devices_in_use_are_told(torch: Any) -> None:
    """A device that this process has nothing on is left out."""
    torch(Cuda(used=True))

    found = torch_memory()

    assert found == [
        TorchMemory(
            device=1,
            uuid="00000000-0000-0000-0000-000000000001",
            total=80 * GIB,
            allocated=6 * GIB,
            reserved=10 * GIB,
            peak=9 * GIB,
            segments=14,
        )
    ]
    assert found[0].fragmentation == 0.05
