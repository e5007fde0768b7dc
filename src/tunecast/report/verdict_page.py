"""The top of a job's page: whether it fits, by how much, with which range, and the card as one bar."""

from __future__ import annotations

from tunecast.predict.outside import Outside
from tunecast.report.card_bar import card_bar, card_key
from tunecast.report.document import Provenance, byline
from tunecast.report.figures import Figures, shown
from tunecast.report.markup import Markup, tag
from tunecast.report.text import verdict_lines, when
from tunecast.units import gib, percent

PILL = {"fits": "pill good", "may not fit": "pill warn", "does not fit": "pill bad"}


def header(figures: Figures, made: Provenance | None) -> Markup:
    word = tag("span", figures.word, class_="pill good" if figures.word == "exact" else "pill warn")
    line = byline(made)
    return tag("header", tag("h1", figures.title), word, tag("p", line) if line else Markup())


def verdict_panel(figures: Figures, outside: Outside | None = None) -> Markup:
    return tag("section", _verdict(figures, outside), _numbers(figures), class_="panel")


def verdict_told(figures: Figures) -> str:
    """What follows the verdict: `needs 13.74 GiB (13.54 to 14.35 GiB) of the 22.77 GiB PyTorch can use on rtx-4090`."""
    if figures.capacity_bytes is None or figures.margin_bytes is None:
        return ""
    gpu, room = shown(figures.gpu or "the card"), figures.room
    can_use = f"the {gib(figures.capacity_bytes)} PyTorch can use on {gpu}"
    needs_bytes = figures.capacity_bytes - figures.margin_bytes if room is None else room.needs_bytes
    between = "" if room is None else f" ({between_bytes(room.low_bytes, room.high_bytes)})"
    needs = f"needs {gib(needs_bytes)}{between} of {can_use}"
    left_bytes = figures.capacity_bytes - needs_bytes
    if figures.verdict == "does not fit":
        over = f"{gib(-left_bytes)} over" if left_bytes < 0 else "no room in one piece (fragmentation)"
        return f"{over}: {needs}"
    spare = f"{gib(max(0, left_bytes))} ({percent(max(0, left_bytes) / max(1, figures.capacity_bytes))}) to spare"
    if figures.verdict == "may not fit":
        return f"{spare}, but not at the high end of the range: {needs}"
    return f"{spare}: {needs}"


def between_bytes(low_bytes: int, high_bytes: int) -> str:
    """`13.54 to 14.35 GiB`: the unit once, where both have it."""
    low, high = gib(low_bytes), gib(high_bytes)
    same = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    return f"{low.rpartition(' ')[0] if same else low} to {high}"


def _verdict(figures: Figures, outside: Outside | None) -> Markup:
    """The sentence, what else does not fit, and the bar."""
    verdict = figures.verdict
    if verdict is None or figures.card_bytes is None or figures.capacity_bytes is None:
        return Markup()
    sentences = [tag("p", tag("span", verdict, class_=PILL[verdict]), " " + verdict_told(figures), class_="verdict")]
    sentences += [
        tag("p", sentence[0].upper() + sentence[1:], class_="muted") for sentence in verdict_lines(figures)[1:]
    ]
    if figures.fits and outside is not None:  # where the training itself does not fit, the rest is no news
        sentences += [
            tag("p", tag("span", f"{what} does not fit", class_="pill bad"), f" {told}", class_="verdict")
            for what, told in too_large(outside, figures.capacity_bytes)
        ]
    parts = {
        **figures.breakdown_bytes,
        "allocator": figures.reserved_bytes - figures.allocated_bytes,
        "context": figures.context_bytes or 0,
        "communication": figures.communication_bytes,
        "others": figures.others_bytes,
    }
    room, aside_bytes = figures.room, figures.card_bytes - figures.capacity_bytes
    marks = None if room is None else (room.low_bytes + aside_bytes, room.high_bytes + aside_bytes)
    most_bytes = max([sum(parts.values()), *(marks or ())])
    bar = card_bar(parts, figures.card_bytes, marks, f"{gib(sum(parts.values()))} of {gib(figures.card_bytes)}")
    key = card_key(parts, ranged=marks is not None, ends=most_bytes > figures.card_bytes)
    return tag("div", *sentences, bar, key, class_="meter")


def too_large(outside: Outside, capacity_bytes: int) -> list[tuple[str, str]]:
    """What around the step needs more of the card than there is: (what, how much and what helps)."""
    if outside.in_parts:
        return []
    found = []
    if (need := outside.loading.card_allocated_bytes) > capacity_bytes:
        found.append(("loading", f"needs {gib(need)} of {gib(capacity_bytes)}"))
    if (need := outside.evaluation.card_allocated_bytes) > capacity_bytes:
        smaller = f"set per_device_eval_batch_size below {outside.evaluation.batch}"
        found.append(("evaluation", f"needs {gib(need)} of {gib(capacity_bytes)}: {smaller}"))
    return found


def _numbers(figures: Figures) -> Markup:
    more_bytes = figures.reserved_bytes - figures.allocated_bytes
    cards = [
        ("Peak allocated", gib(figures.allocated_bytes), when(figures.peak_phase, figures.peak_step)),
        ("Reserved by PyTorch", gib(figures.reserved_bytes), f"{gib(more_bytes)} more than the peak allocated"),
    ]
    if figures.device_bytes is not None and figures.context_bytes is not None:
        cards.append(("On the GPU", gib(figures.device_bytes), figures.outside))
    if figures.smallest_capacity_bytes is not None:
        least = gib(figures.smallest_capacity_bytes)
        cards.append(("Minimum memory", least, "PyTorch runs out of memory with less"))
    if (card := figures.least_card) is not None:
        if card.name is None:
            cards.append(("Smallest GPU that fits", "none", f"the largest known has {gib(card.memory_bytes)}"))
        else:
            doubt = "" if card.name == figures.gpu else "; by its memory alone"
            cards.append(("Smallest GPU that fits", shown(card.name), f"{gib(card.memory_bytes)}{doubt}"))
    return number_cards(cards)


def number_cards(cards: list[tuple[str, str, str]]) -> Markup:
    """(name, figure, what goes with it) each."""
    items = (
        tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else Markup(), class_="number"))
        for name, value, note in cards
    )
    return tag("dl", *items, class_="cards")
