"""Open windows of emitters that fell silent, shown before they are final."""

import msgspec

from mlops_events.streams.aggregate import Place
from mlops_events.streams.outputs import StatsOut
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import Emitter, PartitionState

__all__ = ["Provisional"]


class _Watch(msgspec.Struct):
    """How much was heard of an emitter, since when it is silent, and what was shown of it."""

    heard: int
    since: float
    shown: dict[Place, int] = {}


class Provisional:
    """Knows, by the worker's own clock, which emitters of a partition are silent.

    To be asked every few seconds, only while everything in the log is read. It is part of no
    state: a worker that takes over shows windows once more, which is a repeat to the sinks.
    """

    def __init__(self, settings: StreamSettings) -> None:
        self._after_s = settings.provisional_s
        self._watched: dict[bytes, _Watch] = {}

    def due(self, state: PartitionState, *, now: float) -> list[StatsOut]:
        """Return the Stats of open windows to show now, each revision once; changes no state.

        Args:
            state: the partition's.
            now: seconds of a monotonic clock.
        """
        watched: dict[bytes, _Watch] = {}
        outputs: list[StatsOut] = []
        for emitter in state.emitters():
            if emitter.windows.are_open:
                watch = self._watched.get(emitter.id) or _Watch(-1, now)
                watched[emitter.id] = watch
                heard = emitter.counts.frames + emitter.counts.repeats
                if heard != watch.heard:
                    watch.heard = heard
                    watch.since = now
                elif now - watch.since >= self._after_s:
                    outputs += state.show(emitter, _changed(emitter, watch))
        self._watched = watched
        return outputs


def _changed(emitter: Emitter, watch: _Watch) -> list[Place]:
    """Return the windows with samples that were not shown yet, and note them as shown."""
    revisions = emitter.windows.revisions()
    changed = sorted(place for place, n in revisions.items() if watch.shown.get(place) != n)
    watch.shown = revisions
    return changed
