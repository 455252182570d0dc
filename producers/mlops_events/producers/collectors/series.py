"""Collects on timers, keeps what is newest, emits it as the series `system` and `gpu`."""

from collections.abc import Mapping
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mlops_events.producers.collectors.timer import Timer

if TYPE_CHECKING:
    from mlops_events.producers.collectors.gpu import GPUCollector, GPUSample
    from mlops_events.producers.collectors.system import SystemCollector

__all__ = ["Collectors", "Events"]

_OLD = 3.0
"""What is older than so many periods is not told as the newest: the driver may hang."""


class Events(Protocol):
    """What is needed of an emitter."""

    def observe(
        self, name: str, fields: Mapping[str, Any], *, tags: Mapping[str, Any] | None = None
    ) -> None:
        """Emit values."""
        ...

    def log(self, level: str, message: str, /, **fields: Any) -> None:
        """Emit a line of log."""
        ...


class _Newest(NamedTuple):
    at: float
    fields: dict[str, Any]


class Collectors:
    """The collectors of an emitter; each has a thread of its own, so a GPU that hangs stops itself only.

    Args:
        events: where the series go; nowhere if None.
        every_s: from one sample to the next.
        system: emit the series `system`.
        gpu: emit the series `gpu`, an event for each GPU, and a line of log for each that falls off
            the bus or comes back.
    """

    def __init__(
        self,
        events: Events | None,
        *,
        every_s: float,
        system: bool = False,
        gpu: bool = False,
    ) -> None:
        self._events = events
        self._every_s = every_s
        self._emitted = {"system": system, "gpu": gpu}
        self._newest: dict[str, _Newest] = {}
        self._timers: dict[str, Timer] = {}
        self._lock = RLock()  # reentrant: a signal handler may close the emitter
        self._stopped = False
        self._lost: set[str] = set()
        self._system: SystemCollector | None = None
        self._gpus: GPUCollector | None = None

    def start(self) -> None:
        """Start to collect what is emitted."""
        for what, wanted in self._emitted.items():
            if wanted:
                self._start(what)

    def latest(self, *, system: bool, gpu: bool) -> dict[str, Any]:
        """Return the newest figures; nothing yet at the first call, which starts to collect."""
        found: dict[str, Any] = {}
        for what, wanted in (("system", system), ("gpu", gpu)):
            if not wanted:
                continue
            newest = self._newest.get(what)
            if newest is None:
                self._start(what)
            elif monotonic() - newest.at < _OLD * self._every_s:
                found |= newest.fields
        return found

    def stop(self) -> None:
        """Emit nothing more."""
        with self._lock:
            self._stopped = True
            for timer in self._timers.values():
                timer.stop()

    def _start(self, what: str) -> None:
        prepare, work, finish = {
            "system": (self._prepare_system, self._collect_system, _nothing),
            "gpu": (self._prepare_gpus, self._collect_gpus, self._close_gpus),
        }[what]
        with self._lock:
            if self._stopped or what in self._timers:
                return
            timer = self._timers[what] = Timer(
                what, prepare=prepare, work=work, finish=finish, every_s=self._every_s
            )
        timer.start()

    # In the threads.

    def _prepare_system(self) -> None:
        from mlops_events.producers.collectors.system import SystemCollector

        self._system = SystemCollector()

    def _collect_system(self) -> None:
        assert self._system is not None  # noqa: S101 - prepared
        fields = self._system.sample()
        self._newest["system"] = _Newest(monotonic(), fields)
        with self._lock:
            if self._emits("system"):
                assert self._events is not None  # noqa: S101 - it emits
                self._events.observe("system", fields)

    def _prepare_gpus(self) -> None:
        from contextlib import suppress

        import mlops_events.producers.collectors.gpu  # noqa: F401 - for later

        with suppress(ImportError):  # NVML says so
            import pynvml  # noqa: F401

    def _collect_gpus(self) -> None:
        from mlops_events.producers.collectors.gpu import GPUCollector
        from mlops_events.producers.nvml import NVML, NVMLUnavailableError

        if self._gpus is None:
            try:
                self._gpus = GPUCollector(NVML())
            except NVMLUnavailableError:
                self._timers["gpu"].stop()  # once is enough
                raise
        samples = self._gpus.sample()
        mine = next((sample.fields for sample in samples if sample.own and not sample.lost), {})
        self._newest["gpu"] = _Newest(monotonic(), mine)
        with self._lock:
            if self._emits("gpu"):
                for sample in samples:
                    self._emit(sample)

    def _emit(self, sample: "GPUSample") -> None:
        assert self._events is not None  # noqa: S101 - it emits
        if sample.fields and not sample.lost:
            self._events.observe("gpu", sample.fields, tags=sample.tags)
        gpu = sample.tags["gpu"]
        if sample.lost == (gpu in self._lost):
            return
        if sample.lost:
            self._lost.add(gpu)
            self._events.log("error", "a GPU has fallen off the bus", **sample.tags)
        else:
            self._lost.remove(gpu)
            self._events.log("info", "a GPU is back", **sample.tags)

    def _close_gpus(self) -> None:
        if self._gpus is not None:
            self._gpus.close()

    def _emits(self, what: str) -> bool:
        return self._events is not None and self._emitted[what] and not self._stopped


def _nothing() -> None:
    pass
