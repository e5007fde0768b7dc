"""Predicted against measured time of a step, every timed run of one H200; writes `results/time_h200.json`.

    python benchmarks/time_h200.py
    python benchmarks/time_h200.py --only TEXT     prints rows whose id contains it, writes nothing

Three sets of runs. `h200_runs.jsonl` is what the constants of `prediction/price` were estimated on (the longer of two
runs of a job; runs of mixed lengths apart). `generated_runs.jsonl` and `closed_runs.jsonl` were drawn at random for
memory; of them only the host's shares (`Host.hook`, `optimizer`, `triton`) were estimated, since no other run waits for
them.

Left out: for each model, five scales (products, attention, moving, lists, the host) are estimated again without its
runs, by least squares on the shares of a step, and its runs predicted with those. Constants that rest on one or two
runs (`ONE_RUN`) stay as they are: such a run's error says how well it is described, not how well it was foreseen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit, models  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.hardware.catalog import gpu  # noqa: E402
from tunecast.job import Job, job_from_dict  # noqa: E402
from tunecast.prediction.price import ATTENTION, PRODUCTS, rates_of, seconds  # noqa: E402
from tunecast.prediction.price.host import DEFAULT_HOST, Host  # noqa: E402
from tunecast.prediction.time.ranges import CARD, HOST, host_share, waits_for_host  # noqa: E402
from tunecast.prediction.time.runtime import Lowered, StepTime  # noqa: E402
from tunecast.prediction.time.whole import new_length_s, planning_of  # noqa: E402
from tunecast.tape.card import Card  # noqa: E402
from tunecast.tape.shorten import steps_of  # noqa: E402
from tunecast.tape.timed import timed_steps  # noqa: E402

Row = dict[str, Any]
H200 = gpu("h200-sxm-141gb")
FITTED, DRAWN = "h200_runs", ("generated_runs", "closed_runs")
SCALES = (PRODUCTS, ATTENTION, "moving", "lists")
ONE_RUN: Mapping[str, str] = {
    "gpt2": "products off the grid (OFF_GRID_RATE)",
    "dora": "crossed layouts (BANDWIDTH[CROSSED])",
    "adamw8bit": "the 8-bit update (UPDATE_8BIT_FLOPS)",
    "attn=eager": "softmax of short rows (SHORT_ROW_BANDWIDTH)",
    "int8": "float32 products (FLOAT32_ACHIEVABLE)",
}
"""What a run's name holds, and the constant that rests on such runs alone."""
STEADY = 0.03
"""Least squares take runs in which the card waits less than this for the host."""
RIDGE = 1e-3
"""Pulls a scale that the other models say nothing of towards 1."""
LONGER = "-25steps"


