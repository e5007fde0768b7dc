"""The 80 % ranges of a prediction from the residuals of measured runs; writes prediction/memory/ranges_table.py.

    python benchmarks/ranges.py             write the table
    python benchmarks/ranges.py --show      print it with every run outside its range

A run that was predicted before it was measured counts with that first prediction, since a user's job is new to us too;
the runs of h200_runs.jsonl and the published ones with that of the committed result. Left out: published rows whose
adapter a job can only call LoRA (`variant`), which never were the job that is predicted. Rows with doubts count.

Runs on several cards count for whose code spreads a job (`tunecast.prediction.evidence.family_of`). A stack nobody
measured is as far off as the measured groups are, each counting the same.

Of each group of runs (prediction/memory/ranges.py), each kind of memory, off = measured / predicted - 1, and 0 where
that is less than the floor. With n of them, the range ends at the (n + 1) x 0.9-th from below and from above (that is
conformal, a tenth on each side). With too few for that it is symmetric and ends at the (n + 1) x 0.8-th of their sizes;
with fewer than four it is assumed. It never excludes the prediction itself. Covered: each model's runs judged by a
range made of all other models' runs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import load  # noqa: E402
from public_figures import KIND_FIELDS  # noqa: E402

from tunecast.prediction.memory.ranges import (  # noqa: E402
    ELSEWHERE,
    FLOOR_BYTES,
    GUESSED,
    KINDS,
    MEASURED_CARD,
    TRACED,
    UNSEEN,
    VARYING,
    Basis,
    MemoryBand,
    band_of,
)
from tunecast.prediction.on_card import H200_CONTEXT  # noqa: E402

TABLE = HERE.parent / "src" / "tunecast" / "prediction" / "memory" / "ranges_table.py"
SHARE = 0.8
ASSUMED = {MEASURED_CARD: 0.0, ELSEWHERE: 0.01, VARYING: 0.05, GUESSED: 0.05}
"""Where fewer runs than four say something. Elsewhere: kernels' workspaces follow their source code, unchecked, tens of
MiB of a peak of some GiB. Guessed: what the benchmark allows the runs it knows least about."""
Row = dict[str, Any]


class Residual(NamedTuple):
    run: str
    model: str
    basis: Basis
    kind: str
    predicted_bytes: int
    measured_bytes: int

    @property
    def off(self) -> float:
        """0 where the floor covers it."""
        apart = self.measured_bytes - self.predicted_bytes
        return 0.0 if abs(apart) <= FLOOR_BYTES[self.kind] else apart / self.predicted_bytes


def residuals() -> list[Residual]:
    return [*_h200(), *_predicted_first(), *_published(), *_sharded(), *_megatron_ci(), *_whole_jobs()]


def _h200() -> Iterable[Residual]:
    models = {row["job"]["id"]: row["job"]["model"] for row in _lines("h200_runs.jsonl")}
    for row in load("memory_analytic.json")["rows"]:
        if "error" in row:
            basis = Basis(guessed=bool(row["guesses"]))
            for kind in KINDS:
                field = f"{kind}_bytes"
                yield Residual(
                    row["id"], models[row["id"]], basis, kind, row["predicted"][field], row["measured"][field]
                )


def _predicted_first() -> Iterable[Residual]:
    """By either engine: what the tape says is the same."""
    for name in ("generated_runs.jsonl", "closed_runs.jsonl", "script_runs.jsonl", "unsloth_runs.jsonl"):
        for row in _lines(name):
            said, measured = row.get("predicted"), row.get("measured", {})
            if said is None or not (said["completed"] and measured.get("completed")):
                continue
            run = row["job"]["id"] if "job" in row else row["id"]
            model = row["job"]["model"] if "job" in row else row.get("about", run).partition(" ")[0].strip(",")
            basis = Basis(guessed=bool(row.get("guesses")))
            yield Residual(run, model, basis, "allocated", said["allocated_bytes"], measured["peak_alloc"])
            yield Residual(run, model, basis, "reserved", said["reserved_bytes"], measured["peak_reserved"])
            if "device_used" in measured:
                predicted = said["reserved_bytes"] + H200_CONTEXT.nbytes
                yield Residual(run, model, basis, "device", predicted, measured["device_used"])


def _published() -> Iterable[Residual]:
    models = {row["id"]: row["job"]["model"] for row in _lines("public_memory.jsonl")}
    for row in load("public_memory.json")["rows"]:
        said = row["said"]["tunecast"]
        if "refused" in said or "variant" in row:
            continue
        basis = Basis(row["stack"], measured_card=False, guessed=bool(said.get("guessed")))
        field = KIND_FIELDS[row["kind"]]
        model, kind = models[row["id"]], field.removesuffix("_bytes")
        yield Residual(row["id"], model, basis, kind, said[field], row["measured_bytes"])
        if "measured_device_bytes" in row:
            yield Residual(row["id"], model, basis, "device", said["device_bytes"], row["measured_device_bytes"])


def _sharded() -> Iterable[Residual]:
    jobs = {row["id"]: row["job"] for row in _lines("public_runs.jsonl")}
    for row in load("sharded_memory.json")["rows"]:
        said, job = row["said"]["tunecast"], jobs[row["id"]]
        if "refused" not in said:
            basis = Basis(job["stack"], measured_card=False, several=True)
            field = KIND_FIELDS[row["kind"]]
            kind = field.removesuffix("_bytes")
            yield Residual(row["id"], job["model"], basis, kind, said[field], row["measured_bytes"])
            if "measured_device_bytes" in row:
                measured_bytes = row["measured_device_bytes"]
                yield Residual(row["id"], job["model"], basis, "device", said["device_bytes"], measured_bytes)


def _megatron_ci() -> Iterable[Residual]:
    jobs = {row["id"]: row for row in _lines("megatron_ci.jsonl")}
    for row in load("megatron_ci.json")["rows"]:
        said = row["said"]["max_allocated_bytes"]
        measured = round(said / (1 + row["error"]["max_allocated_bytes"]))
        basis = Basis("megatron", measured_card=False, several=True)
        model = f"{jobs[row['id']]['config']['n_embd']} x {jobs[row['id']]['config']['n_layer']}"
        yield Residual(row["id"], model, basis, "allocated", said, measured)


def _whole_jobs() -> Iterable[Residual]:
    """With what was said before they ran; those of stack trl count for what its lengths do, too."""
    said = {row["id"]: row["memory"] for row in _lines("job_predictions.jsonl")}
    for row in _lines("job_runs.jsonl"):
        for kind in KINDS if row["completed"] else ():
            predicted, measured = said[row["id"]][f"{kind}_bytes"], row[f"{kind}_bytes"]
            yield Residual(row["id"], row["id"], Basis(varies=True), kind, predicted, measured)


def _lines(name: str) -> list[Row]:
    return [json.loads(line) for line in (HERE / "data" / name).read_text().splitlines()]


def groups(found: Sequence[Residual]) -> dict[str, Callable[[Residual], bool]]:
    """Which runs make each group's range. Other stacks' runs are of other releases: each makes its own range, with what
    its program guesses, and no other's, whether that would be narrower or wider."""
    own = sorted({r.basis.own for r in found if r.basis.several or r.basis.stack not in TRACED})
    return {
        MEASURED_CARD: lambda r: r.basis == Basis(),
        ELSEWHERE: lambda r: r.basis == Basis(measured_card=False),
        **{name: lambda r, name=name: r.basis.own == name for name in own},  # type: ignore[misc]
        VARYING: lambda r: r.basis.varies,
        GUESSED: lambda r: r.basis.guessed and r.basis.stack in TRACED and not r.basis.several,
    }


