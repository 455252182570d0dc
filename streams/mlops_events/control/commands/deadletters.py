"""Commands about dead letters."""

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer

from mlops_events.control.commands.options import (
    AsJson,
    Brokers,
    ConfigFile,
    DataFolder,
    examples,
    use,
)
from mlops_events.control.commands.root import app
from mlops_events.control.deadletters import Choice, LetterError, group
from mlops_events.control.deadletters_content import as_json as to_json
from mlops_events.control.deadletters_content import describe
from mlops_events.control.deadletters_plan import Account
from mlops_events.control.deadletters_text import account_text, group_text, letter_text, list_text
from mlops_events.control.folder import DEFAULT_FOLDER, kafka_of
from mlops_events.control.logs import log_to
from mlops_events.control.replay_request import parse_time
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import Kind
from mlops_events.schemas.settings import load
from mlops_events.sinks.base import installed_sinks
from mlops_events.streams.settings import StreamSettings

__all__ = ["list_", "redrive", "show"]

_QUIET_S = 2.0

letters_app = typer.Typer(help="Events that could not be delivered: look at them, send them again.")
app.add_typer(letters_app, name="dead-letters")

OfSink = Annotated[
    str | None, typer.Option("--sink", metavar="NAME", help="Of this sink; 'stream' before any.")
]
OfReason = Annotated[str | None, typer.Option("--reason", metavar="WORD", help="With this reason.")]
OfKind = Annotated[str | None, typer.Option("--kind", metavar="K", help="Of this kind of event.")]
OfRun = Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Written since: -2h, or 2026-01-31T08:00Z."),
]


