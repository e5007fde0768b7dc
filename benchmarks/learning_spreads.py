"""Which part of a step's deviation is its card's, its stack's, its model's, its host's and its own: writes
src/tunecast/prediction/lessons/table.py, by which runs correct predictions (prediction/lessons/correction.py).

    python benchmarks/learning_spreads.py          after time_h200.py, time_public.py, time_vendor.py, time_left_out.py

By the method of moments on pairs of runs of one card: half the mean square of the difference of two residuals is the
variance of all that the two do not share.

    same stack and model      the run's own
    same stack                + the model's
    same card                 + the stack's
    the residual itself       + the card's (predictions have mean 0 by design)

Residuals are logarithms of measured over predicted steps, predicted with the card left out of every constant; a
card counts by its rows; a square counts at most `CLIP`², since a few rows (a prototype, a wrong batch) are several
times as far off as all others. A component that is below its own standard error (leaving out a card at a time) is set
to that error: 0 would say that no stack can ever be told from another, which six cards cannot show. The host's is that
of the three machines with an H200 on which own runs were timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import log, sqrt
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import load  # noqa: E402
from time_ranges import Residual, residuals  # noqa: E402

from tunecast.prediction.lessons.correction import LEVELS as OF_JOBS  # noqa: E402
from tunecast.prediction.lessons.correction import Prior  # noqa: E402
from tunecast.prediction.time.ranges import CARD, HOST, StepKind  # noqa: E402

TABLE = HERE.parent / "src" / "tunecast" / "prediction" / "lessons" / "table.py"
LEVELS = ("within", "model", "stack", "card")
CLIP = 0.3
"""The widest a range is for steps of known kinds (`several h100-sxm-96gb, torchtitan`: + 32 %)."""
FEWEST = 10
"""Rows to say anything of."""
OWN = "h200-sxm-141gb"

HEAD = '''"""Which part of the square of a step's deviation is whose. Written by `benchmarks/learning_spreads.py`; do
not edit.

A line: what the step waits for, and the fields of `tunecast.prediction.lessons.correction.Prior`.
"""

from __future__ import annotations

SHARES: dict[str, tuple[float, float, float, float, float, float]] = {
'''


class Row(NamedTuple):
    id: str
    kind: StepKind
    model: str
    log_ratio: float
    machine: str = ""

    @property
    def stack(self) -> str:
        return f"{self.kind.family}, {self.kind.precision}, {self.kind.cards}"


def rows(found: Iterable[Residual] | None = None) -> list[Row]:
    sets = {row["id"]: row["set"] for row in load("time_h200.json")["rows"]}
    return [
        Row(r.id, r.kind, r.model, log(1 + r.left_out), sets.get(r.id, ""))
        for r in (residuals() if found is None else found)
    ]


def clipped(value: float) -> float:
    return min(value, CLIP * CLIP)


def pairs(found: Iterable[Row]) -> Iterator[tuple[str, float]]:
    """By what they do not share: half the square of the difference."""
    for one, other in combinations(found, 2):
        level = "stack"
        if one.stack == other.stack:
            level = "within" if one.model == other.model else "model"
        yield level, clipped((one.log_ratio - other.log_ratio) ** 2 / 2)


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


Sums = dict[str, dict[str, tuple[float, int]]]
"""By level and card: the mean square, and of how many rows the card has."""


def weighted(values: Iterable[tuple[float, int]]) -> float:
    found = list(values)
    rows_of_all = sum(count for _, count in found)
    return sum(value * count for value, count in found) / rows_of_all if rows_of_all else 0.0


def by_card(found: Sequence[Row]) -> Sums:
    made: Sums = {level: {} for level in LEVELS}
    for card in sorted({row.kind.card for row in found}):
        own = [row for row in found if row.kind.card == card]
        squares: dict[str, list[float]] = {}
        for level, square in pairs(own):
            squares.setdefault(level, []).append(square)
        squares["card"] = [clipped(row.log_ratio**2) for row in own]
        for level, values in squares.items():
            made[level][card] = mean(values), len(own)
    return made


def steps_up(sums: Sums, without: str = "") -> dict[str, float]:
    """Each level's own variance: what it adds to the level below, cards counting the same."""
    at, made, below = {}, {}, 0.0
    for level in LEVELS:
        at[level] = weighted(value for card, value in sums[level].items() if card != without)
    for level in LEVELS:
        made[level] = at[level] - below
        below = max(below, at[level])
    return made


