"""What each GPU of this machine tells now, with the versions of CUDA around it."""

import logging
import sys
from importlib.util import find_spec
from typing import Any, NamedTuple

import msgspec

from mlops_events.producers.nvml import GPU, NVML, NVMLUnavailableError, System

__all__ = ["CUDAMetrics", "CUDAMetricsCollector"]

log = logging.getLogger(__name__)

_MIB = 1 << 20


class CUDAMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, or an instance that one is cut into; None is what it does not tell.

    Memory in MiB, `temperature` in degrees Celsius, `power_draw` in watts, `utilization_*` in percent.
    `cuda_version` is the newest that the driver serves, `pytorch_cuda_version` the one that torch was
    built for. `gpu` is its number, of an instance `GPU:INSTANCE`. `lost` means that it has fallen
    off the bus.
    """

    gpu: str
    gpu_name: str | None
    uuid: str | None
    driver_version: str | None
    cuda_version: str | None
    compute_capability: str | None
    memory_total_mb: float | None
    memory_free_mb: float | None
    memory_used_mb: float | None
    temperature: int | None
    power_draw: float | None
    utilization_gpu: int | None
    utilization_memory: int | None
    pytorch_cuda_version: str | None
    pytorch_cudnn_version: int | None
    lost: bool = False


class CUDAMetricsCollector:
    """Reads GPUs through NVML; no CUDA context is made. Use it in one thread and close it."""

    def __init__(self) -> None:
        self._nvml: NVML | None = None
        self._torch: _Torch | None = None
        self._unavailable = False
        self._told = False
        self.gpus: list[GPU] = []
        """What NVML told at the last reading, in other units and with more to it."""
        self.system = System()

    def collect_metrics(self) -> list[CUDAMetrics]:
        """Return what each GPU tells now.

        Torch is imported where it is installed, to tell its versions. Without NVML the list is empty,
        and the first call warns of the reason.
        """
        if self._nvml is None and not self._unavailable:
            try:
                self._nvml = NVML()
                self.system = self._nvml.system
            except NVMLUnavailableError as error:
                self._unavailable = True
                self._complain(str(error))
        if self._nvml is None:
            return []
        self.gpus = self._nvml.read()
        if not self.gpus:
            self._complain("NVML tells of none")
        if self._torch is None and self.gpus:
            self._torch = _torch()
        return [self._metrics(gpu) for gpu in self.gpus]

    def close(self) -> None:
        """Let go of NVML; it is opened again when it is needed."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _complain(self, reason: str) -> None:
        if not self._told:
            self._told = True
            log.warning("no GPU can be read: %s", reason)

    def _metrics(self, gpu: GPU) -> CUDAMetrics:
        torch = self._torch or _Torch()
        return CUDAMetrics(
            gpu=gpu.place,
            gpu_name=gpu.name,
            uuid=gpu.uuid,
            driver_version=self.system.driver,
            cuda_version=self.system.cuda,
            compute_capability=gpu.compute_capability,
            memory_total_mb=_mib(gpu.memory_total),
            memory_free_mb=_mib(gpu.memory_free),
            memory_used_mb=_mib(gpu.memory_used),
            temperature=gpu.temperature,
            power_draw=gpu.power,
            utilization_gpu=gpu.utilization,
            utilization_memory=gpu.memory_utilization,
            pytorch_cuda_version=torch.cuda,
            pytorch_cudnn_version=torch.cudnn,
            lost=gpu.lost,
        )


class _Torch(NamedTuple):
    cuda: str | None = None
    cudnn: int | None = None


def _torch() -> _Torch:
    """Return the versions that torch was built for; nothing where it is not, or is broken."""
    if "torch" not in sys.modules and find_spec("torch") is None:
        return _Torch()
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]

        module: Any = torch
        return _Torch(cuda=module.version.cuda, cudnn=module.backends.cudnn.version())
    except Exception as error:  # an installation may be broken in any way
        log.warning("torch cannot be imported: %s", error)
        return _Torch()


def _mib(size: int | None) -> float | None:
    return None if size is None else size / _MIB
