"""Columns of text: names to the left, numbers to the right, as wide as they need to be."""

from __future__ import annotations

from collections.abc import Sequence


def columns(
    rows: Sequence[Sequence[str]], left: Sequence[int] = (0,), indent: str = "  ", *, strip: bool = True
) -> list[str]:
    """One line per row; the columns named in `left` are aligned to the left, the others to the right."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            f"{cell:<{width}}" if index in left else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        line = indent + "  ".join(cells)
        lines.append(line.rstrip() if strip else line)
    return lines


def signed(nbytes: int, shown: str) -> str:
    """`+1.20 GiB`: a difference shows its sign, and nothing is nothing."""
    return "0" if nbytes == 0 else f"+{shown}" if nbytes > 0 else shown