def components(found: Sequence[Row]) -> dict[str, float]:
    """With the standard error in the place of what is below it."""
    sums = by_card(found)
    cards = sorted(sums["card"])
    whole = steps_up(sums)
    return {
        level: max(whole[level], error_of(lambda without, at=level: steps_up(sums, without)[at], cards))
        for level in LEVELS
    }


def error_of(estimate: Callable[[str], float], parts: Sequence[str]) -> float:
    """The jackknife's standard error."""
    count = len(parts)
    if count < 2:
        return 0.0
    each = [estimate(part) for part in parts]
    middle = mean(each)
    return sqrt((count - 1) / count * sum((value - middle) ** 2 for value in each))


def host_component(found: Sequence[Row]) -> float:
    """Between machines of one card: what pairs of two machines have more than pairs of one, models differing in
    both."""
    same, other = [], []
    for one, two in combinations([row for row in found if row.machine], 2):
        if one.model != two.model and one.stack == two.stack:
            (same if one.machine == two.machine else other).append(clipped((one.log_ratio - two.log_ratio) ** 2 / 2))
    return max(0.0, mean(other) - mean(same))


def freedom(found: Sequence[Row]) -> float:
    """Of the prior of a run's own variance: cells' variances differ by more than chance; the fewer runs' worth it has,
    the more they do. trigamma(d / 2) is the variance of the logarithm of a variance with d degrees of freedom.

    Source  Smyth, Linear models and empirical Bayes methods (2004), section 6.2.
    """
    cells: dict[tuple[str, ...], list[float]] = {}
    for row in found:
        cells.setdefault((row.kind.card, row.stack, row.model), []).append(row.log_ratio)
    logs, chances = [], []
    for values in cells.values():
        middle, more = mean(values), len(values) - 1
        if more >= 3:
            square = sum((value - middle) ** 2 for value in values) / more
            logs.append(log(max(square, 1e-6)))
            chances.append(trigamma(more / 2))
    centre = mean(logs)
    excess = sum((value - centre) ** 2 for value in logs) / (len(logs) - 1) - mean(chances)
    low, high = 0.01, 1000.0
    for _ in range(60):
        middle = sqrt(low * high)
        low, high = (middle, high) if trigamma(middle / 2) > excess else (low, middle)
    return low


def trigamma(x: float) -> float:
    """By recurrence to 6 and the asymptotic series (Abramowitz and Stegun 6.4.12)."""
    made = 0.0
    while x < 6:
        made += 1 / (x * x)
        x += 1
    y = 1 / (x * x)
    return made + 1 / x + y / 2 + y / x * (1 / 6 - y * (1 / 30 - y / 42))


def priors(found: Sequence[Row]) -> dict[str, Prior]:
    """By what a step waits for. Steps that wait for the host were timed on one card alone: what they have in common is
    the host's and the model's."""
    runs = freedom([row for row in found if row.kind.waits == CARD])
    made = {}
    for waits in (CARD, HOST):
        own = [row for row in found if row.kind.waits == waits]
        if len(own) < FEWEST:
            continue
        parts = components(own)
        if waits == HOST:
            parts |= {"card": 0.0, "stack": 0.0}
            if not parts["within"]:  # no model twice: as it is divided in steps of the card
                alike = made[CARD].within / (made[CARD].within + made[CARD].model)
                parts |= {"within": alike * parts["model"], "model": (1 - alike) * parts["model"]}
        parts["host"] = host_component(own)
        whole = sum(parts.values())
        made[waits] = Prior(*(parts[level] / whole for level in (*OF_JOBS, "within")), freedom=runs)
    return made


def written(found: Mapping[str, Prior]) -> str:
    lines = [f'    "{waits}": ({", ".join(f"{share:.3f}" for share in prior)}),\n' for waits, prior in found.items()]
    return "".join([HEAD, *lines, "}\n"])


def main() -> None:
    TABLE.write_text(written(priors(rows())))


if __name__ == "__main__":
    main()
