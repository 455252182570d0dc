"""The nodes of a simulated fleet, and what happens to each of them when."""

from collections.abc import Iterator
from typing import Literal

import msgspec

__all__ = ["Node", "Tick", "fleet_of", "schedule"]

_SECOND = 1_000_000_000


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node: who it is, how far ahead its clock is, and its habit.

    A `silent` node says nothing for a fifth of each period. A `crashing` one dies in each period and
    comes back as a new process. An `upgraded` one comes back once, with the second of its versions.
    """

    role: str
    uid: int
    versions: tuple[str, str]
    skew_ns: int = 0
    habit: Literal["steady", "silent", "crashing", "upgraded"] = "steady"

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.role}-{self.uid}"

    def version(self, life: int) -> str:
        """The version of the software that the node runs in one of its lives."""
        return self.versions[self.habit == "upgraded" and life > 0]


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a node, `offset_ns` after the start of the fleet.

    `life` counts the processes that the node has been; None while it is none. A node that does not
    speak may be alive.
    """

    offset_ns: int
    life: int | None
    speaks: bool


def fleet_of(count: int) -> list[Node]:
    """Return `count` nodes; with eight everything happens, more of them do the same again."""
    cast = (
        Node(role="miner", uid=0, versions=("1.4.0", "1.5.0")),
        Node(role="validator", uid=1, versions=("1.4.0", "1.5.0"), skew_ns=45 * _SECOND),
        Node(role="aggregator", uid=2, versions=("1.4.0", "1.5.0"), habit="silent"),
        Node(role="evaluator", uid=3, versions=("1.3.2", "1.4.0"), skew_ns=-30 * _SECOND),
        Node(role="miner", uid=4, versions=("1.3.2", "1.4.0"), habit="crashing"),
        Node(role="miner", uid=5, versions=("1.4.0", "1.5.0"), habit="upgraded"),
        Node(role="validator", uid=6, versions=("1.3.2", "1.4.0")),
        Node(role="miner", uid=7, versions=("1.5.0", "1.6.0")),
    )
    return [msgspec.structs.replace(cast[uid % len(cast)], uid=uid) for uid in range(count)]


def schedule(node: Node, *, rate: float, period_s: float) -> Iterator[Tick]:
    """Yield all moments of a node, `rate` of them a second, for ever."""
    period_ns = round(period_s * _SECOND)
    every_ns = _SECOND / rate
    phase_ns = every_ns * (node.uid * 0.618 % 1)  # not all nodes speak at once
    count = 0
    while True:
        offset_ns = round(phase_ns + count * every_ns)
        count += 1
        periods, rest_ns = divmod(offset_ns, period_ns)
        share = rest_ns / period_ns
        match node.habit:
            case "steady":
                yield Tick(offset_ns=offset_ns, life=0, speaks=True)
            case "silent":
                yield Tick(offset_ns=offset_ns, life=0, speaks=not 0.4 <= share < 0.6)
            case "crashing" if 0.3 <= share < 0.5:
                yield Tick(offset_ns=offset_ns, life=None, speaks=False)
            case "crashing":
                yield Tick(offset_ns=offset_ns, life=periods + (share >= 0.5), speaks=True)
            case "upgraded":
                yield Tick(offset_ns=offset_ns, life=int(periods + share >= 0.5), speaks=True)
