"""What a check of a node found, and what to do about it."""

from collections.abc import Iterable
from typing import Literal

import msgspec

__all__ = ["Finding", "Status", "worst"]

Status = Literal["ok", "skipped", "warning", "error"]

_WORST_FIRST: tuple[Status, ...] = ("error", "warning", "ok")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was looked at, how it is, in words, and the cure where one is needed."""

    check: str
    status: Status
    found: str
    cure: str = ""


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status there is; `skipped` if nothing was checked."""
    found = {one.status for one in findings}
    for status in _WORST_FIRST:
        if status in found:
            return status
    return "skipped"
