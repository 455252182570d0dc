"""The console sink: prints a line for every event that arrives."""

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TextIO, assert_never

import msgspec

from mlops_events.schemas.events import Log, Observation, Profile, Run, Stats
from mlops_events.schemas.settings import load
from mlops_events.sinks.base import Batch, Envelope, Rejected, SinkBroken

__all__ = ["ConsoleSettings", "ConsoleSink", "render"]

_COLOURS = {
    "run": "35",
    "observation": "32",
    "profile": "36",
    "log": "37",
    "stats": "34",
    "warning": "33",
    "error": "31",
    "critical": "31",
}
_MAX_VALUE = 120
"""Characters of one value; the rest is cut."""


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How events are printed; read with the prefix "console".

    `color` None means: on a terminal, unless NO_COLOR is set.
    """

    color: bool | None = None


class ConsoleSink:
    """Prints events, each at least once: what is in hand when a process dies comes again.

    Args:
        settings: from the environment if None.
        out: where to print; standard output if None.
    """

    name = "console"

    def __init__(
        self, settings: ConsoleSettings | None = None, *, out: TextIO | None = None
    ) -> None:
        found = settings if settings is not None else load(ConsoleSettings, "console")
        self._out = sys.stdout if out is None else out
        self._color = found.color
        if self._color is None:
            self._color = self._out.isatty() and not os.environ.get("NO_COLOR")
        self._open = False

    async def check(self) -> None:
        """Nothing can be wrong with it."""

    async def open(self) -> None:
        """Get ready to print."""
        self._open = True

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Print a batch."""
        if not self._open:
            raise SinkBroken("the console sink is closed; open it first")
        lines = [render(envelope, color=bool(self._color)) for envelope in batch]
        if lines:
            await asyncio.to_thread(self._print, "\n".join(lines) + "\n")
        return ()

    async def close(self) -> None:
        """Print no more."""
        self._open = False

    def _print(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        try:
            self._out.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._out.flush()
        except (OSError, ValueError) as error:
            raise SinkBroken(f"standard output is closed: {error}") from error


def render(envelope: Envelope, *, color: bool = False) -> str:
    """Return an event as one line: time, who, what, values."""
    event = envelope.event
    if isinstance(event, Observation):
        kind, ts, what = "observation", event.ts, f"{event.name}{_step(event.step)}"
        values = _pairs(event.fields)
    elif isinstance(event, Profile):
        kind, ts, what = "profile", event.ts, f"{event.name}{_step(event.step)}"
        values = f"{event.duration_ns / 1e6:.3f}ms" + (" failed" if event.failed else "")
    elif isinstance(event, Log):
        kind, ts, what = event.level, event.ts, f"{event.level}{_step(event.step)}"
        values = " ".join(part for part in (_short(event.message), _pairs(event.fields)) if part)
    elif isinstance(event, Run):
        kind, ts, what = "run", event.ts, f"run {event.state}"
        values = _pairs({"status": event.status} if event.status else event.config)
    elif isinstance(event, Stats):
        over_time = event.by == "time"
        kind, ts = "stats", event.start if over_time else 0
        window = (
            f"_{event.size // 10**9}s" if over_time else f"[{event.by}={event.start}+{event.size}]"
        )
        what = f"{event.name}{window}.{event.field}"
        values = _pairs(_figures(event, envelope))
        values += "" if event.final or event.nodes is not None else " (open)"
    else:
        assert_never(event)
    shade = _COLOURS.get(kind, _COLOURS["log"])
    what = _clean(what)
    shown = f"\x1b[{shade}m{what}\x1b[0m" if color else what
    return f"{_time(ts)} {_who(envelope)} {shown} {values}".rstrip()


def _figures(stats: Stats, envelope: Envelope) -> "dict[str, Any]":
    figures = {"mean": stats.mean, "min": stats.min, "max": stats.max}
    if stats.nodes is None:
        return {**figures, "median": stats.median, "count": stats.count}
    return {
        **figures,
        "median_of_medians": stats.median_of_medians,
        "count": stats.count,
        "version": envelope.origin.version,
        "nodes": stats.nodes,
        "missing": stats.nodes_missing,
    }


def _who(envelope: Envelope) -> str:
    origin = envelope.origin
    uid = None if origin.uid is None else str(origin.uid)
    rank = None if origin.rank is None else str(origin.rank)
    return _clean("/".join(part for part in (origin.run, origin.role, uid, rank) if part) or "-")


def _step(step: int | None) -> str:
    return "" if step is None else f" step={step}"


def _time(ts: int) -> str:
    try:
        return datetime.fromtimestamp(ts / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError, OSError):
        return str(ts)


def _pairs(values: "dict[str, Any]") -> str:
    return " ".join(f"{_clean(key)}={_short(value)}" for key, value in values.items())


def _short(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return _clean(text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}...")


def _clean(text: str) -> str:
    """One line, and nothing that a terminal would obey."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
