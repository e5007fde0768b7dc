"""Predicted times with what was estimated from published runs estimated anew without a card, or without a model.

    python benchmarks/time_left_out.py        after time_public.py and time_vendor.py; writes results/time_left_out.json

Two kinds of constants of `predict/price/rates.py` are estimated from published steps: how much of the best product a
generation of cards sustains in training, and what float8 and float4 reach of it. For each card in turn both are
estimated without its runs, and its runs are predicted with those; the same for each model. Nothing is priced again: a
share w of a step (products, attention, what is recomputed) goes as 1 / constant, so at k times the constant the step
takes 1 - w + w / k of its time.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import load  # noqa: E402
from memory import commit  # noqa: E402
from public_figures import off  # noqa: E402

from tunecast.hardware import known_gpu  # noqa: E402

Row = dict[str, Any]
COMPUTE = ("matrix_products", "attention", "recomputation")
GRID = tuple(round(0.6 + 0.01 * i, 2) for i in range(91))
"""Times the constant as it is."""
ROUNDS = 4
FEWEST = 3
"""Runs that must be left for a constant to be estimated; with fewer it is that of all others together."""


class Run(NamedTuple):
    id: str
    gpu: str
    model: str
    generation: str
    precision: str
    ratio: float
    """Predicted by measured."""
    share: float
    """Of the step that goes as 1 / constant."""


class Factors(NamedTuple):
    """Of the constants as they are, by generation and by low precision."""

    generations: Mapping[str, float]
    precisions: Mapping[str, float]

    def of(self, run: Run) -> float:
        others = list(self.generations.values())
        usual = statistics.median(others) if others else 1.0
        return self.generations.get(run.generation, usual) * self.precisions.get(run.precision, 1.0)


def runs_of(rows: Sequence[Row]) -> list[Run]:
    """The answered rows of a result."""
    made = []
    for row in rows:
        if "tunecast" not in row["error"]:
            continue
        said = row["said"]["tunecast"]
        share = sum(said["breakdown_s"].get(name, 0.0) for name in COMPUTE) / said["step_s"]
        generation = known_gpu(row["gpu"]).architecture.split()[0]
        ratio = 1 + row["error"]["tunecast"]
        made.append(Run(row["id"], row["gpu"], row["about"].split()[0], generation, row["precision"], ratio, share))
    return made


def error_at(run: Run, factor: float) -> float:
    return run.ratio * (1 - run.share + run.share / factor) - 1


def best_factor(runs: Sequence[Run], factor_of: Callable[[Run], float]) -> float:
    """What the constant would have to be taken times for the least median error, beside what `factor_of` gives."""

    def median(factor: float) -> float:
        return statistics.median(abs(error_at(run, factor * factor_of(run))) for run in runs)

    return min(GRID, key=lambda factor: (median(factor), abs(factor - 1)))


def fitted(runs: Sequence[Run]) -> Factors:
    """Both kinds, one after the other until they stand."""
    found = Factors({}, {})
    generations, precisions = {run.generation for run in runs}, {run.precision for run in runs} - {"16 bits"}
    for _ in range(ROUNDS):
        by_generation = {}
        for name in sorted(generations):
            own = [run for run in runs if run.generation == name]
            if len(own) >= FEWEST:
                low = found.precisions
                by_generation[name] = best_factor(own, lambda run, low=low: low.get(run.precision, 1.0))  # type: ignore[misc]
        found = Factors(by_generation, found.precisions)
        by_precision = {}
        for name in sorted(precisions):
            own = [run for run in runs if run.precision == name]
            if len(own) >= FEWEST:
                rest = Factors(found.generations, {})
                by_precision[name] = best_factor(own, rest.of)
        found = Factors(found.generations, by_precision)
    return found


def left_out(runs: Sequence[Run], part_of: Callable[[Run], str]) -> list[Row]:
    """By part (a card, a model): its runs with constants estimated from all the others."""
    told = []
    for part in sorted({part_of(run) for run in runs}):
        own = [run for run in runs if part_of(run) == part]
        factors = fitted([run for run in runs if part_of(run) != part])
        figures = off([error_at(run, factors.of(run)) for run in own], len(own))
        told.append({"part": part, "rows": len(own), "as it is": off([run.ratio - 1 for run in own], len(own))} | {
            "left out": figures, "generations": factors.generations, "precisions": factors.precisions,
        })  # fmt: skip
    return told


def main() -> None:
    runs = runs_of([*load("time_public.json")["rows"], *load("time_vendor.json")["rows"]])
    made = {
        "commit": commit(),
        "rows": len(runs),
        "cards": left_out(runs, lambda run: run.gpu),
        "models": left_out(runs, lambda run: run.model),
    }
    for kind in ("cards", "models"):
        for one in made[kind]:  # type: ignore[union-attr]
            as_is, out = one["as it is"], one["left out"]
            print(f"{one['part']:20} {one['rows']:4}  median {as_is['median']:.1%}, left out {out['median']:.1%}")
    (HERE / "results" / "time_left_out.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
