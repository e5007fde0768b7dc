"""One rendered training: run by its package on CPUs, resumed, and traced as it is for cards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.cases import Case
from tunecast.door.launch import launch
from tunecast.door.predict import predict
from tunecast.door.read import read
from tunecast.door.trace import trace
from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.launching.programs import as_framework

ROOT = Path(__file__).resolve().parents[3]
STEPS, SAVE_STEPS, MOST_S = 3, 2, 900
PACKAGES = ("torch", "transformers", "peft", "trl", "bitsandbytes")
OFFLINE = {"HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1", "WANDB_DISABLED": "true", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class Result:
    framework: str
    name: str
    trained: str
    """`3 steps`, or why not."""
    resumed: str
    """`after step 2`; '': not tried."""
    predicted_bytes: tuple[int, int] | None
    """Allocated, reserved."""
    traced_bytes: tuple[int, int] | None
    difference: str
    """Why the two are not the same; '': they are, or it was not traced."""
    seconds: float


@dataclass(frozen=True)
class Environment:
    """Where a package is installed."""

    python: Path
    releases: dict[str, str]

    def variables(self, tools: Path) -> dict[str, str]:
        """`tools`: programs that belong to a package of another environment, run by this one's Python."""
        path = [str(tools), str(self.python.parent), os.environ["PATH"]]
        return {**os.environ, **OFFLINE, "PATH": os.pathsep.join(path), "PYTHONPATH": ""}


def environment_of(folder: Path) -> Environment:
    python = folder / "bin" / "python"
    asked = f"from importlib.metadata import version\nfor n in {(*PACKAGES, 'torchtune', 'llamafactory', 'axolotl')}:\n"
    asked += " try: print(n, version(n).partition('+')[0])\n except Exception: pass"
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout
    return Environment(python, dict(line.split() for line in told.splitlines()))


def make_tools(folder: Path, environment: Environment) -> Path:
    """torchrun and accelerate lie with torch, in the environment that this one borrows from."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in {
        "torchrun": "torch.distributed.run",
        "accelerate": "accelerate.commands.accelerate_cli",
    }.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {environment.python} -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def job_of(case: Case, made: Path, environment: Environment) -> Job:
    releases = {f"{name}_version": environment.releases[name] for name in PACKAGES if name in environment.releases}
    if case.framework == "torchtune":
        releases = {"torch_version": releases["torch_version"]}
    given = {
        "stack": case.framework, "hardware.gpu": "h100-sxm-80gb", "seq_len": 64, "micro_batch": 2,
        "run.max_steps": STEPS, "data.path": str(made / f"{case.data}.jsonl"), **releases, **case.fields,
    }  # fmt: skip
    if case.framework != "torchtune":
        given["run.save_steps"] = SAVE_STEPS
    return as_framework(read(str(made / "model"), given))[0]


def run_case(case: Case, made: Path, work: Path, environment: Environment) -> Result:
    began, folder = time.monotonic(), work / case.framework / case.name
    variables = environment.variables(make_tools(work / case.framework / "tools", environment))
    trained, resumed = (case.why, "") if not case.trained else train(case, made, folder, environment, variables)
    predicted, traced, difference = None, None, ""
    if case.traced:
        predicted, traced, difference = compare(case, made, work / case.framework / f"{case.name}-card", environment)
    return Result(
        *(case.framework, case.name, trained, resumed, predicted, traced, difference),
        round(time.monotonic() - began, 1),
    )


def train(case: Case, made: Path, folder: Path, environment: Environment, variables: dict[str, str]) -> tuple[str, str]:
    shutil.rmtree(folder, ignore_errors=True)  # Axolotl finds data that it prepared before
    launch(job_of(case, made, environment), on="local", dry_run=True, cpu=True, out=folder)
    failed = run_script("train.sh", folder, variables)
    if failed:
        return failed, ""
    told = f"{steps_in(folder)} steps"
    if not case.resumed:
        return told, ""
    if case.framework != "torchtune":
        (folder / "output" / f"checkpoint-{STEPS}" / "trainer_state.json").unlink()  # killed while it saved
    failed = run_script("resume.sh", folder, variables, "resume.log")
    return told, failed or resumed_at((folder / "resume.log").read_text(errors="replace"))


def resumed_at(log: str) -> str:
    """As its progress bar says, where that begins; torchtune's counts epochs, and steps from 1 in each run."""
    epochs = {int(epoch) for epoch in re.findall(r"\b(\d+)\|\d+\|Loss", log)}
    if epochs:
        return f"in epoch {min(epochs)}"
    steps = {int(step) for step in re.findall(r"\b(\d+)/\d+ \[", log)} - {0}
    return f"after step {min(steps) - 1}" if steps else "no step was made"


def run_script(name: str, folder: Path, variables: dict[str, str], log: str = "train.log") -> str:
    """'' where it did what it should; else its last error."""
    with (folder / log).open("w") as out:
        done = subprocess.run(
            ["bash", name], cwd=folder, env=variables, stdout=out, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, timeout=MOST_S, check=False,
        )  # fmt: skip
    if done.returncode == 0:
        return ""
    lines = [line for line in (folder / log).read_text(errors="replace").splitlines() if re.match(r"\S*Error\b", line)]
    return lines[0][:300] if lines else f"exit code {done.returncode}"


def steps_in(folder: Path) -> int:
    """As the package itself counted them."""
    states = sorted((folder / "output").glob("checkpoint-*/trainer_state.json"), key=lambda each: each.stat().st_mtime)
    if states:
        return int(json.loads(states[-1].read_text())["global_step"])
    logs = sorted((folder / "output" / "logs").glob("*.txt"))
    return len(re.findall(r"^Step ", logs[0].read_text(), re.MULTILINE)) if logs else 0


def compare(
    case: Case, made: Path, folder: Path, environment: Environment
) -> tuple[tuple[int, int] | None, tuple[int, int] | None, str]:
    job = job_of(case, made, environment)
    launch(job, on="local", dry_run=True, out=folder)
    memory = predict(job).memory
    predicted = (memory.allocated_bytes, memory.reserved_bytes)
    os.environ["PATH"] = os.pathsep.join(
        [str(folder.parent / "tools"), str(environment.python.parent), os.environ["PATH"]]
    )
    os.environ.update(OFFLINE)
    try:
        found: Any = trace(["bash", str(folder / "train.sh")], gpu=job.hardware.gpu, python=str(environment.python))
    except TunecastError as error:
        return predicted, None, f"not traced: {error.message[:300]}"
    traced = (found.memory.allocated_bytes, found.memory.reserved_bytes)
    told = "" if found.answer.error is None else f"ended: {found.answer.error}"
    if traced != predicted and not told:
        told = f"allocated {traced[0] - predicted[0]:+,}, reserved {traced[1] - predicted[1]:+,} bytes"
    return predicted, traced, told