@dataclass(frozen=True)
class Run:
    source: str
    job: Job
    measured_s: float
    steps: Mapping[int, Lowered]
    """By padded length."""

    @property
    def kind(self) -> str:
        return "mixed lengths" if self.job.lengths else "compiled" if self.job.compile else "fixed length"

    def predicted_s(self, scales: Mapping[str, float], host: Host = DEFAULT_HOST) -> float:
        """The median step, as measured: of the steps after the second, the first of a length longer than the others."""
        times = {length: _scaled_s(lowered, scales, host) for length, lowered in self.steps.items()}
        order = steps_of(self.job)
        plans = any("cudnn" in op.name for lowered in self.steps.values() for op in lowered.ops)
        planned_s = new_length_s(planning_of(plans, host), recomputes=self.job.gradient_checkpointing)[0]
        taken = sorted(
            times[length] + (planned_s if length not in order[:step] else 0.0)
            for step, length in enumerate(order)
            if step > 1
        )
        return taken[len(taken) // 2]

    @property
    def usual(self) -> StepTime:
        """Of the median step."""
        lengths = sorted(steps_of(self.job)[2:])
        return self.steps[lengths[len(lengths) // 2]].on(H200, DEFAULT_HOST)


def runs(only: str = "") -> Iterator[Run | Row]:
    """Each timed run, or a row that says why it is refused."""
    for source in (FITTED, *DRAWN):
        lines = [json.loads(line) for line in (HERE / "data" / f"{source}.jsonl").read_text().splitlines()]
        names = {line["job"]["id"] for line in lines}
        for line in lines:
            measured = line.get("measured", {})
            if not measured.get("completed") or not measured.get("step_s") or line["job"]["id"] + LONGER in names:
                continue
            if only not in line["job"]["id"]:
                continue
            taken = measured["step_s"]
            seconds_each = sorted(taken[2:]) if isinstance(taken, list) else [taken]
            job = job_from_dict(line["job"])
            try:
                steps = timed_steps(job, _config(source, line), Card())
            except TunecastError as error:
                yield {"id": job.id, "set": source, "refused": error.message}
                continue
            middle = seconds_each[len(seconds_each) // 2]
            yield Run(source, job, middle, {length: Lowered(step) for length, step in steps.items()})


def _config(source: str, line: Row) -> Mapping[str, Any]:
    if "config" in line:
        return line["config"]
    model = line["job"]["model"]
    return models()[model] if source == FITTED else drawn_models()[model]["config"]


@cache
def drawn_models() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((HERE / "data" / "generated_models.json").read_text())
    return found


# ------------------------------------------------------------------------------------------------- leaving a model out


def _kind(place: int, lowered: Lowered) -> str:
    found = lowered.distinct[place]
    if found.kind in (PRODUCTS, ATTENTION):
        return found.kind
    return "lists" if found.op.name.startswith("_foreach") else "moving"


def _scaled_s(lowered: Lowered, scales: Mapping[str, float], host: Host) -> float:
    rates = rates_of(H200)
    prices = [
        seconds(found.op, rates) * scales.get(_kind(place, lowered), 1.0)
        for place, found in enumerate(lowered.distinct)
    ]
    return lowered.end_s(prices, lowered.launches(host))


def shares(run: Run) -> list[float]:
    """Of the measured step, what each of `SCALES` takes."""
    (lowered,) = run.steps.values()
    rates = rates_of(H200)
    spent = dict.fromkeys(SCALES, 0.0)
    for part in lowered.parts.values():
        for place, times in part.items():
            spent[_kind(place, lowered)] += seconds(lowered.distinct[place].op, rates) * times
    return [spent[name] / run.measured_s for name in SCALES]


def estimated(found: Sequence[Run]) -> tuple[dict[str, float], dict[str, Host]]:
    """The scales that other runs ask for: of the card by least squares, of the host the median of what waits for it, in
    each set: each was another machine, and their hosts differ by a third. Who has such a machine calibrates it."""
    fitting = [run for run in found if run.source == FITTED and run.kind == "fixed length"]
    steady = [run for run in fitting if host_share(run.usual) < STEADY and not _rests_on(run)]
    rows = [shares(run) for run in steady]
    size = len(SCALES)
    pull = RIDGE * len(rows)
    normal = [[sum(r[i] * r[j] for r in rows) + (pull if i == j else 0) for j in range(size)] for i in range(size)]
    right = [sum(r[i] for r in rows) + pull for i in range(size)]
    scales = dict(zip(SCALES, solved(normal, right), strict=True))
    hosts = {}
    for source in (FITTED, *DRAWN):
        waiting = [run for run in found if run.source == source and host_share(run.usual) > 2 * STEADY]
        hosts[source] = replace(DEFAULT_HOST, launch_s=_launch_s(waiting, scales))
    return scales, hosts


def _launch_s(waiting: Sequence[Run], scales: Mapping[str, float]) -> float:
    """For which half of the runs that wait for the host come out longer than measured."""
    low, high = 5e-6, 100e-6
    for _ in range(12):
        middle = (low + high) / 2
        host = replace(DEFAULT_HOST, launch_s=middle)
        longer = sum(run.predicted_s(scales, host) > run.measured_s for run in waiting)
        low, high = (low, middle) if 2 * longer > len(waiting) else (middle, high)
    return (low + high) / 2


def solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss, for a handful of unknowns."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i, row in enumerate(rows):
        rows[i] = [value / row[i] for value in row]
        for j, other in enumerate(rows):
            if j != i:
                rows[j] = [a - other[i] * b for a, b in zip(other, rows[i], strict=True)]
    return [row[-1] for row in rows]


def _rests_on(run: Run) -> str | None:
    return next((told for name, told in ONE_RUN.items() if name in str(run.job.id)), None)


# --------------------------------------------------------------------------------------------------------- the result


def compared(run: Run, scales: Mapping[str, float], hosts: Mapping[str, Host]) -> Row:
    usual, predicted, left_out = run.usual, run.predicted_s({}), run.predicted_s(scales, hosts[run.source])
    about = run.job
    made: Row = {
        "id": about.id,
        "set": run.source,
        "kind": run.kind,
        "model": about.model,
        "bound_by": usual.bound_by,
        "waits_for": HOST if waits_for_host(usual) else CARD,
        "measured_s": run.measured_s,
        "predicted_s": round(predicted, 6),
        "error": round(predicted / run.measured_s - 1, 5),
        "left_out_s": round(left_out, 6),
        "left_out_error": round(left_out / run.measured_s - 1, 5),
        "breakdown_s": {name: round(spent, 6) for name, spent in usual.breakdown_s.items()},
    }
    if run.source == FITTED and (told := _rests_on(run)) is not None:
        made["one_run"] = told
    return made


def in_us(hosts: Mapping[str, Host]) -> dict[str, float]:
    return {source: round(host.launch_s * 1e6, 2) for source, host in hosts.items()}


def groups(rows: Sequence[Row]) -> list[Row]:
    made = []
    for source in (FITTED, *DRAWN):
        for kind in ("fixed length", "mixed lengths", "compiled", "all but mixed"):
            taken = [r for r in rows if r.get("set") == source and "error" in r and _belongs(r["kind"], kind)]
            if taken:
                made.append(
                    {"set": source, "kind": kind, "runs": len(taken)}
                    | {name: _figures([r[name] for r in taken]) for name in ("error", "left_out_error")}
                )
    return made


def _belongs(kind: str, group: str) -> bool:
    return kind != "mixed lengths" if group == "all but mixed" else kind == group


def _figures(errors: Sequence[float]) -> Row:
    sizes = sorted(map(abs, errors))
    return {
        "median": statistics.median(sizes),
        "p90": sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        "worst": sizes[-1],
        "signed": statistics.median(errors),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose id contains this; prints, writes nothing")
    options = parser.parse_args()
    found = list(runs())
    timed = [run for run in found if isinstance(run, Run)]
    without = {name: estimated([r for r in timed if r.job.model != name]) for name in {r.job.model for r in timed}}
    rows = [r if isinstance(r, dict) else compared(r, *without[r.job.model]) for r in found]
    shown = [r for r in rows if options.only in str(r["id"])]
    for r in sorted(shown, key=lambda r: -abs(r.get("error", 9))):
        told = r.get("refused") or f"{r['error']:+.1%} left out {r['left_out_error']:+.1%} {r['measured_s']:.4f} s"
        print(r["id"], r.get("bound_by", ""), told, r.get("one_run", ""))
    scales, hosts = estimated(timed)
    made = {
        "commit": commit(),
        "scales": {name: round(scale, 4) for name, scale in scales.items()},
        "launch_us": in_us(hosts),
        "left_out": {
            name: {k: round(v, 4) for k, v in s.items()} | {"launch_us": in_us(h)}
            for name, (s, h) in sorted(without.items())
        },
        "groups": groups(rows),
        "rows": rows,
    }
    print("launch_us", made["launch_us"], "scales", made["scales"])
    for group in made["groups"]:
        print({k: v if not isinstance(v, dict) else {a: f"{b:.1%}" for a, b in v.items()} for k, v in group.items()})
    if not options.only:
        (HERE / "results" / "time_h200.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
