"""What an observation is made in: the figures of the machine, and the versions of what runs on it."""

import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import cpu_count, getpid
from typing import Any

import msgspec

from mlops_events.producers.diagnostics.installed import torch_cuda, version_of

__all__ = ["EnvironmentInfo", "SystemReader", "SystemStats"]


class SystemStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the machine, this process, and the GPU that it uses; None is what is not known.

    Names and units are those of `mlops_events.schemas.catalog`: memory in bytes, `*_percent` and
    `gpu_utilization` in percent, `gpu_temperature` in degrees Celsius, `gpu_power` in watts.
    """

    cpu_percent: float | None = None
    load_1m: float | None = None
    memory_percent: float | None = None
    memory_used: int | None = None
    memory_available: int | None = None
    memory_total: int | None = None
    process_memory: int | None = None
    gpu_utilization: float | None = None
    gpu_memory_used: int | None = None
    gpu_memory_free: int | None = None
    gpu_memory_total: int | None = None
    gpu_memory_allocated: int | None = None
    gpu_memory_reserved: int | None = None
    gpu_temperature: float | None = None
    gpu_power: float | None = None

    def known(self) -> dict[str, float]:
        """Return the figures that are known."""
        return {k: v for k, v in msgspec.structs.asdict(self).items() if v is not None}


class EnvironmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What this process runs on; `torch` is what is installed, `cuda` what that was built for."""

    node: str
    platform: str
    python: str
    cpu_count: int | None
    mlops_events: str | None
    torch: str | None
    cuda: str | None

    @classmethod
    def of_this_process(cls) -> "EnvironmentInfo":
        """Look around, without importing torch."""
        return cls(
            node=platform.node(),
            platform=platform.platform(),
            python=platform.python_version(),
            cpu_count=cpu_count(),
            mlops_events=version_of("mlops-events"),
            torch=version_of("torch"),
            cuda=torch_cuda(),
        )

    def tags(self) -> dict[str, str]:
        """Return what is known of the versions, as the tags of an event."""
        found = {
            "platform": self.platform,
            "python": self.python,
            "torch": self.torch,
            "cuda": self.cuda,
        }
        return {name: value for name, value in found.items() if value}


class SystemReader:
    """Reads figures that take microseconds, and takes the GPU's from a thread that may hang.

    Args:
        gpu: look at the GPU, too; its first reading is there a second after the first `read`.
    """

    def __init__(self, *, gpu: bool) -> None:
        import psutil

        self._psutil: Any = psutil
        self._gpu = gpu
        self._processes: dict[int, Any] = {}
        self._told(self._cpu)  # the first one only marks where counting begins

    def read(self) -> SystemStats:
        """Return the figures of now; those of the GPU are of its last reading."""
        found: dict[str, Any] = self._told(self._cpu, self._load, self._memory, self._own)
        if self._gpu:
            found |= self._gpu_figures()
        return SystemStats(**found)

    def _told(self, *reads: Callable[[], Iterator[tuple[str, float]]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for read in reads:
            # psutil has errors of its own, and raises others for lines of /proc that it does not expect
            with suppress(
                self._psutil.Error, OSError, ValueError, LookupError, NotImplementedError
            ):
                found.update(read())
        return found

    def _cpu(self) -> Iterator[tuple[str, float]]:
        yield "cpu_percent", self._psutil.cpu_percent()

    def _load(self) -> Iterator[tuple[str, float]]:
        yield "load_1m", self._psutil.getloadavg()[0]

    def _memory(self) -> Iterator[tuple[str, float]]:
        memory = self._psutil.virtual_memory()
        yield "memory_percent", memory.percent
        yield "memory_used", memory.used
        yield "memory_available", memory.available
        yield "memory_total", memory.total

    def _own(self) -> Iterator[tuple[str, float]]:
        pid = getpid()  # another one in a forked child
        process = self._processes.get(pid)
        if process is None:
            self._processes = {pid: self._psutil.Process()}
            process = self._processes[pid]
        yield "process_memory", process.memory_info().rss

    def _gpu_figures(self) -> dict[str, Any]:
        from mlops_events.producers.collectors.shared import latest

        newest = latest(gpu=True)
        return {name: newest[name] for name in _GPU_FIELDS if name in newest}


_GPU_FIELDS = tuple(name for name in SystemStats.__struct_fields__ if name.startswith("gpu_"))
