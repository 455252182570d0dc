"""What each GPU tells, with what torch holds on it, as the fields and tags of events."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mlops_events.producers.collectors.torch_memory import TorchMemory, torch_memory
from mlops_events.producers.collectors.visible import own
from mlops_events.producers.nvml import GPU, NVML, System

__all__ = ["GPUCollector", "GPUSample", "fields_of", "gpu_sample", "tags_of"]

# A clock that these hold down is not what was paid for; the others are somebody's wish.
_THROTTLING: Final = frozenset(
    (
        "software_power_cap",
        "hardware_slowdown",
        "software_thermal",
        "hardware_thermal",
        "hardware_power_brake",
    )
)


class GPUSample(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a GPU: `own` is the one that this process uses."""

    fields: dict[str, Any]
    tags: dict[str, str]
    lost: bool = False
    own: bool = False


class GPUCollector:
    """Reads all GPUs through NVML, and torch's allocator of this process.

    Args:
        nvml: where they are read.
        environ: says which GPU is this process's own where torch does not.
    """

    def __init__(self, nvml: NVML, *, environ: Mapping[str, str] = os.environ) -> None:
        self._nvml = nvml
        self._environ = environ

    def sample(self) -> list[GPUSample]:
        """Return a sample of each GPU, and of each instance that one is cut into."""
        gpus = self._nvml.read()
        held = _by_gpu(gpus, torch_memory())
        mine = max(held, key=lambda k: held[k].reserved, default=-1)
        chosen = own(gpus, self._environ) if mine < 0 else gpus[mine]
        return [
            GPUSample(
                fields=fields_of(gpu, held.get(k)),
                tags=tags_of(gpu, self._nvml.system),
                lost=gpu.lost,
                own=gpu is chosen,
            )
            for k, gpu in enumerate(gpus)
        ]

    def close(self) -> None:
        """Let go of NVML."""
        self._nvml.close()


def fields_of(gpu: GPU, torch: TorchMemory | None = None) -> dict[str, Any]:
    """Return what is known of a GPU, named as in `mlops_events.schemas.catalog`."""
    reasons = gpu.throttle_reasons
    found = {
        "gpu_utilization": gpu.utilization,
        "gpu_memory_utilization": gpu.memory_utilization,
        "gpu_memory_used": gpu.memory_used,
        "gpu_memory_free": gpu.memory_free,
        "gpu_memory_total": gpu.memory_total,
        "gpu_temperature": gpu.temperature,
        "gpu_power": gpu.power,
        "gpu_power_limit": gpu.power_limit,
        "gpu_energy": gpu.energy,
        "gpu_clock": gpu.clock,
        "gpu_memory_clock": gpu.memory_clock,
        "gpu_throttled": None if reasons is None else int(not _THROTTLING.isdisjoint(reasons)),
        "gpu_throttle_reasons": None if reasons is None else ",".join(reasons),
        "gpu_ecc_errors": gpu.ecc_errors,
        "gpu_pcie_generation": gpu.pcie_generation,
        "gpu_pcie_width": gpu.pcie_width,
    }
    if torch is not None:
        found |= {
            "gpu_memory_allocated": torch.allocated,
            "gpu_memory_reserved": torch.reserved,
            "gpu_memory_peak": torch.peak,
            "gpu_memory_segments": torch.segments,
            "gpu_memory_fragmentation": torch.fragmentation,
        }
    return {name: value for name, value in found.items() if value is not None}


def tags_of(gpu: GPU, system: System) -> dict[str, str]:
    """Return which GPU it is; an instance is told as `GPU:INSTANCE`."""
    found = {
        "gpu": gpu.place,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "driver": system.driver,
        "cuda": system.cuda,
    }
    return {name: value for name, value in found.items() if value is not None}


def gpu_sample() -> dict[str, Any]:
    """Return the newest figures of this process's GPU, of a sampler that all of it share.

    The first call starts it and returns nothing yet.
    """
    from mlops_events.producers.collectors.shared import latest

    return latest(gpu=True)


def _by_gpu(gpus: Sequence[GPU], held: Sequence[TorchMemory]) -> dict[int, TorchMemory]:
    """Return what torch holds by the place of its GPU; torch numbers only those that it sees."""
    found: dict[int, TorchMemory] = {}
    for memory in held:
        for k, gpu in enumerate(gpus):
            if memory.is_on(gpu.uuid) or (memory.uuid is None and len(gpus) == 1):
                found[k] = memory
    return found
