"""Gives a feedback loop what it observes together with the state of its machine, and emits it."""

import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from mlops_events.producers.diagnostics.surroundings import (
    EnvironmentInfo,
    SystemReader,
    SystemStats,
)
from mlops_events.producers.emitter import Emitter
from mlops_events.producers.tally import Tally
from mlops_events.schemas.events import Origin
from mlops_events.schemas.values import ENCODER, clean

__all__ = [
    "ObservabilityEmitter",
    "ObservabilityPayload",
    "ObservabilityStats",
    "ReinforcementObservabilityManager",
]

log = logging.getLogger(__name__)

_CLOSE_S = 5.0


class ObservabilityEmitter(Protocol):
    """Where observations go; an `Emitter` is one, and so is anything else with this method."""

    def observe(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        step: int | None = None,
        ts: int | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        """Take an observation."""
        ...


class ObservabilityPayload(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed, and in which state of the machine.

    `event_data` holds the values that can be encoded, `skipped` the names of the others. `ts` is in
    nanoseconds since the epoch. `origin` is who emits, where the emitter tells.
    """

    event_name: str
    event_data: dict[str, Any]
    ts: int
    step: int | None
    system: SystemStats
    environment: EnvironmentInfo
    origin: Origin | None
    skipped: tuple[str, ...] = ()


class ObservabilityStats(msgspec.Struct, frozen=True, kw_only=True):
    """How often `collect_observation` was called, and what went wrong.

    `failed` counts observations that the emitter raised for, `skipped` values that could not be
    encoded, by name.
    """

    collected: int
    failed: int
    skipped: dict[str, int]


class ReinforcementObservabilityManager:
    """Collects observations for a feedback loop: returned to it, and emitted with the node's origin.

    Without a broker they are returned all the same. Any thread may call it.

    Args:
        emitter: where observations go; an `Emitter` of its own, set by `MLOPS_EVENTS_*`, if None.
        gpu: look at the GPU that this process uses, too.
        clock: nanoseconds since the epoch, for tests.

    Raises:
        ConfigError: there is no emitter, and a setting of one is unusable.
    """

    def __init__(
        self,
        emitter: ObservabilityEmitter | None = None,
        *,
        gpu: bool = True,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._own: Emitter | None = None
        if emitter is None:
            emitter = self._own = Emitter(announce=False)
        self._emitter = emitter
        self._clock = clock
        self._reader = SystemReader(gpu=gpu)
        self._environment = EnvironmentInfo.of_this_process()
        self._tags = self._environment.tags()
        self._counts = Tally()
        self._skipped = Tally()

    def collect_observation(
        self, event_name: str, event_data: Mapping[str, Any], *, step: int | None = None
    ) -> ObservabilityPayload:
        """Return what was observed with the state of the machine, and emit it; never raises.

        The observation has the fields of `event_data` and of `SystemStats`, the former first where a
        name is in both. A scalar on a GPU is not waited for: it is in the payload as it is, and an
        `Emitter` sends it once it is there.

        Args:
            event_name: what it is about, such as "episode".
            event_data: its values, such as reward and loss.
            step: of the training.
        """
        name = _text(event_name)
        data, skipped = _encodable(event_data)
        for one in skipped:
            self._skipped.add(one)
        payload = ObservabilityPayload(
            event_name=name,
            event_data=data,
            ts=self._clock(),
            step=step,
            system=self._reader.read(),
            environment=self._environment,
            origin=_origin(self._emitter),
            skipped=skipped,
        )
        self._counts.add("collected")
        try:
            self._emitter.observe(
                name,
                {**payload.system.known(), **data},
                step=step,
                ts=payload.ts,
                tags=self._tags,
            )
        except Exception as error:  # the emitter may be anybody's
            if "failed" not in self._counts.counts():
                log.warning("observations are returned but not emitted: %r", error)
            self._counts.add("failed")
        return payload

    def stats(self) -> ObservabilityStats:
        """Return what became of the observations; the emitter counts what it sent."""
        counts = self._counts.counts()
        return ObservabilityStats(
            collected=counts.get("collected", 0),
            failed=counts.get("failed", 0),
            skipped=self._skipped.counts(),
        )

    def close(self, timeout: float = _CLOSE_S) -> bool:
        """Send the rest, if the emitter is its own; True if nothing is left."""
        return self._own is None or self._own.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _encodable(given: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the values that can be encoded, as they are where all can, and the others' names."""
    try:
        values = dict(given)
        waiting = {k: v for k, v in values.items() if getattr(v, "is_cuda", False) is True}
        rest = {k: v for k, v in values.items() if k not in waiting} if waiting else values
    except Exception:  # it may be anything
        return {}, ("event_data",)
    try:
        ENCODER.encode(rest)
        if all(type(key) is str for key in rest):
            return values, ()
    except Exception:  # noqa: S110 - values may be anybody's objects; each is looked at now
        pass
    good, bad = clean(rest)
    return {**good, **{_text(k): v for k, v in waiting.items()}}, tuple(bad)


def _text(value: Any) -> str:
    """Return a text that can be encoded, whatever it is."""
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:  # a foreign object may raise anything
        return f"<{type(value).__name__}>"


def _origin(emitter: ObservabilityEmitter) -> Origin | None:
    origin = getattr(emitter, "origin", None)
    return origin if isinstance(origin, Origin) else None