@letters_app.command(
    "list",
    epilog=examples(
        "mlops-pipeline dead-letters list",
        "mlops-pipeline dead-letters list --sink sqlite --since=-2h --all",
        "mlops-pipeline dead-letters list --reason undecodable --all --json",
    ),
)
def list_(
    sink: OfSink = None,
    reason: OfReason = None,
    kind: OfKind = None,
    run: OfRun = None,
    since: Since = None,
    single: Annotated[
        bool, typer.Option("--all", help="Each letter with its key, not only their numbers.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the last N letters; implies --all.")
    ] = None,
    data: DataFolder = DEFAULT_FOLDER,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """List the dead letters by sink and reason, or one by one."""
    from mlops_events.control.deadletters_read import find_letters

    log_to(sys.stderr, level="CRITICAL")  # aiokafka repeats what the command says once
    use(config)
    choice = _choice(sink, reason, kind, run, since)
    letters = asyncio.run(find_letters(kafka_of(data, brokers=brokers), choice))
    _check_sink(sink, found=len(letters))
    width = shutil.get_terminal_size().columns
    if single or limit is not None:
        letters = letters[-limit:] if limit is not None else letters
        found = [describe(letter) for letter in letters]
        typer.echo(to_json(found) if as_json else list_text(letters, width=width))
    else:
        groups = group(letters)
        typer.echo(to_json(groups) if as_json else group_text(groups, width=width))
    return 0


@letters_app.command(
    epilog=examples(
        "mlops-pipeline dead-letters show sqlite/3f2a",
        "mlops-pipeline dead-letters show sqlite/3f2a --raw frame.bin",
        "mlops-pipeline dead-letters show --offset 3:120 --json",
    )
)
def show(
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="Its key, or how only this one begins.")
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(metavar="PART:OFF", help="Where it lies, even if its key has a newer one."),
    ] = None,
    raw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the payload into this file.")
    ] = None,
    data: DataFolder = DEFAULT_FOLDER,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Show everything about one dead letter, its event as well."""
    from mlops_events.control.deadletters_read import fetch_letter

    log_to(sys.stderr, level="CRITICAL")  # aiokafka repeats what the command says once
    use(config)
    if (key is None) == (offset is None):
        raise ConfigError("say which: either KEY or --offset PARTITION:OFFSET")
    place = None if offset is None else _place(offset)
    kafka = kafka_of(data, brokers=brokers)
    found = asyncio.run(fetch_letter(kafka, key=key or "", place=place))
    if raw is not None:
        try:
            raw.write_bytes(found.letter.payload)
        except OSError as error:
            raise LetterError(f"{raw} cannot be written: {error}") from error
    width = shutil.get_terminal_size().columns
    typer.echo(to_json(describe(found)) if as_json else letter_text(found, width=width))
    return 0


@letters_app.command(
    epilog=examples(
        "mlops-pipeline dead-letters redrive --sink loki --reason too_old --dry-run",
        "mlops-pipeline dead-letters redrive sqlite/3f2a",
        "mlops-pipeline dead-letters redrive --all --limit 1000",
    )
)
def redrive(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Keys, or how only these begin."),
    ] = None,
    sink: OfSink = None,
    reason: OfReason = None,
    kind: OfKind = None,
    run: OfRun = None,
    since: Since = None,
    everything: Annotated[bool, typer.Option("--all", help="All that lie there now.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the N oldest of them.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also those that failed again three times.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    data: DataFolder = DEFAULT_FOLDER,
    brokers: Brokers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Send dead letters once more: to the sink that refused them, or through the stream.

    A letter goes away when its event was acknowledged. An event that fails again becomes a new
    letter, which this call does not touch. Exit code 1 if any letter was kept.
    """
    from mlops_events.control.deadletters_redrive import redrive as redrive_letters

    log_to(sys.stderr, level="CRITICAL")  # aiokafka repeats what the command says once
    use(config)
    choice = _choice(sink, reason, kind, run, since)
    if not keys and not everything and choice == Choice():
        raise ConfigError(
            "say which letters: KEY..., --sink, --reason, --kind, --run, --since, or --all"
        )
    account = asyncio.run(
        redrive_letters(
            kafka_of(data, brokers=brokers),
            load(StreamSettings, "stream"),
            choice,
            keys=keys or (),
            limit=limit,
            force=force,
            dry_run=dry_run,
            progress=_Progress(),
        )
    )
    _check_sink(sink, found=account.chosen)
    width = shutil.get_terminal_size().columns
    typer.echo(
        msgspec.json.encode(account).decode() if as_json else account_text(account, width=width)
    )
    return 1 if account.kept else 0


class _Progress:
    """Tells on standard error how far a long redrive is."""

    def __init__(self) -> None:
        self._told = self._begun = time.monotonic()

    def __call__(self, account: Account) -> None:
        now = time.monotonic()
        if now - self._told < _QUIET_S:
            return
        self._told = now
        done = account.redriven + len(account.kept) + account.gone
        rate = done / (now - self._begun)
        typer.echo(f"{done} of {account.chosen} letters, {rate:.0f} a second", err=True)


def _check_sink(sink: str | None, *, found: int) -> None:
    """Tell a sink without letters from one that there is not.

    Raises:
        ConfigError: no letter is of this sink, and none has its name.
    """
    known = sorted({"stream", *load(StreamSettings, "stream").sinks, *installed_sinks()})
    if sink is not None and not found and sink not in known:
        raise ConfigError(
            f"no sink named {sink!r} and no dead letter of it; sinks: {', '.join(known)}"
        )


def _choice(
    sink: str | None, reason: str | None, kind: str | None, run: str | None, since: str | None
) -> Choice:
    known = get_args(Kind)
    if kind is not None and kind not in known:
        raise ConfigError(f"no kind {kind}; kinds: {', '.join(known)}")
    since_ns = None
    if since is not None:
        since_ns = parse_time(since, now_ns=time.time_ns(), option="--since")
    return Choice(sink=sink, reason=reason, kind=kind, run=run, since_ns=since_ns)


def _place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise ConfigError(f"{text!r} is no place; write PARTITION:OFFSET, such as 3:120")
    return int(partition), int(offset)
