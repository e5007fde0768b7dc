"""Predicted times with what was estimated from published runs estimated anew without a card, a model or a source.

    python benchmarks/time_left_out.py        after time_public.py and time_vendor.py; writes results/time_left_out.json

Two kinds of constants of `prediction/price/rates.py` are estimated from published steps: how much of the best product a
generation of cards sustains in training, and what float8 and float4 reach of it. For each card in turn both are
estimated without its runs, and its runs are predicted with those; the same for each model and for each source (a
repository, or a vendor's publication). Nothing is priced again: a share w of a step (products, attention, what is
recomputed) goes as 1 / constant, so at k times the constant the step takes 1 - w + w / k of its time.
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
    source: str
    """The repository or publication, by the prefix of its rows' ids."""
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
        named = (row["gpu"], row["about"].split()[0], row["id"].rpartition("-")[0])
        made.append(Run(row["id"], *named, generation, row["precision"], ratio, share))
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


class Part(NamedTuple):
    """Of the runs a card, a model or a source."""

    name: str
    own: list[Run]
    factors: Factors
    """Of the constants without its runs."""

    def errors(self) -> dict[str, float]:
        return {run.id: error_at(run, self.factors.of(run)) for run in self.own}


def parts_of(runs: Sequence[Run], part_of: Callable[[Run], str]) -> list[Part]:
    return [
        Part(
            name,
            [run for run in runs if part_of(run) == name],
            fitted([run for run in runs if part_of(run) != name]),
        )
        for name in sorted({part_of(run) for run in runs})
    ]


def left_out(parts: Sequence[Part]) -> list[Row]:
    """By part: its runs with constants estimated from all the others."""
    return [
        {
            "part": name,
            "rows": len(own),
            "as it is": off([run.ratio - 1 for run in own], len(own)),
            "left out": off(list(Part(name, own, factors).errors().values()), len(own)),
            "generations": factors.generations,
            "precisions": factors.precisions,
        }
        for name, own, factors in parts
    ]


KINDS: Mapping[str, Callable[[Run], str]] = {
    "cards": lambda run: run.gpu,
    "models": lambda run: run.model,
    "sources": lambda run: run.source,
}


def result(public: Sequence[Row], vendor: Sequence[Row]) -> Row:
    """By kind each part, and of all runs that others or vendors published how far they are off with their own part left
    out."""
    runs = runs_of([*public, *vendor])
    by_kind = {kind: parts_of(runs, part_of) for kind, part_of in KINDS.items()}
    told: Row = {"rows": len(runs)}
    for whose, rows in (("published", public), ("vendors", vendor)):
        ids = {row["id"] for row in rows}
        told[whose] = {}
        for kind, parts in by_kind.items():
            errors = [error for part in parts for run, error in part.errors().items() if run in ids]
            told[whose][kind] = off(errors, len(errors))
    return told | {kind: left_out(parts) for kind, parts in by_kind.items()}


def main() -> None:
    made = {"commit": commit(), **result(load("time_public.json")["rows"], load("time_vendor.json")["rows"])}
    for kind in KINDS:
        for one in made[kind]:
            as_is, out = one["as it is"], one["left out"]
            print(f"{one['part']:20} {one['rows']:4}  median {as_is['median']:.1%}, left out {out['median']:.1%}")
    for whose in ("published", "vendors"):
        for kind, figures in made[whose].items():
            print(f"{whose}, {kind} left out: median {figures['median']:.1%}, p90 {figures['p90']:.1%}")
    (HERE / "results" / "time_left_out.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
