"""Whether learning from runs makes predictions of other runs better: writes results/learning.json; docs by
`learning_page.py`.

    python benchmarks/learning.py         after learning_spreads.py; a minute

Residuals of published and own runs stand for a user's: predictions are multiplied by what was learned, so measured over
predicted is all that is needed. Everything the held-out runs could have told before is estimated without them: the
rates of `prediction/price` (`time_left_out.py`), the ranges, and the shares of card, stack, model and run.

    cards       a card nobody timed; k of its rows are learned from, the others scored: `rows` drawn at random, so that
                some are of a model that was learned from, and `models`, where none is
                few: cards with fewer than twelve rows, each row predicted from the others
    same        k rows of one card, stack and model are learned from, that cell's others scored: whoever trains a
    model again machines    own runs on three machines with an H200: one machine's rows scored, without and with k of
    its rows neighbours  of every shipped run, whether its error lies in the range of the nearest others', as `runs
    compare` tells it drift       a card that becomes 15 % slower, a release that is 10 % faster, one odd run:
                simulated, with deviations drawn from those of published runs about their cell's mean
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from learning_spreads import CARD, OWN, Row, mean, priors, rows  # noqa: E402
from time_ranges import bands, residuals  # noqa: E402

from tunecast.learn.learning import split_runs  # noqa: E402
from tunecast.prediction.lessons.correction import (  # noqa: E402
    NONE,
    Correction,
    Observed,
    Prior,
    learned_range,
    posterior,
    spread_of,
)
from tunecast.prediction.time.ranges import UNSEEN, TimeBand  # noqa: E402

RESULTS = HERE / "results" / "learning.json"
COUNTS = (0, 1, 2, 3, 5, 8, 12, 20)
DRAWS = 20
FEWEST_ROWS = 12
SEED = 20
Table = dict[str, TimeBand]
Found = dict[str, Any]


class Case(NamedTuple):
    """A run, with the range it would have been told if its like were not measured."""

    row: Row
    low: float
    high: float
    """In logarithms."""

    @property
    def spread(self) -> float:
        return spread_of(exp(self.low), 1.0, exp(self.high))

    def observed(self, order: int) -> Observed:
        kind = self.row.kind
        return Observed(
            f"{order:04}", f"{order:04}", kind.card, kind.waits, self.row.stack, self.row.model, self.row.machine,
            self.row.log_ratio, self.spread,
        )  # fmt: skip


class Score(NamedTuple):
    off: float
    """Size of the relative error of the prediction."""
    inside: bool
    half: float
    """Half the 80 % range, as a share."""


def case_of(row: Row, table: Table, *, unseen: bool) -> Case:
    name = next((each for each in row.kind.alike() if each in table), UNSEEN)
    band, least = table[name], table[UNSEEN]
    below, above = band.below, band.above
    if unseen:
        below, above = max(below, least.below), max(above, least.above)
    return Case(row, log(1 - below), log(1 + above))


def score(case: Case, learned: tuple[Observed, ...], prior: Prior) -> Score:
    row = case.row
    alike = tuple(run for run in learned if run.waits == row.kind.waits)
    found: Correction = posterior(alike, row.stack, row.model, case.spread, prior) if alike else NONE
    low, high = learned_range(case.low, case.high, found) if alike else (case.low, case.high)
    rest = row.log_ratio - found.log_ratio
    return Score(abs(exp(-rest) - 1), low <= rest <= high, (exp(high) - exp(low)) / 2)


def median(values: Sequence[float]) -> float:
    found = sorted(values)
    middle = len(found) // 2
    return found[middle] if len(found) % 2 else (found[middle - 1] + found[middle]) / 2


def curve(draw: Callable[[random.Random, int], tuple[list[Case], list[Case]]], prior: Prior) -> list[Found]:
    """By how many runs are learned from: how far off the others are, and how many lie in their range."""
    made = []
    for count in COUNTS:
        chance = random.Random(SEED + count)
        scores: list[Score] = []
        for _ in range(DRAWS if count else 1):
            taught, asked = draw(chance, count)
            if len(taught) < count or not asked:
                continue
            kept, _ = split_runs((case.observed(order) for order, case in enumerate(taught)), prior)
            scores += [score(case, kept, prior) for case in asked]
        if scores:
            made.append(_summary(count, scores))
    return made


def _summary(count: int, scores: Sequence[Score]) -> Found:
    offs = sorted(each.off for each in scores)
    return {
        "runs": count, "scored": len(scores), "median": round(median(offs), 4),
        "p90": round(offs[-(-9 * len(offs) // 10) - 1], 4),
        "inside": round(mean(each.inside for each in scores), 3),
        "half_width": round(median([each.half for each in scores]), 4),
    }  # fmt: skip


def at_random(cases: Sequence[Case]) -> Callable[[random.Random, int], tuple[list[Case], list[Case]]]:
    def draw(chance: random.Random, count: int) -> tuple[list[Case], list[Case]]:
        mixed = chance.sample(list(cases), len(cases))
        return mixed[:count], mixed[count:]

    return draw


def of_other_models(cases: Sequence[Case]) -> Callable[[random.Random, int], tuple[list[Case], list[Case]]]:
    """Learned from some models' runs, asked about the others'. At least half of the models are asked about."""

    def draw(chance: random.Random, count: int) -> tuple[list[Case], list[Case]]:
        models = sorted({case.row.model for case in cases})
        some = set(chance.sample(models, len(models) // 2))
        taught = [case for case in cases if case.row.model in some]
        asked = [case for case in cases if case.row.model not in some]
        if count == 0:
            return [], list(cases)
        return chance.sample(taught, min(count, len(taught))), asked

    return draw


def cards() -> Iterator[Found]:
    everything = residuals()
    all_rows = rows(everything)
    for card in sorted({row.kind.card for row in all_rows}):
        own = [row for row in all_rows if row.kind.card == card and row.kind.waits == CARD]
        if len(own) < FEWEST_ROWS:
            continue
        prior = priors([row for row in all_rows if row.kind.card != card])[CARD]
        table = bands([r for r in everything if r.kind.card != card])
        cases = [case_of(row, table, unseen=True) for row in own]
        yield {
            "card": card, "rows": len(own), "models": len({row.model for row in own}),
            "prior": [round(share, 3) for share in prior],
            "refused": len(refused_of(cases, prior)),
            "curves": {"rows": curve(at_random(cases), prior), "models": curve(of_other_models(cases), prior)},
        }  # fmt: skip


def few() -> Iterator[Found]:
    """Cards with fewer rows: each predicted from all the others."""
    everything = residuals()
    all_rows = rows(everything)
    for card in sorted({row.kind.card for row in all_rows}):
        own = [row for row in all_rows if row.kind.card == card and row.kind.waits == CARD]
        if not 2 <= len(own) < FEWEST_ROWS:
            continue
        prior = priors([row for row in all_rows if row.kind.card != card])[CARD]
        table = bands([r for r in everything if r.kind.card != card])
        cases = [case_of(row, table, unseen=True) for row in own]
        before = [score(case, (), prior) for case in cases]
        after = []
        for case in cases:
            taught = (other.observed(order) for order, other in enumerate(cases) if other is not case)
            kept, _ = split_runs(taught, prior)
            after.append(score(case, kept, prior))
        yield {"card": card, "rows": len(own), "without": _summary(0, before), "learned": _summary(len(own) - 1, after)}


FEWEST_OF_CELL = 6


def same() -> Found:
    """Cells of all cards together, each with the constants of the other cards."""
    everything = residuals()
    all_rows = rows(everything)
    offs: dict[int, list[Score]] = {count: [] for count in COUNTS if count < 20}
    cells = 0
    for card in sorted({row.kind.card for row in all_rows}):
        own = [row for row in all_rows if row.kind.card == card and row.kind.waits == CARD]
        by_cell: dict[tuple[str, ...], list[Row]] = {}
        for row in own:
            by_cell.setdefault((row.stack, row.model, row.machine), []).append(row)
        large = [members for members in by_cell.values() if len(members) >= FEWEST_OF_CELL]
        if not large:
            continue
        prior = priors([row for row in all_rows if row.kind.card != card])[CARD]
        table = bands([r for r in everything if r.kind.card != card])
        for members in large:
            cells += 1
            cases = [case_of(row, table, unseen=True) for row in members]
            chance = random.Random(SEED)
            for _ in range(DRAWS):
                mixed = chance.sample(cases, len(cases))
                asked = mixed[FEWEST_OF_CELL - 1 :]
                for count in offs:
                    if count >= len(cases):
                        continue
                    taught, others = mixed[:count], mixed[max(count, FEWEST_OF_CELL - 1) :]
                    kept, _ = split_runs((case.observed(order) for order, case in enumerate(taught)), prior)
                    offs[count] += [score(case, kept, prior) for case in (others if count else asked)]
    return {"cells": cells, "curve": [_summary(count, scores) for count, scores in offs.items() if scores]}


def neighbours() -> Found:
    """Leaving a run and others of its name out."""
    from shipped_runs import records

    from tunecast.learn.comparing import near_runs
    from tunecast.prediction.lessons.nearest import like_runs, near

    everything = list(near_runs(records()))
    found: Found = {}
    for what in ("memory", "time"):
        told, inside = 0, 0
        for run in everything:
            error = getattr(run, f"{what}_error")
            if error is None:
                continue
            others = [each for each in everything if each.id != run.id]
            ranged = getattr(like_runs(run.traits, near(run.traits, others)), what)
            if ranged is not None:
                told += 1
                inside += ranged.low - SLACK <= error <= ranged.high + SLACK
        measured = sum(getattr(run, f"{what}_error") is not None for run in everything)
        found[what] = {"runs": measured, "with_like_runs": told, "inside": round(inside / told, 3)}
    return found


SLACK = 0.0005
"""A tenth of the last digit that is printed."""


def refused_of(cases: Sequence[Case], prior: Prior) -> list[str]:
    """Of all its rows, as they come."""
    _, left_out = split_runs((case.observed(order) for order, case in enumerate(cases)), prior)
    return [run.id for run in left_out if "changed" not in run.reason]


def machines() -> Iterator[Found]:
    """Of one H200 each, whose model's other rows were left out of every constant."""
    everything = residuals()
    all_rows = [row for row in rows(everything) if row.machine]
    for machine in sorted({row.machine for row in all_rows}):
        own = [row for row in all_rows if row.machine == machine]
        ids = {row.id for row in own}
        table = bands([r for r in everything if r.id not in ids])
        known = priors([row for row in rows(everything) if row.id not in ids])
        for waits in ("card", "host"):
            cases = [case_of(row, table, unseen=False) for row in own if row.kind.waits == waits]
            others = [
                case_of(row, table, unseen=False)
                for row in all_rows
                if row.machine != machine and row.kind.waits == waits
            ]
            prior = known[waits]
            if len(cases) < 5:
                continue
            elsewhere, _ = split_runs((case.observed(order) for order, case in enumerate(others)), prior)
            from_others = [score(case, elsewhere, prior) for case in cases]
            yield {
                "machine": machine, "waits_for": waits, "rows": len(cases),
                "from_other_machines": {
                    "runs": len(elsewhere), "median": round(median([each.off for each in from_others]), 4),
                    "inside": round(mean(each.inside for each in from_others), 3),
                },
                "curves": {"rows": curve(at_random(cases), prior), "models": curve(of_other_models(cases), prior)},
            }  # fmt: skip


