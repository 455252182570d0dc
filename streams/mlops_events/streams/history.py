"""The versions of a run: which one is new in it, and which node goes back to an older one."""

from typing import Final, NamedTuple

from mlops_events.schemas.events import Log, Origin, Run
from mlops_events.schemas.topics import origin_key
from mlops_events.streams.derived import DerivedLog, derive_emitter
from mlops_events.streams.tag import normalise_version

__all__ = ["LOGGER", "Versions", "name_of"]

LOGGER: Final = "mlops_events.fleet"


class _Last(NamedTuple):
    """The newest start of a node."""

    ts: int
    run: str
    emitter: bytes
    version: str


class Versions:
    """The versions of all runs in the order in which they came up.

    A version is older than another one if it came up in the run before it; what it is called does
    not matter.
    """

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, int]] = {}
        self._nodes: dict[bytes, _Last] = {}

    def take(self, origin: Origin, emitter: bytes, event: Run) -> list[DerivedLog]:
        """Take a Run event of a process; return what is to be said about its version.

        Events are expected in the order of their records. A start that comes after a newer one of
        its node changes nothing for the node.
        """
        if event.state != "start":
            return []
        version = normalise_version(origin.version)
        order = self._runs.setdefault(origin.run, {})
        said: list[DerivedLog] = []
        if version not in order:
            previous = next(reversed(order), "")
            order[version] = len(order)
            said.append(_appears(origin, event.ts, version, previous))
        node = origin_key(origin)
        last = self._nodes.get(node)
        if last is not None and (last.ts >= event.ts or last.emitter == emitter):
            return said
        self._nodes[node] = _Last(event.ts, origin.run, emitter, version)
        if last is not None and order[version] < order[last.version]:
            said.append(_goes_back(origin, emitter, event.ts, version, last.version))
        return said

    def forget(self, *, before_ns: int) -> None:
        """Let go of nodes that last started before that, and of runs that have no others."""
        self._nodes = {node: last for node, last in self._nodes.items() if last.ts >= before_ns}
        runs = {last.run for last in self._nodes.values()}
        self._runs = {run: order for run, order in self._runs.items() if run in runs}


def _appears(origin: Origin, ts: int, version: str, previous: str) -> DerivedLog:
    after = f", after {previous}" if previous else ""
    message = f"version {version} first appears in run {origin.run}, on {name_of(origin)}{after}"
    return DerivedLog(
        emitter=derive_emitter("version appears", origin.run, version),
        origin=Origin(
            run=origin.run,
            project=origin.project,
            version=version,
            environment=origin.environment,
            netuid=origin.netuid,
        ),
        log=_line("info", message, origin, ts, version, previous),
    )


def _goes_back(origin: Origin, emitter: bytes, ts: int, version: str, previous: str) -> DerivedLog:
    message = f"node {name_of(origin)} goes back to version {version}, after {previous}"
    return DerivedLog(
        emitter=derive_emitter("version goes back", origin_key(origin), emitter),
        origin=origin,
        log=_line("warning", message, origin, ts, version, previous),
    )


def _line(level: str, message: str, origin: Origin, ts: int, version: str, previous: str) -> Log:
    fields = {
        "run": origin.run,
        "version": version,
        "previous": previous or None,
        "role": origin.role,
        "uid": origin.uid,
    }
    return Log(ts=ts, level=level, message=message, logger=LOGGER, fields=fields)


def name_of(origin: Origin) -> str:
    """Return what people call a node: its role and number, and its rank if it has one."""
    who = origin.node if origin.uid is None else str(origin.uid)
    name = "/".join(part for part in (origin.role, who) if part) or "an unnamed node"
    return name if origin.rank is None else f"{name}#{origin.rank}"
