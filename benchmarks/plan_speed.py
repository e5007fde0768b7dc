"""How long a plan over the whole bundled catalogue takes, beside llm-analysis in one run; `results/plan_speed.json`.

    python -m venv ENV && ENV/bin/pip install llm-analysis==0.2.2
    python benchmarks/plan_speed.py [--peers ENV/bin/python] [--times N] [--only NAME] [--out FILE]

Each plan is a command of its own, from nothing to its JSON, with the package as pip leaves it (`speed.installed`) and
no offers but the bundled ones; wall and CPU seconds and the largest resident memory are of the whole process. A
configuration is one machine with one setting: `bounded` ones were ruled out by a proven floor, `predicted` ones fully
predicted. llm-analysis gets one call for its training time a configuration, with its imports done, in turns with the
plans. It has no adapters, so it is asked about full fine-tuning alone, and it simulates neither memory's fragmentation
nor prices: the two columns are what each tool does for a configuration, not the same work.

`python compile_native.py` first, as `speed.py` says; `machine.native` tells whether that was done.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402
from speed import installed, machine, told  # noqa: E402
from time_peers import version  # noqa: E402
from time_public import card, sizes  # noqa: E402

Figures = dict[str, Any]
RESULTS = HERE / "results" / "plan_speed.json"
TIMES = 3
BATCH = ("--seq-len", "2048", "--micro-batch", "1", "--grad-accum", "64", "--tokens", "10000000")
PLANS: Mapping[str, tuple[str, ...]] = {
    "8B lora": ("llama-3.1-8b", "--method", "lora", "--weights-dtype", "bfloat16", *BATCH),
    "8B full": ("llama-3.1-8b", "--method", "full", "--weights-dtype", "float32", "--autocast", "bfloat16", *BATCH),
    "70B qlora": ("llama-3.1-70b", "--method", "qlora", "--weights-dtype", "bfloat16", *BATCH),
}
PEER_CARDS = {"llama-3.1-8b": (2, 4, 8, 16), "llama-3.1-70b": (8, 16, 32, 64)}
COUNTS = ("configurations", "bounded", "predicted")
KIB = 1024
"""`ru_maxrss` of Linux is in these."""


class Run(NamedTuple):
    wall_s: float
    cpu_s: float
    rss_bytes: int
    plan: Figures


def planned_once(words: Sequence[str], script: Path, environment: Mapping[str, str], folder: Path) -> Run:
    """Waited for with its own account: of a child alone, the largest memory is not that of all children so far."""
    output = folder / "plan.json"
    command = [sys.executable, str(script), "plan", *words, "--json", "--quiet"]
    start = time.perf_counter()
    with output.open("wb") as out:
        child = subprocess.Popen(command, env=dict(environment), stdout=out)
        _, status, used = os.wait4(child.pid, 0)
    passed = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"tunecast plan {' '.join(words)}: exit {child.returncode}")
    return Run(passed, used.ru_utime + used.ru_stime, used.ru_maxrss * KIB, json.loads(output.read_text()))


def figures_of(words: Sequence[str], runs: Sequence[Run]) -> Figures:
    """Raises where two runs answer differently: the same answer every time is promised."""
    answers = {json.dumps(_without_seconds(run.plan), sort_keys=True) for run in runs}
    if len(answers) != 1:
        raise SystemExit(f"tunecast plan {' '.join(words)}: {len(answers)} answers to one question")
    searched = runs[0].plan["searched"]
    wall_s = statistics.median(run.wall_s for run in runs)
    search_s = statistics.median(run.plan["searched"]["seconds"] for run in runs)
    return {
        "command": f"tunecast plan {' '.join(words)}",
        "wall": told([run.wall_s for run in runs]),
        "cpu": told([run.cpu_s for run in runs]),
        "search": told([run.plan["searched"]["seconds"] for run in runs]),
        "rss_bytes": max(run.rss_bytes for run in runs),
        **{name: searched[name] for name in COUNTS},
        "configurations_per_s": round(searched["configurations"] / wall_s),
        "configurations_per_search_s": round(searched["configurations"] / search_s),
        "picks": {name: None if one is None else one["hardware"] for name, one in runs[0].plan["picks"].items()},
    }


def _without_seconds(plan: Figures) -> Figures:
    return plan | {"searched": {name: plan["searched"][name] for name in COUNTS}}


def peer_questions(model: str) -> list[Figures]:
    """72 configurations of sharded full fine-tuning; where weights do not fit, it answers with a refusal."""
    found = []
    choices = product(("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb"), PEER_CARDS[model], (1, 2, 4), (True, False))
    for gpu, cards, batch, checkpointing in choices:
        job = {
            "model": model,
            "method": "full",
            "seq_len": 2048,
            "micro_batch": batch,
            "grad_accum": max(1, 64 // cards // batch),
            "gradient_checkpointing": checkpointing,
            "hardware": {"gpu": gpu, "gpus": min(8, cards), "nodes": max(1, cards // 8)},
            "parallel": {"data": "fsdp"},
        }
        row = {"job": job}
        found.append({"job": job, "model": sizes(row), "gpu": card(row)})
    return found


def peer_once(peers: str, questions: Sequence[Figures]) -> list[Figures]:
    lines = "".join(json.dumps(each) + "\n" for each in questions)
    program = str(HERE / "plan_speed_peer.py")
    done = subprocess.run([peers, program], input=lines, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{peers} cannot ask llm-analysis: {done.stderr.strip().splitlines()[-1:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def peer_figures(peers: str, answers: Mapping[str, Sequence[Figures]]) -> Figures:
    found: Figures = {"version": version(peers)}
    for model, rows in answers.items():
        timed = [row for row in rows if "refused" not in row]
        refused = [row["refused"] for row in rows if "refused" in row]
        found[model] = {"asked": len(rows), "refused": len(refused), "why": sorted(set(refused))[:3]}
        if timed:
            found[model] |= {"wall": _each(row["wall_s"] for row in timed), "cpu": _each(row["cpu_s"] for row in timed)}
    return found


def _each(values: Any) -> Figures:
    """Microseconds matter here."""
    all_of_them = list(values)
    return {
        "median_s": round(statistics.median(all_of_them), 7),
        "best_s": round(min(all_of_them), 7),
        "times": len(all_of_them),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="interpreter with llm-analysis; without it only plans are made")
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--only", choices=tuple(PLANS), help="prints, writes nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.peers and shutil.which(options.peers) is None:
        parser.error(f"--peers: there is no interpreter {options.peers}")
    names = [name for name in PLANS if options.only in (None, name)]
    result: Figures = {"commit": commit(), "machine": machine(), "times": options.times}
    runs: dict[str, list[Run]] = {name: [] for name in names}
    questions = {model: peer_questions(model) for model in PEER_CARDS} if options.peers else {}
    answers: dict[str, list[Figures]] = {model: [] for model in questions}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        script, environment = installed(folder)
        environment["XDG_DATA_HOME"] = str(folder / "data")
        for _ in range(options.times):
            for name in names:
                runs[name].append(planned_once(PLANS[name], script, environment, folder))
            for model, asked in questions.items():
                answers[model] += peer_once(options.peers, asked)
    result["plans"] = {name: figures_of(PLANS[name], found) for name, found in runs.items()}
    if options.peers:
        result["llm-analysis"] = peer_figures(options.peers, answers)
    print(json.dumps(result, indent=1))
    if options.only is None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
