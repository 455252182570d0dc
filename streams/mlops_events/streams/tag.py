"""The tags that the streams attach to every event."""

from collections.abc import Mapping
from typing import Final

from mlops_events.schemas.events import Origin

__all__ = ["UNKNOWN_VERSION", "normalise_version", "tag"]

UNKNOWN_VERSION: Final = "unknown"
_MAX_LENGTH: Final = 64


def tag(origin: Origin, static: Mapping[str, str]) -> dict[str, str]:
    """Return the version of who emitted, and the operator's own tags."""
    return {"version": normalise_version(origin.version), **static}


def normalise_version(text: str) -> str:
    """Return one spelling of a version: `v1.2`, ` 1.2` and `V1.2` are the same.

    Whatever else stands there is kept, such as the hash of a commit, up to 64 characters.
    """
    version = text.strip()
    if version[:1] in ("v", "V") and version[1:2].isdigit():
        version = version[1:]
    return version[:_MAX_LENGTH] or UNKNOWN_VERSION
