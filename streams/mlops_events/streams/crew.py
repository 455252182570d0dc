"""Which nodes are expected to report: those of the roster, or those that were heard."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from mlops_events.schemas.events import Origin, Stats
from mlops_events.streams.fleetsettings import FleetStatsSettings
from mlops_events.streams.tag import normalise_version

__all__ = ["Channel", "Crews", "Group", "Known", "Node"]

_NEVER: Final = -(2**63)


class Group(NamedTuple):
    """What one aggregate of a fleet is about."""

    run: str
    role: str
    version: str

    @classmethod
    def of(cls, origin: Origin) -> "Group":
        """Return the group of a node."""
        return cls(origin.run, origin.role, normalise_version(origin.version))


class Node(NamedTuple):
    """A node within its run and role: its uid, or its host if it has none, and its rank."""

    uid: str
    rank: int | None

    @classmethod
    def of(cls, origin: Origin) -> "Node":
        """Return the node that an origin is."""
        return cls(origin.node if origin.uid is None else str(origin.uid), origin.rank)


class Channel(NamedTuple):
    """What nodes report together: the fields of one name in windows of one size."""

    kind: str
    name: str
    by: str
    size: int

    @classmethod
    def of(cls, stats: Stats) -> "Channel":
        """Return the channel of a Stats."""
        return cls(stats.kind, stats.name, stats.by, stats.size)


class Known:
    """What is known of a node: its newest process, and when its Stats last arrived."""

    __slots__ = ("emitter", "heard_ns", "origin", "place", "version")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.version = normalise_version(origin.version)
        self.emitter = b""
        self.heard_ns = _NEVER
        self.place: tuple[int, int] = (_NEVER, _NEVER)


class _Heard(NamedTuple):
    """What a node reported of one channel: its first window, and when it last did."""

    first_start: int
    heard_ns: int


class Crews:
    """The nodes of all runs. Nothing in it depends on the order in which records are taken.

    Args:
        settings: the roster, and for how long a node that was heard is expected.
    """

    def __init__(self, settings: FleetStatsSettings) -> None:
        self._settings = settings
        self._known: dict[tuple[str, str], dict[Node, Known]] = {}
        self._began: dict[Group, int] = {}
        self._channels: dict[Group, dict[Channel, dict[Node, _Heard]]] = {}
        self._finished: dict[bytes, int] = {}

    def hear(
        self, origin: Origin, emitter: bytes, stats: Collection[Stats], *, log_ns: int
    ) -> None:
        """Take Stats of one process that arrived at `log_ns`."""
        if not stats:
            return
        group, node = Group.of(origin), Node.of(origin)
        began = self._began.get(group)
        self._began[group] = log_ns if began is None else min(began, log_ns)
        team = self._known.setdefault((group.run, group.role), {})
        known = team.get(node)
        if known is None:
            known = team[node] = Known(origin)
        known.heard_ns = max(known.heard_ns, log_ns)
        # By the window, since that of a process that died closes long after its successor's first.
        place = (max(s.start + s.size if s.by == "time" else log_ns for s in stats), log_ns)
        if place >= known.place:
            known.place, known.emitter = place, emitter
            known.origin, known.version = origin, group.version
        channels = self._channels.setdefault(group, {})
        for channel, start in {Channel.of(s): s.start for s in stats}.items():
            nodes = channels.setdefault(channel, {})
            before = nodes.get(node, _Heard(start, log_ns))
            nodes[node] = _Heard(min(before.first_start, start), max(before.heard_ns, log_ns))

    def finish(self, emitter: bytes, *, log_ns: int) -> None:
        """Take the news that a process has ended as it should."""
        self._finished[emitter] = log_ns

    def expected(self, group: Group, channel: Channel, start: int, *, now_ns: int) -> set[Node]:
        """Return who should report a window.

        These are the nodes that lately reported the same name under the same version, and did so
        before this window; not those that ended, or that run another version now. Of a role in
        the roster, its nodes alone; those of them that nothing is heard from count in the version
        they ran last, or in the one that came up last.
        """
        uids = self._settings.uids(group.run, group.role)
        team = self._known.get((group.run, group.role), {})
        since_ns = now_ns - self._settings.seen_ns
        found = {
            node
            for node, heard in self._channels.get(group, {}).get(channel, {}).items()
            if heard.first_start <= start
            and heard.heard_ns >= since_ns
            and (known := team.get(node)) is not None
            and known.version == group.version
            and not self.has_left(known, now_ns=now_ns)
        }
        if uids is None:
            return found
        found = {node for node in found if node.uid in uids}
        alive: set[str] = set()
        for node, known in team.items():
            if known.heard_ns >= since_ns:
                alive.add(node.uid)
            elif node.uid in uids and known.version == group.version:
                found.add(node)
        unknown = uids - alive - {node.uid for node in team}
        if unknown and group == self._newest(group):
            found |= {Node(uid, None) for uid in unknown}
        return found

    def known(self, team: tuple[str, str], node: Node) -> Known | None:
        """Return what is known of a node of a run and role."""
        return self._known.get(team, {}).get(node)

    def __iter__(self) -> Iterator[tuple[tuple[str, str], Node, Known]]:
        """Yield every node with its run and role."""
        for team, nodes in self._known.items():
            for node, known in nodes.items():
                yield team, node, known

    def has_left(self, known: Known, *, now_ns: int) -> bool:
        """Whether a node's process has ended as it should, and its last windows had their time."""
        ended_ns = self._finished.get(known.emitter)
        return ended_ns is not None and now_ns - ended_ns > self._settings.wait_ns

    def forget(self, *, now_ns: int) -> None:
        """Let go of what was not heard for so long that no window needs it."""
        before = now_ns - self._settings.keep_ns - self._settings.seen_ns
        self._finished = {e: ns for e, ns in self._finished.items() if ns >= before}
        for team in list(self._known):
            nodes = self._known[team]
            for node in [n for n, known in nodes.items() if known.heard_ns < before]:
                del nodes[node]
            if not nodes:
                del self._known[team]
        for group in list(self._channels):
            channels = self._channels[group]
            for channel in list(channels):
                heard = channels[channel]
                for node in [n for n, one in heard.items() if one.heard_ns < before]:
                    del heard[node]
                if not heard:
                    del channels[channel]
            if not channels:
                del self._channels[group]
                del self._began[group]

    def _newest(self, group: Group) -> Group:
        """Return the group of the same run and role whose version came up last."""
        same = (g for g in self._began if (g.run, g.role) == (group.run, group.role))
        return max(same, key=lambda g: (self._began[g], g.version), default=group)
