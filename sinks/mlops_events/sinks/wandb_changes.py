"""What Run events, and new versions of a program, change in a run beside its rows."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from mlops_events.schemas.events import Origin, Run
from mlops_events.sinks.base import Envelope
from mlops_events.sinks.wandb_rows import clean

__all__ = ["Changes", "changes_of", "config_of_origin"]


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of what some events say of their run; empty where they say nothing.

    `versions` are those seen, in order. `status` is set if the run has ended by the last of them.
    """

    config: dict[str, Any] = {}
    name: str = ""
    group: str = ""
    job_type: str = ""
    versions: tuple[str, ...] = ()
    status: Literal["finished", "crashed"] | None = None
    started: bool = False


def changes_of(envelopes: Iterable[Envelope]) -> Changes:
    """Add up what the events of one run say, in their order.

    A run of several ranks has crashed if one of them has. Raises Unfit if a config cannot be held.
    """
    config: dict[str, Any] = {}
    words = {"name": "", "group": "", "job_type": ""}
    versions: dict[str, None] = {}
    status: Literal["finished", "crashed"] | None = None
    started = False
    for envelope in envelopes:
        version = envelope.tags.get("version") or envelope.origin.version
        if version:
            versions[version] = None
        event = envelope.event
        if not isinstance(event, Run):
            continue
        config |= {str(k): clean(v) for k, v in event.config.items()}
        for word in words:
            words[word] = getattr(event, word) or words[word]
        if event.state == "end":
            status = "crashed" if "crashed" in (status, event.status) else "finished"
        elif event.state == "start":
            status, started = None, True
    return Changes(config=config, versions=tuple(versions), status=status, started=started, **words)


def config_of_origin(origin: Origin, tags: dict[str, str]) -> dict[str, Any]:
    """Return what a run's config says of the node."""
    told = {
        "node": origin.node,
        "hotkey": origin.hotkey,
        "environment": origin.environment,
        "netuid": origin.netuid,
        "world_size": origin.world_size,
        **origin.tags,
        **tags,
    }
    told.pop("version", None)  # current_version has it
    return {key: value for key, value in told.items() if value not in ("", None)}
