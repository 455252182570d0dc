"""Draws what the doctor found, for people in a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlops_events.producers.diagnostics.findings import Finding, Status

__all__ = ["findings_view"]

_NARROW = 70
_COLOURS: dict[Status, str] = {
    "ok": "green",
    "skipped": "dim",
    "warning": "yellow",
    "error": "bold red",
}


def findings_view(findings: Sequence[Finding], *, width: int) -> RenderableType:
    """Return a row for each finding, its cure below it; blocks in a narrow terminal."""
    if width < _NARROW:
        return Group(*(part for one in findings for part in _block(one)), _summary(findings))
    table = Table.grid(padding=(0, 2, 0, 0))
    for one in findings:
        table.add_row(Text(one.status, style=_COLOURS[one.status]), one.check, _words(one))
    return Group(table, _summary(findings))


def _block(one: Finding) -> Iterator[RenderableType]:
    yield Text.assemble((one.status, _COLOURS[one.status]), " ", one.check)
    yield Padding(_words(one), (0, 0, 0, 2))


def _words(one: Finding) -> Text:
    words = Text(one.found, overflow="fold")
    if one.cure:
        words.append(f"\n-> {one.cure}", style="" if one.status != "skipped" else "dim")
    return words


def _summary(findings: Sequence[Finding]) -> Text:
    errors = sum(one.status == "error" for one in findings)
    warnings = sum(one.status == "warning" for one in findings)
    if not errors and not warnings:
        return Text("\nall is well", style="green")
    told = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((errors, "error"), (warnings, "warning"))
        if count
    ]
    return Text("\n" + ", ".join(told), style="bold red" if errors else "yellow")
