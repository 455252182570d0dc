"""Draws a report of `run-analysis` for people in a terminal."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mlops_events.producers.diagnostics.performance import PerformanceReport
from mlops_events.producers.diagnostics.performance_compare import Change, FunctionTime

__all__ = ["changes_view", "report_view"]

_NARROW = 70
_GENERATORS = ("<generator object ", "<async_generator object ")
_COLOURS = {"slower": "red", "faster": "green", "new": "yellow", "gone": "cyan"}


def report_view(report: PerformanceReport, *, top: int, width: int) -> RenderableType:
    """Return how the target ended and its first rows: a table, or two lines for each row."""
    rows = report.rows[:top]
    left = report.functions - len(rows)
    parts: list[RenderableType] = [_end(report), *_rows(rows, width)]
    if left > 0:
        parts.append(Text(f"and {left:,} more functions; --top N shows more", style="dim"))
    return Group(*parts)


def changes_view(
    before: PerformanceReport, after: PerformanceReport, *, top: int, width: int
) -> RenderableType:
    """Return what became slower and faster: a table, or two lines for each function."""
    which = "own" if after.sort == "own" else "cumulative"
    changes = after.changes or ()
    ratio = after.duration_s / before.duration_s if before.duration_s else 1.0
    head = Text.assemble(
        ("Compared", "bold"),
        f" with {_version(before)}: {_time(before.duration_s)} before, "
        f"{_time(after.duration_s)} now ({ratio:.2f} times), {which} time",
    )
    if not changes:
        return Group(head, Text("nothing changed by more than 5 % and 1 ms"))
    parts: list[RenderableType] = [head, *_changes(changes[:top], width)]
    if len(changes) > top:
        parts.append(Text(f"and {len(changes) - top:,} more changes", style="dim"))
    return Group(*parts)


def _end(report: PerformanceReport) -> Text:
    text = Text.assemble(
        (report.target, "bold"), f" {_version(report)} " if report.version else " "
    )
    if report.outcome == "returned":
        text.append("returned", style="green")
        text.append(f" {report.result}" if report.result else "")
    elif report.outcome == "exited":
        text.append(f"exited with {report.exit_code}", style="red" if report.exit_code else "green")
    else:
        text.append(report.outcome, style="red")
        text.append(f" {report.error}" if report.outcome == "raised" else "")
    text.append(
        f"\n{_time(report.duration_s)}, {_counted(report.calls, 'call')} of "
        f"{_counted(report.functions, 'function')}, by {report.sort}",
        style="dim",
    )
    if report.result.startswith(_GENERATORS):
        text.append("\nits body has not run: give a function that goes through it", style="yellow")
    return text


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _rows(rows: Sequence[FunctionTime], width: int) -> Iterator[RenderableType]:
    if not rows:
        return
    if width < _NARROW:
        for row in rows:
            yield Text(row.function, style="bold", overflow="fold")
            yield Text(f"  {_time(row.cumulative_s)}, own {_time(row.own_s)}, {_calls(row)} calls")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("cumulative", "own", "calls"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("function", overflow="fold")
    for row in rows:
        table.add_row(_time(row.cumulative_s), _time(row.own_s), _calls(row), Text(row.function))
    yield table


def _changes(changes: Sequence[Change], width: int) -> Iterator[RenderableType]:
    if width < _NARROW:
        for change in changes:
            yield Text.assemble(
                (change.verdict, _COLOURS[change.verdict]), " ", (change.function, "bold")
            )
            yield Text(
                f"  {_maybe(change.before_s)} to {_maybe(change.after_s)}, {_factor(change)}"
            )
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("")
    for name in ("before", "now", "", "calls"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("function", overflow="fold")
    for change in changes:
        table.add_row(
            Text(change.verdict, style=_COLOURS[change.verdict]),
            _maybe(change.before_s),
            _maybe(change.after_s),
            _factor(change),
            _count(change),
            Text(change.function),
        )
    yield table


def _version(report: PerformanceReport) -> str:
    return f"version {report.version}" if report.version else "the report"


def _factor(change: Change) -> str:
    if not change.before_s or change.after_s is None:
        return f"{change.difference_s * 1e3:+,.0f} ms"
    return f"{change.after_s / change.before_s:.2f} times"


def _count(change: Change) -> str:
    if change.calls_before == change.calls_after:
        return f"{change.calls_after:,}"
    before, after = (
        "-" if n is None else f"{n:,}" for n in (change.calls_before, change.calls_after)
    )
    return f"{before} > {after}"


def _calls(row: FunctionTime) -> str:
    if row.calls == row.primitive_calls:
        return f"{row.calls:,}"
    return f"{row.calls:,}/{row.primitive_calls:,}"


def _maybe(seconds: float | None) -> str:
    return "-" if seconds is None else _time(seconds)


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"
