"""Writes what was emitted as JSON lines, so that somebody else can tell whether it arrived.

A line is an event (`"t": "event"`, the emitter in hex, the kind, then the event's own fields) or,
at the end, an emitter's account (`"t": "emitter"`). JSON has no NaN and no infinity: they are the
texts "NaN", "Infinity" and "-Infinity".
"""

import math
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from mlops_events.producers.stats import EmitterStats
from mlops_events.schemas.events import Log, Observation, Origin, Profile, Run

__all__ = ["TrueEvent", "Truth", "plain"]

TrueEvent: TypeAlias = Run | Observation | Profile | Log

_encode = msgspec.json.Encoder().encode


class Truth:
    """Appends to a file, which holds every line as soon as the call for it returns.

    Args:
        path: the file; None writes nothing.

    Raises:
        OSError: the file cannot be written; any method may raise it.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, emitter: bytes, *events: TrueEvent) -> None:
        """Write what an emitter emits."""
        for event in events:
            kind = type(event).__name__.lower()
            line = {"t": "event", "emitter": emitter.hex(), "kind": kind}
            self._line(line | plain(msgspec.structs.asdict(event)))
        self._flush()

    def account(self, stats: EmitterStats, origin: Origin) -> None:
        """Write what an emitter says about itself at its end."""
        kinds = {kind: counts for kind, counts in stats.kinds.items() if counts.emitted}
        self._line(
            {
                "t": "emitter",
                "emitter": stats.emitter,
                "role": origin.role,
                "uid": origin.uid,
                "version": origin.version,
                "accepted": {kind: counts.accepted for kind, counts in kinds.items()},
                "dropped": {kind: sum(counts.dropped.values()) for kind, counts in kinds.items()},
                "sent": {kind: counts.sent for kind, counts in kinds.items()},
                "ended": stats.ended,
            }
        )
        self._flush()

    def _line(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(_encode(line) + b"\n")

    def _flush(self) -> None:
        if self._file is not None:
            self._file.flush()


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
