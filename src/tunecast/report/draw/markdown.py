"""Markdown that stays text, for GitHub and its like.

Names come from price lists and files. What would be markup, a link, a mention or a reference is made plain text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from tunecast.report.draw.figures import shown

_MARKUP = re.compile(r"([\\`*_\[\]|~])")
_NOTHING = "<!-- -->"
"""Shows nothing, and keeps GitHub from seeing a link, a mention or a reference across it."""
_REFERENCE = re.compile(r"@|#|://|\bwww\.|\bGH-|\b(?:mailto|xmpp):", re.IGNORECASE)


def plain(text: str) -> str:
    """Text that stays text: no tag, no emphasis, no cell's end, no link, no mention."""
    marked = _MARKUP.sub(r"\\\1", shown(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # between two dollar signs GitHub sets mathematics; a span around one is what its manual says against that
    return _REFERENCE.sub(lambda found: found[0][:1] + _NOTHING + found[0][1:], marked).replace("$", "<span>$</span>")


def code(text: str) -> str:
    """In a code span nothing is markup but the backtick and, in a table, the bar."""
    return f"`{shown(text).replace('`', chr(39)).replace('|', '¦')}`"


def html_code(text: str) -> str:
    """The same inside of HTML (`folded`'s title), where no Markdown is read."""
    return f"<code>{html.escape(shown(text), quote=True)}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    line = "|".join("---:" if index in right else "---" for index in range(len(head)))
    return "\n".join([f"| {' | '.join(head)} |", f"|{line}|", *(f"| {' | '.join(row)} |" for row in rows)])


def bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {plain(sentence)}" for sentence in sentences)


def folded(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>" if inside else ""
