"""A card as one bar: what lies on it by role, where the card ends, and the range of what is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tunecast.report.draw.text import words
from tunecast.report.page.chart import STACK, colour, swatch
from tunecast.report.page.markup import Markup, tag
from tunecast.units import gib

BESIDES: Mapping[str, str] = {
    "allocator": "cached by the allocator",
    "context": "CUDA context",
    "paged_optimizer": "paged optimizer",
    "communication": "NCCL",
    "vllm": "vLLM",
    "others": "held by others",
    "device": "not told apart",
}
"""What lies on a card beside the roles of a run."""


def card_bar(parts: Mapping[str, int], card_bytes: int, range_bytes: tuple[int, int] | None, label: str) -> Markup:
    """The parts from left to right, to the scale of the card or of what is needed, whichever is more."""
    needed_bytes = sum(parts.values())
    whole_bytes = max([card_bytes, needed_bytes, *(range_bytes or ()), 1])

    def place(nbytes: int) -> str:
        return f"{100 * nbytes / whole_bytes:.3f}%"

    bars = [
        tag(
            "i",
            class_=None if role in STACK else f"part {role}",
            style=f"width:{place(parts[role])}" + (f";background:{colour(role)}" if role in STACK else ""),
            title=f"{part_name(role)} {gib(parts[role])}",
        )
        for role in _ordered(parts)
        if parts[role]
    ]
    marks = [tag("b", style=f"left:{place(end)}") for end in range_bytes or ()]
    if whole_bytes > card_bytes:
        marks.append(tag("b", class_="beyond", style=f"left:{place(card_bytes)}"))
        marks.append(tag("b", class_="end", style=f"left:{place(card_bytes)}"))
    return tag("div", *bars, *marks, class_="track", role="img", aria_label=label)


def card_key(parts: Mapping[str, int], *, sizes: bool = True, ranged: bool = True, ends: bool = False) -> Markup:
    """What is drawn, in the order it is drawn in, and nothing else. `ends`: the card's end is within the bar."""
    shown = [role for role in _ordered(parts) if parts[role]]
    key = [
        tag(
            "span",
            swatch(role) if role in STACK else tag("i", class_=f"swatch part {role}"),
            part_name(role) + (f" {gib(parts[role])}" if sizes else ""),
        )
        for role in shown
    ]
    if ranged:
        key.append(tag("span", tag("i", class_="swatch ends"), "80 % range"))
    if ends:
        key.append(tag("span", tag("i", class_="swatch end"), "end of the card"))
    return tag("div", *key, class_="key")


def part_name(role: str) -> str:
    return BESIDES.get(role) or words(role)


def _ordered(parts: Iterable[str]) -> list[str]:
    """What is there before PyTorch first, then the roles as they are stacked, then what the allocator keeps."""
    before = ("context", "communication", "vllm", "others")
    order = (*before, *STACK)
    return sorted(parts, key=lambda role: order.index(role) if role in order else len(order))
