"""What the machine and this process use: processors, memory, disk, network."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic, process_time
from typing import Final

import psutil

__all__ = ["SystemCollector", "system_sample"]

Figures = dict[str, float]

_SELDOM_S: Final = 0.9
"""Each of these figures is a file to read; all but the processors' use is read once a second at most."""


class SystemCollector:
    """Reads the machine's figures, named as in `mlops_events.schemas.catalog`.

    Processor time is counted from one `sample` to the next. The disk is the one that holds the
    working folder. In a container memory, load and processors are the machine's.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._folder = os.sep
        with suppress(OSError):
            self._folder = str(os.getcwd())  # noqa: PTH109 - a text, asked for once
        psutil.cpu_percent()  # the first call only marks where counting begins
        self._cpu_s = (monotonic(), process_time())
        self._seldom_at = -_SELDOM_S
        self._seldom: Figures = {}

    def sample(self) -> Figures:
        """Return the figures of now; one that the system does not tell is left out."""
        if monotonic() - self._seldom_at >= _SELDOM_S:
            self._seldom_at = monotonic()
            self._seldom = _told(
                self._load, self._memory, self._threads, self._disk, self._disks, self._network
            )
        return _told(self._cpu, self._own) | self._seldom

    def _cpu(self) -> Iterator[tuple[str, float]]:
        yield "cpu_percent", psutil.cpu_percent()

    def _load(self) -> Iterator[tuple[str, float]]:
        yield "load_1m", psutil.getloadavg()[0]

    def _memory(self) -> Iterator[tuple[str, float]]:
        memory = psutil.virtual_memory()
        yield "memory_percent", memory.percent
        yield "memory_used", memory.used
        yield "memory_available", memory.available
        yield "memory_total", memory.total

    def _own(self) -> Iterator[tuple[str, float]]:
        yield "process_memory", self._process.memory_info().rss
        before, now = self._cpu_s, (monotonic(), process_time())
        if now[0] > before[0]:
            self._cpu_s = now
            share = (now[1] - before[1]) / (now[0] - before[0])
            yield "process_cpu_percent", round(100 * share, 1)

    def _threads(self) -> Iterator[tuple[str, float]]:
        yield "process_threads", self._process.num_threads()

    def _disk(self) -> Iterator[tuple[str, float]]:
        disk = psutil.disk_usage(self._folder)
        yield "disk_percent", disk.percent
        yield "disk_used", disk.used
        yield "disk_free", disk.free

    # Without `nowrap`, which takes a lock that a fork could leave taken.

    def _disks(self) -> Iterator[tuple[str, float]]:
        disks = psutil.disk_io_counters(nowrap=False)
        if disks is not None:
            yield "disk_read", disks.read_bytes
            yield "disk_written", disks.write_bytes

    def _network(self) -> Iterator[tuple[str, float]]:
        network = psutil.net_io_counters(nowrap=False)
        if network is not None:
            yield "network_received", network.bytes_recv
            yield "network_sent", network.bytes_sent


def system_sample() -> Figures:
    """Return the newest figures of a sampler that all of this process share.

    The first call starts it and returns nothing yet.
    """
    from mlops_events.producers.collectors.shared import latest

    return latest(system=True)


def _told(*reads: Callable[[], Iterator[tuple[str, float]]]) -> Figures:
    found: Figures = {}
    for read in reads:
        # psutil has errors of its own, and raises others for lines of /proc that it does not expect
        with suppress(psutil.Error, OSError, ValueError, LookupError, NotImplementedError):
            found.update(read())
    return found