def unseen(found: Sequence[Residual]) -> MemoryBand:
    """Of all runs, every stack counting the same, on one card and on several."""
    exact = [r for r in found if not r.basis.guessed]
    end, within = end_of_all([(_who(r), r.off) for r in exact])
    return MemoryBand(end, end, len(exact), len({r.model for r in exact}), within)


def end_of_all(off: Sequence[tuple[Hashable, float]]) -> tuple[float, float]:
    """Where a range ends, to one side as to the other, that holds a stranger: of runs by whose they are, everyone
    counting the same; and the share it holds. One more comes with the question, who may be as far off as the worst:
    hence n + 1."""
    runs = Counter(who for who, _ in off)
    wanted = SHARE * (len(runs) + 1) / len(runs)
    within = end = 0.0
    for who, each in sorted(off, key=lambda one: abs(one[1])):
        within, end = within + 1 / runs[who] / len(runs), abs(each)
        if within >= wanted:
            break
    return end, round(within, 3)


def _who(r: Residual) -> tuple[str, bool]:
    return r.basis.stack, r.basis.several


def ends(off: Sequence[float], share: float = SHARE) -> tuple[float, float] | None:
    """How far below and above a prediction the range ends; None where there are too few."""
    n = len(off)
    side = math.ceil((n + 1) * (1 + share) / 2)
    if side <= n:
        ordered = sorted(off)
        return max(0.0, -ordered[n - side]), max(0.0, ordered[side - 1])
    both = math.ceil((n + 1) * share)
    if both <= n:
        size = sorted(map(abs, off))[both - 1]
        return size, size
    return None


