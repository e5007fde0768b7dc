"""Planned jobs, predicted, then launched by `tunecast launch PLAN --on local` on a card: memory and wall time.

    python benchmarks/launched_on_card.py make FOLDER                 models without weights, data, jobs, plans
    python benchmarks/launched_on_card.py predict FOLDER OUT.jsonl    of the plans; needs no card
    python benchmarks/launched_on_card.py run FOLDER OUT.jsonl        on the card: makes weights, launches each plan
    python benchmarks/launched_on_card.py compare PREDICTED RAN       the two side by side
    ... --only NAME...                                                some of the jobs
    ... --tiny                                                        models of two layers, launched without a card

No line of TRL is changed. Every Python process of a launch finds sitecustomize.py of launched_inside/ on its path: it
reads the allocator's counters when the process ends. `run` leaves out what OUT has, and adds to it after every job.

wall_s       from the call of `tunecast launch` to the end of the job it started
submit_s     of that, until `tunecast launch` came back: its prediction and its rendering
job_s        from the first moment of the job to its end: what the prediction's total_s is of
process_s    from the start of the training's own process to its end
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from files_on_card import make_model, text_of, words_of

HERE = Path(__file__).resolve().parent
CARD = "h200-sxm-141gb"
SEED = 13
RELEASES = {
    "torch_version": "2.11.0",
    "transformers_version": "5.17.0",
    "trl_version": "1.16.0",
    "peft_version": "0.21.0",
    "bitsandbytes_version": "0.50.2",
}
"""Of the machine with the card."""
JOBS: dict[str, dict[str, Any]] = {
    "full": {
        "model": "llama-3.2-1b", "data": "texts", "seq_len": 1024, "micro_batch": 8, "method": "full",
        "run": {"max_steps": 300},
    },
    "lora": {
        "model": "qwen2.5-7b", "data": "chats", "seq_len": 1024, "micro_batch": 4, "grad_accum": 2, "method": "lora",
        "lora": {"rank": 16, "targets": "all-linear"}, "run": {"max_steps": 75},
    },
    "qlora": {
        "model": "llama-3.1-8b", "data": "texts", "seq_len": 1024, "micro_batch": 4, "method": "qlora",
        "lora": {"rank": 16, "targets": "all-linear"}, "run": {"max_steps": 130},
    },
    "dpo": {
        "model": "qwen2.5-1.5b", "data": "pairs", "seq_len": 1024, "micro_batch": 4, "method": "full", "task": "dpo",
        "run": {"max_steps": 200},
    },
}  # fmt: skip
TINY = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 4096, "max_window_layers": 2, "head_dim": 16}  # fmt: skip
"""In place of the models' own, and few steps, to rehearse all of this without a card."""
OVER = ("done", "failed", "cancelled", "ended", "not started")
RUNTIME = re.compile(r"'train_runtime': '?([0-9.eE+-]+)")
HARDWARE = {"gpu": CARD, "gpus": 1, "download_bytes_per_s": None}
"""The weights lie on its disk."""
PLAN = ("--gpu", CARD, "--gpus", "1", "--keep", "kernels")
"""Liger's kernels are not installed there."""
Row = dict[str, Any]


# ---------------------------------------------------------------------------------------------------- what is launched


