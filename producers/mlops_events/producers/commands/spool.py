"""The command that looks into a spool and sends what dead processes left there."""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mlops_events.producers import arguments
from mlops_events.producers.commands.options import AsJson, Brokers, complain, examples, settings_of
from mlops_events.producers.commands.root import app
from mlops_events.producers.draining import Account, drain
from mlops_events.producers.spool import Waiting, waiting
from mlops_events.producers.transport import KafkaTransport
from mlops_events.schemas.settings import variable

__all__ = ["spool"]

_QUIET_S = 2.0


@app.command(
    epilog=examples(
        "mlops-emit spool /var/spool/mlops-events",
        "mlops-emit spool --drain",
        "mlops-emit spool --json",
    )
)
def spool(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Else MLOPS_EVENTS_SPOOL_DIR.")
    ] = None,
    drain_it: Annotated[
        bool, typer.Option("--drain", help="Send all that processes which are gone have left.")
    ] = False,
    as_json: AsJson = False,
    brokers: Brokers = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long the broker may be silent.")
    ] = "30s",
) -> int:
    """Show what waits in a spool, by emitter and kind; with --drain send it.

    What a live process holds is shown, and left to it. Exit codes: 0 nothing of dead processes
    waits, 1 something does, 2 wrong usage.
    """
    timeout_s = arguments.duration(timeout) / 1e9
    settings = settings_of(brokers=brokers, required=drain_it)
    root = folder or (Path(settings.spool_dir) if settings.spool_dir else None)
    if root is None:
        raise arguments.ArgumentError(f"no folder; give one or set {variable('', 'spool_dir')}")
    if not root.is_dir():
        raise arguments.ArgumentError(f"{root} is no folder")
    account = None
    if drain_it:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it says is told once
        account = asyncio.run(
            drain(
                root,
                settings.kafka.topics,
                KafkaTransport(settings.kafka),
                timeout_s=timeout_s,
                progress=_Progress(sum(one.frames for one in waiting(root) if not one.live)),
            )
        )
    left = waiting(root)
    if as_json:
        typer.echo(msgspec.json.encode({"waiting": left, "drained": account}))
    else:
        _show(root, left, account)
    if account is not None:
        complain(account.error)
    return 1 if any(not one.live for one in left) else 0


class _Progress:
    """Tells on standard error how far a long drain is."""

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._told = time.monotonic()

    def __call__(self, account: Account) -> None:
        now = time.monotonic()
        if now - self._told >= _QUIET_S:
            self._told = now
            typer.echo(f"{account.frames} of {self._frames} frames", err=True)


def _show(root: Path, left: Sequence[Waiting], account: Account | None) -> None:
    if account is not None:
        typer.echo(f"sent {account.events} events in {account.frames} frames")
        if account.refused or account.unreadable:
            typer.echo(
                f"lost: {account.refused} frames that the broker refuses, "
                f"{account.unreadable} that are none"
            )
    if not left:
        typer.echo(f"nothing waits in {root}")
    now_ns = time.time_ns()
    for one in left:
        who = "its process lives" if one.live else "its process is gone"
        typer.echo(
            f"{one.emitter[:8]} {one.kind}: {one.events} events in {one.frames} frames, "
            f"{one.bytes / (1 << 20):.1f} MiB, {_age(now_ns - one.since_ns)}; {who}"
        )


def _age(ns: int) -> str:
    seconds = max(0, ns // 1_000_000_000)
    if seconds < 120:
        return f"{seconds} s old"
    if seconds < 7200:
        return f"{seconds // 60} min old"
    return f"{seconds // 3600} h old"
