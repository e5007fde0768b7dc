"""A job's file with other values: what was written stays, what comes out is the job that was wanted."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tunecast.advise.changes import with_fields
from tunecast.errors import NotResolved
from tunecast.job.job import Job
from tunecast.job.readers import read_jobs
from tunecast.planning.fit.patch import Patch, edited, patch_of, unified_diff, write

YAML = """\
# what we run on Fridays
model: gpt2      # small
method: lora
lora:
  rank: 16       # enough
  targets: [c_attn]
micro_batch: 8

hardware: {gpu: rtx-4090}
# the end
"""
CHANGES = {
    "micro_batch": 2,
    "grad_accum": 4,
    "gradient_checkpointing": False,
    "kernels": ["liger"],
    "lora.rank": 8,
    "lora.alpha": 16,
    "hardware.gpus": 2,
    "parallel.data": "fsdp",
}


def job_of(path: Path) -> Job:
    (job,) = read_jobs(str(path))
    assert isinstance(job, Job)
    return job


def patched(path: Path, changes: dict[str, object], flags: dict[str, object] | None = None) -> Patch:
    (job,) = read_jobs(str(path), flags or {})
    assert isinstance(job, Job)
    made = patch_of(path, changes, with_fields(job, changes), flags or {})
    assert made is not None
    return made


def test_a_value_in_its_place_and_a_field_in_its_section() -> None:
    assert (
        edited(YAML, CHANGES)
        == """\
# what we run on Fridays
model: gpt2      # small
method: lora
lora:
  rank: 8       # enough
  targets: [c_attn]
  alpha: 16
micro_batch: 2
grad_accum: 4
gradient_checkpointing: false
kernels: [liger]

hardware: {gpu: rtx-4090, gpus: 2}
parallel:
  data: fsdp
# the end
"""
    )


@pytest.mark.parametrize(
    ("text", "changes", "after"),
    [
        ("model: gpt2", {"micro_batch": 2}, "model: gpt2\nmicro_batch: 2"),
        ("model: gpt2\r\nlora:\r\n", {"lora.rank": 8}, "model: gpt2\r\nlora: {rank: 8}\r\n"),
        ("model: gpt2\nlora: null # none\n", {"lora.rank": 8}, "model: gpt2\nlora: {rank: 8} # none\n"),
        ("model: gpt2\nlora: {}\n", {"lora.rank": 8}, "model: gpt2\nlora: {rank: 8}\n"),
        ("{model: gpt2}\n", {"lora.rank": 8}, "{model: gpt2, lora: {rank: 8}}\n"),
        ("model: gpt2\nkernels:\n- foak\nid: a\n", {"kernels": ["liger"]}, "model: gpt2\nkernels: [liger]\nid: a\n"),
        ("model: 'gpt2'\nmethod: \"full\"\n", {"method": "lora"}, "model: 'gpt2'\nmethod: lora\n"),
        ("data:\n    tokens: 5\nid: a\n", {"data.packing": True}, "data:\n    tokens: 5\n    packing: true\nid: a\n"),
        ("hardware:\n  gpu: l4\n", {"id": "a"}, "hardware:\n  gpu: l4\nid: a\n"),
        ("\ufeffmodel: gpt2\n", {"id": "a"}, "\ufeffmodel: gpt2\nid: a\n"),  # as some editors of Windows begin a file
    ],
)  # fmt: skip
def test_as_the_text_has_it(text: str, changes: dict[str, object], after: str) -> None:
    assert edited(text, changes) == after


def test_json_stays_json() -> None:
    text = '{\n\t"model": "gpt2",\n\t"lora": {"rank": 4}\n}\n'
    after = edited(text, {"lora.alpha": 8, "compile": True, "parallel.data": "fsdp"}, is_json=True)
    assert after.splitlines() == [
        "{", '\t"model": "gpt2",', '\t"lora": {"rank": 4, "alpha": 8},', '\t"compile": true,',
        '\t"parallel": {"data": "fsdp"}', "}",
    ]  # fmt: skip
    assert json.loads(after)["compile"] is True


@pytest.mark.parametrize("name", ["job.yaml", "job.json"])
def test_the_patched_file_is_the_wanted_job(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = YAML if name.endswith("yaml") else json.dumps({"model": "gpt2", "method": "lora", "micro_batch": 8})
    path.write_text(text, encoding="utf-8")
    before = job_of(path)
    path.write_text(patched(path, CHANGES).after, encoding="utf-8")
    assert job_of(path) == with_fields(before, CHANGES)


def test_a_flag_gives_way_to_what_is_changed_and_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(YAML, encoding="utf-8")
    made = patched(path, {"micro_batch": 2}, {"micro_batch": "4", "seq_len": "64"})
    assert "micro_batch: 2" in made.after
    assert "seq_len" not in made.after


def test_a_model_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    path = tmp_path / "job.yaml"
    path.write_text("model: ./tiny\n", encoding="utf-8")
    assert patched(path, {"micro_batch": 2}).after == "model: ./tiny\nmicro_batch: 2\n"


@pytest.mark.parametrize(
    "text",
    [
        "model: gpt2\nmicro_batch: &rows 8\neval: *rows\n",
        "base: &base {micro_batch: 8}\n",
        "model: gpt2\nlora: &l\n  rank: 4\n",
        "- model: gpt2\n",
        "",
        "model: [\n",
    ],
)
def test_what_cannot_be_changed_in_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    assert patch_of(path, {"micro_batch": 2, "lora.rank": 8}, Job("gpt2", micro_batch=2), {}) is None


@pytest.mark.skipif(shutil.which("patch") is None and shutil.which("git") is None, reason="neither patch nor git")
@pytest.mark.parametrize("text", [YAML, YAML.rstrip("\n"), YAML.replace("\n", "\r\n"), "model: gpt2\n"])
@pytest.mark.parametrize("tool", [("patch", "-p0", "--binary"), ("git", "apply", "-p0")])
def test_the_diff_applies(tmp_path: Path, text: str, tool: tuple[str, ...]) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"no {tool[0]}")
    path = tmp_path / "job.yaml"
    path.write_bytes(text.encode())
    after = edited(text, CHANGES)
    told = subprocess.run(tool, input=unified_diff(text, after, "job.yaml").encode(), cwd=tmp_path, capture_output=True)
    assert told.returncode == 0, told.stderr
    assert path.read_bytes() == after.encode()


def test_writing_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(YAML, encoding="utf-8")
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    backups = [write(patched(link, {"micro_batch": rows})) for rows in (4, 2)]
    assert [backup.name for backup in backups] == ["job.yaml.orig", "job.yaml.orig.1"]
    assert backups[0].read_text("utf-8") == YAML
    assert "micro_batch: 4" in backups[1].read_text("utf-8")
    assert "micro_batch: 2" in path.read_text("utf-8")
    assert path.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 4, "nothing half written is left"


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(YAML, encoding="utf-8")
    made = patched(path, {"micro_batch": 4})
    path.write_text("model: other\n", encoding="utf-8")
    with pytest.raises(NotResolved, match="changed while"):
        write(made)
    assert path.read_text("utf-8") == "model: other\n"
