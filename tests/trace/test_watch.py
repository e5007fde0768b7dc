"""Real trainings on CPUs, watched: the Trainer, TRL, two processes of DDP, a deadline, out of memory, a loop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_training

from tunecast.learn.runs_store.store import open_store

SOURCE = Path(__file__).parents[2] / "src"
PROGRAMS = Path(__file__).parent / "watched"
WATCH = (sys.executable, "-m", "tunecast", "watch")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
JOB = """\
model: llama-3.2-1b
method: lora
micro_batch: 4
grad_accum: 2
hardware: {gpu: rtx-4090, capacity_bytes: 3900000000}
data: {lengths: %s}
"""
"""Of the rows that `trainer.py ... longest` trains a smaller model on, in the same order."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, run_programs: Any) -> dict[str, Any]:
    """All of them side by side, each with a store of its own."""
    folder = tmp_path_factory.mktemp("watched")
    made = tiny_training.make(folder)
    (folder / "job.yaml").write_text(JOB % ([16] * 399 + [256]))
    trainer, sft, loop = (str(PROGRAMS / name) for name in ("trainer.py", "sft.py", "loop.py"))
    python = (sys.executable,)
    commands = {
        "trainer": (*WATCH, "--", *python, trainer, str(folder / "trainer"), "12"),
        "ranks": (*WATCH, "--", *TORCHRUN, trainer, str(folder / "ranks"), "1000000", "asked"),
        "oom": (*WATCH, "--", *python, trainer, str(folder / "oom"), "12", "oom"),
        "longest": (*WATCH, str(folder / "job.yaml"), "--", *python, trainer, str(folder / "longest"), "50", "longest"),
        "callback": (*python, trainer, str(folder / "callback"), "6", "callback"),
        "sft": (*WATCH, "--", *python, sft, str(made)),
        "loop": (*python, loop),
    }
    found: dict[str, Any] = {}
    for name, command in commands.items():
        environment = {
            **os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
            "XDG_DATA_HOME": str(folder / name / "data"), "TUNECAST_STORE": str(folder / f"{name}.db"),
            "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        found[name] = run_programs(command, env=environment)[0]
    found["folder"] = folder
    return found


def the_record(runs: dict[str, Any], name: str, code: int = 0) -> dict[str, Any]:
    assert runs[name].returncode == code, runs[name].stderr[-3000:]
    with open_store({"TUNECAST_STORE": str(runs["folder"] / f"{name}.db")}) as store:
        (record,) = [run.to_dict() for run in store.records()]
    return record


def test_the_trainer_is_measured(runs: dict[str, Any]) -> None:
    record = the_record(runs, "trainer")
    assert record["state"] == "done" and record["source"] == "watch" and record["time"]["steps"] == 12
    assert sum(record["tokens"].values()) == 12 * 2 * 4 * 32, "12 steps of two micro-batches of 4 x 32"
    real = record["tokens"]["trained"] / sum(record["tokens"].values())
    assert 0.6 < real < 0.9, "24 of 32 on average"
    spans = record["time"]["phases_s"]
    assert spans["evaluation"] > 0 and spans["training"] > 0 and spans["data"] > 0 and "save" not in spans
    assert [step for step, _ in record["loss"]] == [2, 4, 6, 8, 10, 12]
    assert {"torch", "transformers", "accelerate", "python"} <= set(record["software"])
    assert record["memory"] is None and record["hardware"]["gpus"] is None, "there is no card"
    assert record["hardware"]["cpu_cores"] >= 1 and record["hardware"]["host"] is not None


def test_two_processes_that_are_asked_stop_after_one_checkpoint(runs: dict[str, Any]) -> None:
    record = the_record(runs, "ranks")
    assert record["state"] == "stopped"
    steps = record["time"]["steps"]
    assert [path.name for path in (runs["folder"] / "ranks").glob("checkpoint-*")] == [f"checkpoint-{steps}"]
    assert (runs["folder"] / "ranks" / f"checkpoint-{steps}" / "trainer_state.json").exists()
    assert sum(record["tokens"].values()) == steps * 2 * 4 * 32 * 2, "of both"


def test_out_of_memory_is_told_from_other_failures(runs: dict[str, Any]) -> None:
    record = the_record(runs, "oom", code=1)
    assert record["state"] == "oom" and record["time"]["steps"] == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in runs["oom"].stderr


def test_the_step_of_the_longest_batch_is_said_before_it_comes(runs: dict[str, Any]) -> None:
    record, told = the_record(runs, "longest", code=1), runs["longest"].stderr
    step = record["time"]["steps"] + 1
    assert record["state"] == "oom" and step > 2, "it comes neither first nor second"
    assert told.index(f"predicted to run out of memory at step {step}: the longest batch comes then") < told.index(
        f"the longest batch comes at step {step}"
    )


def test_a_callback_needs_nothing_outside(runs: dict[str, Any]) -> None:
    record = the_record(runs, "callback")
    assert record["state"] == "done" and record["source"] == "callback" and record["time"]["steps"] == 6
    assert "kept as run" in runs["callback"].stderr


def test_trl_is_measured_too(runs: dict[str, Any]) -> None:
    record = the_record(runs, "sft")
    assert record["state"] == "done" and record["time"]["steps"] == 4 and "trl" in record["software"]
    assert record["tokens"] == {"trained": 4 * 2 * 64, "padding": 0}, "rows of 100 words are cut to 64"


def test_a_loop_of_one_s_own(runs: dict[str, Any]) -> None:
    record = the_record(runs, "loop")
    assert record["source"] == "loop" and record["state"] == "done" and record["time"]["steps"] == 10
    assert record["tokens"] == {"trained": 320, "padding": 0} and record["loss"]
