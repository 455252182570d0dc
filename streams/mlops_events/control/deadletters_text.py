"""Shows dead letters to people: groups, lists, one letter, and what became of those redriven."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from mlops_events.control.deadletters import Group, Letter
from mlops_events.control.deadletters_content import content_lines, wrapped
from mlops_events.control.deadletters_plan import Account

__all__ = ["account_text", "group_text", "letter_text", "list_text"]

_KEPT: Final = 10


def group_text(groups: Sequence[Group], *, width: int) -> str:
    """Return groups of letters as a table, or below each other where it is narrow."""
    if not groups:
        return "no dead letters"
    total = sum(one.count for one in groups)
    head = ("SINK", "REASON", "LETTERS", "FIRST (UTC)", "LAST (UTC)")
    rows = [
        (one.sink, one.reason, str(one.count), _when(one.first_ns), _when(one.last_ns))
        for one in groups
    ]
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    fits = sum(widths) + 2 * (len(widths) - 1) <= width
    lines = [_columns(head, widths)] if fits else []
    for one, row in zip(groups, rows, strict=True):
        if fits:
            lines.append(_columns(row, widths))
        else:
            lines += [
                *wrapped(f"{one.sink}  {one.reason}  {one.count}", width),
                *wrapped(f"{_when(one.first_ns)} to", width, indent=2),
                *wrapped(f"{_when(one.last_ns)} UTC", width, indent=2),
            ]
        lines += wrapped(f"such as: {one.message}", width, indent=2, most=3)
    lines.append(f"{total} dead letter{'s' if total != 1 else ''}")
    return "\n".join(lines)


def list_text(letters: Sequence[Letter], *, width: int) -> str:
    """Return single letters, each with its key, which is never cut."""
    lines: list[str] = []
    for found in letters:
        one = found.letter
        again = f", redriven {one.redriven}x" if one.redriven else ""
        lines.append(one.key)
        lines += wrapped(f"{_when(found.written_ns)}  {one.reason}{again}", width, indent=2)
        lines += wrapped(one.message, width, indent=2, most=2)
    return "\n".join(lines) or "no dead letters"


def letter_text(found: Letter, *, width: int) -> str:
    """Return everything about one letter, which has its payload."""
    one = found.letter
    size = f"{one.size} bytes"
    facts = {
        "key": one.key,
        "sink": one.sink,
        "reason": one.reason,
        "message": one.message,
        "kind": one.kind or "unknown",
        "written": f"{_when(found.written_ns)} UTC",
        "seen": f"{_when(one.first_seen_ns)} UTC",
        "stood in": f"{one.topic}, partition {one.partition}, offset {one.offset}",
        "lies at": f"partition {found.partition}, offset {found.offset}",
        "size": f"{size}, cut to {len(one.payload)}" if one.truncated else size,
        "redriven": f"{one.redriven} times" if one.redriven else "never",
    }
    column = max(map(len, facts)) + 2
    lines: list[str] = []
    for name, value in facts.items():
        parts = wrapped(value, width - column)
        lines.append(f"{name:{column}}{parts[0] if parts else ''}")
        lines += [" " * column + rest for rest in parts[1:]]
    return "\n".join([*lines, "", *content_lines(one.payload, width=width)])


def account_text(account: Account, *, width: int) -> str:
    """Return what became of the letters that were meant."""
    if not account.chosen:
        return "no dead letters are meant"
    would = "would be " if account.dry_run else ""
    lines = [f"{account.redriven} of {account.chosen} dead letters {would}redriven"]
    for topic, count in sorted(account.sent.items()):
        lines += wrapped(f"{count} to {topic}", width, indent=2)
    if account.gone:
        lines.append(f"{account.gone} were deleted or written anew meanwhile")
    if account.kept:
        lines.append(f"{len(account.kept)} {'would be ' if would else ''}kept:")
        reasons = Counter(kept.why for kept in account.kept)
        example = {kept.why: kept.key for kept in account.kept}
        for why, count in reasons.most_common(_KEPT):
            lines += wrapped(f"{count}: {why}", width, indent=2)
            lines += wrapped(f"such as {example[why]}", width, indent=4)
        if len(reasons) > _KEPT:
            lines.append(f"  and for {len(reasons) - _KEPT} other reasons; --json names all")
    return "\n".join(lines)


def _when(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(ns)


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
