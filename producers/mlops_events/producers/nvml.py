"""GPUs through NVML: what each one tells, whatever driver, mode or state it is in.

Calls wait for the driver: they belong into a thread that nobody waits for. No CUDA context is made.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final

import msgspec

from mlops_events.schemas.errors import MlopsEventsError

__all__ = ["GPU", "NVML", "NVMLUnavailableError", "System"]

_LOOK_AGAIN_S: Final = 60.0
_SELDOM_S: Final = 0.9
"""What hardly changes, and a driver is slow to tell, is asked once a second at most."""
# Not for this GPU, not for this user, not in this driver's library: it will not be asked again.
_NEVER: Final = frozenset((2, 3, 4, 13, 25, 26))
# Fallen off the bus, to be reset, not found: the handle is of no use any more.
_GONE: Final = frozenset((15, 16, 28))

# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_REASONS: Final = {
    0x0000000000000001: "idle",
    0x0000000000000002: "application_clocks",
    0x0000000000000004: "software_power_cap",
    0x0000000000000008: "hardware_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "software_thermal",
    0x0000000000000040: "hardware_thermal",
    0x0000000000000080: "hardware_power_brake",
    0x0000000000000100: "display_clocks",
}


class NVMLUnavailableError(MlopsEventsError):
    """There is no NVML here; the message says why."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """What all GPUs have in common: the driver's version, and the CUDA version that it serves."""

    driver: str | None = None
    cuda: str | None = None


