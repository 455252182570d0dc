"""Settings of the fleet service, and the roster in them."""

import re
from typing import Annotated, Final

import msgspec

__all__ = ["FleetStatsSettings"]

_NS: Final = 1_000_000_000
_RANGE: Final = re.compile(r"(\d+)-(\d+)")
_MAX_RANGE: Final = 100_000

Seconds = Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)]


class FleetStatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who is expected and how long is waited for; read with the prefix "fleet".

    `roster` names the nodes of a role: `miner=0-255;validator=0,1`. A role may be told for one
    run alone, `llama/miner=0-63`, which wins. Of roles that it does not name, those nodes are
    expected that were heard within `seen_s`. Times are those of the records.

    A window is published when all who are expected have reported, or `wait_s` after the last
    report, and again when more come. It is kept for `keep_s`, which is best above the stream's
    `hold_s`, after which the windows of processes that were killed are closed; at most `max_windows` windows of
    nodes are held, the oldest go first. A node of which nothing came for `missing_s`, while others
    report, is missing. `group` is the consumer group, `<prefix>.fleet` if empty.
    """

    wait_s: Seconds = 15.0
    seen_s: Seconds = 600.0
    keep_s: Seconds = 7200.0
    missing_s: Seconds = 60.0
    max_windows: Annotated[int, msgspec.Meta(ge=1)] = 1_000_000
    roster: dict[str, tuple[int | str, ...]] = {}
    group: str = ""
    health_port: int | None = None

    def __post_init__(self) -> None:
        for longer, shorter in (("keep_s", "wait_s"), ("seen_s", "missing_s")):
            if getattr(self, longer) < getattr(self, shorter):
                raise ValueError(
                    f"{longer} ({getattr(self, longer):g}) must not be below "
                    f"{shorter} ({getattr(self, shorter):g})"
                )
        for role, uids in self.roster.items():
            for uid in uids:
                _expand(role, uid)

    @property
    def wait_ns(self) -> int:
        """How long a node that is expected is waited for, in nanoseconds."""
        return round(self.wait_s * _NS)

    @property
    def seen_ns(self) -> int:
        """For how long a node that was heard is expected, in nanoseconds."""
        return round(self.seen_s * _NS)

    @property
    def keep_ns(self) -> int:
        """For how long windows are kept, in nanoseconds."""
        return round(self.keep_s * _NS)

    @property
    def missing_ns(self) -> int:
        """After how much silence a node is missing, in nanoseconds."""
        return round(self.missing_s * _NS)

    def uids(self, run: str, role: str) -> frozenset[str] | None:
        """Return the nodes that a role has in a run, as texts; None if the roster does not say."""
        found = self.roster.get(f"{run}/{role}", self.roster.get(role))
        if found is None:
            return None
        return frozenset(text for uid in found for text in _expand(role, uid))


def _expand(role: str, uid: int | str) -> list[str]:
    """Return the nodes that an entry names: "0-3" are four."""
    text = str(uid).strip()
    found = _RANGE.fullmatch(text)
    if not text:
        raise ValueError(f"roster: {role!r} has an empty uid")
    if found is None:
        return [text]
    first, last = int(found[1]), int(found[2])
    if not first <= last < first + _MAX_RANGE:
        raise ValueError(
            f"roster: {role} has the range {text!r}; write FIRST-LAST, of at most {_MAX_RANGE} nodes"
        )
    return [str(number) for number in range(first, last + 1)]
