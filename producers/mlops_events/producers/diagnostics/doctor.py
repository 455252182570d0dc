"""Examines a node's whole chain, from its settings to the broker's acknowledgement."""

import asyncio
import os
import time
from collections.abc import Sequence

from mlops_events.producers.diagnostics import doctor_node as node
from mlops_events.producers.diagnostics.doctor_broker import way_to_kafka
from mlops_events.producers.diagnostics.findings import Finding, worst
from mlops_events.producers.publishing import Publisher
from mlops_events.producers.settings import EmitterSettings
from mlops_events.schemas.events import Log
from mlops_events.schemas.sources import Setting

__all__ = ["examine"]


def examine(
    settings: EmitterSettings | None, explained: Sequence[Setting], *, write: bool, timeout_s: float
) -> list[Finding]:
    """Return what every check finds, in the order of the chain.

    Args:
        settings: of the emitter; None if they cannot be used.
        explained: each setting and where it came from.
        write: send a line of log and wait for its acknowledgement.
        timeout_s: of each step that needs the network.
    """
    found = [*node.settings_in_force(explained, os.environ), node.packages()]
    gpu = node.gpus()
    if settings is None:
        found.append(
            Finding(
                check="broker", status="skipped", found="settings cannot be used; mend them first"
            )
        )
        return [*found, gpu, node.torch(gpu)]
    found.append(node.origin(settings))
    way = asyncio.run(way_to_kafka(settings.kafka, timeout_s=timeout_s))
    found += way
    found.append(_write(settings, way, write=write, timeout_s=timeout_s))
    return [*found, node.spool(settings), gpu, node.torch(gpu)]


def _write(
    settings: EmitterSettings, way: Sequence[Finding], *, write: bool, timeout_s: float
) -> Finding:
    if not write:
        return Finding(
            check="write",
            status="skipped",
            found="nothing was written",
            cure="--write sends a line of log and waits until the broker has it",
        )
    if worst(way) == "error":
        return Finding(
            check="write", status="skipped", found="nothing was written; mend the way there first"
        )
    line = Log(
        ts=time.time_ns(), level="info", message="the doctor was here", logger="mlops-emit doctor"
    )
    began = time.monotonic()
    with Publisher(settings, timeout_s=timeout_s) as publisher:
        problem = publisher.publish([line])
    if problem:
        return Finding(
            check="write",
            status="error",
            found=problem,
            cure="may this node write to these topics? look into the broker's log",
        )
    took_ms = (time.monotonic() - began) * 1000
    return Finding(
        check="write", status="ok", found=f"the broker has a line of log, after {took_ms:.0f} ms"
    )