class GPU(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU tells now; None is what it does not tell.

    Memory in bytes, temperature in degrees Celsius, power in watts, utilisation in percent of the
    last sample period, clocks in MHz, energy in joules since the driver was loaded. With `mig` the
    GPU is cut into instances; each is told as a GPU of its own with its `parent`, and has memory
    only. `lost` means that the GPU has fallen off the bus.
    """

    index: int
    parent: int | None = None
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    compute_capability: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    temperature: int | None = None
    power: float | None = None
    power_limit: float | None = None
    energy: float | None = None
    utilization: int | None = None
    memory_utilization: int | None = None
    clock: int | None = None
    memory_clock: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_errors: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    mig: bool | None = None
    lost: bool = False

    @property
    def place(self) -> str:
        """Its number; of an instance `GPU:INSTANCE`."""
        return str(self.index) if self.parent is None else f"{self.parent}:{self.index}"


class _Device:
    """A GPU that was found: its handle, what never changes, and what it will never tell."""

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self.handle = handle
        self.still: dict[str, Any] = {}
        self.seldom: dict[str, Any] = {}
        self.seldom_at = -_SELDOM_S
        self.never: set[str] = set()


class NVML:
    """Reads all GPUs; handles are kept, and what a GPU does not support is asked once.

    Args:
        clock: seconds that never go back.

    Raises:
        NVMLUnavailableError: there is no NVML here.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NVMLUnavailableError(
                'pynvml is not installed; run: pip install "mlops-events[gpu]"'
            ) from error
        self._n: Any = pynvml
        try:
            pynvml.nvmlInit()
        except self._n.NVMLError as error:
            raise NVMLUnavailableError(_why(error)) from error
        self._clock = clock
        self._devices: list[_Device] = []
        self._count = -1
        self._looked_at = -_LOOK_AGAIN_S
        self.system = System(
            driver=self._ask(None, "driver", self._n.nvmlSystemGetDriverVersion),
            cuda=self._cuda(),
        )

    def read(self) -> list[GPU]:
        """Return what each GPU tells now, and those that are lost."""
        self._look()
        found: list[GPU] = []
        for device in self._devices:
            found += self._read(device)
        return found

    def close(self) -> None:
        """Let go of the library."""
        with suppress(self._n.NVMLError):
            self._n.nvmlShutdown()

    # --- finding them --------------------------------------------------------------------------

    def _look(self) -> None:
        """Find the GPUs, again where the last look was long ago or one of them is gone."""
        count = self._ask(None, "count", self._n.nvmlDeviceGetCount)
        gone = any(device.handle is None for device in self._devices)
        now = self._clock()
        if count == self._count and not (gone and now - self._looked_at >= _LOOK_AGAIN_S):
            return
        self._looked_at = now
        known = {device.index: device for device in self._devices}
        for index in range(count or 0):
            device = known.get(index)
            if device is not None and device.handle is not None:
                continue
            handle = self._ask(None, "handle", partial(self._n.nvmlDeviceGetHandleByIndex, index))
            if device is None or handle is not None:
                known[index] = _Device(index, handle)
        self._devices = [known[index] for index in sorted(known)]
        self._count = -1 if count is None else count

    # --- reading one ---------------------------------------------------------------------------

    def _read(self, device: _Device) -> Iterator[GPU]:
        n, handle = self._n, device.handle
        if handle is None:
            yield GPU(index=device.index, lost=True, **device.still)
            return
        if not device.still:
            device.still = self._unchanging(device)
        ask = self._ask
        memory = ask(device, "memory", lambda: n.nvmlDeviceGetMemoryInfo(handle))
        used = ask(device, "utilization", lambda: n.nvmlDeviceGetUtilizationRates(handle))
        power = ask(device, "power", lambda: n.nvmlDeviceGetPowerUsage(handle))
        energy = ask(device, "energy", lambda: n.nvmlDeviceGetTotalEnergyConsumption(handle))
        if self._clock() - device.seldom_at >= _SELDOM_S:
            device.seldom_at = self._clock()
            device.seldom = self._seldom(device)
        reading = GPU(
            index=device.index,
            memory_total=None if memory is None else int(memory.total),
            memory_used=None if memory is None else int(memory.used),
            memory_free=None if memory is None else int(memory.free),
            temperature=self._temperature(device),
            power=None if power is None else power / 1000,
            energy=None if energy is None else energy / 1000,
            utilization=None if used is None else int(used.gpu),
            memory_utilization=None if used is None else int(used.memory),
            clock=ask(device, "clock", lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM)),
            memory_clock=ask(
                device, "memory_clock", lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM)
            ),
            throttle_reasons=self._reasons(device),
            lost=device.handle is None,
            **device.seldom,
            **device.still,
        )
        yield reading
        if reading.mig and not reading.lost:
            yield from self._instances(device)

    def _instances(self, device: _Device) -> Iterator[GPU]:
        """Read the instances that a GPU is cut into, which may change at any time."""
        n, handle, ask = self._n, device.handle, self._ask
        count = ask(device, "instances", lambda: n.nvmlDeviceGetMaxMigDeviceCount(handle))
        for index in range(count or 0):
            get = partial(n.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            instance = ask(None, "instance", get)
            if instance is None:
                continue
            memory = ask(None, "memory", partial(n.nvmlDeviceGetMemoryInfo, instance))
            yield GPU(
                index=index,
                parent=device.index,
                name=_text(ask(None, "name", partial(n.nvmlDeviceGetName, instance))),
                uuid=_text(ask(None, "uuid", partial(n.nvmlDeviceGetUUID, instance))),
                bus_id=device.still["bus_id"],
                compute_capability=device.still["compute_capability"],
                memory_total=None if memory is None else int(memory.total),
                memory_used=None if memory is None else int(memory.used),
                memory_free=None if memory is None else int(memory.free),
            )

    def _unchanging(self, device: _Device) -> dict[str, Any]:
        n, handle, ask = self._n, device.handle, self._ask
        capability = ask(device, "capability", lambda: n.nvmlDeviceGetCudaComputeCapability(handle))
        pci = ask(device, "pci", lambda: n.nvmlDeviceGetPciInfo(handle))
        return {
            "name": _text(ask(device, "name", lambda: n.nvmlDeviceGetName(handle))),
            "uuid": _text(ask(device, "uuid", lambda: n.nvmlDeviceGetUUID(handle))),
            "bus_id": None if pci is None else _text(pci.busId),
            "compute_capability": None
            if capability is None
            else f"{capability[0]}.{capability[1]}",
        }

    def _seldom(self, device: _Device) -> dict[str, Any]:
        n, handle, ask = self._n, device.handle, self._ask
        limit = ask(device, "limit", lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle))
        errors, count = n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC
        mig = ask(device, "mig", lambda: n.nvmlDeviceGetMigMode(handle))
        return {
            "power_limit": None if limit is None else limit / 1000,
            "ecc_errors": ask(
                device, "ecc", lambda: n.nvmlDeviceGetTotalEccErrors(handle, errors, count)
            ),
            "pcie_generation": ask(
                device, "generation", lambda: n.nvmlDeviceGetCurrPcieLinkGeneration(handle)
            ),
            "pcie_width": ask(device, "width", lambda: n.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            "mig": None if mig is None else bool(mig[0]),
        }

    def _temperature(self, device: _Device) -> int | None:
        """Ask by the new call, which old drivers lack, else by the old one, which new ones drop."""
        n, handle = self._n, device.handle
        sensor = n.NVML_TEMPERATURE_GPU
        if hasattr(n, "nvmlDeviceGetTemperatureV"):
            found: int | None = self._ask(
                device, "temperature_v", lambda: n.nvmlDeviceGetTemperatureV(handle, sensor)
            )
            if found is not None:
                return found
        old: int | None = self._ask(
            device, "temperature", lambda: n.nvmlDeviceGetTemperature(handle, sensor)
        )
        return old

    def _reasons(self, device: _Device) -> tuple[str, ...] | None:
        n, handle = self._n, device.handle
        call = getattr(n, "nvmlDeviceGetCurrentClocksEventReasons", None)
        bits = None if call is None else self._ask(device, "reasons_v", lambda: call(handle))
        if bits is None:
            bits = self._ask(
                device, "reasons", lambda: n.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            )
        if bits is None:
            return None
        return tuple(name for bit, name in _REASONS.items() if bits & bit)

    def _cuda(self) -> str | None:
        number = self._ask(None, "cuda", self._n.nvmlSystemGetCudaDriverVersion)
        return None if number is None else f"{number // 1000}.{number % 1000 // 10}"

    def _ask(self, device: _Device | None, what: str, call: Callable[[], Any]) -> Any:
        """Return what a call answers; None if it has no answer, now or ever."""
        if device is not None and (device.handle is None or what in device.never):
            return None
        try:
            return call()
        except self._n.NVMLError as error:
            if device is not None and error.value in _NEVER:
                device.never.add(what)
            elif device is not None and error.value in _GONE:
                device.handle = None
            return None


def _why(error: Any) -> str:
    if error.value == 12:
        return "no NVIDIA driver is installed on this machine (NVML's library is not there)"
    if error.value == 9:
        return "the NVIDIA driver is not loaded; is the kernel module there (nvidia-smi)?"
    if error.value == 18:
        return "the NVIDIA driver was updated and the machine not restarted (version mismatch)"
    return f"NVML does not start: {error}"


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