CELL = "accelerate, 16 bits, one"
SIMULATED_SPREAD = 0.039
"""Of the H200's own range of such steps, -3.4 to +6.4 %."""
BEFORE, AFTER, REPEATS = 20, 20, 300


def deviations() -> list[float]:
    """Of published runs from the mean of their card, stack and model; cells of four and more, within the spread of
    steady cards (others vary by settings that a user's own runs have alike)."""
    cells: dict[tuple[str, ...], list[float]] = {}
    for row in rows():
        if row.kind.waits == CARD:
            cells.setdefault((row.kind.card, row.stack, row.model), []).append(row.log_ratio)
    return [
        value - mean(values)
        for values in cells.values()
        if len(values) >= 4 and max(values) - min(values) < 4 * SIMULATED_SPREAD
        for value in values
    ]


def simulated(order: int, log_ratio: float) -> Observed:
    return Observed(f"{order:04}", f"{order:04}", OWN, CARD, CELL, "llama-3.1-8b", "a", log_ratio, SIMULATED_SPREAD)


def said(runs: Sequence[Observed]) -> float:
    kept, _ = split_runs(runs)
    return posterior(kept, CELL, "llama-3.1-8b", SIMULATED_SPREAD).log_ratio if kept else 0.0


def drift(ratio: float, before: int = BEFORE) -> Found:
    """A card that is `ratio` as slow from some day on: by how many runs since, how far predictions are off."""
    pool, chance = deviations(), random.Random(SEED)
    offs: dict[int, list[float]] = {count: [] for count in range(AFTER + 1)}
    for _ in range(REPEATS):
        runs = [simulated(order, chance.choice(pool)) for order in range(before)]
        for count in range(AFTER + 1):
            offs[count].append(abs(exp(said(runs) - log(ratio)) - 1))
            runs.append(simulated(before + count, log(ratio) + chance.choice(pool)))
    by_runs = {count: round(median(values), 4) for count, values in offs.items()}
    halved = next((count for count, off in by_runs.items() if off <= by_runs[0] / 2), None)
    within = next((count for count, off in by_runs.items() if off <= 0.02), None)
    return {
        "ratio": ratio,
        "before": before,
        "off_by_runs": by_runs,
        "halved_after": halved,
        "within_2_percent_after": within,
    }


def odd(ratio: float, others: int) -> Found:
    """One run that is `ratio` as slow among others: by how much it moves the prediction, at the median and at most."""
    pool, chance = deviations(), random.Random(SEED)
    moved, refused = [], 0
    for _ in range(REPEATS):
        runs = [simulated(order, chance.choice(pool)) for order in range(others)]
        with_it = [*runs, simulated(others, log(ratio))]
        moved.append(abs(said(with_it) - said(runs)))
        refused += len(split_runs(with_it)[1]) > len(split_runs(runs)[1])
    return {
        "ratio": ratio,
        "others": others,
        "moved": round(median(moved), 4),
        "most": round(max(moved), 4),
        "refused": round(refused / REPEATS, 3),
    }


def main() -> None:
    found = {
        "cards": list(cards()),
        "few": list(few()),
        "same": same(),
        "neighbours": neighbours(),
        "machines": list(machines()),
        "drift": [drift(1.15), drift(0.9), drift(1.15, before=3)],
        "odd": [odd(ratio, others) for ratio in (1.1, 1.5) for others in (0, 2, 5, 20)],
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
