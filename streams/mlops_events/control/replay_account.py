"""The account of a replay: what became of every event that was read."""

from collections.abc import Iterator
from typing import Final

import msgspec

__all__ = ["Account", "Filtered"]

_EXAMPLES: Final = 10


class Filtered(msgspec.Struct, kw_only=True):
    """Events that were read and not wanted, by the first reason that applies.

    A record that cannot be decoded counts as one unreadable event; it became a dead letter when
    the stream read it.
    """

    unreadable: int = 0
    other_run: int = 0
    other_version: int = 0
    repeat: int = 0
    other_time: int = 0
    not_routed: int = 0  # read for its windows only

    @property
    def total(self) -> int:
        """All of them."""
        return sum(msgspec.structs.astuple(self))


class Account(msgspec.Struct, kw_only=True):
    """What became of the events, counted where it happened, so that the sum can be off.

    Stats are made here and not read, so they stand apart. `windows_cut` were not written because
    the range does not hold all of them, or because the stream has them open; `cut` names some.
    `beyond_slack` events came too late for windows that had been written. `expired` records were
    deleted by retention before they were read.
    """

    read: int = 0
    written: int = 0
    dead_lettered: int = 0
    filtered: Filtered = msgspec.field(default_factory=Filtered)
    stats_written: int = 0
    stats_dead_lettered: int = 0
    windows_cut: int = 0
    cut: list[str] = msgspec.field(default_factory=list)
    beyond_slack: int = 0
    expired: int = 0

    @property
    def off_by(self) -> int:
        """How many events that were read are missing from the sum; 0 if it is right."""
        return self.read - self.written - self.dead_lettered - self.filtered.total

    def note_cut(self, name: str) -> None:
        """Count a window that is not whole."""
        self.windows_cut += 1
        if len(self.cut) < _EXAMPLES:
            self.cut.append(name)

    def lines(self, *, dry_run: bool) -> Iterator[str]:
        """Yield the account for people."""
        would = "would be " if dry_run else ""
        filtered = ", ".join(
            f"{count:,} {reason.replace('_', ' ')}"
            for reason, count in msgspec.structs.asdict(self.filtered).items()
            if count
        )
        yield f"{self.read:,} events read"
        yield f"  {self.written:,} {would}written"
        yield f"  {self.filtered.total:,} filtered{f': {filtered}' if filtered else ''}"
        yield f"  {self.dead_lettered:,} dead-lettered"
        refused = f", {self.stats_dead_lettered:,} dead-lettered" * bool(self.stats_dead_lettered)
        yield f"{self.stats_written:,} Stats {would}written{refused}"
        if self.windows_cut:
            more = self.windows_cut - len(self.cut)
            names = "; ".join(self.cut) + (f"; and {more:,} more" if more else "")
            yield f"{self.windows_cut:,} windows left out, since they are not whole: {names}"
        if self.beyond_slack:
            yield (
                f"{self.beyond_slack:,} events arrived later than --slack after their windows, "
                "which lack them"
            )
        if self.expired:
            yield f"{self.expired:,} records were deleted by retention before they were read"
        if self.off_by:
            yield f"the sum is off by {self.off_by:,}"
