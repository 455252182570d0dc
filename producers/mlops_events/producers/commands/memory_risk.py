"""The command that judges how likely GPUs are to run out of memory."""

import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from mlops_events.producers import arguments
from mlops_events.producers.commands.options import (
    AsJson,
    Brokers,
    Emit,
    Role,
    RunId,
    Tags,
    Timeout,
    Uid,
    Version,
    complain,
    examples,
    publisher_of,
)
from mlops_events.producers.commands.root import app
from mlops_events.producers.diagnostics.memory_risk import (
    Level,
    MemoryRisk,
    Thresholds,
    memory_risks,
    worst,
)
from mlops_events.schemas.events import Log, Observation

__all__ = ["memory_risk"]

_EXIT: dict[Level, int] = {"ok": 0, "unknown": 1, "warning": 2, "critical": 3}
_LOGGED: dict[Level, str] = {"warning": "warning", "critical": "error"}
_USUAL = Thresholds()
_GIB = 1 << 30


@app.command(
    epilog=examples(
        "mlops-emit memory-risk",
        "mlops-emit memory-risk --device 0 --device 1 --min-free-gib 4",
        "mlops-emit memory-risk --all-devices --json",
        "mlops-emit memory-risk --min-free-ratio 0.2 --emit || notify-the-owner",
    )
)
def memory_risk(
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="GPU", help="Only this one; may be given again. An instance: 0:1."),
    ] = None,
    all_devices: Annotated[
        bool, typer.Option("--all-devices", help="Whatever CUDA_VISIBLE_DEVICES says.")
    ] = False,
    min_free_ratio: Annotated[
        float, typer.Option(metavar="R", min=0, max=1, help="Less free than this is critical.")
    ] = _USUAL.min_free_ratio,
    min_free_gib: Annotated[
        float, typer.Option(metavar="N", min=0, help="The same, in GiB.")
    ] = _USUAL.min_free_bytes / _GIB,
    warning_factor: Annotated[
        float, typer.Option(metavar="F", min=1, help="So many times that is a warning.")
    ] = _USUAL.warning_factor,
    as_json: AsJson = False,
    emit: Emit = False,
    run: RunId = None,
    role: Role = None,
    uid: Uid = None,
    version: Version = None,
    tag: Tags = None,
    brokers: Brokers = None,
    timeout: Timeout = "10s",
) -> int:
    """Judge how likely GPUs are to run out of memory, and say what to do.

    Exit codes: 0 ok, 2 warning, 3 critical, by the worst GPU; 1 it cannot be told or was not
    published. Wrong usage is 2 as well, with nothing on standard output.
    """
    from rich.console import Console

    from mlops_events.producers.diagnostics.gpu_text import risks_view
    from mlops_events.producers.nvml import NVML, NVMLUnavailableError

    publisher = publisher_of(
        emit,
        run=run,
        role=role,
        uid=uid,
        version=version,
        tag=tag,
        brokers=brokers,
        timeout=timeout,
    )
    thresholds = Thresholds(
        min_free_ratio=min_free_ratio,
        min_free_bytes=int(min_free_gib * _GIB),
        warning_factor=warning_factor,
    )
    error = ""
    try:
        nvml = NVML()
        found = memory_risks(nvml, thresholds, all_devices=all_devices or bool(device))
        nvml.close()
    except NVMLUnavailableError as reason:
        found = []
        error = f"no GPU can be read: {reason}"
    if device and not error:
        found = _chosen(found, device)
    if not found:
        error = error or "there is no GPU that this program may use"
    if as_json:
        typer.echo(msgspec.json.encode(found))
    elif found:
        Console().print(risks_view(found))
    code = max(complain(error), _EXIT[worst([risk.level for risk in found])])
    if publisher is not None:
        with publisher:
            code = max(
                code, complain(publisher.publish(e for risk in found for e in _events(risk)))
            )
    return code


def _chosen(risks: Sequence[MemoryRisk], devices: Sequence[str]) -> list[MemoryRisk]:
    """Return the judgements that were asked for.

    Raises:
        ArgumentError: there is no such GPU.
    """
    known = {risk.gpu: risk for risk in risks}
    strange = [device for device in devices if device not in known]
    if strange:
        raise arguments.ArgumentError(
            f"no GPU {', '.join(strange)}; there are: {', '.join(known) or 'none'}"
        )
    return [known[device] for device in dict.fromkeys(devices)]


def _events(risk: MemoryRisk) -> Iterator[Observation | Log]:
    """Yield what is published: figures, and a line of log where there is a reason for one."""
    tags = {"gpu": risk.gpu, "name": risk.name or "", "uuid": risk.uuid or ""}
    figures = {
        "level": risk.level,
        "gpu_memory_total": risk.memory_total,
        "gpu_memory_free": risk.memory_free,
        "free_ratio": risk.free_ratio,
    }
    fields = {name: value for name, value in figures.items() if value is not None}
    yield Observation(ts=time.time_ns(), name="memory_risk", fields=fields, tags=tags)
    if risk.level in _LOGGED:
        yield Log(
            ts=time.time_ns(),
            level=_LOGGED[risk.level],
            message="a GPU is short of memory",
            fields={**tags, **fields, "reason": "; ".join(risk.reasons)},
        )
