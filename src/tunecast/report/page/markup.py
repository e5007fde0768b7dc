"""HTML that is escaped unless it was made here: what a script named cannot become markup."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tunecast.report.draw.figures import shown


class Markup(str):
    """Finished HTML. Any other string is text and gets escaped."""


def tag(name: str, *children: str, **attributes: str | None) -> Markup:
    """`tag("td", text, class_="number")`; an attribute of None is left out, `_` in its name is `-`.

    What is `Markup` is taken as it is: also an attribute made of figures alone, which may be longer than any text.
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{value if isinstance(value, Markup) else escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(child if isinstance(child, Markup) else escaped(child) for child in children)
    return Markup(f"<{name}{pairs}>{inside}</{name}>")


def table(head: Sequence[str], rows: Iterable[Markup], style: str) -> Markup:
    """Rows below the names of their columns."""
    names = tag("tr", *(tag("th", name) for name in head))
    return tag("table", tag("thead", names), tag("tbody", *rows), class_=style)


def cell(text: str, note: str | None = None, style: str | None = None, value: float | None = None) -> Markup:
    """`note`: in small letters below; `value`: what `page/common.js` sorts by."""
    below = () if note is None else (tag("small", note),)
    return tag("td", text, *below, class_=style, data_value=None if value is None else f"{value:.9g}")


def bullet_list(sentences: Iterable[str], style: str | None = None) -> Markup:
    return tag("ul", *(tag("li", sentence) for sentence in sentences), class_=style)


def joined(*parts: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escaped(part) for part in parts))


def lines(texts: Iterable[str]) -> list[Markup]:
    """One below the other, where the element keeps line ends (`pre`, an SVG's `title`)."""
    return [Markup(escaped(text) + "\n") for text in texts]


def breakable(text: str) -> Markup:
    """A path or a module's name that may continue on the next line after a `.` or a `/`."""
    return Markup(re.sub(r"([./])(?=[^\d])", r"\1<wbr>", escaped(text)))


def escaped(text: str) -> str:
    return html.escape(shown(text), quote=True)


def copyable(text: str) -> Markup:
    """Text to be typed elsewhere; `page/common.js` shows the button, since without it there is nothing to press."""
    button = tag("button", "Copy", type="button", hidden="", class_="copy")
    return tag("div", tag("pre", *lines(text.splitlines()), class_="mono"), button, class_="copyable")


def json_script(identity: str, data: Any) -> Markup:
    """Data for the page's script. `<` cannot appear, so no string can end the element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{identity}">{text}</script>')
