"""Values that log lines of a stretch of work have in common, and the trace that they belong to."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

__all__ = ["active_span", "fields_in_context", "log_context"]

_fields: ContextVar[Mapping[str, Any]] = ContextVar(
    "mlops_events_log_fields", default=MappingProxyType({})
)


@contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Add these fields to every log line that a LogHandler sends from within, also across awaits.

    A thread that is started within begins without them, an asyncio task has them.
    """
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def fields_in_context() -> Mapping[str, Any]:
    """Return the fields of the contexts around."""
    return _fields.get()


def active_span() -> tuple[str, str]:
    """Return trace id and span id of OpenTelemetry's active span in hex, texts that are empty if
    there is none. OpenTelemetry is never imported for it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return "", ""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return "", ""
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"