def make(folder: Path, names: list[str], tiny: bool) -> None:
    draw = random.Random(SEED)
    words = words_of(draw)
    texts = [text_of(draw, words, 1200) for _ in range(2400)]
    data: dict[str, list[Row]] = {
        "texts": [{"text": text} for text in texts],
        "chats": [{"messages": chat(draw, words)} for _ in range(800)],
        "pairs": [pair(draw, words) for _ in range(800)],
    }
    for part in ("data", "jobs", "plans"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, rows in data.items():
        (folder / "data" / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name in names:
        job = dict(JOBS[name])
        model, rows_of = str(job.pop("model")), job.pop("data")
        make_model(folder / "models" / model, model, texts[:600])
        if tiny:
            config = folder / "models" / model / "config.json"
            raw = json.loads(config.read_text()) | TINY
            raw.pop("layer_types", None)
            config.write_text(json.dumps(raw, indent=1))
            job |= {"run": {"max_steps": 3}, "seq_len": 64}
        job |= {"model": f"models/{model}", "stack": "trl", "hardware": HARDWARE, **RELEASES}
        job["data"] = {"path": f"data/{rows_of}.jsonl"}
        (folder / "jobs" / f"{name}.json").write_text(json.dumps(job, indent=1))
        plan = tunecast(folder, "plan", f"jobs/{name}.json", *PLAN, "--json")
        (folder / "plans" / f"{name}.json").write_text(plan)
        found = json.loads(plan)
        print(name, found["best"], found["picks"][found["best"]]["changes"], flush=True)


def chat(draw: random.Random, words: list[str]) -> list[Row]:
    turns = draw.randint(1, 3)
    roles = [role for _ in range(turns) for role in ("user", "assistant")]
    return [{"role": role, "content": text_of(draw, words, 90)} for role in roles]


def pair(draw: random.Random, words: list[str]) -> Row:
    answers = {name: text_of(draw, words, 120) for name in ("chosen", "rejected")}
    return {"prompt": text_of(draw, words, 80), **answers}


def tunecast(folder: Path, *given: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tunecast", *given], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"tunecast {' '.join(given)}: {done.stderr[-2000:]}")
    return done.stdout


# ------------------------------------------------------------------------------------------------------------ predicted


def predict(folder: Path, name: str) -> Row:
    """Of the job that `launch` makes of the plan."""
    sys.path.insert(0, str(HERE.parent / "src"))
    from tunecast.door.launch_source import job_of
    from tunecast.door.predict import predict as predicted

    os.chdir(folder)
    plan = json.loads(Path("plans", f"{name}.json").read_text())
    job, _ = job_of(f"plans/{name}.json", None)
    found = predicted(job).to_dict()
    memory, whole = found["memory"], found["time"]
    return {
        **{key: memory[key] for key in ("allocated_bytes", "reserved_bytes", "device_bytes", "range_bytes")},
        **{key: whole[key] for key in ("total_s", "total_range_s", "phases_s", "step_s", "steps", "padded_tokens")},
        **{key: found[key] for key in ("exactness", "reasons", "warnings")},
        "changes": plan["picks"][plan["best"]]["changes"],
    }


# ------------------------------------------------------------------------------------------------------------- measured


def write_weights(place: Path, tiny: bool) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if any(place.glob("*.safetensors")):
        return
    with torch.device("cpu" if tiny else "cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place), dtype=torch.bfloat16)
    model.save_pretrained(place)
    del model
    if not tiny:
        torch.cuda.empty_cache()


def run(folder: Path, name: str, tiny: bool, limit_s: float, preflight: bool) -> Row:
    """Weights are made in a process of its own, which leaves the card as it was."""
    model = json.loads((folder / "jobs" / f"{name}.json").read_text())["model"]
    made = time.monotonic()
    maker = [sys.executable, __file__, "weights", str(folder / model), *(["--tiny"] if tiny else [])]
    subprocess.run(maker, check=True)
    weights_s = time.monotonic() - made
    inside = folder / "inside" / name
    shutil.rmtree(inside, ignore_errors=True)
    inside.mkdir(parents=True)
    paths = [str(HERE / "launched_inside"), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "HF_HUB_OFFLINE": "1",
        "XDG_DATA_HOME": str(folder / "state"),
        "LAUNCHED_INSIDE": str(inside),
    }
    asked = ["launch", f"plans/{name}.json", "--on", "local", "--json", *(["--cpu"] if tiny else [])]
    asked += [] if preflight else ["--no-preflight"]
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "tunecast", *asked], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        return {"error": done.stderr[-2000:]}
    launched = json.loads(done.stdout)
    submitted = time.time()
    place = Path(launched["folder"])
    status = place / "exit_status"
    while not status.exists() and time.time() - submitted < limit_s:
        time.sleep(0.1)
    ended = status.stat().st_mtime if status.exists() else None
    if ended is None:
        subprocess.run([sys.executable, "-m", "tunecast", "cancel", launched["id"]], cwd=folder, env=environment)
    log = (place / "train.log").read_text(errors="replace")
    runtime = RUNTIME.search(log)
    row = {
        "exit_status": int(status.read_text()) if ended else None,
        "wall_s": None if ended is None else round(ended - began, 3),
        "job_s": None if ended is None else round(ended - (place / "process").stat().st_mtime, 3),
        "submit_s": round(submitted - began, 3),
        "train_runtime_s": float(runtime[1]) if runtime else None,
        "weights_s": round(weights_s, 1),
        "notes": launched["notes"],
        **of_training(inside),
    }
    if row["exit_status"]:
        row["log"] = log[-3000:]
    if preflight:
        row["preflight"] = log[: log.find("\npreflight: ") + 200]
    shutil.rmtree(place / "output", ignore_errors=True)
    for file in (folder / model).glob("*.safetensors"):
        file.unlink()
    return row


def of_training(inside: Path) -> Row:
    """What the process said that stepped an optimizer; those of the check before it took two steps."""
    told = [json.loads(path.read_text()) for path in inside.glob("*.json")]
    return max(told, key=lambda row: int(row["steps"]), default={})


def each_job(names: list[str], out: Path, answer: Any) -> None:
    known = {json.loads(line)["name"] for line in out.read_text().splitlines()} if out.exists() else set()
    for name in names:
        if name not in known:
            row = {"name": name, **answer(name)}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print({key: value for key, value in row.items() if key != "step_ends_s"}, flush=True)


def compare(predicted: Path, ran: Path) -> None:
    told = {row["name"]: row for row in map(json.loads, predicted.read_text().splitlines())}
    for was in map(json.loads, ran.read_text().splitlines()):
        said = told[was["name"]]
        if was.get("exit_status") != 0 or "allocated_bytes" not in was:
            print(f"{was['name']:6} did not end: {was.get('error') or was.get('log') or was}")
            continue
        off = [f"{key} {said[key] / was[key] - 1:+.3%}" for key in ("allocated_bytes", "reserved_bytes")]
        off += [f"{key} {was[key]:.1f} of {said['total_s']:.1f} predicted {said['total_s'] / was[key] - 1:+.1%}"
                for key in ("job_s", "wall_s")]  # fmt: skip
        print(f"{was['name']:6} {'  '.join(off)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("make", "predict", "run", "compare", "weights"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--limit-s", type=float, default=300.0, help="of one job")
    parser.add_argument(
        "--preflight", action="store_true", help="check the machine first; its seconds are in job_s too"
    )
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.action == "make":
        make(folder, given.only, given.tiny)
    elif given.action == "weights":
        write_weights(folder, given.tiny)
    elif given.action == "compare":
        compare(folder, given.out)
    elif given.action == "predict":
        each_job(given.only, given.out.resolve(), lambda name: predict(folder, name))
    else:
        each_job(
            given.only, given.out.resolve(), lambda name: run(folder, name, given.tiny, given.limit_s, given.preflight)
        )


if __name__ == "__main__":
    main()
