"""Shows to people what has how many different values."""

from mlops_events.control.cardinality import CardinalityReport, Spread
from mlops_events.control.deadletters_content import wrapped
from mlops_events.control.tables import count_text, table

__all__ = ["cardinality_text"]

_EXAMPLE = 20


def cardinality_text(report: CardinalityReport, *, limit: int, width: int) -> str:
    """Return a table of the worst, with what would hurt a metrics store said below it."""
    lines = wrapped(
        f"{count_text(report.events)} events in {count_text(report.frames)} frames, "
        f"{_many(report.series, report.series_more)} series (run, role, uid, rank, name, field)",
        width,
    )
    if report.undecodable:
        lines.append(f"{count_text(report.undecodable)} records are no frames")
    if report.left_out:
        text = f"{count_text(report.left_out)} times there was no room for one more name or field"
        lines += wrapped(text, width)
    shown = report.spreads[:limit]
    if not shown:
        return "\n".join(lines)
    lines += ["", *table(_HEAD, [_row(spread) for spread in shown], width=width)]
    if len(report.spreads) > limit:
        lines += wrapped(f"and {len(report.spreads) - limit} more; --limit shows them", width)
    bad = [spread for spread in report.spreads if spread.hurts]
    if bad:
        lines += ["", *wrapped("! would hurt a metrics store:", width)]
    for spread in bad[:limit]:
        lines += wrapped(f"{_what(spread)}: {spread.hurts}", width, indent=2)
    return "\n".join(lines)


_HEAD = ("WHAT", "DISTINCT", "EVENTS", "SUCH AS", "")


def _row(spread: Spread) -> tuple[str, ...]:
    example = " ".join(spread.example.split())
    if len(example) > _EXAMPLE:
        example = f"{example[: _EXAMPLE - 3]}..."
    return (
        _what(spread),
        _many(spread.distinct, spread.more),
        count_text(spread.events),
        example if example.isprintable() else ascii(example),
        "!" if spread.hurts else "",
    )


def _what(spread: Spread) -> str:
    if spread.place == "names":
        return f"names of {spread.name} events"
    if spread.place == "fields":
        return f"fields of {spread.name}"
    if spread.place == "field":
        return f"{spread.name}.{spread.field}"
    return f"{spread.place} {spread.name}"


def _many(count: int, more: bool) -> str:
    return f"{'>' * more}{count_text(count)}"
