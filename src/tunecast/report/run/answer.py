"""What `predict` and `trace` print of a run: about a screen, or with details all of it. Pure: whoever calls it prints.

verdict ─ not given, so taken ─ warnings ─ memory ─ time ─ cost ─ host ─ what to change ─ how far to trust it
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.hardware.spec import card_name
from tunecast.records import NamedTuple
from tunecast.report.draw.figures import Figures
from tunecast.report.draw.text import DEFAULT, Terminal, bullets, section, wrapped
from tunecast.report.run.memory import block_table, composition, figures_text, memory_text, module_table, phases_text
from tunecast.report.run.verdict import headline

FEW_BLOCKS = 5
MORE = "Ranges hold 8 in 10 runs. --details: phases, modules, bytes, assumptions; --html FILE: a page"


class Sections(NamedTuple):
    """What is written elsewhere, ready to print; '' leaves a section out."""

    remarks: Sequence[str] = ()
    """Sentences that belong to the verdict."""
    taken: str = ""
    """What the job does not say, and what was taken for it."""
    warnings: Sequence[str] = ()
    """Beside those of the figures."""
    time: str = ""
    cost: str = ""
    host: str = ""
    advice: str = ""
    outside: str = ""
    """With details only."""
    trust: str = ""


NOTHING = Sections()


def answer_text(figures: Figures, terminal: Terminal = DEFAULT, sections: Sections = NOTHING) -> str:
    """About a screen."""
    has_lines = any(block.source for block in figures.blocks)
    blocks = block_table(figures, terminal, FEW_BLOCKS) if has_lines else ""
    end = [_trust(sections.trust, terminal, MORE)]
    return _text(figures, terminal, sections, [memory_text(figures, terminal), blocks], end)


def details_text(
    figures: Figures, terminal: Terminal = DEFAULT, sections: Sections = NOTHING, *, rows: int = 10
) -> str:
    """Everything."""
    memory = [figures_text(figures, terminal), phases_text(figures, terminal), composition(figures, terminal)]
    end = [
        module_table(figures, terminal, rows),
        block_table(figures, terminal, rows),
        sections.outside,
        _trust(sections.trust, terminal),
        notes(figures, terminal),
    ]
    return _text(figures, terminal, sections, memory, end)


def _text(figures: Figures, terminal: Terminal, sections: Sections, memory: list[str], end: list[str]) -> str:
    cost = wrapped([f"Cost: {sections.cost}"] if sections.cost else [], "", terminal)
    parts = [
        headline(figures, terminal, sections.remarks),
        sections.taken,
        _warnings(figures, sections, terminal),
        *memory,
        sections.time,
        "\n".join([*cost, *filter(None, [sections.host])]),
        sections.advice,
        *end,
    ]
    return terminal.plain("\n\n".join(filter(None, parts))) + "\n"


def _warnings(figures: Figures, sections: Sections, terminal: Terminal) -> str:
    guessed = [f"guessed: {guess}" for guess in figures.guesses]
    lines = bullets([*guessed, *figures.warnings, *sections.warnings], terminal)
    return section("Warnings", [terminal.paint(line, "warn") for line in lines], terminal, "warn")


def _trust(trust: str, terminal: Terminal, more: str = "") -> str:
    first = wrapped([f"How far to trust this: {trust}"], "", terminal) if trust else []
    return "\n".join([*first, *(terminal.paint(line, "dim") for line in wrapped(filter(None, [more]), "", terminal))])


def notes(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    """What the figures rest on."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(figures.versions.items()))
    assumed = [*figures.assumptions, *_of_the_smallest_card(figures)]
    parts = [
        section("Assumed", bullets(assumed, terminal), terminal),
        section("Versions", bullets(filter(None, [versions]), terminal), terminal),
    ]
    return "\n\n".join(filter(None, parts))


def _of_the_smallest_card(figures: Figures) -> list[str]:
    card = figures.least_card
    if card is None or card.name is None or card.name == figures.gpu:
        return []
    measured = "" if card.measured else "no run on it was measured, and "
    name = card_name(card.name)
    return [
        f"the {name} is the smallest GPU that fits by its memory alone: {measured}its kernels may need other workspaces"
    ]
