"""What measures a launched job, beside it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tunecast.door.launch import launch
from tunecast.door.recorded import measured_notes
from tunecast.launching.rendering import Rendering
from tunecast.learn import shipping
from tunecast.learn.intake import take_launched
from tunecast.learn.runs_store.store import open_store
from tunecast.learn.shipping import SOURCES


def rendering_of(**how: Any) -> Rendering:
    job = {"model": "llama-3.2-1b", "method": "lora", "stack": "trl", "hardware": {"gpu": "rtx-4090"}}
    found = launch(job, on="local", dry_run=True, **how)
    assert isinstance(found, Rendering)
    return found


@pytest.fixture(scope="module")
def rendered() -> Rendering:
    return rendering_of()


def test_resume_runs_the_training_with_it_and_train_stays_as_it_is(rendered: Rendering) -> None:
    without = rendering_of(record=False)
    assert rendered.files["train.sh"] == without.files["train.sh"]
    assert rendered.files["resume.sh"].splitlines()[-1] == (
        'exec "$(command -v python || command -v python3)" record.py -- bash train.sh "$@"'
    )
    assert without.files["resume.sh"].splitlines()[-1] == 'exec bash train.sh "$@"'
    assert set(rendered.files) - set(without.files) == {"record.py", "record_sources.txt", "record.json"}
    expected = json.loads(rendered.files["record.json"])
    assert expected["predicted"]["device_bytes"] > 0 and expected["card"]["words"] == ["rtx", "4090"]
    assert expected["job"]["model"] == "llama-3.2-1b" and rendering_of().files == rendered.files


def run(folder: Path, rendered: Rendering, train: str) -> subprocess.CompletedProcess[str]:
    """resume.sh without the check of the machine, and another training."""
    for name in ("record.py", "record_sources.txt", "record.json"):
        (folder / name).write_text(rendered.files[name], encoding="utf-8")
    (folder / "train.sh").write_text(train)
    command = ["bash", "-c", rendered.files["resume.sh"].splitlines()[-1]]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})


def test_a_job_is_measured_without_tunecast_and_taken_once(
    tmp_path: Path, rendered: Rendering, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"TUNECAST_STORE": str(tmp_path / "runs.db"), "XDG_DATA_HOME": str(tmp_path / "data")}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    job = tmp_path / "job"
    job.mkdir()
    assert run(job, rendered, "exit 3").returncode == 3, "the training's own status"
    done = run(job, rendered, "echo trained; test -n $TUNECAST_RUN")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    notes = measured_notes(job / "record", "running")
    assert notes == (), "that folder is the launch's own"
    assert measured_notes(job, "running")[0].startswith("ran for ")
    first = measured_notes(job, "done")
    assert len(first) == 2 and all(note.startswith("measured; kept as run ") for note in first), "both starts"
    assert measured_notes(job, "done") == () and take_launched(job / "record") == []
    with open_store(environ) as store:
        found = [each.to_dict() for each in store.records()]
    assert sorted(each["state"] for each in found) == ["done", "failed"]
    assert {each["source"] for each in found} == {"launch"} and found[0]["predicted"]["device_bytes"] > 0


def test_a_job_that_ran_out_of_memory_has_what_would_have_made_it_fit(
    tmp_path: Path, rendered: Rendering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNECAST_STORE", str(tmp_path / "runs.db"))
    job = tmp_path / "job"
    job.mkdir()
    program = Path(__file__).parent / "watched" / "out_of_memory.py"
    assert run(job, rendered, f"exec python {program} oom").returncode == 1
    (note,) = measured_notes(job, "failed")
    with open_store() as store:
        (found,) = store.records()
    assert found.state == "oom" and found.note is not None and found.note.startswith("would have fit with ")
    assert note == f"measured; kept as run {found.id[:8]}: {found.note}"


def test_a_job_whose_recorder_is_broken_trains_all_the_same(tmp_path: Path, rendered: Rendering) -> None:
    broken = {**rendered.files, "record_sources.txt": "==> outside.py <==\nno Python\n"}
    done = run(tmp_path, Rendering("x", "local", "trl", broken, ()), "echo trained; exit 4")
    assert (done.returncode, done.stdout) == (4, "trained\n")
    assert "this run is not measured" in done.stderr


def test_every_file_that_measures_goes_with_a_job() -> None:
    there = {path.name for path in Path(shipping.__file__).parent.glob("inside/*.py")}
    assert set(SOURCES) == there - {"record.py", "loop.py"}, (
        "the one is beside the job, the other for loops with tunecast"
    )
