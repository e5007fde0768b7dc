"""What is launched is what was predicted: a rendered training, traced, needs the prediction's memory; and it trains."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tiny_training import job_of, make

from tunecast.door.launch import Launched, cancel, jobs, launch, log_command
from tunecast.door.predict import predict
from tunecast.door.trace import trace
from tunecast.errors import UsageError

pytest.importorskip("trl")
pytest.importorskip("tokenizers")
if int(version("transformers").partition(".")[0]) < 5:
    pytest.skip("what is rendered is for TRL from 1.0 on", allow_module_level=True)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("launch"))


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"method": "full"}, id="full"),
        pytest.param({"method": "lora", "allocator": "expandable_segments"}, id="lora"),
        pytest.param({"method": "qlora"}, id="qlora"),
        pytest.param({"method": "lora", "gpus": 2}, id="ddp"),
        pytest.param({"method": "full", "gpus": 2, "parallel": {"data": "fsdp"}}, id="fsdp"),
        pytest.param({"method": "full", "data": "prompts"}, id="prompts"),
        pytest.param({"method": "lora", "data": "prompts", "micro_batch": 1}, id="prompts-unpadded"),
        pytest.param({"method": "full", "data": "pairs", "task": "dpo", "micro_batch": 4}, id="dpo"),
        pytest.param({"method": "lora", "data": "pairs", "task": "dpo", "micro_batch": 1}, id="dpo-lora"),
    ],
)
def test_a_launched_job_traced_needs_what_was_predicted(made: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    job = job_of(made, **fields)
    launch(job, on="local", dry_run=True, out=tmp_path / "out")
    traced = trace(["bash", str(tmp_path / "out" / "train.sh")], gpu=job.hardware.gpu, python=sys.executable)
    predicted = predict(job)
    assert traced.answer.error is None
    assert traced.memory.allocated_bytes == predicted.memory.allocated_bytes
    assert traced.memory.reserved_bytes == predicted.memory.reserved_bytes
    if "data" in fields:  # of many lengths, where the trace's steps are a few; and a reference's pass is apart there
        return
    if job.hardware.gpus == 1 and job.method != "qlora":  # whose 4-bit layers have Python that is not watched yet
        assert traced.time is not None and predicted.time is not None
        assert traced.time.step_s == pytest.approx(predicted.time.step_s, rel=0.02)


def ended(name: str) -> Launched:
    """However long it takes: the process that trains has work to do."""
    while True:
        found = next(each for each in jobs().jobs if each.id == name)
        if found.state not in ("running", "queued", "not started"):
            return found
        time.sleep(0.5)


def log_of(launched: Launched) -> str:
    return (launched.folder / "train.log").read_text(errors="replace")


@pytest.mark.parametrize("gpus", [1, 2])
def test_it_trains_without_a_card(made: Path, gpus: int) -> None:
    started = launch(job_of(made, method="lora", gpus=gpus, max_steps=2), on="local", cpu=True)
    assert isinstance(started, Launched) and started.state == "running"
    done = ended(started.id)
    assert done.state == "done", log_of(done)
    state = json.loads((done.folder / "output" / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["global_step"] == 2
    assert (done.folder / "output" / "adapter_model.safetensors").is_file()
    assert log_command(done.id)[-1] == str(done.folder / "train.log")


def test_it_goes_on_from_its_checkpoint(made: Path) -> None:
    """As engines do that start a job again: to the same number of steps."""
    from subprocess import run

    found = launch(job_of(made, method="lora", max_steps=3, save_steps=2), on="local", cpu=True)
    assert isinstance(found, Launched)
    done = ended(found.id)
    (done.folder / "output" / "checkpoint-3" / "trainer_state.json").unlink()  # as if it was killed while it saved
    again = run(["bash", "resume.sh"], cwd=done.folder, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    state = json.loads((done.folder / "output" / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["global_step"] == 3
    assert "3/3" in again.stderr and "1/3" not in again.stderr, "it began at step 2"


def test_one_that_runs_is_not_started_twice_and_can_be_cancelled(made: Path) -> None:
    job = job_of(made, method="lora", max_steps=100_000)
    started = launch(job, on="local", cpu=True)
    assert isinstance(started, Launched)
    try:
        with pytest.raises(UsageError, match=f"running already, as {started.id}"):
            launch(job, on="local", cpu=True)
        other = launch(job, on="local", cpu=True, again=True)
        assert isinstance(other, Launched) and other.id == f"{started.id}-2"
        cancel(other.id)
        assert ended(other.id).state == "cancelled"
        assert next(each for each in jobs().jobs if each.id == started.id).state == "running"
    finally:
        cancel(started.id)
    assert ended(started.id).state == "cancelled"
    assert cancel(started.id).state == "cancelled", "a second time too"
