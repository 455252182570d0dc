"""Decides what became slower or faster from one report to another."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

__all__ = ["Change", "FunctionTime", "compare"]

_LEAST_S: Final = 0.001
_LEAST_SHARE: Final = 0.05
"""Smaller differences are noise: below a millisecond, or below this share of both times."""


class FunctionTime(msgspec.Struct, frozen=True, kw_only=True):
    """What a function cost: `own_s` without, `cumulative_s` with the functions that it called.

    `function` is its name in its file, the same in all versions of a program; `place` is where it
    begins. `primitive_calls` are those that were not recursive.
    """

    function: str
    place: str
    calls: int
    primitive_calls: int
    own_s: float
    cumulative_s: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """How a function's time changed; None is a report that does not have the function."""

    function: str
    verdict: Literal["slower", "faster", "new", "gone"]
    before_s: float | None
    after_s: float | None
    calls_before: int | None
    calls_after: int | None

    @property
    def difference_s(self) -> float:
        """How much longer it takes now."""
        return (self.after_s or 0.0) - (self.before_s or 0.0)


def compare(
    before: Sequence[FunctionTime], after: Sequence[FunctionTime], *, own: bool = False
) -> list[Change]:
    """Return what changed by more than noise, the largest difference first.

    Args:
        before: the functions of the older report.
        after: those of the newer one.
        own: compare their own time, not the cumulative one.
    """
    old = {row.function: row for row in before}
    new = {row.function: row for row in after}
    changes = [_change(name, old.get(name), new.get(name), own=own) for name in old | new]
    return sorted(
        (change for change in changes if _counts(change)),
        key=lambda change: (-abs(change.difference_s), change.function),
    )


def _change(name: str, old: FunctionTime | None, new: FunctionTime | None, *, own: bool) -> Change:
    before = None if old is None else (old.own_s if own else old.cumulative_s)
    after = None if new is None else (new.own_s if own else new.cumulative_s)
    verdict: Literal["slower", "faster", "new", "gone"]
    if before is None:
        verdict = "new"
    elif after is None:
        verdict = "gone"
    else:
        verdict = "slower" if after > before else "faster"
    return Change(
        function=name,
        verdict=verdict,
        before_s=before,
        after_s=after,
        calls_before=None if old is None else old.calls,
        calls_after=None if new is None else new.calls,
    )


def _counts(change: Change) -> bool:
    difference = abs(change.difference_s)
    largest = max(change.before_s or 0.0, change.after_s or 0.0)
    return difference >= _LEAST_S and difference >= _LEAST_SHARE * largest
