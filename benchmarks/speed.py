"""How long the closed form takes, beside a bare interpreter and the peers, all in one run; writes `results/speed.json`.

    python benchmarks/speed.py [--peers ENV/bin/python] [--only in_process|growth|cold|many]

Figures are medians, and the best beside them: a shared machine is never still. The bare interpreter starts in turn with
everything it is compared with, under the same environment. Time is reported, not promised by tests.

in_process  one 8B job in a process that has answered two such jobs; each with another length: what its program is like
            is known, the sizes are not. `first` is the first of its kind. CPU seconds stand beside: they tell more
            where others work too
growth      the same job over models of ever more layers
cold        a command from nothing to its answer, and `python -c pass`: the package as pip leaves it, in a folder of its
            own with its bytecode compiled (a checkout would compile what changed at every start, or never keep it),
            and the `tunecast` script that pip writes. CPU seconds beside: of the whole process, its start included
many        a file of 1,000 jobs in JSON Lines, as one command and as two at once

`python compile_native.py` first: without, replays run in Python, and `native` says so.
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"
sys.path[:0] = [str(HERE), str(SOURCE)]

from memory import commit  # noqa: E402

from tunecast.job import job_from_dict  # noqa: E402
from tunecast.job.registry import bundled_config, bundled_models  # noqa: E402
from tunecast.prediction import native  # noqa: E402
from tunecast.prediction.engines import predict  # noqa: E402

Figures = dict[str, Any]
TIMES = 20
STARTS = 11
JOBS: dict[str, Figures] = {
    "full": {"method": "full", "weights_dtype": "bfloat16", "autocast": None, "gradient_checkpointing": True},
    "lora": {"method": "lora", "weights_dtype": "bfloat16"},
    "qlora": {"method": "qlora", "weights_dtype": "bfloat16", "gradient_checkpointing": True},
}
GROWTH = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
SWEPT = ("llama-3.2-1b", "llama-3.1-8b", "qwen2.5-7b", "mistral-7b", "gemma-2-9b")
MANY, MANY_SEED = 1000, 20261117
LIMIT_S = 240.0


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def told(values: Sequence[float]) -> Figures:
    return {"median_s": round(statistics.median(values), 5), "best_s": round(min(values), 5), "times": len(values)}


def in_process() -> Figures:
    """The memory alone; the least capacity as well, which takes several replays; the whole prediction, with time."""
    found: Figures = {}
    for name, values in JOBS.items():
        memory, least, whole, cpu = [], [], [], []
        for number in range(-2, TIMES):
            job = job_from_dict({"model": "llama-3.1-8b", "seq_len": 2048 + 8 * number, **values})
            start, cpu_start = time.perf_counter(), time.process_time()
            done = predict(job)
            done.on_card.at_peak  # noqa: B018  what is asked for is computed
            memory.append(time.perf_counter() - start)
            cpu.append(time.process_time() - cpu_start)
            done.on_card.smallest_capacity_bytes  # noqa: B018
            least.append(time.perf_counter() - start)
            done.to_dict()
            whole.append(time.perf_counter() - start)
        found[name] = {
            "first": told(memory[:1]),
            "memory": told(memory[2:]),
            "memory_cpu": told(cpu[2:]),
            "with_least_capacity": told(least[2:]),
            "with_time": told(whole[2:]),
        }
    return found


def growth() -> list[Figures]:
    found = []
    for model in GROWTH:
        layers = int(bundled_config(model)["num_hidden_layers"])
        times = []
        for number in range(7):
            job = job_from_dict({"model": model, "seq_len": 2048 + 8 * number, **JOBS["lora"]})
            times.append(seconds(lambda job=job: predict(job)))  # type: ignore[misc]
        found.append({"model": model, "layers": layers, "memory": told(times[2:])})
    return found


class Start(NamedTuple):
    wall_s: float
    cpu_s: float


def start(command: Sequence[str], environment: dict[str, str]) -> Start:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s = seconds(lambda: subprocess.run(command, env=environment, capture_output=True, check=True))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Start(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def installed(folder: Path) -> tuple[Path, dict[str, str]]:
    """The package as pip leaves it: bytecode compiled, and a script; with the environment to start it in."""
    shutil.copytree(SOURCE / "tunecast", folder / "tunecast", ignore=shutil.ignore_patterns("__pycache__"))
    if not compileall.compile_dir(folder / "tunecast", quiet=2):
        raise SystemExit("the package cannot be compiled")
    script = folder / "script.py"
    script.write_text("import sys\n\nfrom tunecast.cli.main import command\n\nsys.exit(command())\n")
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    return script, kept | {"PYTHONPATH": str(folder)}


def cold(peers: str | None) -> Figures:
    """Started in turns: whatever else the machine does falls on all alike."""
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        script, environment = installed(Path(folder))
        ours = [python, str(script)]
        commands: dict[str, Sequence[str]] = {
            "python -c pass": [python, "-c", "pass"],
            "tunecast predict llama-3.1-8b --json": [*ours, "predict", "llama-3.1-8b", "--json"],
            "tunecast predict llama-3.1-8b": [*ours, "predict", "llama-3.1-8b"],
            "tunecast --version": [*ours, "--version"],
        }
        if peers is not None:
            config = Path(folder) / "config.json"
            config.write_text(json.dumps(bundled_config("llama-3.1-8b")))
            beside = Path(peers).parent
            commands["peers' python -c pass"] = [peers, "-c", "pass"]
            commands["vramcalc estimate CONFIG --train --json"] = [
                *(str(beside / "vramcalc"), "estimate", folder, "--train", "--json")
            ]
            # With a model it asks the Hub for its configuration: this one needs no network, nor does it estimate.
            commands["fitcheck --list-gpus"] = [str(beside / "fitcheck"), "--list-gpus"]
        starts: dict[str, list[Start]] = {name: [] for name in commands}
        for _ in range(STARTS):
            for name, command in commands.items():
                starts[name].append(start(command, environment))
    walls = {name: [each.wall_s for each in found] for name, found in starts.items()}
    cpus = {name: [each.cpu_s for each in found] for name, found in starts.items()}
    bare, bare_cpu = statistics.median(walls["python -c pass"]), statistics.median(cpus["python -c pass"])
    return {
        name: told(walls[name])
        | {
            "of_a_bare_start": round(statistics.median(walls[name]) / bare, 2),
            "cpu_median_s": round(statistics.median(cpus[name]), 5),
            "of_a_bare_start_cpu": round(statistics.median(cpus[name]) / bare_cpu, 2),
        }
        for name in starts
    }


def many_jobs(count: int = MANY) -> list[Figures]:
    """A planner's questions: every combination of a few choices, in an order without system, with ids."""
    choices = itertools.product(
        SWEPT, JOBS, (512, 1024, 2048, 4096), (1, 2, 4, 8), (8, 16, 64), ("rtx-4090", "a100-sxm-80gb", "h200-sxm-141gb")
    )
    all_of_them = [
        {"model": model, **JOBS[method], "seq_len": length, "micro_batch": batch, "hardware": {"gpu": gpu}}
        | ({} if method == "full" else {"lora": {"rank": rank}})
        for model, method, length, batch, rank, gpu in choices
        if method != "full" or rank == 8
    ]
    random.Random(MANY_SEED).shuffle(all_of_them)
    return [{"id": number, **job} for number, job in enumerate(all_of_them[:count])]


