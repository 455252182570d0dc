"""What the wandb sink asks of the place where runs are kept, online or on disk."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from mlops_events.sinks.wandb_names import RunName

__all__ = ["Count", "Found", "RunStore"]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is kept: its last row, its config, and the ids of its rows if they were asked for.

    `lines` is how many rows there are where new ones go, `next_step` the step of the next one.
    """

    lines: int = 0
    next_step: int = 0
    tail: dict[str, Any] = {}
    config: dict[str, Any] = {}
    ids: frozenset[str] = frozenset()


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of a run are kept, and its config if that was asked for."""

    lines: int
    config: dict[str, Any] = {}


class RunStore(Protocol):
    """Where runs are kept."""

    def check(self) -> None:
        """Ask whether runs would be taken.

        Raises:
            SinkUnavailable: not at present.
            SinkBroken: never, as things are configured.
        """
        ...

    def look(self, name: RunName, *, ids: bool) -> Found | None:
        """Return a run, None if there is none. Raises as `check`.

        Args:
            name: the run.
            ids: whether to read the ids of all its rows too.
        """
        ...

    def counts(
        self, names: Sequence[RunName], *, with_config: Collection[str]
    ) -> Mapping[str, Count | None]:
        """Return by id what is kept of open runs, None for those that were deleted.

        Args:
            names: the runs.
            with_config: the ids of those whose config is asked for.
        """
        ...

    def close(self) -> None:
        """Let go of connections or files."""
        ...
