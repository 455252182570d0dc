"""Tables for terminals of any width."""

from collections.abc import Sequence

__all__ = ["count_text", "table"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> list[str]:
    """Return the lines of a table; where it does not fit, each row becomes a block of lines.

    Columns of which all cells are numbers stand to the right. In a block the first cell stands
    alone, and the others below it behind their heads; empty ones are left out.

    Args:
        head: what the columns are called.
        rows: the cells of each row.
        width: of the terminal.
    """
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        right = [all(_is_number(row[k]) for row in rows) for k in range(len(head))]
        return [
            "  ".join(
                cell.rjust(size) if to_right else cell.ljust(size)
                for cell, size, to_right in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in (head, *rows)
        ]
    wide = max(len(name) for name in head[1:])
    lines: list[str] = []
    for row in rows:
        lines.append(row[0])
        cells = zip(head[1:], row[1:], strict=True)
        lines += [f"  {name.lower():{wide}}  {cell}" for name, cell in cells if cell]
    return lines


def count_text(count: int) -> str:
    """Return a number as people read it: 1,234,567."""
    return f"{count:,}"


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "-><"
