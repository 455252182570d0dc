"""`mlops-emit lines`: standard input to the broker, with progress and an account."""

import logging
import sys
import time
from collections.abc import Iterable
from typing import Any, Final

from mlops_events.producers.emitter import Emitter
from mlops_events.producers.lines import BadLine, LinesReport, schema, send
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.testing import MemoryTransport
from mlops_events.producers.transport import OutRecord

__all__ = ["run", "schema", "summary"]

_TOLD: Final = 20
_EVERY_S: Final = 1.0


class _Nothing(MemoryTransport):
    """Takes records and keeps none."""

    async def send(self, record: OutRecord) -> None:
        """Forget it."""


class _Teller:
    """Tells on standard error how it goes: one line that changes on a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._start = self._told = time.monotonic()
        self._bad = 0

    def bad(self, line: BadLine) -> None:
        """Tell of a line that was passed over; of the first few only."""
        self._bad += 1
        if self._bad <= _TOLD:
            self._say(f"line {line.line}: {line.error}")
        if self._bad == _TOLD:
            self._say("more bad lines are counted, not shown")

    def progress(self, lines: int) -> None:
        """Tell how many lines were read."""
        now = time.monotonic()
        if now - self._told < _EVERY_S:
            return
        self._told = now
        rate = lines / (now - self._start)
        text = f"{lines:,} lines, {rate:,.0f} a second"
        if self._terminal:
            _write(f"\r{text}\x1b[K")
        elif round(now - self._start) % 10 == 0:
            _write(f"{text}\n")

    def done(self) -> None:
        """Leave the line that changes."""
        if self._terminal:
            _write("\r\x1b[K")

    def _say(self, text: str) -> None:
        self.done()
        _write(f"mlops-emit: {text}\n")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def run(
    lines: Iterable[bytes], settings: EmitterSettings, *, timeout_s: float, dry_run: bool
) -> LinesReport:
    """Send the events of lines; a dry run does all but the sending.

    Raises:
        ConfigError: there are no brokers.
    """
    for name in ("mlops_events.producers", "aiokafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the report says it, once
    transport: Any = _Nothing() if dry_run else None
    emitter = Emitter(settings=settings, transport=transport, required=True, announce=False)
    teller = _Teller()
    try:
        report = send(lines, emitter, timeout_s=timeout_s, bad=teller.bad, progress=teller.progress)
    finally:
        teller.done()
        emitter.close(5.0)
    return report


def summary(report: LinesReport, *, dry_run: bool) -> str:
    """Return the account in a line or two."""
    done = "can be sent" if dry_run else "sent"
    parts = [f"{report.lines:,} lines: {report.sent:,} events {done}"]
    if report.bad:
        parts.append(f"{report.bad:,} bad lines passed over")
    if report.empty:
        parts.append(f"{report.empty:,} empty")
    text = ", ".join(parts) + f", in {report.seconds:.1f} s"
    if report.error:
        text += f"\n{report.events - report.sent:,} events are not acknowledged: {report.error}"
    return text
