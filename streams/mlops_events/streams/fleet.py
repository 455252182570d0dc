"""Aggregates over all nodes of a run, role and version, from the Stats of each."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from mlops_events.schemas.events import Origin, Stats, StatsKey
from mlops_events.schemas.frame import StatsFrame
from mlops_events.streams.combine import Report, combine, share
from mlops_events.streams.crew import Channel, Crews, Group, Node
from mlops_events.streams.derived import derive_emitter
from mlops_events.streams.fleetsettings import FleetStatsSettings

__all__ = ["Fleet", "FleetOut", "fleet_emitter"]

_FORGOTTEN: Final = 100_000


class FleetOut(NamedTuple):
    """Stats of one run, role and version, to be published under an emitter id of their own."""

    emitter: bytes
    origin: Origin
    stats: list[Stats]


class _Window:
    """A window of a group: when its first and its last Stats came, and what each process reported."""

    __slots__ = ("born_ns", "channel", "group", "heard_ns", "reports")

    def __init__(self, group: Group, channel: Channel, log_ns: int) -> None:
        self.group = group
        self.channel = channel
        self.born_ns = self.heard_ns = log_ns
        self.reports: dict[bytes, Report] = {}


class _Published(NamedTuple):
    revision: int
    at_ns: int


class Fleet:
    """The windows of all groups, each with what every process reported.

    What a window comes to does not depend on the order in which Stats are taken. Time is that of
    the records: `log_ns` of one that is taken, `now_ns` where it stands now.

    Args:
        settings: how long is waited, and what is kept.
        crews: who is expected; it is told of all Stats that are taken.
    """

    def __init__(self, settings: FleetStatsSettings, crews: Crews) -> None:
        self._settings = settings
        self._crews = crews
        self._windows: dict[StatsKey, _Window] = {}
        self._origins: dict[Group, Origin] = {}
        self._began: dict[tuple[Group, Channel], int] = {}
        self._changed: dict[StatsKey, None] = {}
        self._published: dict[StatsKey, _Published] = {}
        self._forgotten: OrderedDict[StatsKey, None] = OrderedDict()
        self._leaving: list[tuple[Group, Stats]] = []
        self.held = 0
        """Windows of processes that are held now."""
        self.late = 0
        """Stats that came when their window was no longer kept."""
        self.evicted = 0
        """Windows of the fleet that were let go before their time, since there were too many."""

    def take(self, frame: StatsFrame, *, log_ns: int) -> None:
        """Take a record of the Stats topic; Stats of a fleet say what was published before."""
        if any(stats.nodes is not None for stats in frame.stats):
            for stats in frame.stats:
                self._note(stats.key(frame.emitter), stats.revision, log_ns)
            return
        final = [stats for stats in frame.stats if stats.final]
        if not final:
            return
        origin = frame.origin
        self._crews.hear(origin, frame.emitter, final, log_ns=log_ns)
        group, node = Group.of(origin), Node.of(origin)
        emitter = fleet_emitter(group)
        self._origins[group] = share(self._origins.get(group), origin, group)
        for stats in final:
            self._add(group, stats.key(emitter), node, frame.emitter, stats, log_ns)
        while self.held > self._settings.max_windows:
            self._evict()

    def due(self, *, now_ns: int) -> list[FleetOut]:
        """Return what is to be published: windows that everybody reported, or that waited enough.

        What is returned counts as published.
        """
        wait_ns = self._settings.wait_ns
        ready: list[tuple[Group, Stats]] = []
        expected: dict[tuple[Group, Channel, int], set[Node]] = {}
        for key in list(self._changed):
            window = self._windows[key]
            place = (window.group, window.channel, key.start)
            if place not in expected:
                expected[place] = self._crews.expected(*place, now_ns=now_ns)
            missing = _count_missing(window, expected[place])
            # Of those who just began to report, more may follow.
            young = now_ns - self._began[window.group, window.channel] < wait_ns
            if (missing or young) and now_ns - window.heard_ns < wait_ns:
                continue
            del self._changed[key]
            self._publish(key, window, missing, now_ns, ready)
        return self._outs(ready)

    def rest(self, *, now_ns: int) -> list[FleetOut]:
        """Return what waits to be published, as it is now."""
        ready: list[tuple[Group, Stats]] = []
        for key in self._changed:
            window = self._windows[key]
            expected = self._crews.expected(window.group, window.channel, key.start, now_ns=now_ns)
            self._publish(key, window, _count_missing(window, expected), now_ns, ready)
        self._changed.clear()
        return self._outs(ready)

    def forget(self, *, now_ns: int) -> None:
        """Let go of windows that are older than is kept."""
        for key, window in list(self._windows.items()):
            if self._is_old(key, window.born_ns, now_ns) and key not in self._changed:
                self._drop(key)
        keep_ns = self._settings.keep_ns + self._settings.seen_ns
        for key in [k for k, p in self._published.items() if p.at_ns < now_ns - keep_ns]:
            del self._published[key]
        used = {(w.group, w.channel) for w in self._windows.values()}
        self._began = {place: ns for place, ns in self._began.items() if place in used}
        groups = {group for group, _ in used} | {group for group, _ in self._leaving}
        self._origins = {g: origin for g, origin in self._origins.items() if g in groups}

    def _note(self, key: StatsKey, revision: int, log_ns: int) -> None:
        known = self._published.get(key)
        if known is None or revision > known.revision:
            self._published[key] = _Published(revision, log_ns)

    def _add(
        self,
        group: Group,
        key: StatsKey,
        node: Node,
        process: bytes,
        stats: Stats,
        log_ns: int,
    ) -> None:
        window = self._windows.get(key)
        if window is None:
            if key in self._forgotten or self._is_old(key, log_ns, log_ns):
                self.late += 1
                return
            window = self._windows[key] = _Window(group, Channel.of(stats), log_ns)
        place = (group, window.channel)
        self._began[place] = min(self._began.get(place, log_ns), log_ns)
        known = window.reports.get(process)
        if known is not None and known.revision >= stats.revision:
            return
        self.held += known is None
        window.born_ns = min(window.born_ns, log_ns)
        window.heard_ns = max(window.heard_ns, log_ns)
        window.reports[process] = Report.of(stats, node)
        self._changed[key] = None

    def _publish(
        self,
        key: StatsKey,
        window: _Window,
        missing: int,
        now_ns: int,
        into: list[tuple[Group, Stats]],
    ) -> None:
        stats = combine(key, window.reports.values(), missing=missing)
        known = self._published.get(key)
        if known is None or stats.revision > known.revision:
            self._published[key] = _Published(stats.revision, now_ns)
            into.append((window.group, stats))

    def _outs(self, ready: Iterable[tuple[Group, Stats]]) -> list[FleetOut]:
        leaving, self._leaving = self._leaving, []
        by_group: defaultdict[Group, list[Stats]] = defaultdict(list)
        for group, stats in (*leaving, *ready):
            by_group[group].append(stats)
        return [
            FleetOut(fleet_emitter(group), self._origins[group], stats)
            for group, stats in by_group.items()
        ]

    def _evict(self) -> None:
        """Let the oldest window go, published as it is."""
        key = next(iter(self._windows))
        window = self._windows[key]
        if key in self._changed:
            del self._changed[key]
            expected = self._crews.expected(
                window.group, window.channel, key.start, now_ns=window.heard_ns
            )
            missing = _count_missing(window, expected)
            self._publish(key, window, missing, window.heard_ns, self._leaving)
        self._drop(key)
        self.evicted += 1

    def _drop(self, key: StatsKey) -> None:
        self.held -= len(self._windows.pop(key).reports)
        self._forgotten[key] = None
        if len(self._forgotten) > _FORGOTTEN:
            self._forgotten.popitem(last=False)

    def _is_old(self, key: StatsKey, born_ns: int, now_ns: int) -> bool:
        """Say whether a window is kept no longer: by its end, or by when it came where by steps."""
        since_ns = key.start + key.size if key.by == "time" else born_ns
        return now_ns - since_ns > self._settings.keep_ns


def fleet_emitter(group: Group) -> bytes:
    """Return the 16 bytes under which a group's aggregates are published."""
    return derive_emitter("fleet", *group)


def _count_missing(window: _Window, expected: set[Node]) -> int:
    if not expected:
        return 0
    return len(expected - {report.node for report in window.reports.values()})
