"""What the SQLite store holds at a moment, as far as people want to watch it."""

from pathlib import Path

import msgspec

from mlops_events.control.supervise import Child
from mlops_events.schemas.events import Log, Origin
from mlops_events.sinks.base import SinkError
from mlops_events.sinks.sqlite_store import (
    SQLiteStore,
    StoredEmitter,
    StoredEvent,
    StoredStats,
)

__all__ = ["Moment", "Snapshot", "Watch", "node"]


_LEVELS = ("info", "warning", "error", "critical")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored: counts by kind, nodes, their last observations, windows and log lines.

    `fleet` are the newest Stats over all nodes of a version.
    """

    counts: dict[str, int] = {}
    emitters: list[StoredEmitter] = []
    latest: list[StoredEvent] = []
    windows: list[StoredStats] = []
    fleet: list[StoredStats] = []
    logs: list[tuple[StoredEvent, Log]] = []

    @property
    def events(self) -> int:
        """How many events are stored."""
        return sum(count for kind, count in self.counts.items() if kind != "stats")

    @property
    def stats(self) -> int:
        """How many aggregates are stored."""
        return self.counts.get("stats", 0)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A running pipeline at a time: its processes and what is stored."""

    elapsed_s: float
    now_ns: int
    brokers: str
    folder: Path
    children: list[Child]
    snapshot: Snapshot


class Watch:
    """Reads a store that may not be there yet.

    Args:
        path: of the store.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store: SQLiteStore | None = None

    def look(self, *, windows: int = 10, logs: int = 6) -> Snapshot:
        """Return what is stored now, with so many of the newest windows and lines."""
        if self._store is None:
            try:
                self._store = SQLiteStore(self._path)
            except SinkError:  # not there yet; or no store, as the sink will say
                return Snapshot()
        store = self._store
        return Snapshot(
            counts=store.counts(),
            emitters=store.emitters(),
            latest=store.latest(),
            windows=store.newest_windows(limit=windows),
            fleet=store.fleet(),
            logs=store.logs(levels=_LEVELS, limit=logs),
        )

    def close(self) -> None:
        """Let go of the file."""
        if self._store is not None:
            self._store.close()


def node(origin: Origin) -> str:
    """Return what people call a node: its role and number, and its rank if it has one."""
    name = "/".join(str(part) for part in (origin.role, origin.uid) if part not in ("", None))
    return f"{name or origin.node}" + ("" if origin.rank is None else f"#{origin.rank}")
