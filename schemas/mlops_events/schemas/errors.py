"""The errors that every part of mlops-events may raise.

MlopsEventsError
  ConfigError      a setting is missing or unusable
  DecodeError      bytes are not an event this version can read
"""

__all__ = ["ConfigError", "DecodeError", "MlopsEventsError"]


class MlopsEventsError(Exception):
    """Base of all errors that mlops-events raises on purpose."""


class ConfigError(MlopsEventsError):
    """A setting is missing or unusable; the message names it and says what to do."""


class DecodeError(MlopsEventsError):
    """Bytes are not a frame, Stats or dead letter that this version can read."""