def many(count: int, limit_s: float) -> Figures:
    """Ended after a limit, where the rate so far tells the rest."""
    jobs = many_jobs(count)
    found: Figures = {"jobs": len(jobs), "models": len({job["model"] for job in jobs})}
    for name, parts in (("one command", 1), ("two commands at once", 2)):
        with tempfile.TemporaryDirectory() as folder:
            commands = []
            for part in range(parts):
                path = Path(folder) / f"jobs{part}.jsonl"
                path.write_text("".join(json.dumps(job) + "\n" for job in jobs[part::parts]))
                commands.append([sys.executable, "-m", "tunecast", "predict", str(path), "--json"])
            found[name] = answered(commands, Path(folder), limit_s)
    return found


def answered(commands: Sequence[Sequence[str]], folder: Path, limit_s: float) -> Figures:
    _, environment = installed(folder)
    outputs = [folder / f"out{number}.jsonl" for number in range(len(commands))]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    children = []
    for command, output in zip(commands, outputs, strict=True):
        with output.open("wb") as out:
            children.append(subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.DEVNULL))
    for child in children:
        try:
            child.wait(max(1.0, limit_s - (time.perf_counter() - start)))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    passed = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [json.loads(line) for output in outputs for line in output.read_text().splitlines() if line.endswith("}")]
    errors = sum("error" in line for line in lines)
    return {
        "seconds": round(passed, 2),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "answers": len(lines) - errors,
        "errors": errors,
        "jobs_per_s": round(len(lines) / passed, 1),
    }


def machine() -> Figures:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "native": native.run is not None,
        "python": platform.python_version(),
        "cpu": next(
            (
                line.partition(":")[2].strip()
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")
            ),
            platform.machine(),
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="interpreter with fitcheck-llm and vramcalc; without it they are not started")
    parser.add_argument("--only", choices=("in_process", "growth", "cold", "many"), help="prints, writes nothing")
    parser.add_argument("--count", type=int, default=MANY, help="jobs of the file")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="end each reading of that file after this long")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "speed.json")
    options = parser.parse_args()
    if options.peers and shutil.which(options.peers) is None:
        parser.error(f"--peers: there is no interpreter {options.peers}")
    parts: dict[str, Callable[[], Any]] = {
        "in_process": in_process,
        "growth": growth,
        "cold": lambda: cold(options.peers),
        "many": lambda: many(options.count, options.limit_s),
    }
    result: Figures = {"commit": commit(), "machine": machine(), "models_known": len(bundled_models())}
    for name, part in parts.items():
        if options.only in (None, name):
            result[name] = part()
            print(name, json.dumps(result[name], indent=1), flush=True)
    if options.only is None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
