"""Which topics an event of a kind goes to."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from mlops_events.schemas.events import RAW_KINDS, Kind, Origin
from mlops_events.schemas.topics import Topics, origin_key, wandb_key

__all__ = ["ALL_KINDS", "DEFAULT_ROUTES", "Destination", "Routes", "key_of"]

ALL_KINDS: Final[tuple[Kind, ...]] = (*RAW_KINDS, "stats")

DEFAULT_ROUTES: Final[Mapping[str, tuple[Kind, ...]]] = {
    "influxdb": ("observation", "stats", "profile"),
    "loki": ("log",),
    "wandb": ("run", "observation"),
    "otlp": ("stats", "log"),
}
"""The kinds of each sink; one that is not named here takes all."""


class Destination(NamedTuple):
    """A topic, and how its records get their key."""

    topic: str
    key: Callable[[Origin], bytes]


class Routes:
    """The destinations of each kind, of the sinks that somebody runs.

    Args:
        topics: the names of all topics.
        sinks: the enabled ones.
        overrides: the kinds of a sink where the default is not wanted.
    """

    def __init__(
        self, topics: Topics, sinks: Sequence[str], overrides: Mapping[str, Collection[Kind]]
    ) -> None:
        takes = {**DEFAULT_ROUTES, **overrides}
        self._table = {
            kind: tuple(
                Destination(topics.sink(sink), key_of(sink))
                for sink in sinks
                if kind in takes.get(sink, ALL_KINDS)
            )
            for kind in ALL_KINDS
        }
        self._table["stats"] = (Destination(topics.stats, origin_key), *self._table["stats"])

    def of(self, kind: Kind) -> tuple[Destination, ...]:
        """Return where events of this kind go, besides the raw topic that keeps them."""
        return self._table[kind]


def key_of(sink: str) -> Callable[[Origin], bytes]:
    """Return what makes the keys of a sink's topic."""
    return wandb_key if sink == "wandb" else origin_key
