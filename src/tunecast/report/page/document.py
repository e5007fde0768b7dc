"""A page as one file: no server, no network, no library; and where it comes from, so that it can be made again."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from tunecast.records import dataclass
from tunecast.report.page.markup import Markup, bullet_list, copyable, joined, tag


@dataclass(frozen=True)
class Provenance:
    """What a page was made by."""

    command: str
    """As it was typed."""
    version: str
    """tunecast's."""
    made: date
    job: str = ""
    """As a job's file has it: only what differs from the defaults."""
    packages: str = ""
    """`follows peft 0.21.0, torch 2.11.0`: whose training code the figures are of."""


def document(title: str, styles: Iterable[str], body: Markup, scripts: Iterable[str] = ()) -> str:
    """A whole page. Its policy lets no script run but these, and loads nothing."""
    script = "\n".join(map(asset, scripts))
    allowed = f"; script-src '{_hash(script)}'" if script else ""
    policy = f"default-src 'none'; style-src 'unsafe-inline'{allowed}"
    head = tag(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("title", title),
        Markup(f"<style>\n{''.join(map(asset, styles))}</style>"),
    )
    end = f"<script>{script}</script>" if script else ""
    return f'<!doctype html>\n<html lang="en">{head}{body.removesuffix("</body>")}{end}</body></html>\n'


def asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def panel(title: str, *inside: str, style: str = "") -> Markup:
    """'' inside leaves it out."""
    if not any(inside):
        return Markup()
    return tag("section", tag("h2", title), *inside, class_=f"panel {style}".strip())


def remarks_panel(remarks: Iterable[tuple[str, Sequence[str]]], warning: str = "Warnings") -> Markup:
    """Lists of sentences, each below its title; that of `warning` in the colour of one."""
    parts = [
        joined(tag("h2", title, class_="warn" if title == warning else None), bullet_list(sentences))
        for title, sentences in remarks
        if sentences
    ]
    return tag("section", *parts, class_="panel notes") if parts else Markup()


def byline(of: Provenance | None) -> str:
    """`tunecast 0.1.0, 2026-11-16 · follows peft 0.21.0, torch 2.11.0`."""
    if of is None:
        return ""
    return " · ".join(filter(None, [f"tunecast {of.version}, {of.made}", of.packages]))


def reproduction(of: Provenance | None) -> Markup:
    """The command and the job, each to be copied."""
    if of is None:
        return Markup()
    job = (tag("p", "The job; everything else is tunecast's default", class_="muted"), copyable(of.job))
    return panel(
        "Make this page again",
        tag("p", "The command", class_="muted"),
        copyable(of.command),
        *(job if of.job else ()),
        style="again",
    )
