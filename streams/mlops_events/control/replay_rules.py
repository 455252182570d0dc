"""Which windows a replay puts events into: those of the stream's settings."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mlops_events.schemas.events import RawKind
from mlops_events.schemas.frame import Frame
from mlops_events.streams.settings import StreamSettings

__all__ = ["Rule", "rules_of"]


class Rule(NamedTuple):
    """Windows of a size over time, in nanoseconds, or over an integer field."""

    by: str
    size: int

    @property
    def over_time(self) -> bool:
        """Whether a window's start says when it is over."""
        return self.by == "time"

    def split(self, items: Sequence[Any], frame: Frame) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the events of each window with its start; events without the field are in none."""
        times = [item.ts for item in items]
        first, last = min(times) // self.size, max(times) // self.size
        if first == last:
            yield first * self.size, items
            return
        batches: defaultdict[int, list[Any]] = defaultdict(list)
        for item in items:
            batches[item.ts // self.size].append(item)
        for number, batch in batches.items():
            yield number * self.size, batch


def rules_of(settings: StreamSettings, kind: RawKind) -> list[Rule]:
    """Return the windows that events of a kind are put into."""
    return [Rule("time", settings.window_ns)] if kind in ("observation", "profile") else []
