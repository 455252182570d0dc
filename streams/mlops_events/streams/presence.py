"""Which nodes are missing: nothing comes from them while others report; and which are back."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import Final, NamedTuple, TypeAlias

from mlops_events.schemas.events import Log, Origin
from mlops_events.schemas.topics import origin_key
from mlops_events.streams.crew import Crews, Known, Node
from mlops_events.streams.derived import DerivedLog, derive_emitter
from mlops_events.streams.fleetsettings import FleetStatsSettings
from mlops_events.streams.history import LOGGER, name_of

__all__ = ["Presence"]

_NS: Final = 1_000_000_000
_Team: TypeAlias = tuple[str, str]
_Place: TypeAlias = tuple[_Team, Node]


class _Return(NamedTuple):
    """A node that was heard after a silence; `heard_ns` is 0 if it never was before."""

    place: _Place
    origin: Origin
    heard_ns: int
    back_ns: int


class Presence:
    """Says once when a node goes missing, and once when it is back.

    Silence is measured by the records of the Stats topic: a stretch in which nobody at all was
    heard for as long counts for nothing, since the pipeline stood still then, not a node.

    Args:
        settings: how long a silence has to be, and the roster.
        crews: who is known.
    """

    def __init__(self, settings: FleetStatsSettings, crews: Crews) -> None:
        self._settings = settings
        self._crews = crews
        self._missing: dict[_Place, tuple[Origin, int]] = {}
        self._returned: list[_Return] = []
        self._heard_s: list[int] = []
        self._began: dict[_Team, int] = {}

    def note(self, origin: Origin, *, log_ns: int) -> None:
        """Take the news that Stats of a node arrived; to be told before the crews are."""
        second = log_ns // _NS
        at = bisect_left(self._heard_s, second)
        if at == len(self._heard_s) or self._heard_s[at] != second:
            self._heard_s.insert(at, second)
        team = (origin.run, origin.role)
        self._began[team] = min(self._began.get(team, log_ns), log_ns)
        node = Node.of(origin)
        known = self._crews.known(team, node)
        if known is None:
            never = (team, Node(node.uid, None))
            if never in self._missing:
                self._returned.append(_Return(never, self._missing[never][0], 0, log_ns))
        elif log_ns - known.heard_ns > self._settings.missing_ns and not self._crews.has_left(
            known, now_ns=log_ns
        ):
            self._returned.append(_Return((team, node), known.origin, known.heard_ns, log_ns))

    def changes(self, *, now_ns: int) -> list[DerivedLog]:
        """Return what is to be said now.

        Args:
            now_ns: the time of the newest record.
        """
        said: list[DerivedLog] = []
        returned, self._returned = self._returned, []
        for place, origin, heard_ns, back_ns in returned:
            if self._missing.pop(place, None) is None:
                if not self._is_long(heard_ns, back_ns):
                    continue
                said.append(self._gone(origin, heard_ns, heard_ns))
            said.append(_say("back", origin, heard_ns, back_ns))
        present: defaultdict[_Team, set[str]] = defaultdict(set)
        for team, node, known in self._crews:
            present[team].add(node.uid)
            place = (team, node)
            if self._crews.has_left(known, now_ns=now_ns):
                self._missing.pop(place, None)
            elif (
                place not in self._missing
                and now_ns - known.heard_ns > self._settings.missing_ns
                and self._is_wanted(team, node, known, now_ns)
                and self._is_long(known.heard_ns, now_ns)
            ):
                self._missing[place] = (known.origin, known.heard_ns)
                said.append(self._gone(known.origin, known.heard_ns, known.heard_ns))
        for team, began_ns in self._began.items():
            for uid in sorted((self._settings.uids(*team) or frozenset()) - present[team]):
                place = (team, Node(uid, None))
                if place not in self._missing and self._is_long(began_ns, now_ns):
                    origin = Origin(run=team[0], role=team[1], uid=uid)
                    self._missing[place] = (origin, 0)
                    said.append(self._gone(origin, 0, began_ns))
        return said

    def missing(self) -> int:
        """Return how many nodes are missing."""
        return len(self._missing)

    def forget(self, *, now_ns: int) -> None:
        """Let go of what is older than what the crews remember."""
        before_ns = now_ns - self._settings.keep_ns - self._settings.seen_ns
        del self._heard_s[: bisect_left(self._heard_s, before_ns // _NS)]
        teams = {team for team, _, _ in self._crews}
        self._began = {team: ns for team, ns in self._began.items() if team in teams}
        self._missing = {p: gone for p, gone in self._missing.items() if p[0] in teams}

    def _is_wanted(self, team: _Team, node: Node, known: Known, now_ns: int) -> bool:
        uids = self._settings.uids(*team)
        if uids is not None:
            return node.uid in uids
        return now_ns - known.heard_ns <= self._settings.seen_ns

    def _is_long(self, since_ns: int, until_ns: int) -> bool:
        """Whether a silence is one; stretches in which nobody was heard are no part of it."""
        first, last = since_ns // _NS, until_ns // _NS
        low, high = bisect_right(self._heard_s, first), bisect_right(self._heard_s, last)
        inside = self._heard_s[low:high]
        limit_s = self._settings.missing_ns / _NS
        steps = (
            after - before for before, after in zip((first, *inside), (*inside, last), strict=True)
        )
        return sum(step for step in steps if step <= limit_s) > limit_s

    def _gone(self, origin: Origin, heard_ns: int, since_ns: int) -> DerivedLog:
        return _say("missing", origin, heard_ns, since_ns + self._settings.missing_ns)


def _say(what: str, origin: Origin, heard_ns: int, ts: int) -> DerivedLog:
    level = "warning" if what == "missing" else "info"
    fields = {
        "run": origin.run,
        "role": origin.role,
        "uid": origin.uid,
        "version": origin.version or None,
        "heard_ns": heard_ns or None,
    }
    message = f"node {name_of(origin)} is {what}"
    return DerivedLog(
        emitter=derive_emitter(f"node {what}", origin_key(origin), origin.node, heard_ns),
        origin=origin,
        log=Log(ts=ts, level=level, message=message, logger=LOGGER, fields=fields),
    )
