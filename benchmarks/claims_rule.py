"""When a claim is confirmed, refuted, depends, is outdated or not settled: the rules, once. A verdict is computed from
numbers, never written.

    claims.csv ──► Claim (what is claimed, by which rule)      cases (what tunecast computes) ──► verdict

A case is one setting the claim leaves open. Each agrees with the claim, or lies below or above it; all of them decide.
What may not decide: a predicted time where it is within its own error of the claim, a prediction against somebody's
measurement, a handful of measurements of a thing that varies.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from tunecast.job.mapping import job_from_dict
from tunecast.prediction.evidence import evidence_of
from tunecast.prediction.time import ranges as time_ranges
from tunecast.prediction.time.ranges_table import BANDS

MEASURED = frozenset({"h200-sxm-141gb"})
"""Cards we timed ourselves."""
UNSEEN = time_ranges.TimeBand(*BANDS[time_ranges.UNSEEN]).above
"""How far times of cards nobody timed are off, to either side."""
CLAIMS = Path(__file__).parent / "data" / "claims.csv"
TOLERANCE = 0.10
SHEET_TOLERANCE = 0.02
SUM_TOLERANCE = 0.01
LEVEL = 0.01
"""Cards that wait for the host are as fast as each other: 1 % is no lead."""
CONFIRMED, REFUTED, DEPENDS, NOT_COMPUTED = "confirmed", "refuted", "depends", "not computed"
OUTDATED, NOT_SETTLED = "outdated", "not settled"
VERDICTS = (CONFIRMED, REFUTED, DEPENDS, OUTDATED, NOT_SETTLED, NOT_COMPUTED)
AGREES, BELOW, ABOVE, NO, UNSURE = "agrees", "below", "above", "no", "within its error"
MEASUREMENT = "measured"
"""The basis of a claim that somebody measured. Others are asserted, without a word on how."""
TIMED = frozenset({"time", "throughput", "speed", "speedup", "communication", "utilisation", "cost", "scaling"})
"""Quantities that a predicted time is in."""
FEW = 5
YES_OR_NO = ("holds", "can")
EXACT = ("data sheet", "own sum")
NARROW = 0.03
"""A verdict is narrow where it would be another with all numbers so much lower or higher: about what memory predicted
for another card may be off."""

RULES: Mapping[str, str] = {
    "amount": "a number claimed is met by ours within 10 %, an interval by ours inside it",
    "data sheet": "a figure of a data sheet is met within 2 %",
    "own sum": "a sum or a quotient the guide printed is met by its own figures within 1 %",
    "at least": "ours is no less than 0.9 of what is claimed",
    "at most": "ours is no more than 1.1 of what is claimed",
    "more than": "ours exceeds what is claimed by more than 1 %",
    "less than": "ours is more than 1 % below what is claimed",
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
    basis: str = ""
    """`measured` where somebody did, and the guide says who."""

    @property
    def units(self) -> list[str]:
        return self.unit.split(";")

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """Of each part, what was claimed."""
        parts = [[float(end) for end in part.split("-")] for part in self.value.split(";") if part]
        return [(part[0], part[-1]) for part in parts]

    def quantity_of(self, part: int) -> str:
        names = self.quantity.split(";")
        return names[part] if part < len(names) else names[-1]


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
    then: bool = False
    """Computed from the claim's own dated prices; the other cases from the bundled ones."""
    measured: bool = False
    """Measured by somebody, not computed."""

    @property
    def cards(self) -> frozenset[str]:
        return frozenset(asked["hardware"]["gpu"] for asked in self.jobs)


class NotComputed(Exception):
    """Why not."""


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    with path.open(newline="", encoding="utf-8") as file:
        return [Claim(**row) for row in csv.DictReader(file)]


def bounds(claim: Claim, part: int) -> tuple[float, float]:
    """Between which ours agrees."""
    low, high = claim.intervals[part]
    if claim.rule in EXACT:
        off = SHEET_TOLERANCE if claim.rule == "data sheet" else SUM_TOLERANCE
        return low * (1 - off), high * (1 + off)
    if low != high:
        return low, high
    return low * (1 - TOLERANCE), high * (1 + TOLERANCE)


def is_timed(claim: Claim, case: Case) -> bool:
    """Whether a predicted time is in it."""
    return bool(case.jobs) and claim.quantity_of(case.part) in TIMED


def is_unvalidated(claim: Claim, case: Case) -> bool:
    """Whether it rests on a predicted time of a card or a stack nobody timed often enough (prediction/evidence.py)."""
    return is_timed(claim, case) and not all(_is_validated(json.dumps(asked)) for asked in case.jobs)


