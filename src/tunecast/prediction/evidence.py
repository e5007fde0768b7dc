"""How many measured runs stand behind a prediction, and how far off predictions of such runs are.

`evidence.csv` is written by `benchmarks/evidence.py`: the errors of all measured runs by card, family of stacks,
method, precision and number of cards. A card with another memory or another board is another card.

A step's time is validated where each thing it consists of was timed in at least `FEWEST` runs:

    the card       what it computes in this precision, whoever's code it ran
    the stack      what this family of stacks runs for this method and precision, on any card
    the links      on several cards: what this card's links carry, in any precision
    the spreading  on several cards: how this family shares a job among them, on any card

Not all in one run: of H100s nobody published clean steps of transformers' Trainer, yet 103 in 16 bits of three other
stacks, and the Trainer was timed on A100s and an H200. Where a card was timed with one family only, a prediction for
another is about as far off: medians of the 13 pairs of card and family in 16 bits lie between 1.5 and 7 %.

Memory is the stack's and the allocator's; a card changes only workspaces and the context. Its like cases are therefore
the stack's runs on any card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from tunecast.job.stacks import STACKS
from tunecast.records import NamedTuple
from tunecast.tables import text_beside
from tunecast.units import percent

if TYPE_CHECKING:
    from tunecast.job.job import Job

TABLE = "evidence.csv"
TIME, MEMORY = "time", "memory"
FEWEST = 3
"""Runs that can show a wrong rate: one may be an outlier, two may disagree, of three the middle one decides."""
LOW_PRECISION, SIXTEEN_BITS = "8 or 4 bits", "16 bits"
ONE, SEVERAL = "one", "several"
QUANTIZED = "qlora"
"""The method with kernels of its own: weights are dequantized in every pass. LoRA's are those of full training."""
COLUMNS = ("kind", "card", "family", "by", "method", "precision", "cards", "errors", "left_out")
PER_ERROR = 1e4
"""Errors are written in hundredths of a percent."""


class Runs(NamedTuple):
    """A line of the table: runs that differ in nothing but model, batch and length."""

    kind: str
    card: str
    family: str
    by: str
    """Who ran them, as the source names its stack."""
    method: str
    precision: str
    cards: str
    errors: tuple[float, ...]
    """Sizes of relative errors, smallest first."""
    left_out: tuple[float, ...]
    """The same with this card left out of every estimated constant; empty where that was not computed."""


class ErrorSpread(NamedTuple):
    """How far predictions of some runs are off, without sign."""

    runs: int
    median: float | None = None
    p90: float | None = None


class Evidence(NamedTuple):
    gpu_name: str
    stack: str
    time: ErrorSpread
    """On this card by this family of stacks, in this precision; on several cards where those are asked about."""
    memory: ErrorSpread
    """On this card by this family of stacks."""
    card_time: ErrorSpread
    """On this card in this precision, whoever's code it ran."""
    like_time: ErrorSpread
    """In this precision on all cards, each predicted with the card left out of every constant: what to expect of a card
    nobody timed."""
    like_memory: ErrorSpread
    """By this family of stacks on any card."""
    validated: bool
    words: str
    """One line for people."""

    @property
    def time_runs(self) -> int:
        return self.time.runs

    @property
    def memory_runs(self) -> int:
        return self.memory.runs


def evidence_of(job: Job, gpu_name: str) -> Evidence:
    several = job.hardware.cards > 1
    return evidence_for(gpu_name, job.stack, job.method, several, low_precision=job.matmul_dtype is not None)


class EvidenceQuestion(NamedTuple):
    gpu_name: str
    family: str
    method: str | None
    precision: str
    several: bool


