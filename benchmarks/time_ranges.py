"""The 80 % ranges of a step's time from the errors of timed steps; writes src/tunecast/prediction/time/ranges_table.py.

    python benchmarks/time_ranges.py            after time_h200.py, time_public.py and time_vendor.py; evidence.py next
    python benchmarks/time_ranges.py --show     print the groups and how many steps each range holds, write nothing

Off = measured / predicted - 1. A group's range ends where a tenth of its steps lie beyond on either side (conformal,
`ranges.ends`), or further out until ranges made without a model hold three quarters of that model's steps. A group
stands where it has enough steps and models (`FEWEST`, `FEWEST_MODELS`). Of a card's own group: the H200's runs with the
model left out, published ones as they are answered now; of any card: with the card left out of every constant that was
read off published steps (`time_left_out.py`). `UNSEEN` counts every card the same, however many of its steps were
published.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import load  # noqa: E402
from ranges import SHARE, covers, end_of_all, ends  # noqa: E402
from time_left_out import error_at, fitted, runs_of  # noqa: E402
from timing import is_of_something_else, rows_of  # noqa: E402

from tunecast.prediction.evidence import LOW_PRECISION, ONE, SEVERAL, SIXTEEN_BITS, family_of  # noqa: E402
from tunecast.prediction.time.ranges import (  # noqa: E402
    CARD,
    HOST,
    LONG,
    SHORT,
    SHORT_S,
    UNSEEN,
    WAITS,
    StepKind,
    TimeBand,
)

TABLE = HERE.parent / "src" / "tunecast" / "prediction" / "time" / "ranges_table.py"
H200 = "h200-sxm-141gb"
FEWEST, FEWEST_MODELS, LEAST_COVERED = 10, 2, 0.75
"""Steps and models that make a group, and of the steps what a range made of the other models' must hold."""
FEWEST_CARDS = 4
"""Whose steps tell what to expect of a card that is not among them."""
Row = dict[str, Any]

HEAD = '''"""How far measured steps lie from their predictions. Written by `benchmarks/time_ranges.py`; do not edit.

A line: a group of alike steps, and of it the fields of `tunecast.prediction.time.ranges.Band`.
"""

from __future__ import annotations

BANDS: dict[str, tuple[float, float, int, int, float | None]] = {
'''


class Residual(NamedTuple):
    id: str
    kind: StepKind
    model: str
    off: float
    """Measured over predicted, less 1."""
    left_out: float
    """The same with the card left out of what was estimated."""

    def of(self, name: str) -> float:
        """As the group of that name counts it."""
        return self.off if self.kind.card in name else self.left_out


def residuals() -> list[Residual]:
    return [*_own(), *_published()]


def _own() -> Iterator[Residual]:
    """Mixed lengths are left out: what the first step of a length takes more is `whole.NEW_LENGTH_S`."""
    for row in load("time_h200.json")["rows"]:
        if "error" not in row or row["kind"] == "mixed lengths":
            continue
        off = row["measured_s"] / row["left_out_s"] - 1
        kind = StepKind(
            H200, family_of("transformers"), SIXTEEN_BITS, ONE, row["waits_for"], _length(row["measured_s"])
        )
        yield Residual(row["id"], kind, row["model"], off, off)


def _published() -> Iterator[Residual]:
    """Of `time_public.py` and `time_vendor.py`. Those as they are answered now are not unseen: some rates of
    `prediction/price` were set by them, so a card's own ranges may be too narrow."""
    rows = [*load("time_public.json")["rows"], *load("time_vendor.json")["rows"]]
    jobs = {row["id"]: row["job"] for name in ("public_runs.jsonl", "vendor_runs.jsonl") for row in rows_of(name)}
    left_out = without_their_card(rows)
    for row in rows:
        said, job = row["said"]["tunecast"], jobs[row["id"]]
        if "step_s" in said and not is_of_something_else(row):
            off = row["measured_s"] / said["step_s"] - 1
            yield Residual(row["id"], kind_of(row, job, said), job["model"], off, 1 / (1 + left_out[row["id"]]) - 1)


def kind_of(row: Row, job: Row, said: Row) -> StepKind:
    hardware = job["hardware"]
    return StepKind(
        row["gpu"],
        family_of(job.get("stack", "transformers")),
        LOW_PRECISION if job.get("matmul_dtype") else SIXTEEN_BITS,
        SEVERAL if hardware.get("gpus", 1) * hardware.get("nodes", 1) > 1 else ONE,
        HOST if said["breakdown_s"].get("launch", 0.0) > WAITS * said["step_s"] else CARD,
        _length(said["step_s"]),
    )


def _length(step_s: float) -> str:
    return SHORT if step_s < SHORT_S else LONG


