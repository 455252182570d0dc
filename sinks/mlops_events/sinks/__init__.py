"""Where events end: sinks, and the loop that delivers to them."""

from mlops_events.sinks.base import (
    Batch,
    Envelope,
    Rejected,
    Sink,
    SinkBroken,
    SinkError,
    SinkUnavailable,
    load_sink,
)

__all__ = [
    "Batch",
    "Envelope",
    "Rejected",
    "Sink",
    "SinkBroken",
    "SinkError",
    "SinkUnavailable",
    "load_sink",
]
