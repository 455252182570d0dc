"""Sends the records of Python's logging as Log events."""

import logging
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from threading import get_ident
from time import monotonic
from typing import Any, Final, Protocol

from mlops_events.producers.context import active_span, fields_in_context
from mlops_events.producers.floods import Floods
from mlops_events.producers.tally import Tally
from mlops_events.schemas.events import Log

__all__ = ["LineWriter", "LogHandler", "attach"]

_OWN: Final = ("mlops_events", "aiokafka", "kafka")
_PLAIN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_LEAST: Final = len(logging.makeLogRecord({}).__dict__)
_STRUCTLOG: Final = frozenset(("event", "level", "logger", "timestamp", "exc_info", "stack_info"))


class LineWriter(Protocol):
    """What takes lines of log: an emitter."""

    def write(self, event: Log) -> None:
        """Emit a line."""
        ...


class LogHandler(logging.Handler):
    """Sends log records through an emitter, without holding up whoever logs.

    What is sent of a record: its time, level, message and logger; what came with `extra`, the
    fields of `log_context`, an exception as `exception.type`, `.message` and `.stacktrace`; and the
    trace and span id when an OpenTelemetry span is active. Records of structlog (an event dict) and
    of loguru (its `extra`) are taken apart the same way.

    Records of `mlops_events`, `aiokafka` and `kafka` are ignored, so that a failing broker does not
    feed itself. A line of code that logs more than `burst` times a second is cut off for the rest of
    that second; how often is told with its next record, as the field `left_out`.

    Args:
        emitter: where they go.
        level: the lowest level that is sent.
        ignore: regular expressions; a record whose message one of them finds is left out.
        burst: records a second from one line of code; 0 sets no bound.
    """

    def __init__(
        self,
        emitter: LineWriter,
        level: int | str = logging.NOTSET,
        *,
        ignore: Iterable[str] = (),
        burst: int = 100,
    ) -> None:
        super().__init__(level)
        patterns = [f"(?:{pattern})" for pattern in ignore]
        self._ignore = re.compile("|".join(patterns)).search if patterns else None
        self._emitter = emitter
        self._floods = Floods(burst, clock=monotonic)
        self._busy: set[int] = set()
        self._left_out = Tally()

    @property
    def left_out(self) -> dict[str, int]:
        """How many records were left out: `ignored` by pattern, `flood` beyond the burst."""
        return self._left_out.counts()

    def handle(self, record: logging.LogRecord) -> bool:
        """Send a record that the filters pass; no lock is taken, since none is needed."""
        if self.filters and not self.filter(record):
            return False
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; never raises."""
        if record.name.startswith(_OWN):
            return
        me = get_ident()
        if me in self._busy:  # a value logs while it is turned into text
            return
        self._busy.add(me)
        try:
            self._send(record)
        except Exception:  # values may be anybody's objects
            self._left_out.add("malformed")
        finally:
            self._busy.discard(me)

    def _send(self, record: logging.LogRecord) -> None:
        values = record.__dict__
        fields: dict[str, Any] = {}
        if type(record.msg) is dict:
            message = _take_event(record.msg, fields)
        else:
            message = record.getMessage() if record.args else str(record.msg)
        if self._ignore is not None and self._ignore(message):
            self._left_out.add("ignored")
            return
        left_out = self._floods.pass_(record.pathname, record.lineno)
        if left_out is None:
            self._left_out.add("flood")
            return
        if len(values) > _LEAST:
            _take_extra(values, fields)
        context = fields_in_context()
        if context:
            fields = {**context, **fields}
        if record.exc_info or record.exc_text or record.stack_info:
            _take_exception(record, fields)
        if left_out:
            fields["left_out"] = left_out
        trace_id = span_id = ""
        if "opentelemetry.trace" in sys.modules:
            trace_id, span_id = active_span()
        self._emitter.write(
            Log(
                ts=int(record.created * 1e9),
                level=record.levelname.lower(),
                message=message,
                logger=record.name,
                fields=fields,
                trace_id=trace_id,
                span_id=span_id,
            )
        )


def attach(
    emitter: LineWriter,
    *,
    logger: str = "",
    level: int | str = logging.INFO,
    ignore: Iterable[str] = (),
    console: bool = False,
) -> LogHandler:
    """Send what a logger and those below it log, and return the handler that does.

    Args:
        emitter: where it goes.
        logger: the logger's name; the root if empty.
        level: the lowest level; a logger that is set to a higher one is set to it.
        ignore: as for LogHandler.
        console: print to standard error too, through Rich where it is installed.
    """
    target = logging.getLogger(logger)
    handler = LogHandler(emitter, level, ignore=ignore)
    target.addHandler(handler)
    if console:
        target.addHandler(_console(level))
    if target.getEffectiveLevel() > handler.level:
        target.setLevel(handler.level)
    return handler


def _console(level: int | str) -> logging.Handler:
    handler: logging.Handler
    try:
        from rich.console import Console
        from rich.logging import RichHandler

        handler = RichHandler(console=Console(stderr=True), show_path=False)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    except ImportError:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(level)
    return handler


def _take_event(event: Mapping[str, Any], fields: dict[str, Any]) -> str:
    """Take structlog's event dict apart, as its ProcessorFormatter leaves it in a record."""
    fields.update({k: v for k, v in event.items() if k not in _STRUCTLOG and not k.startswith("_")})
    return str(event.get("event", ""))


def _take_extra(values: Mapping[str, Any], fields: dict[str, Any]) -> None:
    for key, value in values.items():
        if key in _PLAIN or key.startswith("_"):
            continue
        if key == "extra" and isinstance(value, dict):  # loguru's
            fields.update(value)
        else:
            fields[key] = value


def _take_exception(record: logging.LogRecord, fields: dict[str, Any]) -> None:
    """Add an exception under OpenTelemetry's names."""
    if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
        kind, error, trace = record.exc_info
        fields["exception.type"] = f"{type(error).__module__}.{type(error).__qualname__}"
        fields["exception.message"] = str(error)
        fields["exception.stacktrace"] = "".join(traceback.format_exception(kind, error, trace))
    elif record.exc_text:
        fields["exception.stacktrace"] = record.exc_text
    if record.stack_info:
        fields["code.stacktrace"] = record.stack_info
