"""The command that shows what GPUs tell."""

import time
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from mlops_events.producers import arguments
from mlops_events.producers.commands.options import (
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
from mlops_events.producers.diagnostics.cuda import CUDAMetrics, CUDAMetricsCollector
from mlops_events.producers.publishing import Publisher
from mlops_events.producers.stop import until_told_to_stop
from mlops_events.schemas.events import Observation

__all__ = ["cuda_metrics"]

_LEAST_S = 0.1


@app.command(
    epilog=examples(
        "mlops-emit cuda-metrics",
        "mlops-emit cuda-metrics --watch --every 1s",
        "mlops-emit cuda-metrics --json | jq '.[].memory_free_mb'",
        "mlops-emit cuda-metrics --watch --emit --run demo --role miner --uid 12",
    )
)
def cuda_metrics(
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="From one reading to the next, with --watch.")
    ] = "2s",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list for each reading.")
    ] = False,
    emit: Emit = False,
    run: RunId = None,
    role: Role = None,
    uid: Uid = None,
    version: Version = None,
    tag: Tags = None,
    brokers: Brokers = None,
    timeout: Timeout = "10s",
) -> int:
    """Show what each GPU of this machine tells: memory, use, temperature, power, versions.

    Exit codes: 0 done, 1 there is no GPU to read or it was not published, 2 wrong usage.
    """
    every_s = max(_LEAST_S, arguments.duration(every) / 1e9)
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
    collector = CUDAMetricsCollector()
    show = _printer() if as_json else _drawer(moving=watch)
    pause = until_told_to_stop() if watch else None
    try:
        while True:
            found = collector.collect_metrics()
            show(found)
            if not found:
                return 1  # the collector has said why
            code = 0 if publisher is None else _publish(publisher, collector)
            if pause is None or pause(every_s):
                return code
    finally:
        collector.close()
        if publisher is not None:
            publisher.close()


def _printer() -> Callable[[list[CUDAMetrics]], None]:
    return lambda found: typer.echo(msgspec.json.encode(found))


def _drawer(*, moving: bool) -> Callable[[list[CUDAMetrics]], None]:
    """Return what draws on the terminal, in one place if it moves."""
    from rich.console import Console

    from mlops_events.producers.diagnostics.gpu_text import metrics_view

    console = Console()

    def draw(found: list[CUDAMetrics]) -> None:
        if not found:
            return  # what has been said of it stays to be read
        if moving and console.is_terminal:
            console.clear()
        console.print(metrics_view(found, width=console.width))

    return draw


def _publish(publisher: Publisher, collector: CUDAMetricsCollector) -> int:
    from mlops_events.producers.collectors.gpu import fields_of, tags_of

    return complain(
        publisher.publish(
            Observation(
                ts=time.time_ns(),
                name="gpu",
                fields=fields_of(gpu),
                tags=dict(tags_of(gpu, collector.system)),
            )
            for gpu in collector.gpus
            if not gpu.lost
        )
    )
