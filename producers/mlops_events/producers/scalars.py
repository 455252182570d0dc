"""Scalars that still lie on a GPU: copied asynchronously, read when they have arrived.

Reading one with `.item()` waits for everything that the GPU has to do before, tens of milliseconds a
step. So the caller's thread only orders a copy into pinned memory, on the stream that the value was
made on, and a CUDA event behind it; the emitter's thread asks the events whether they have passed.
torch is never imported here, and no CUDA context is made.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from mlops_events.producers.tally import Tally

__all__ = ["SLOTS", "Capture", "Captured"]

SLOTS: Final = 4096
"""Values that may be on their way at once, for each device."""


class Captured(NamedTuple):
    """An observation of which some values are on their way."""

    name: str
    fields: dict[str, Any]
    step: Any
    ts: int
    tags: Mapping[str, Any] | None


class _Slot(NamedTuple):
    """A place in pinned memory, and the pool that it goes back to."""

    host: Any
    pool: "_Pool"


class _Waiting(NamedTuple):
    """What must have passed before an observation is whole; `sources` keep the tensors alive."""

    observation: Captured
    slots: dict[str, _Slot]
    events: list[tuple[Any, "_Pool"]]
    sources: list[Any]


class _Pool:
    """Pinned memory and CUDA events of a device, made beforehand."""

    def __init__(self, torch: Any, device: Any, slots: int) -> None:
        host = torch.zeros(slots, dtype=torch.float64, pin_memory=True)
        self.slots: deque[Any] = deque(host.unbind(0))
        self.events: deque[Any] = deque()
        accelerator = getattr(torch, device.type)
        stream = accelerator.current_stream(device)
        for _ in range(max(1, slots // 8)):
            event = accelerator.Event()
            event.record(stream)  # the first time makes it
            self.events.append(event)


class Capture:
    """Takes observations with values on GPUs, and gives them back when the values are here.

    A value that cannot be taken is left out and counted by its field's name: it has several
    elements, is complex or a shard of a distributed tensor; a graph is being captured; too many
    values are on their way; or the memory for them is not there yet, which the first one brings
    about.

    Args:
        bad: counts the values that are left out.
        wake: wakes the thread that calls `prepare` and `ready`.
        slots: values that may be on their way, for each device.
        torch: the module; the one that the program has imported if None.
    """

    def __init__(
        self,
        *,
        bad: Tally,
        wake: Callable[[], None],
        slots: int = SLOTS,
        torch: Any = None,
    ) -> None:
        self._bad = bad
        self._wake = wake
        self._slots = slots
        self._torch = torch
        self._pools: dict[tuple[str, Any], _Pool] = {}
        self._wanted: set[Any] = set()
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    # The caller's thread.

    def take(self, observation: Captured) -> Captured | None:
        """Order copies of the values on GPUs; return the observation if none is on its way."""
        torch = self._torch or sys.modules["torch"]
        slots: dict[str, _Slot] = {}
        streams: dict[tuple[Any, Any], _Pool] = {}
        sources: list[Any] = []
        here: dict[str, Any] = {}
        for field, value in observation.fields.items():
            if getattr(value, "is_cuda", False) is not True:
                here[field] = value
                continue
            slot = self._copy(torch, value, streams)
            if slot is None:
                self._bad.add(field)
            else:
                slots[field] = slot
                sources.append(value)
                here[field] = None  # keeps its place among the fields
        if not slots:
            return observation._replace(fields=here)
        events = [(_recorded(torch, pool, *place), pool) for place, pool in streams.items()]
        self._waiting.append(_Waiting(observation._replace(fields=here), slots, events, sources))
        return None

    def _copy(self, torch: Any, value: Any, streams: dict[Any, "_Pool"]) -> _Slot | None:
        """Order the copy of one value; None if it cannot be taken."""
        tensor = _whole(value)
        if tensor is None or tensor.numel() != 1 or tensor.is_complex():
            return None
        device = tensor.device
        accelerator = getattr(torch, device.type)
        if accelerator.is_current_stream_capturing():
            return None  # the copy would become part of the graph
        pool = self._pools.get((device.type, device.index))
        if pool is None:
            self._wanted.add(device)
            self._wake()
            return None
        try:
            host = pool.slots.popleft()
        except IndexError:
            return None
        host.copy_(tensor.detach().reshape(()), non_blocking=True)
        streams[device, accelerator.current_stream(device)] = pool
        return _Slot(host, pool)

    # The emitter's thread.

    def prepare(self) -> None:
        """Make the memory that was asked for; it may wait for the GPU, so not on the caller's
        thread."""
        while self._wanted:
            device = self._wanted.pop()
            torch = self._torch or sys.modules["torch"]
            self._pools[device.type, device.index] = _Pool(torch, device, self._slots)

    def ready(self) -> Iterator[Captured]:
        """Yield the observations whose values are here, in the order in which they came."""
        while self._waiting and all(event.query() for event, _ in self._waiting[0].events):
            waiting = self._waiting.popleft()
            fields = waiting.observation.fields
            for field, slot in waiting.slots.items():
                fields[field] = float(slot.host)
                slot.pool.slots.append(slot.host)
            for event, pool in waiting.events:
                pool.events.append(event)
            yield waiting.observation

    def give_up(self) -> Iterator[Captured]:
        """Yield what still waits, without the values that are not here; these are counted."""
        while self._waiting:
            waiting = self._waiting.popleft()
            for field in waiting.slots:
                self._bad.add(field)
                del waiting.observation.fields[field]
            yield waiting.observation


def _recorded(torch: Any, pool: _Pool, device: Any, stream: Any) -> Any:
    """Return an event that has passed when all that was ordered on a stream is done."""
    try:
        event = pool.events.popleft()
    except IndexError:
        event = getattr(torch, device.type).Event()
    event.record(stream)
    return event


def _whole(value: Any) -> Any:
    """Return the tensor that holds all of a value: a distributed one only if it is replicated."""
    placements = getattr(value, "placements", None)
    if placements is None:
        return value
    if all(placement.is_replicate() for placement in placements):
        return value.to_local()
    return None
