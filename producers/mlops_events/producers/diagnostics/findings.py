"""What a check of a node found, and what to do about it."""

from collections.abc import Iterable
from typing import Literal

import msgspec

__all__ = ["Finding", "Status", "worst"]

Status = Literal["ok", "skipped", "warning", "error"]

_ORDER: tuple[Status, ...] = ("skipped", "ok", "warning", "error")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was looked at, how it is, in words, and the cure where one is needed."""

    check: str
    status: Status
    found: str
    cure: str = ""


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status there is; `skipped` if nothing was checked."""
    return max((one.status for one in findings), key=_ORDER.index, default="skipped")
