"""What every text for the terminal is made of: the terminal itself, sections, sentences, tables. Pure: strings out."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from tunecast.records import NamedTuple, dataclass
from tunecast.report.draw.bars import END
from tunecast.report.draw.columns import columns
from tunecast.report.draw.figures import LiveBlock, shown

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_COLOURS = {
    **{"bold": "1", "dim": "2", "good": "32", "bad": "31", "bar": "36", "warn": "33", END: "1"},
    **{"W": "30;44", "D": "30;46", "G": "30;45", "O": "30;43", "A": "30;42", "L": "30;41", "T": "30;47"},
    **{"c": "37;100", "x": "37;100", "o": "37;100"},
}
"""The parts of a bar as letters on a ground of their own colour."""
NO_BREAK = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(\d) (%|[GMK]iB|[GM]B|GB/s|s|min|h|d|kWh|x)(?![\w])")
_ASCII = str.maketrans({"█": "#", "…": "~", "·": "-", "─": "-", "•": "-"})


@dataclass(frozen=True)
class Terminal:
    """What the place the text goes to can show: the caller knows, nothing is asked here. Tables need 72 columns."""

    width: int = 100
    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self.colour and text and style in _COLOURS else text

    def plain(self, text: str) -> str:
        if self.unicode:
            return text
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


DEFAULT = Terminal()


class Row(NamedTuple):
    names: tuple[str, ...]
    numbers: tuple[str, ...]
    bar: int


def table(title: str, names: tuple[str, ...], numbers: tuple[str, ...], rows: Sequence[Row], terminal: Terminal) -> str:
    """Names to the left, numbers to the right, a bar in the room that is left."""
    if not rows:
        return ""
    cells = [(*names, *numbers), *((*row.names, *row.numbers) for row in rows)]
    head, *lines = columns(cells, left=range(len(names)), strip=False)
    room = min(40, terminal.width - len(head) - 2)
    most = max(row.bar for row in rows)
    bars = (terminal.paint(_bar(row.bar, most, room, terminal), "bar") for row in rows)
    drawn = [f"{line}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True)]
    return section(title, [terminal.paint(head.rstrip(), "dim"), *drawn], terminal)


def headed(rows: Sequence[Sequence[str]], terminal: Terminal, left: Sequence[int] = (0,), heads: int = 1) -> list[str]:
    """Columns below `heads` lines that name them."""
    lines = columns(rows, left=left)
    return [*(terminal.paint(line, "dim") for line in lines[:heads]), *lines[heads:]]


def facts(title: str, rows: Iterable[tuple[str, str]], terminal: Terminal) -> list[str]:
    """All that is known of one thing: what has a text, each below the other, its name at the left."""
    told = list(rows)
    width = max(len(name) for name, _ in told)
    wrap = textwrap.TextWrapper(terminal.width, subsequent_indent=" " * (width + 4), break_on_hyphens=False)
    lines = [line for name, text in told if text for line in wrap.wrap(f"  {name:<{width}}  {text}")]
    return [terminal.paint(title, "bold"), *lines]


def _bar(value: int, most: int, room: int, terminal: Terminal) -> str:
    """Eighths of a character where Unicode has them, whole ones otherwise. What is not nothing shows."""
    if room < 8 or not value or not most:
        return ""
    if not terminal.unicode:
        return "#" * max(1, value * room // most)
    whole, eighth = divmod(max(1, value * room * 8 // most), 8)
    return "█" * whole + (_EIGHTHS[eighth] if eighth else "")


def section(title: str, lines: Sequence[str], terminal: Terminal, style: str = "bold") -> str:
    return "\n".join([terminal.paint(title, style), *lines]) if lines else ""


def bullets(sentences: Iterable[str], terminal: Terminal) -> list[str]:
    return wrapped(sentences, "  • ", terminal)


def wrapped(sentences: Iterable[str], mark: str, terminal: Terminal, least_hang: int = 4) -> list[str]:
    """Lines after a sentence's first begin below its text, `least_hang` in. A number and its unit stay on one line."""
    hang = " " * max(least_hang, len(mark))
    wrap = textwrap.TextWrapper(max(40, terminal.width), mark, hang, break_on_hyphens=False)
    whole = (_UNIT.sub(rf"\1{NO_BREAK}\2", shown(sentence)) for sentence in sentences)
    return [line.replace(NO_BREAK, " ") for sentence in whole for line in wrap.wrap(sentence)]


def words(role: str) -> str:
    return shown(role).replace("_", " ")


def when(phase: str, step: int) -> str:
    if phase == "load":
        return "while loading"
    return f"in {'other work' if phase == 'other' else shown(phase)} of step {step}"


def made_by(block: LiveBlock) -> str:
    return f"{shown(block.op) or 'allocated'} {when(block.phase, block.step)}"


def share_of(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole and part <= whole else ""
