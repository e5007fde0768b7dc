"""Seconds of each kind of the host's work (`prediction/price/host.py`), from data/host_kinds.jsonl, host_speed.jsonl.

    python benchmarks/host_fit.py

The tape says how many pieces of each kind a forward pass, a backward pass and an optimizer's step have; the seconds of
a kind are those for which the passes of all cases come out best, all kinds at once, by the least sum of relative
errors: the same pass differs by a fifth from minute to minute, and squares would follow the worst minutes.

Two kinds are not asked of these data, and were measured on a CPU. PASS, what a pass takes beside its layers: 2 layers
against 14 of a Llama say 1.25 layers' worth, half of which is on the tape; six layers here say too little. HOOK, a
Python call about a saved tensor: 5 us there, by checkpointed calls that keep 4 and 40 tensors, which is 10 on a host
whose Python is half as fast; here it cannot be told from what each checkpointed call takes.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from host_kinds import FULL, HERE, LORA, config_of, job_values
from time_h200 import solved

from tunecast.job import job_from_dict
from tunecast.prediction.price.host import COUNTED, KINDS_S, LEAN, MEASURED_LAUNCH_S, OPTIMIZER, kind_of
from tunecast.prediction.time.calibration import MODULES
from tunecast.tape.card import Card
from tunecast.tape.op import HOOK, LET_GO, OF_THE_HOST, PASS, Phase
from tunecast.tape.timed import timed_steps

ROUNDS, LEAST = 60, 0.02
PASSES, UPDATES = ("forward", "backward"), ("clip", "optimizer", "zero_grad")
Counts = dict[str, float]


def counted(row: dict[str, Any]) -> dict[str, Counts]:
    """Pieces of each kind, by phase."""
    (step,) = timed_steps(job_from_dict(job_values(row["case"])), row["config"], Card()).values()
    names = {Phase.BACKWARD: "backward", Phase.CLIP: "clip", Phase.OPTIMIZER: "optimizer"}
    found: dict[str, Counter[str]] = {}
    for section in step.sections:
        for op in section.ops:
            if not op.kernels and op.name not in OF_THE_HOST & KINDS_S.keys():
                continue
            kind = kind_of(op.name, op.by_engine, section.phase in LEAN)
            times = section.times * (op.shapes[0][0] if op.name in COUNTED else 1)
            phase = "zero_grad" if op.name == LET_GO else names.get(section.phase, "forward")
            found.setdefault(phase, Counter())[kind] += times
    return {name: dict(kinds) for name, kinds in found.items()}


def fitted(rows: Sequence[tuple[Counts, float]]) -> dict[str, float]:
    """None below 0: a kind that would be is left out."""
    kinds = sorted({kind for counts, _ in rows for kind in counts})
    found: dict[str, float] = {}
    weights = [1.0] * len(rows)
    for _ in range(ROUNDS):
        while True:
            scaled = [
                ([counts.get(kind, 0.0) / seconds * 1e-6 for kind in kinds], weight)
                for (counts, seconds), weight in zip(rows, weights, strict=True)
            ]
            size = range(len(kinds))
            normal = [[sum(w * r[i] * r[j] for r, w in scaled) + 1e-9 * (i == j) for j in size] for i in size]
            answer = solved(normal, [sum(w * r[i] for r, w in scaled) for i in size])
            if min(answer) >= 0:
                break
            kinds = [kind for kind, value in zip(kinds, answer, strict=True) if value > 0]
        found = {kind: value * 1e-6 for kind, value in zip(kinds, answer, strict=True)}
        weights = [1 / max(LEAST, abs(error)) for error in errors(rows, found)]
    return found


def errors(rows: Sequence[tuple[Counts, float]], kinds_s: dict[str, float]) -> list[float]:
    return [sum(kinds_s.get(k, 0.0) * n for k, n in counts.items()) / seconds - 1 for counts, seconds in rows]


def told(name: str, off: Sequence[float]) -> None:
    sizes = sorted(map(abs, off))
    print(f"{name}: {len(off)}, median {statistics.median(sizes):.1%}, p90 {sizes[int(0.9 * len(sizes))]:.1%}")


def main() -> None:
    lines = [json.loads(line) for line in (HERE / "data" / "host_kinds.jsonl").read_text("utf-8").splitlines()]
    loops = [line["loop"] for line in lines if "loop" in line]
    both = statistics.median(loop["forward_s"] + loop["backward_s"] for loop in loops)
    print(f"launches every {MODULES * both * 1e6:.1f} us (MEASURED_LAUNCH_S {MEASURED_LAUNCH_S * 1e6:.1f})")
    cases = [line for line in lines if "median_s" in line and "cold" not in line and not line["case"].get("compile")]
    parts = [(line, counted(line)) for line in cases]
    one_by_one = [
        line["median_s"]["optimizer"] / by_phase["optimizer"][OPTIMIZER]
        for line, by_phase in parts
        if line["case"]["optimizer"] == "adafactor"
    ]
    single_s = statistics.mean(one_by_one)
    updates = [
        (
            {k: n for k, n in kinds.items() if k != OPTIMIZER},
            line["median_s"][name] - single_s * kinds.get(OPTIMIZER, 0),
        )
        for line, by_phase in parts
        for name in UPDATES
        if line["case"]["optimizer"] != "adafactor" and (kinds := by_phase.get(name))
    ]
    more = fitted(updates) | {OPTIMIZER: single_s}
    told("clipping and optimizers", errors(updates, more))
    known = more | {kind: KINDS_S[kind] for kind in (PASS, HOOK)}
    passes = [without(by_phase[name], line["median_s"][name], known) for line, by_phase in parts for name in PASSES]
    steps = [without(counts, seconds * both / loop_s, known) for counts, seconds, loop_s in real_steps()]
    found = fitted([*passes, *steps])
    told("passes", errors(passes, found))
    together = [
        ({k: a.get(k, 0) + b.get(k, 0) for k in {*a, *b}}, s + t)
        for (a, s), (b, t) in zip(passes[::2], passes[1::2], strict=True)
    ]
    off = errors(together, found)
    told("forward and backward", off)
    told("steps of real models", errors(steps, found))
    for error, (line, _) in sorted(zip(off, parts, strict=True), key=lambda each: -abs(each[0]))[:8]:
        about = {k: v for k, v in line["case"].items() if k in ("model", "method", "gradient_checkpointing", "layers")}
        print(f"    {error:+.0%}", about)
    for kind, seconds in (found | more).items():
        print(f"{kind:<22} {seconds * 1e6:8.1f} us   (KINDS_S {KINDS_S[kind] * 1e6:.1f})")


def without(counts: Counts, seconds: float, known: dict[str, float]) -> tuple[Counts, float]:
    """What is left where the seconds of some kinds are known."""
    rest = {kind: count for kind, count in counts.items() if kind not in known}
    return rest, seconds - sum(known.get(kind, 0.0) * count for kind, count in counts.items())


def real_steps() -> Iterator[tuple[Counts, float, float]]:
    """Of data/host_speed.jsonl: pieces of each kind in a step, its seconds, and those of the loop before it."""
    made: dict[str, Counts] = {}
    for line in (HERE / "data" / "host_speed.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        name, adapted = row["model"], row["lora"]
        if name not in made:
            case = {"model": name, **(LORA if adapted else FULL), "real": True, "autocast": "bfloat16"}
            case |= {"optimizer": "adamw_torch_fused", "micro_batch": 1, "seq_len": 128}
            case |= {"gradient_checkpointing": adapted}
            whole: Counter[str] = Counter()
            for counts in counted({"case": case, "config": config_of(case)}).values():
                whole.update(counts)
            made[name] = dict(whole)
        yield made[name], statistics.median(row["step_s"]), row["forward_s"] + row["backward_s"]


if __name__ == "__main__":
    main()
