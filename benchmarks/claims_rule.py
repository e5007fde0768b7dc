"""When a claim is confirmed, refuted, or depends: the rules, once. A verdict is computed from numbers, never written.

    claims.csv ──► Claim (what is claimed, by which rule)      cases (what tunecast computes) ──► Judged

A case is one setting the claim leaves open. Each agrees with the claim, or lies below or above it; all of them decide.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CLAIMS = Path(__file__).parent / "data" / "claims.csv"
TOLERANCE = 0.10
SHEET_TOLERANCE = 0.02
CONFIRMED, REFUTED, DEPENDS, NOT_COMPUTED = "confirmed", "refuted", "depends", "not computed"
VERDICTS = (CONFIRMED, REFUTED, DEPENDS, NOT_COMPUTED)
AGREES, BELOW, ABOVE, NO = "agrees", "below", "above", "no"
YES_OR_NO = ("holds", "can")
NARROW = 0.03
"""A verdict is narrow where it would be another with all numbers so much lower or higher: about what memory predicted
for another card may be off."""

RULES: Mapping[str, str] = {
    "amount": "a number claimed is met by ours within 10 %, an interval by ours inside it",
    "data sheet": "a figure of a data sheet is met within 2 %",
    "at least": "ours is no less than 0.9 of what is claimed",
    "at most": "ours is no more than 1.1 of what is claimed",
    "up to": "none of ours exceeds what is claimed by more than 10 %, and one comes within 10 % of it (or reaches the "
    "interval)",
    "holds": "what is claimed is so, or is not",
    "can": "it is so in one case at least",
    "none": "tunecast cannot compute it",
}


class Claim(NamedTuple):
    id: str
    topic: str
    source: str
    claim: str
    quantity: str
    rule: str
    value: str
    """As it was claimed: a number, an interval `160-200`, several parts apart by `;`."""
    unit: str
    conditions: str
    about: str
    """Claims of the same thing have the same words here."""
    note: str
    """What makes the number what it is, whatever the verdict."""

    @property
    def units(self) -> list[str]:
        return self.unit.split(";")

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """Of each part, what was claimed."""
        parts = [[float(end) for end in part.split("-")] for part in self.value.split(";") if part]
        return [(part[0], part[-1]) for part in parts]


class Case(NamedTuple):
    """What tunecast says of one setting."""

    label: str
    value: float | bool | None
    """None: not computed, and `told` says why."""
    jobs: tuple[dict[str, Any], ...] = ()
    """What was asked, to be asked again."""
    told: str = ""
    """The arithmetic, in words and numbers."""
    part: int = 0
    """Which part of the claim it is of."""
    aside: bool = False
    """Outside the claim's own conditions: shown, not counted."""


class NotComputed(Exception):
    """Why not."""


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    with path.open(newline="", encoding="utf-8") as file:
        return [Claim(**row) for row in csv.DictReader(file)]


def bounds(claim: Claim, part: int) -> tuple[float, float]:
    """Between which ours agrees."""
    low, high = claim.intervals[part]
    if claim.rule == "data sheet":
        return low * (1 - SHEET_TOLERANCE), high * (1 + SHEET_TOLERANCE)
    if low != high:
        return low, high
    return low * (1 - TOLERANCE), high * (1 + TOLERANCE)


def side(claim: Claim, case: Case) -> str:
    """Where a case lies: agrees, below, above; of what holds or does not, agrees or no."""
    if case.value is None:
        return NOT_COMPUTED
    if claim.rule in YES_OR_NO:
        return AGREES if case.value else NO
    low, high = bounds(claim, case.part)
    if claim.rule in ("at least", "at most"):
        low, high = (low, float("inf")) if claim.rule == "at least" else (float("-inf"), high)
    if claim.rule == "up to":
        high = max(high, claim.intervals[case.part][1] * (1 + TOLERANCE))
    return BELOW if case.value < low else ABOVE if case.value > high else AGREES


def part_verdict(rule: str, sides: Sequence[str]) -> str:
    """Of one part, from where its cases lie."""
    if not sides:
        return NOT_COMPUTED
    if rule == "up to":
        if ABOVE in sides:
            return REFUTED if set(sides) == {ABOVE} else DEPENDS
        return CONFIRMED if AGREES in sides else REFUTED
    if set(sides) == {AGREES} or (rule == "can" and AGREES in sides):
        return CONFIRMED
    return REFUTED if len(set(sides)) == 1 else DEPENDS


def verdict(claim: Claim, cases: Iterable[Case]) -> str:
    """All parts confirmed, or one refuted, or else it depends. A part nothing is computed for does not count, unless
    there is no other."""
    parts: dict[int, list[str]] = {}
    for case in cases:
        if not case.aside and case.value is not None:
            parts.setdefault(case.part, []).append(side(claim, case))
    found = {part_verdict(claim.rule, sides) for sides in parts.values()}
    if not found:
        return NOT_COMPUTED
    return REFUTED if REFUTED in found else DEPENDS if DEPENDS in found else CONFIRMED


def is_narrow(claim: Claim, cases: Sequence[Case]) -> bool:
    if claim.rule in (*YES_OR_NO, "none"):
        return False
    found = verdict(claim, cases)
    moved = ([case._replace(value=case.value and case.value * by) for case in cases] for by in (1 - NARROW, 1 + NARROW))
    return any(verdict(claim, others) != found for others in moved)


def at_odds(claims: Sequence[Claim]) -> list[tuple[str, list[Claim]]]:
    """Claims of the same thing whose intervals, each with its tolerance, have nothing in common."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        if claim.about and claim.value:
            groups.setdefault(claim.about, []).append(claim)
    out = []
    for about, group in groups.items():
        ends = [bounds(claim, 0) for claim in group]
        if max(low for low, _ in ends) > min(high for _, high in ends):
            out.append((about, group))
    return out
