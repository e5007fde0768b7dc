"""Jobs of every task, drawn by a seed, predicted before any ran, then run on an H200 by TRL's own trainers.

    python benchmarks/tasks.py --predict         writes data/tasks_predictions.jsonl, to be committed before any runs
    python benchmarks/task_run.py benchmarks/data/tasks_predictions.jsonl benchmarks/data/tasks_runs.jsonl --fitting
    python benchmarks/tasks.py --compare         results/tasks.json

Nothing is drawn again because of what a prediction says. A draw that a rule of `tunecast` refuses as contradictory is.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from machine import MEASURED_WITH  # noqa: E402
from memory import commit  # noqa: E402
from timing import write_result  # noqa: E402

import tunecast  # noqa: E402
from tunecast.errors import TunecastError  # noqa: E402

CARD = "h200-sxm-141gb"
DRAWS = {"tasks": (20261121, 20, 7), "tasks2": (20261122, 20, 7)}
"""Seed, text jobs and jobs with images of each draw."""
SMALL = ("qwen2.5-0.5b", "llama-3.2-1b", "qwen3-0.6b", "gemma-3-1b", "smollm2-360m", "qwen2.5-1.5b", "olmo-2-1b")
"""Models that are trained whole, two on the card of some tasks."""
LARGER = ("qwen2.5-3b", "llama-3.2-3b", "qwen3-4b", "mistral-7b", "llama-3.1-8b", "granite-3.3-2b", "phi-3-mini")
STUDENTS = {"qwen2.5-0.5b": "qwen2.5-1.5b", "qwen3-0.6b": "qwen3-1.7b", "llama-3.2-1b": "llama-3.2-3b"}
"""Teachers of the same vocabulary."""
PREFERENCES = ("dpo", "dpo", "kto", "orpo", "cpo", "simpo")
HEADS = ("reward", "classify")
ROLLOUTS = ("grpo", "grpo", "rloo")
SEEING = ("qwen2.5-vl-3b", "qwen2-vl-2b", "qwen3-vl-2b", "qwen3-vl-4b", "gemma-3-4b", "ministral-3-3b", "llava-1.5-7b")
Job = dict[str, Any]


def drawn(name: str) -> list[Job]:
    seed, texts, pictures = DRAWS[name]
    pick = random.Random(seed)
    jobs = [text_job(pick, number) for number in range(texts)] + [picture_job(pick) for _ in range(pictures)]
    return [{"id": f"{name}-{number:02d}", **job} for number, job in enumerate(jobs)]


def text_job(pick: random.Random, number: int) -> Job:
    """Kinds of tasks take turns, so that each is there; what else is drawn."""
    kind = (PREFERENCES, ROLLOUTS, PREFERENCES, HEADS, ("distill",), ROLLOUTS)[number % 6]
    task = pick.choice(kind)
    method = pick.choice(("full", "lora", "lora", "qlora"))
    if task == "distill":
        method = pick.choice(("full", "lora"))
    model = pick.choice(SMALL if method == "full" or task in ROLLOUTS else (*SMALL, *LARGER))
    if task == "distill":
        model = pick.choice(sorted(STUDENTS))
    if method == "qlora" and task in HEADS:
        method = "lora"
    job = {"task": task, "model": model, **common(pick, method)}
    length = pick.choice((384, 512, 777, 1024, 1536))
    job |= {"seq_len": length, "micro_batch": pick.choice((1, 2, 2, 3, 4))}
    if task in PREFERENCES:
        job["preference"] = {"prompt_length": length // pick.choice((3, 4, 8))}
        if task == "dpo" and method == "full" and pick.random() < 0.3:
            job["preference"]["reference"] = "precomputed"
    elif task == "classify":
        job |= {"head": {"labels": pick.choice((2, 5, 77))}, "stack": "transformers"}
    elif task == "distill":
        job["distill"] = {"teacher": STUDENTS[model]}
    elif task in ROLLOUTS:
        generations = pick.choice((2, 4, 8))
        prompt, completion = pick.choice((64, 100, 256)), pick.choice((48, 64, 96))
        job |= {"micro_batch": generations * pick.choice((1, 1, 2)), "seq_len": prompt + completion}
        job["rl"] = {
            "generations": generations, "prompt_length": prompt, "completion_length": completion,
            "beta": pick.choice((0.0, 0.04)) if task == "grpo" else pick.choice((0.0, 0.05)),
            "iterations": pick.choice((1, 1, 2)),
        }  # fmt: skip
    return job


def picture_job(pick: random.Random) -> Job:
    method = pick.choice(("full", "lora", "lora"))
    model = pick.choice([name for name in SEEING if method == "lora" or name not in ("llava-1.5-7b",)])
    job = {"task": "sft", "model": model, **common(pick, method), "stack": "ms-swift"}
    job |= {"micro_batch": pick.choice((1, 2)), "grad_accum": 1}
    pixels = pick.choice((448, 672, 896)) ** 2
    job |= {"seq_len": pick.choice((1536, 2048, 3072))}
    trained = pick.choice((["tower", "projector", "language"], ["projector", "language"])) if method == "full" else (
        ["tower", "projector", "language"]
    )  # fmt: skip
    job["vision"] = {"images": pick.choice((1, 1, 2)), "pixels": pixels, "trained": trained}
    if method == "full":
        job |= {"optimizer": "adamw_8bit" if pick.random() < 0.5 else "adamw_torch_fused"}
    return job


def common(pick: random.Random, method: str) -> Job:
    job: Job = {
        "method": method, "stack": "trl", "weights_dtype": "bfloat16",
        "autocast": pick.choice(("bfloat16", "bfloat16", "bfloat16", None)),
        "optimizer": pick.choice(("adamw_torch", "adamw_torch_fused")), "max_grad_norm": 1.0,
        "grad_accum": pick.choice((1, 1, 2)), "gradient_checkpointing": pick.random() < 0.5, **MEASURED_WITH,
    }  # fmt: skip
    if method != "full":
        targets: Any = pick.choice(("all-linear", ["q_proj", "v_proj"]))
        job["lora"] = {"rank": pick.choice((8, 16, 32)), "alpha": 32, "dropout": 0.0, "targets": targets}
    return job


def predicted(job: Job, made_at: str) -> Job:
    row: Job = {"job": job, "commit": made_at}
    try:
        found = tunecast.predict(tunecast.read({**job, "hardware": {"gpu": CARD}}))
        memory, time = found.memory, found.time
        tasks = getattr(time, "task_s", None)
        row["predicted"] = {
            "fits": found.fits, "exactness": found.exactness, "model_bytes": memory.model_bytes,
            "allocated_bytes": memory.allocated_bytes, "reserved_bytes": memory.reserved_bytes, "step_s": time.step_s,
            "low_s": time.low_s, "high_s": time.high_s, "task_s": dict(tasks) if tasks else None,
        }  # fmt: skip
        row["reasons"] = list(found.reasons)
    except TunecastError as error:
        row["refused"] = error.message
    return row


def predict(name: str) -> None:
    path = HERE / "data" / f"{name}_predictions.jsonl"
    with path.open("w") as out:
        for job in drawn(name):
            row = predicted(job, commit())
            out.write(json.dumps(row) + "\n")
            print(
                job["id"],
                job["task"],
                job["model"],
                job["method"],
                row.get("predicted") or row.get("refused"),
                flush=True,
            )


# ------------------------------------------------------------------------------------------------------------- compared


def compared(run: Job) -> Job:
    job, said, measured = run["job"], run["predicted"], run["measured"]
    row = {"id": job["id"], "task": job["task"], "model": job["model"], "method": job["method"],
           "exactness": said["exactness"], "images": job.get("vision", {}).get("images", 0)}  # fmt: skip
    if not measured["completed"]:
        return {**row, "failed": measured["error"].strip().splitlines()[-1][:160]}
    steps = step_seconds(job, measured["step_s"])
    row |= {
        "allocated_bytes": said["allocated_bytes"] - measured["peak_alloc"],
        "allocated_error": said["allocated_bytes"] / measured["peak_alloc"] - 1,
        "reserved_error": said["reserved_bytes"] / measured["peak_reserved"] - 1,
        "step_s": steps, "step_error": said["step_s"] / steps - 1,
        "in_range": said["low_s"] <= steps <= said["high_s"],
    }  # fmt: skip
    if measured.get("generate_s") and said.get("task_s"):
        calls = measured["generate_s"][1:] or measured["generate_s"]
        per_step = statistics.median(calls) / job["rl"]["iterations"]
        row |= {"generate_s": per_step, "generate_error": said["task_s"]["generate"] / per_step - 1}
    return row


def step_seconds(job: Job, steps: list[float]) -> float:
    """The median of all but the first; where completions serve several steps, the mean over whole cycles of them."""
    cycle = job.get("rl", {}).get("iterations", 1)
    if cycle == 1:
        return statistics.median(steps[1:])
    return statistics.mean(steps[-((len(steps) - 1) // cycle * cycle) :])


def off(rows: list[Job], key: str) -> Job:
    found = sorted(abs(row[key]) for row in rows if key in row)
    return {"rows": len(found), "median": statistics.median(found), "worst": found[-1]} if found else {"rows": 0}


def compare(name: str) -> None:
    lines = (HERE / "data" / f"{name}_runs.jsonl").read_text().splitlines()
    rows = [compared(json.loads(line)) for line in lines]
    ran = [row for row in rows if "failed" not in row]
    kinds = {"tasks": [r for r in ran if not r["images"]], "vision": [r for r in ran if r["images"]], "all": ran}
    figures = ("allocated_error", "reserved_error", "step_error", "generate_error")
    summary = {kind: {key: off(part, key) for key in figures} for kind, part in kinds.items()}
    said = sum(1 for _ in (HERE / "data" / f"{name}_predictions.jsonl").open())
    to_the_byte = sum(row["allocated_bytes"] == 0 for row in ran)
    counts = {"drawn": said, "started": len(rows), "ran": len(ran), "allocated_to_the_byte": to_the_byte}
    write_result(HERE / "results" / f"{name}.json", {**counts, "summary": summary, "rows": rows})
    for row in rows:
        print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}))
    print(json.dumps({**counts, **summary}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", choices=DRAWS, default="tasks")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    if options.predict:
        predict(options.draw)
    if options.compare:
        compare(options.draw)


if __name__ == "__main__":
    main()
