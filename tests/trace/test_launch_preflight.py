"""A launched job checks its machine before it trains: real files, folders, packages and processes, without a card."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tiny_training import job_of, make

from tunecast.door.launch import Launched, jobs, launch, logs

pytest.importorskip("trl")
pytest.importorskip("tokenizers")
if int(version("transformers").partition(".")[0]) < 5:
    pytest.skip("what is rendered is for TRL from 1.0 on", allow_module_level=True)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("preflight"))


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    yield


def rendered(made: Path, out: Path, *, cpu: bool = True, changes: dict[str, Any] | None = None, **fields: Any) -> Path:
    """The files; `changes`: of preflight.json, as another machine or prediction would have it."""
    launch(job_of(made, **{"method": "lora", **fields}), on="local", cpu=cpu, dry_run=True, out=out)
    said = json.loads((out / "preflight.json").read_text())
    for name, values in (changes or {}).items():
        said[name] = {**said[name], **values} if isinstance(values, dict) else values
    (out / "preflight.json").write_text(json.dumps(said))
    return out


def checks(out: Path, *words: str) -> tuple[int, dict[str, dict[str, str]], str]:
    done = subprocess.run([sys.executable, "preflight.py", "--json", *words], cwd=out, capture_output=True, text=True)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    return done.returncode, {each["check"]: each for each in told["checks"]}, told["verdict"]


def test_a_machine_that_has_all_of_it(made: Path, tmp_path: Path) -> None:
    """With two processes that reach each other, and the first steps."""
    status, found, verdict = checks(rendered(made, tmp_path / "out", gpus=2, max_steps=50), "--step")
    assert status == 0 and verdict == "preflight: passed", found
    assert {name for name, each in found.items() if each["verdict"] == "left out"} == {"cards", "driver"}
    assert found["links"]["text"].startswith("2 processes reach each other")
    assert found["step one"]["verdict"] == "ok" and not (tmp_path / "out" / "preflight_output").exists()
    assert not (tmp_path / "out" / "output").exists(), "nothing of the training itself was begun"


def test_data_that_do_not_open(made: Path, tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    shutil.copy(made / "train.jsonl", data)
    out = rendered(made, tmp_path / "out", data_path=str(data))
    assert checks(out, "--only", "data")[0] == 0
    data.write_text('{"sentence": "w1 w2"}\n')
    status, found, _ = checks(out, "--only", "data")
    assert status == 1 and "has the columns sentence" in found["data"]["text"] and "text" in found["data"]["remedy"]
    data.write_text("")
    assert "holds no row" in checks(out, "--only", "data")[1]["data"]["text"]
    data.write_bytes(b"\xff\xfe{")
    assert "does not open" in checks(out, "--only", "data")[1]["data"]["text"]
    data.unlink()
    assert "is not there" in checks(out, "--only", "data")[1]["data"]["text"]


def test_data_of_other_formats(made: Path, tmp_path: Path) -> None:
    from datasets import Dataset

    data = tmp_path / "train.parquet"
    Dataset.from_dict({"text": ["w1 w2"]}).to_parquet(str(data))
    out = rendered(made, tmp_path / "out", data_path=str(data))
    found = checks(out, "--only", "data")[1]
    assert found["data"]["verdict"] == "ok", found


def test_a_model_that_is_not_whole_or_another(made: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(made / "model", model)
    out = rendered(made, tmp_path / "out", changes={"model": {"name": str(model)}})
    assert checks(out, "--only", "model")[0] == 0
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert "num_hidden_layers 3 (predicted 2)" in checks(out, "--only", "model")[1]["model"]["text"]
    (model / "model.safetensors").unlink()
    assert "has no weights" in checks(out, "--only", "model")[1]["model"]["text"]
    gone = rendered(made, tmp_path / "gone", changes={"model": {"name": "nobody/no-such-model"}})
    assert "neither in the Hub's cache nor reached" in checks(gone, "--only", "model")[1]["model"]["text"]


def test_another_release_and_a_missing_package(made: Path, tmp_path: Path) -> None:
    other = {"packages": {"trl": "0.1.0", "torch": "2.0.1"}}
    status, found, _ = checks(rendered(made, tmp_path / "a", cpu=False, changes=other), "--only", "packages")
    assert status == 1 and found["packages"]["remedy"].startswith("pip install torch==2.0.1 trl==0.1.0; or ")
    assert f"--set trl_version={version('trl')}" in found["packages"]["remedy"]
    status, found, _ = checks(rendered(made, tmp_path / "b", changes=other), "--only", "packages")
    assert status == 0 and found["packages"]["verdict"] == "warning", "a rehearsal goes on"
    gone = {"packages": {"no-such-package": "1.0"}}
    assert checks(rendered(made, tmp_path / "c", changes=gone), "--only", "packages")[0] == 1


def test_too_little_disk_and_memory(made: Path, tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    needs = {"disk": {"saved_bytes": free + 30_000_000_000}, "ram_bytes": 1 << 50}
    status, found, _ = checks(rendered(made, tmp_path / "a", cpu=False, changes=needs), "--only", "disk", "ram")
    assert status == 1 and "GB are missing" in found["disk"]["text"] and found["disk"]["remedy"]
    assert found["ram"]["verdict"] == "stop"


def test_first_steps_that_fail_say_why(made: Path, tmp_path: Path) -> None:
    out = rendered(made, tmp_path / "out")
    script = out / "train.sh"
    script.write_text("echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB' >&2; exit 1\n")
    status, found, _ = checks(out, "--only", "step", "--step")
    assert status == 1 and "out of memory" in found["step one"]["text"] and "B less" in found["step one"]["remedy"]
    script.write_text("echo 'ValueError: no such column' >&2; exit 3\n")
    assert "ended with 3: ValueError: no such column" in checks(out, "--only", "step", "--step")[1]["step one"]["text"]


def test_a_job_that_is_stopped_says_so(made: Path, tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    shutil.copy(made / "train.jsonl", data)
    job = job_of(made, method="lora", max_steps=1, data_path=str(data))
    data.write_text('{"sentence": "w1 w2"}\n')  # after it was read, as on another machine
    started = launch(job, on="local", cpu=True)
    assert isinstance(started, Launched)
    while not (started.folder / "exit_status").exists():
        time.sleep(0.1)
    (found,) = jobs().jobs
    assert found.state == "failed" and (started.folder / "exit_status").read_text().strip() == "78"
    assert found.notes[-1].startswith("preflight: stopped by data: ") and "To fix: rows with" in found.notes[-1]
    assert logs(started.id).strip().endswith(found.notes[-1])