def without_their_card(rows: Sequence[Row]) -> dict[str, float]:
    """Errors with the constants of `time_left_out.py` estimated without the run's card."""
    runs = runs_of(rows)
    made = {}
    for card in {run.gpu for run in runs}:
        factors = fitted([run for run in runs if run.gpu != card])
        made |= {run.id: error_at(run, factors.of(run)) for run in runs if run.gpu == card}
    return made


def band(name: str, members: Sequence[Residual]) -> TimeBand | None:
    """The fields of a range, or None where there are too few. Where models differ so much that a range of the others
    holds less of one's steps than it should, it ends further out."""
    made = None
    for percent in range(round(100 * SHARE), 98, 2):
        found = ends([r.of(name) for r in members], percent / 100)
        if found is None:
            break
        made = TimeBand(*found, len(members), len({r.model for r in members}), _covered(name, members, percent / 100))
        if made.covered is None or made.covered >= LEAST_COVERED:
            break
    return made


def _covered(name: str, members: Sequence[Residual], share: float) -> float | None:
    """The share of steps inside ranges made of the other models' steps."""
    inside = []
    for model in {r.model for r in members}:
        others = ends([r.of(name) for r in members if r.model != model], share)
        if others is not None:
            inside += [covers(others, r.of(name)) for r in members if r.model == model]
    return round(sum(inside) / len(inside), 3) if inside else None


def stands(name: str, found: TimeBand, members: Sequence[Residual]) -> bool:
    cards = {r.kind.card for r in members}
    enough = found.runs >= FEWEST and found.models >= FEWEST_MODELS
    enough = enough and (len(cards) >= FEWEST_CARDS or any(card in name for card in cards))
    return enough and (found.covered is None or found.covered >= LEAST_COVERED)


def bands(found: Sequence[Residual]) -> dict[str, TimeBand]:
    groups: dict[str, list[Residual]] = {}
    for r in found:
        for name in r.kind.alike():
            groups.setdefault(name, []).append(r)
    made = {name: band(name, members) for name, members in sorted(groups.items())}
    table = {name: each for name, each in made.items() if each is not None and stands(name, each, groups[name])}
    return {UNSEEN: unseen(found), **table}


def unseen(found: Sequence[Residual]) -> TimeBand:
    """Of all steps without their card, every card counting the same."""
    end, within = end_of_all([(r.kind.card, r.left_out) for r in found])
    return TimeBand(end, end, len(found), len({r.model for r in found}), within)


def written(table: dict[str, TimeBand]) -> str:
    """The ranges as a Python file."""
    lines = [
        f'    "{name}": ({b.below:.4f}, {b.above:.4f}, {b.runs}, {b.models}, {b.covered}),\n'
        for name, b in table.items()
    ]
    return "".join([HEAD, *lines, "}\n"])


class Held(NamedTuple):
    """Of a group of steps: how many lie in the range they would be told, and half of it in the median."""

    group: str
    steps: int
    inside: float
    half_width: float


def told(r: Residual, table: dict[str, TimeBand]) -> tuple[TimeBand, float]:
    """The range a step would be told, and where in it the step lies."""
    name = next((name for name in r.kind.alike() if name in table), UNSEEN)
    return table[name], r.of(name)


def held(found: Sequence[Residual], table: dict[str, TimeBand]) -> Iterator[Held]:
    """By card, by family, by source, by what is waited for: groups of ten or more."""
    for what, value in (
        ("card", lambda r: r.kind.card), ("stacks", lambda r: r.kind.family),
        ("source", lambda r: r.id.partition("-")[0] if r.kind.card != H200 or r.kind.cards != ONE else "own runs"),
        ("cards", lambda r: r.kind.cards), ("waits for", lambda r: r.kind.waits),
    ):  # fmt: skip
        for name in sorted({value(r) for r in found}):
            members = [told(r, table) for r in found if value(r) == name]
            if len(members) >= FEWEST:
                inside = sum(covers((b.below, b.above), off) for b, off in members) / len(members)
                widths = sorted((b.below + b.above) / 2 for b, _ in members)
                yield Held(f"{what}: {name}", len(members), inside, widths[len(widths) // 2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print, write nothing")
    found = residuals()
    table = bands(found)
    if not parser.parse_args().show:
        TABLE.write_text(written(table))
        return
    for name, each in table.items():
        print(f"{name:55} -{each.below:.1%} +{each.above:.1%}  {each.runs} steps, {each.models} models, {each.covered}")
    for each in held(found, table):
        print(f"{each.group:30} {each.steps:4} steps, {each.inside:.0%} inside, half-width {each.half_width:.1%}")


if __name__ == "__main__":
    main()
