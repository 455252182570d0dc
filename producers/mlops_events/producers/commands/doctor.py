"""The command that examines this node's chain."""

import logging
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
    Uid,
    Version,
    complain,
    examples,
    publisher_of,
)
from mlops_events.producers.commands.root import app
from mlops_events.producers.diagnostics.findings import Finding, Status, worst
from mlops_events.producers.settings import EmitterSettings
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import Log
from mlops_events.schemas.settings import explain, load

__all__ = ["doctor"]

_LEVELS: dict[Status, str] = {
    "ok": "info",
    "skipped": "info",
    "warning": "warning",
    "error": "error",
}


@app.command(
    epilog=examples(
        "mlops-emit doctor",
        "mlops-emit doctor --brokers kafka-1:9093 --write",
        "mlops-emit doctor --json",
    )
)
def doctor(
    write: Annotated[
        bool,
        typer.Option("--write", help="Send a line of log and wait until the broker has it."),
    ] = False,
    as_json: AsJson = False,
    emit: Emit = False,
    run: RunId = None,
    role: Role = None,
    uid: Uid = None,
    version: Version = None,
    brokers: Brokers = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long each step may take.")
    ] = "3s",
) -> int:
    """Examine this node's whole chain: settings, origin, broker, topics, spool, GPUs.

    Each fault comes with what to do. Exit codes: 0 nothing is wrong or there are warnings only,
    1 something is, 2 wrong usage.
    """
    from rich.console import Console

    from mlops_events.producers.diagnostics.doctor import examine
    from mlops_events.producers.diagnostics.doctor_text import findings_view

    given = {
        "run_id": run, "role": role, "uid": uid, "version": version, "kafka": {"brokers": brokers},
    }  # fmt: skip
    timeout_s = arguments.duration(timeout) / 1e9
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it says is found below
    logging.getLogger("mlops_events.schemas.settings").setLevel(logging.CRITICAL)
    settings: EmitterSettings | None
    try:
        settings = load(EmitterSettings, "", arguments=given, unknown="warn")
    except ConfigError:
        settings = None
    found = examine(
        settings,
        explain(EmitterSettings, "", arguments=given),
        write=write,
        timeout_s=timeout_s,
    )
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        console = Console()
        console.print(findings_view(found, width=console.width))
    code = 1 if worst(found) == "error" else 0
    publisher = publisher_of(
        emit and settings is not None,
        run=run, role=role, uid=uid, version=version, tag=None, brokers=brokers, timeout=timeout,
    )  # fmt: skip
    if publisher is not None:
        with publisher:
            code = max(code, complain(publisher.publish(_events(found))))
    return code


def _events(findings: Sequence[Finding]) -> Iterator[Log]:
    """Yield a line of log for each finding."""
    for one in findings:
        yield Log(
            ts=time.time_ns(),
            level=_LEVELS[one.status],
            message=f"doctor: {one.check} {one.status}",
            logger="mlops-emit doctor",
            fields={"found": one.found, **({"cure": one.cure} if one.cure else {})},
        )