def covers(found: tuple[float, float], off: float) -> bool:
    return -found[0] <= off <= found[1]


def covered(members: Sequence[Residual]) -> float | None:
    """The share that lies in a range made of the other models' runs; None where those are too few for any model."""
    inside = []
    for model in {r.model for r in members}:
        others = ends([r.off for r in members if r.model != model])
        if others is None:
            return None
        inside += [covers(others, r.off) for r in members if r.model == model]
    return sum(inside) / len(inside)


def bands(found: Sequence[Residual]) -> dict[tuple[str, str], MemoryBand]:
    table: dict[tuple[str, str], MemoryBand] = {}
    for name, belongs in groups(found).items():
        for kind in KINDS:
            if (name, kind) == (ELSEWHERE, "device"):
                continue  # of no such run it was read; made of reserved and of contexts: `prediction.memory_of`
            members = [r for r in found if r.kind == kind and belongs(r)]
            made = ends([r.off for r in members])
            if made is None and name not in ASSUMED:
                continue  # a stack nobody measured in this kind is judged as any run on another card
            below, above = made or (ASSUMED[name], ASSUMED[name])
            below, above = (math.ceil(side * 1e5) / 1e5 for side in (below, above))
            share = covered(members) if made else None
            table[name, kind] = MemoryBand(
                below, above, len(members), len({r.model for r in members}), share and round(share, 3)
            )
    table |= dict.fromkeys(((UNSEEN, kind) for kind in KINDS), unseen(found))
    for name, kind in list(table):
        # The device holds what is reserved and a context: where only the device was read, reserved is known no better.
        if kind == "device" and (name, "reserved") not in table:
            table[name, "reserved"] = table[name, "device"]
    return table


def half_width(found: Residual, table: dict[tuple[str, str], MemoryBand]) -> float:
    """Of the range a prediction would come with, as a share of it."""
    band = band_of(found.kind, found.basis, table)
    floor = FLOOR_BYTES[found.kind] / found.predicted_bytes
    return (max(floor, band.below) + max(floor, band.above)) / 2


def median_half_widths(found: Sequence[Residual], table: dict[tuple[str, str], MemoryBand]) -> dict[str, float]:
    return {kind: statistics.median(half_width(r, table) for r in found if r.kind == kind) for kind in KINDS}


HEAD = '''"""How far measured runs lie from their predictions. Written by `benchmarks/ranges.py`; do not edit.

From {card} runs of one H200 (2026-11-15) and {public} published ones, as benchmarks/data and benchmarks/results have
them. A line: a group and a kind, and of it the fields of `tunecast.prediction.memory.ranges.Band`.
"""

from __future__ import annotations

BANDS: dict[tuple[str, str], tuple[float, float, int, int, float | None]] = {{
'''


def written(found: Sequence[Residual]) -> str:
    """The table as a Python file."""
    runs = {(r.run, r.basis.measured_card) for r in found}
    lines = [
        HEAD.format(
            card=sum(measured for _, measured in runs),
            public=sum(not measured for _, measured in runs),
        )
    ]
    for (name, kind), band in bands(found).items():
        values = f"{band.below:.5f}, {band.above:.5f}, {band.runs}, {band.models}, {band.covered}"
        lines.append(f'    ("{name}", "{kind}"): ({values}),\n')
    return "".join([*lines, "}\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print, write nothing")
    found = residuals()
    if parser.parse_args().show:
        table = bands(found)
        for key, band in table.items():
            print(*key, band)
        for r in sorted(found, key=lambda r: -abs(r.off)):
            band = band_of(r.kind, r.basis, table)
            if not covers((band.below, band.above), r.off):
                print(f"{r.run} {r.kind} {r.off:+.3%}", *r.basis)
        print({kind: f"{share:.4%}" for kind, share in median_half_widths(found, table).items()})
        return
    TABLE.write_text(written(found))


if __name__ == "__main__":
    main()
