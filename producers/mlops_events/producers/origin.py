"""Who emits: from the arguments of an emitter, its settings and the machine."""

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from mlops_events.producers.settings import EmitterSettings
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import Origin
from mlops_events.schemas.values import ENCODER

__all__ = ["MAX_ORIGIN_BYTES", "describe"]

MAX_ORIGIN_BYTES = 16 << 10
"""The origin goes with every frame."""


def describe(
    settings: EmitterSettings, *, run: str | None, tags: Mapping[str, str] | None, **given: Any
) -> Origin:
    """Return the origin: arguments win over settings.

    Raises:
        ConfigError: a value has the wrong type, or all together are too large.
    """
    found: dict[str, Any] = {
        name: getattr(settings, name) if value is None else value for name, value in given.items()
    }
    found["run"] = run or settings.run_id or f"run-{os.urandom(4).hex()}"
    found["node"] = found["node"] or _host()
    found["version"] = str(found["version"])
    found["tags"] = {str(k): str(v) for k, v in {**settings.tags, **(tags or {})}.items()}
    try:
        origin = msgspec.convert(found, Origin)
        size = len(ENCODER.encode(origin))
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"who emits cannot be described: {error}") from error
    if size > MAX_ORIGIN_BYTES:
        raise ConfigError(
            f"run, role, tags and the like are {size} bytes; at most {MAX_ORIGIN_BYTES} go with "
            "every frame"
        )
    return origin


def _host() -> str:
    if hasattr(os, "uname"):
        return os.uname().nodename
    import platform

    return platform.node()
