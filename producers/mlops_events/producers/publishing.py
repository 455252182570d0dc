"""Publishes what a command found, as events with the node's origin."""

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from mlops_events.producers.emitter import Emitter
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.simulate import emit
from mlops_events.producers.workload import Event

__all__ = ["Publisher"]

_CLOSE_S = 1.0


class Publisher:
    """An emitter of a command's own.

    Args:
        settings: who emits, and where to.
        timeout_s: how long the broker may take.

    Raises:
        ConfigError: there are no brokers.
    """

    def __init__(self, settings: EmitterSettings, *, timeout_s: float) -> None:
        for name in ("mlops_events.producers.worker", "aiokafka"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # `publish` says it, once
        self._brokers = settings.kafka.brokers
        self._timeout_s = timeout_s
        self._emitter = Emitter(
            settings=settings, required=True, announce=False, system=False, gpu=False
        )

    def publish(self, events: Iterable[Event]) -> str:
        """Send events; return "" if the broker has all, else the reason in one line."""
        if not self._emitter.enabled:
            return "nothing was published, since MLOPS_EVENTS_DISABLED is set; unset it"
        for event in events:
            emit(self._emitter, event)
        if self._emitter.flush(self._timeout_s):
            return ""
        reason = self._emitter.stats().error.removeprefix(f"{self._brokers}: ") or "no answer"
        return (
            f"{self._brokers} has not acknowledged the events within {self._timeout_s:g} s: "
            f"{reason}; check that the broker runs and has the topics"
        )

    def close(self) -> None:
        """End."""
        self._emitter.close(_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
