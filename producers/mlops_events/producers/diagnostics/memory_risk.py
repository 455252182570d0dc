"""How likely a GPU is to run out of memory, and what to do about it."""

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from mlops_events.producers.collectors.torch_memory import TorchMemory, torch_memory
from mlops_events.producers.collectors.visible import visible
from mlops_events.producers.nvml import GPU, NVML

__all__ = ["Level", "MemoryRisk", "Thresholds", "assess", "memory_risks", "worst"]

Level: TypeAlias = Literal["ok", "unknown", "warning", "critical"]

_ORDER: Final[tuple[Level, ...]] = ("ok", "unknown", "warning", "critical")
_GIB: Final = 1 << 30


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as little.

    Less free than `min_free_ratio` of the memory or than `min_free_bytes` is critical, less than
    `warning_factor` times that a warning. So is it if torch keeps more than `max_fragmentation` of the
    memory that no tensor has.
    """

    min_free_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    min_free_bytes: Annotated[int, msgspec.Meta(ge=0)] = _GIB
    warning_factor: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    max_fragmentation: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2


class MemoryRisk(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of one GPU; memory in bytes. `fragmentation` is None where torch is not seen."""

    gpu: str
    name: str | None
    uuid: str | None
    level: Level
    memory_total: int | None
    memory_free: int | None
    free_ratio: float | None
    fragmentation: float | None
    reasons: tuple[str, ...]
    recommendations: tuple[str, ...]


def memory_risks(
    nvml: NVML,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 - it does not change
    *,
    all_devices: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> list[MemoryRisk]:
    """Return the judgement of each GPU that this process may use, by CUDA_VISIBLE_DEVICES.

    Torch's allocator is that of this process: call it in the training program to have fragmentation
    judged.

    Args:
        nvml: where they are read.
        thresholds: what counts as little.
        all_devices: whatever CUDA_VISIBLE_DEVICES says.
        environ: where that is read.
    """
    gpus = nvml.read()
    held = torch_memory()
    seen = visible(gpus, {} if all_devices else environ)
    return [assess(gpu, _held_on(gpu, held), thresholds) for gpu in seen]


def assess(gpu: GPU, torch: TorchMemory | None, thresholds: Thresholds) -> MemoryRisk:
    """Judge one GPU by what it told, and by what torch holds on it if that is known."""
    total, free = gpu.memory_total, gpu.memory_free
    levels: list[Level] = ["ok"]
    reasons: list[str] = []
    todo: list[str] = []
    ratio = None
    if gpu.lost or not total or free is None:
        levels.append("unknown")
        reasons.append("it has fallen off the bus" if gpu.lost else "it does not tell its memory")
        todo.append(
            "look at the kernel's log for Xid errors and restart the machine"
            if gpu.lost
            else "check that the driver serves this GPU (nvidia-smi)"
        )
    else:
        ratio = free / total
        level, reason = _judge(free, total, thresholds)
        levels.append(level)
        reasons.append(reason)
        if level != "ok":
            todo += _FREEING
    fragmentation = None if torch is None else torch.fragmentation
    if torch is not None and fragmentation is not None:
        unused = torch.reserved - torch.allocated
        if fragmentation > thresholds.max_fragmentation:
            levels.append("warning")
            reasons.append(
                f"torch keeps {_gib(unused)} that no tensor has, {fragmentation:.0%} of the memory "
                f"(at most {thresholds.max_fragmentation:.0%})"
            )
            todo += _DEFRAGMENTING
    return MemoryRisk(
        gpu=gpu.place,
        name=gpu.name,
        uuid=gpu.uuid,
        level=worst(levels),
        memory_total=total,
        memory_free=free,
        free_ratio=ratio,
        fragmentation=fragmentation,
        reasons=tuple(reasons),
        recommendations=tuple(todo),
    )


def worst(levels: Sequence[Level]) -> Level:
    """Return the worst of them; unknown, which includes no GPU at all, is worse than ok only."""
    places = [_ORDER.index(level) for level in levels]
    return _ORDER[max(places)] if places else "unknown"


_FREEING: Final = (
    "use a smaller batch with more steps of gradient accumulation, or shorter sequences",
    "trade time for memory: gradient checkpointing, 8-bit optimisers, offloading",
    "end other processes on this GPU (nvidia-smi lists them)",
)
_DEFRAGMENTING: Final = (
    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the program starts",
    "call torch.cuda.empty_cache() between phases that use other shapes, such as evaluation",
)


def _judge(free: int, total: int, thresholds: Thresholds) -> tuple[Level, str]:
    by_ratio = total * thresholds.min_free_ratio
    least = max(by_ratio, thresholds.min_free_bytes)
    which = (
        f"{thresholds.min_free_ratio:.0%} of it"
        if by_ratio >= thresholds.min_free_bytes
        else _gib(thresholds.min_free_bytes)
    )
    factor = thresholds.warning_factor
    left = f"{_gib(free)} of {_gib(total)} are free"
    if free < least:
        return "critical", f"{left}, less than {which}"
    if free < least * factor:
        return "warning", f"{left}, less than {factor:g} times {which}"
    return "ok", left


def _held_on(gpu: GPU, held: Sequence[TorchMemory]) -> TorchMemory | None:
    return next((memory for memory in held if memory.is_on(gpu.uuid)), None)


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"