@lru_cache(maxsize=1000)
def evidence_for(
    gpu_name: str, stack: str, method: str | None = None, several: bool = False, *, low_precision: bool = False
) -> Evidence:
    """`method` narrows down the stack's runs by whether weights are quantized; None counts all methods."""
    family, precision = family_of(stack), LOW_PRECISION if low_precision else SIXTEEN_BITS
    timed = [runs for runs in table() if runs.kind == TIME]
    of_precision = [runs for runs in timed if runs.precision == precision]
    of_stack = [runs for runs in timed if runs.family == family]
    on_card = [runs for runs in timed if runs.card == gpu_name]
    card = [runs for runs in of_precision if runs.card == gpu_name]
    alike = [runs for runs in of_precision if runs.family == family and _same_kernels(runs, method)]
    own = [runs for runs in alike if runs.card == gpu_name and (runs.cards == SEVERAL or not several)]
    needed = [card, alike, *((_on_several(on_card), _on_several(of_stack)) if several else ())]
    of_stack_held = [runs for runs in table() if runs.kind == MEMORY and runs.family == family]
    held = [runs for runs in of_stack_held if runs.card == gpu_name]
    return Evidence(
        gpu_name,
        stack,
        time=spread(own),
        memory=spread(held),
        card_time=spread(card),
        like_time=spread(of_precision, lambda runs: runs.left_out),
        like_memory=spread(of_stack_held),
        validated=all(spread(runs).runs >= FEWEST for runs in needed),
        words=_words(EvidenceQuestion(gpu_name, family, method, precision, several), card, on_card, held),
    )


def family_of(stack: str) -> str:
    """By whose code spreads it over cards; a script's is its own."""
    return STACKS[stack].family if stack in STACKS else stack


@cache
def table() -> tuple[Runs, ...]:
    _, *lines = text_beside(__file__, TABLE).splitlines()
    return tuple(_runs(line.split(",")) for line in lines)


def _runs(cells: Sequence[str]) -> Runs:
    kind, card, family, by, method, precision, cards, errors, left_out = cells
    return Runs(kind, card, family, by, method, precision, cards, _errors(errors), _errors(left_out))


def _errors(cell: str) -> tuple[float, ...]:
    return tuple(int(each) / PER_ERROR for each in cell.split())


def spread(
    groups: Sequence[Runs], errors_of: Callable[[Runs], tuple[float, ...]] = lambda runs: runs.errors
) -> ErrorSpread:
    sizes = sorted(error for runs in groups for error in errors_of(runs))
    if not sizes:
        return ErrorSpread(0)
    middle = len(sizes) // 2
    median = sizes[middle] if len(sizes) % 2 else (sizes[middle - 1] + sizes[middle]) / 2
    return ErrorSpread(len(sizes), median, sizes[-(-9 * len(sizes) // 10) - 1])


def _same_kernels(runs: Runs, method: str | None) -> bool:
    return method is None or (runs.method == QUANTIZED) == (method == QUANTIZED)


def _on_several(groups: Sequence[Runs]) -> list[Runs]:
    return [runs for runs in groups if runs.cards == SEVERAL]


def _words(question: EvidenceQuestion, card: Sequence[Runs], on_card: Sequence[Runs], held: Sequence[Runs]) -> str:
    memory = _memory_words(spread(held))
    found = spread(card)
    if not on_card:
        told = "no step was timed" if memory else "no run was measured"
    elif not card:
        other = "FP8 or FP4" if on_card[0].precision == LOW_PRECISION else "16 bits"
        told = f"{_count(spread(on_card))}, all of training in {other} ({_names(on_card)})"
    elif found.runs < FEWEST:
        told = f"{_count(found)} ({_names(card)}): too few to tell"
    else:
        told = f"{_count(found)}{_how_alike(question, card)}, time within {percent(found.median or 0.0)} at the median"
    return f"{question.gpu_name}: {'; '.join(filter(None, (told, memory)))}"


def _how_alike(question: EvidenceQuestion, card: Sequence[Runs]) -> str:
    """Which of a card's runs are like the one asked about, by the first thing in which most are not."""
    by_stack = [runs for runs in card if runs.family == question.family]
    if spread(by_stack).runs < FEWEST:
        others = [runs for runs in card if runs.family != question.family]
        return f", {spread(by_stack).runs or 'none'} of this stack ({_names(others)})"
    for told, alike in (
        ("of this method", [runs for runs in by_stack if _same_kernels(runs, question.method)]),
        ("on several cards", _on_several(by_stack) if question.several else by_stack),
    ):
        if spread(alike).runs < FEWEST:
            return f", {spread(alike).runs or 'none'} {told}"
    return ""


def _count(found: ErrorSpread) -> str:
    return f"{found.runs} run{'s' if found.runs > 1 else ''}"


def _memory_words(found: ErrorSpread) -> str:
    if found.median is None:
        return ""
    near = "exact" if round(found.median, 3) == 0 else f"within {percent(found.median, 1)}"
    return f"memory of {_count(found)} {near} at the median"


def _names(groups: Sequence[Runs]) -> str:
    return ", ".join(dict.fromkeys(runs.by for runs in groups))