@cache
def _is_validated(text: str) -> bool:
    asked = job_from_dict(json.loads(text))
    return evidence_of(asked, asked.hardware.gpu).validated


def rests_on_unvalidated(claim: Claim, cases: Iterable[Case]) -> bool:
    """Whether all that decides is such a time."""
    counted = [case for case in cases if not case.aside and case.value is not None]
    return bool(counted) and all(is_unvalidated(claim, case) for case in counted)


def side(claim: Claim, case: Case) -> str:
    """Where a case lies: agrees, below, above; of what holds or does not, agrees or no. A time of a card nobody timed
    may lie on no side."""
    if case.value is None:
        return NOT_COMPUTED
    if claim.rule in YES_OR_NO:
        return AGREES if case.value else NO
    low, high = _agreeing(claim, case.part)
    if is_unvalidated(claim, case) and _is_unsure(case.value, low, high):
        return UNSURE
    return BELOW if case.value < low else ABOVE if case.value > high else AGREES


def _is_unsure(value: float, low: float, high: float) -> bool:
    """Whether a time, off as far as times of cards nobody timed are, could lie on the other side. Inside an interval
    with two ends it agrees as it is."""
    ends = value * (1 - UNSEEN), value * (1 + UNSEEN)
    if low <= value <= high and isfinite(low) and isfinite(high):
        return False
    return ends[0] < low <= ends[1] or ends[0] <= high < ends[1]


def _agreeing(claim: Claim, part: int) -> tuple[float, float]:
    """Between which a case agrees."""
    low, high = bounds(claim, part)
    claimed = claim.intervals[part]
    return {
        "at least": (low, float("inf")),
        "at most": (float("-inf"), high),
        "more than": (claimed[1] * (1 + LEVEL), float("inf")),
        "less than": (float("-inf"), claimed[0] * (1 - LEVEL)),
        "up to": (low, max(high, claimed[1] * (1 + TOLERANCE))),
    }.get(claim.rule, (low, high))


def part_verdict(rule: str, sides: Sequence[str]) -> str:
    """Of one part, from where its cases lie."""
    sure = [one for one in sides if one != UNSURE]
    if not sure:
        return NOT_SETTLED if sides else NOT_COMPUTED
    if rule == "up to":
        if ABOVE in sure:
            return REFUTED if set(sure) == {ABOVE} else DEPENDS
        return CONFIRMED if AGREES in sure else REFUTED
    if set(sure) == {AGREES} or (rule == "can" and AGREES in sure):
        return CONFIRMED
    return REFUTED if len(set(sure)) == 1 else DEPENDS


def verdict(claim: Claim, cases: Iterable[Case]) -> str:
    """By what the cases say; of a claim of prices, by its own prices first; and only where the cases may decide."""
    counted = [case for case in cases if not case.aside and case.value is not None]
    then, now = ([case for case in counted if case.then is old] for old in (True, False))
    if then:
        was = _verdict(claim, then)
        found = _verdict(claim, now) if now and was == CONFIRMED else was
        return OUTDATED if was == CONFIRMED != found else found
    found = _verdict(claim, counted)
    return NOT_SETTLED if found in (REFUTED, DEPENDS) and not _may_decide(claim, counted) else found


def _verdict(claim: Claim, cases: Iterable[Case]) -> str:
    """All parts confirmed, or one refuted, or else it depends. A part nothing is computed for does not count, unless
    there is no other."""
    parts: dict[int, list[str]] = {}
    for case in cases:
        parts.setdefault(case.part, []).append(side(claim, case))
    found = {part_verdict(claim.rule, sides) for sides in parts.values()}
    return next((one for one in (REFUTED, DEPENDS, NOT_SETTLED, CONFIRMED) if one in found), NOT_COMPUTED)


def _may_decide(claim: Claim, cases: Sequence[Case]) -> bool:
    """Whether what disagrees weighs enough: no prediction of a card we did not time against a measurement, no fewer
    than FEW measurements by others against a claim."""
    against = [case for case in cases if side(claim, case) not in (AGREES, UNSURE)]
    if claim.basis == MEASUREMENT and any(is_timed(claim, case) and not case.cards <= MEASURED for case in against):
        return False
    return not (all(case.measured for case in against) and len(against) < FEW)


def is_narrow(claim: Claim, cases: Sequence[Case]) -> bool:
    if claim.rule in (*YES_OR_NO, *EXACT, "none"):
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
