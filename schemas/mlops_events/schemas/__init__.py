"""The shapes that producers, streams and sinks agree on."""

from mlops_events.schemas.errors import ConfigError, DecodeError, MlopsEventsError
from mlops_events.schemas.events import (
    RAW_KINDS,
    AnyEvent,
    DeadLetter,
    EventId,
    Kind,
    Log,
    Observation,
    Origin,
    Profile,
    RawKind,
    Run,
    Stats,
    StatsKey,
)
from mlops_events.schemas.frame import Frame, FrameEncoder, decode_frame

__all__ = [
    "RAW_KINDS",
    "AnyEvent",
    "ConfigError",
    "DeadLetter",
    "DecodeError",
    "EventId",
    "Frame",
    "FrameEncoder",
    "Kind",
    "Log",
    "MlopsEventsError",
    "Observation",
    "Origin",
    "Profile",
    "RawKind",
    "Run",
    "Stats",
    "StatsKey",
    "decode_frame",
]
