"""What torch's allocator of this process holds on each GPU, without ever waking CUDA."""

import sys
from typing import Any

import msgspec

__all__ = ["TorchMemory", "torch_memory"]


class TorchMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A device of torch; all in bytes but `segments`, which torch got from the driver.

    `peak` is the most that was allocated at once. `uuid` is None where torch does not tell it.
    """

    device: int
    uuid: str | None
    total: int
    allocated: int
    reserved: int
    peak: int
    segments: int

    @property
    def fragmentation(self) -> float | None:
        """The share of the GPU that torch keeps and no tensor has."""
        return (self.reserved - self.allocated) / self.total if self.total else None

    def is_on(self, uuid: str | None) -> bool:
        """Whether it is the GPU of this uuid, as NVML writes it; torch leaves out what it begins with."""
        return self.uuid is not None and uuid is not None and uuid.partition("-")[2] == self.uuid


def torch_memory() -> list[TorchMemory]:
    """Return what torch holds on the devices that it uses.

    Nothing where this process has not imported torch or not used CUDA yet: neither is begun here,
    and no context is made.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if not getattr(cuda, "is_initialized", bool)():
        return []
    found: list[TorchMemory] = []
    for device in range(cuda.device_count()):
        stats = cuda.memory_stats_as_nested_dict(device=device)
        if not _figure(stats, "reserved_bytes", "peak"):
            continue
        properties = cuda.get_device_properties(device)
        uuid = getattr(properties, "uuid", None)
        found.append(
            TorchMemory(
                device=device,
                uuid=None if uuid is None else str(uuid),
                total=int(properties.total_memory),
                allocated=_figure(stats, "allocated_bytes", "current"),
                reserved=_figure(stats, "reserved_bytes", "current"),
                peak=_figure(stats, "allocated_bytes", "peak"),
                segments=_figure(stats, "segment", "current"),
            )
        )
    return found


def _figure(stats: Any, name: str, which: str) -> int:
    return int(stats.get(name, {}).get("all", {}).get(which, 0))
