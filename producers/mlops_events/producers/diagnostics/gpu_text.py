"""Draws GPUs, and how much memory they have left, for people in a terminal."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mlops_events.producers.diagnostics.cuda import CUDAMetrics
from mlops_events.producers.diagnostics.memory_risk import Level, MemoryRisk

__all__ = ["metrics_view", "risks_view"]

_NARROW = 70
_COLOURS: dict[Level, str] = {
    "ok": "green",
    "unknown": "cyan",
    "warning": "yellow",
    "critical": "bold red",
}


def metrics_view(metrics: Sequence[CUDAMetrics], *, width: int) -> RenderableType:
    """Return a table, or in a narrow terminal a few lines for each GPU."""
    versions = Text(", ".join(_versions(metrics[0])), style="dim")
    if width < _NARROW:
        return Group(versions, *(_block(one) for one in metrics))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), expand=False)
    for name in ("GPU", "name"):
        table.add_column(name, overflow="fold")
    for name in ("memory", "used", "busy", "temp.", "power"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in metrics:
        table.add_row(one.gpu, _name(one), *_memory(one), *_rest(one))
    return Group(versions, table)


def risks_view(risks: Sequence[MemoryRisk]) -> RenderableType:
    """Return the judgement of each GPU, why, and what to do."""
    return Group(*(line for risk in risks for line in _judgement(risk)))


def _versions(one: CUDAMetrics) -> Iterator[str]:
    yield f"driver {one.driver_version or 'unknown'}"
    yield f"CUDA {one.cuda_version or 'unknown'}"
    if one.pytorch_cuda_version:
        yield f"torch for CUDA {one.pytorch_cuda_version}"
    if one.pytorch_cudnn_version:
        yield f"cuDNN {one.pytorch_cudnn_version}"


def _name(one: CUDAMetrics) -> Text:
    name = Text(one.gpu_name or "")
    if one.lost:
        name.append(" fallen off the bus" if name else "fallen off the bus", style="bold red")
    elif one.compute_capability:
        name.append(f" ({one.compute_capability})", style="dim")
    return name


def _memory(one: CUDAMetrics) -> tuple[str, str]:
    used, total = one.memory_used_mb, one.memory_total_mb
    if used is None or not total:
        return "-", "-"
    return f"{used / 1024:.1f} of {total / 1024:.1f} GiB", f"{used / total:.0%}"


def _rest(one: CUDAMetrics) -> tuple[str, str, str]:
    return (
        "-" if one.utilization_gpu is None else f"{one.utilization_gpu}%",
        "-" if one.temperature is None else f"{one.temperature} °C",
        "-" if one.power_draw is None else f"{one.power_draw:.0f} W",
    )


def _block(one: CUDAMetrics) -> Text:
    block = Text.assemble((f"GPU {one.gpu}", "bold"), " ", _name(one))
    if one.lost:
        return block
    memory, share = _memory(one)
    busy, *others = _rest(one)
    block.append(f"\n  memory {memory}" + (f", {share}" if share != "-" else ""))
    return block.append("\n  " + ", ".join([f"busy {busy}", *(o for o in others if o != "-")]))


def _judgement(risk: MemoryRisk) -> Iterator[RenderableType]:
    yield Text.assemble(
        (f"GPU {risk.gpu}", "bold"),
        f" {risk.name}" if risk.name else "",
        ": ",
        (risk.level, _COLOURS[risk.level]),
        "" if risk.free_ratio is None else f", {risk.free_ratio:.0%} free",
    )
    for reason in risk.reasons:
        yield _indented(reason, "")
    for advice in risk.recommendations:
        yield _indented(advice, "-")


def _indented(text: str, mark: str) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    if mark:
        grid.add_row(" ", mark, text)
    else:
        grid.add_row(" ", text)
    return grid
