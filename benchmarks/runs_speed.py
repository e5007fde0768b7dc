"""How long `tunecast runs` takes over 100,000 runs, beside the same question asked of one table of JSON.

    python benchmarks/runs_speed.py [--runs 100000] [--out benchmarks/results/runs_speed.json]

Every figure is of a process of its own, from its start to its end: the median of five, after one that nobody counts.
`wall` is what a person waits, `cpu` what it takes on a machine that others use too.

json     the records in one table of SQLite, the newest 30 and the counts of each state asked by json_extract: what a
         store without rows of its own for lists would do
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src")]

from tunecast.job.mapping import job_from_dict  # noqa: E402
from tunecast.learn.record import MeasuredRun, run_from  # noqa: E402
from tunecast.learn.recordable import job_fields  # noqa: E402
from tunecast.learn.runs_store.store import PAGE, open_store  # noqa: E402
from tunecast.records import replace  # noqa: E402

TIMES = 5
CARDS = ("h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-80gb", "l40s", "rtx-4090")
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "llama-3.2-1b", "qwen3-8b")
STATES = ("done", "oom", "failed", "killed", "stopped")
COMMANDS: dict[str, list[str]] = {
    "runs": [],
    "runs --gpu h100-sxm-80gb --since 2026-06-01": ["--gpu", "h100-sxm-80gb", "--since", "2026-06-01"],
    "runs --model qwen2.5-7b --method lora": ["--model", "qwen2.5-7b", "--method", "lora"],
    "runs --plot": ["--plot"],
    "runs list --json --limit 1000": ["list", "--json", "--limit", "1000"],
}
JSON = """
import sqlite3, sys
asked = sqlite3.connect(sys.argv[1])
print(asked.execute("SELECT json_extract(record, '$.state'), COUNT(*) FROM tunecast_records GROUP BY 1").fetchall())
began = "json_extract(record, '$.began')"
print(len(asked.execute(f"SELECT record FROM tunecast_records ORDER BY {began} DESC LIMIT 30").fetchall()))
"""


def some_runs(count: int, seed: int) -> list[MeasuredRun]:
    draw = random.Random(seed)
    jobs = {
        (model, method): job_fields(job_from_dict({"model": model, "method": method}))
        for model in MODELS
        for method in ("full", "lora", "qlora")
    }
    pattern = {
        "schema": "tunecast.run/1", "id": "0" * 32, "source": "callback", "state": "done",
        "began": "2026-01-01T00:00:00Z", "software": {"python": "3.12.3", "torch": "2.13.0", "transformers": "5.17.0"},
        "memory": {"device_bytes": 1}, "time": {"step_s": 1.0}, "predicted": {"device_bytes": 1, "step_s": 1.0},
        "hardware": {"gpu": CARDS[0], "gpus": 1, "nodes": 1, "cpu": "AMD EPYC 9654 96-Core Processor"},
        "loss": [[step * 10, 2.5 - step / 100] for step in range(100)], "tunecast": "0.1.0",
    }  # fmt: skip
    one = run_from(pattern)
    assert one.hardware and one.memory and one.time and one.predicted
    found = []
    for _ in range(count):
        device_bytes, step_s = int(10 ** draw.uniform(9.5, 11)), 10 ** draw.uniform(-1, 1)
        began = f"2026-{draw.randint(1, 11):02d}-{draw.randint(1, 28):02d}T{draw.randint(0, 23):02d}:00:00Z"
        found.append(
            replace(
                one,
                id=f"{draw.getrandbits(128):032x}",
                state=draw.choices(STATES, (90, 4, 3, 2, 1))[0],
                began=began,
                job=jobs[draw.choice(list(jobs))],
                hardware=replace(one.hardware, gpu=draw.choice(CARDS), gpus=draw.choice((1, 2, 4, 8))),
                memory=replace(one.memory, device_bytes=int(device_bytes * draw.gauss(1, 0.01))),
                time=replace(one.time, step_s=step_s * draw.gauss(1, 0.06)),
                predicted=replace(one.predicted, device_bytes=device_bytes, step_s=step_s),
            )
        )
    return found


def timed(words: list[str], environ: dict[str, str]) -> dict[str, float]:
    walls, cpus = [], []
    for number in range(TIMES + 1):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(words, env=environ, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if number:
            walls.append(time.monotonic() - began)
            cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"wall_s": round(median(walls), 3), "cpu_s": round(median(cpus), 3)}


def measure(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "XDG_DATA_HOME": folder, "PYTHONPATH": str(ROOT / "src")}
        environ.pop("TUNECAST_STORE", None)
        made = 0
        began = time.process_time()
        with open_store(environ) as store:
            while made < count:
                made += store.add_many(some_runs(min(PAGE, count - made), made))
        added_s = time.process_time() - began
        file = Path(folder) / "tunecast" / "runs.db"
        found = {
            name: timed([sys.executable, "-m", "tunecast", "runs", *words], environ) for name, words in COMMANDS.items()
        }
        found["json: counts and the newest 30 of one table"] = timed([sys.executable, "-c", JSON, str(file)], environ)
        found["an empty Python"] = timed([sys.executable, "-c", ""], environ)
        size_bytes = file.stat().st_size
    git = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "date": date.today().isoformat(), "commit": commit, "runs": count, "file_bytes": size_bytes,
        "cpus": os.cpu_count(), "python": sys.version.split()[0], "sqlite": sqlite3.sqlite_version,
        "added_cpu_s": round(added_s, 1), "commands": found,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.runs)
    print(json.dumps(result, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
