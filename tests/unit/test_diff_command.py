"""`tunecast diff` in real repositories: trainers' files that changed, what they name, and what nobody should trust."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli import main as cli
from tunecast.door import diff as door

pytestmark = pytest.mark.whole

AXOLOTL = """\
base_model: EleutherAI/pythia-160m
adapter: lora
lora_r: 8
sequence_len: {}
micro_batch_size: 2
pad_to_sequence_len: true
# tunecast: gpu=rtx-4090
"""
TRL = """\
model_name_or_path: EleutherAI/pythia-70m
max_length: 512
per_device_train_batch_size: 1
deepspeed: ds.json
"""
ZERO = (
    '{{"zero_optimization": {{"stage": {}}}, "bf16": {{"enabled": "auto"}}, "train_micro_batch_size_per_gpu": "auto"}}'
)

Shell = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith(("GIT_", "PRE_COMMIT"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(folder)
    git("init", "-q", "-b", "main")
    commit(**{"axolotl.yml": AXOLOTL.format(512), "trl.yaml": TRL, "ds.json": ZERO.format(2), "ci.yml": "on: push\n"})
    return folder


def git(*words: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


def write(**files: str) -> None:
    for name, text in files.items():
        Path(name).write_text(text)


def commit(**files: str) -> None:
    write(**files)
    git("add", "-A")
    git("commit", "-qm", "next")


@pytest.fixture
def shell(repository: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*argv: str) -> tuple[int, dict[str, Any], str]:
        code = cli.main(["diff", *argv, "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else {}, err

    return run


def by_path(found: dict[str, Any]) -> dict[str, Any]:
    return {file["path"]: file for file in found["files"]}


def test_an_axolotl_file_and_a_file_that_a_trl_file_names(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    write(**{"axolotl.yml": AXOLOTL.format(2048), "ds.json": ZERO.format(3), "ci.yml": "on: pull_request\n"})
    code, found, err = shell("--gpu", "a100-sxm-80gb", "--gpus", "2")
    files = by_path(found)
    assert (code, err, set(files)) == (0, "", {"axolotl.yml", "trl.yaml"})
    axolotl, trl = files["axolotl.yml"], files["trl.yaml"]
    # its comment wins over --gpu, and the longer rows need more
    assert "RTX 4090" in axolotl["before"]["title"] and "RTX 4090" in axolotl["after"]["title"]
    assert axolotl["after"]["needs_bytes"] > axolotl["before"]["needs_bytes"]
    change = axolotl["changes"][0]
    assert [change[name] for name in ("field", "key", "file", "line", "before", "after")] == [
        "seq_len", "sequence_len", "axolotl.yml", 4, 512, 2048,
    ]  # fmt: skip
    assert sum(each["needs_bytes"] or 0 for each in axolotl["changes"]) == (
        axolotl["after"]["needs_bytes"] - axolotl["before"]["needs_bytes"]
    )
    # the training file did not change, the DeepSpeed file that it names did; each state reads its own
    assert trl["kind"] == "names a changed file" and "2 x A100" in trl["after"]["title"]
    assert [(each["key"], each["file"], each["before"], each["after"]) for each in trl["changes"]] == [
        ("zero_optimization.stage", "ds.json", "zero2", "zero3")
    ]
    assert trl["before"]["step_s"] is not None


def test_what_changes_nothing_is_quick_to_see(shell: Shell) -> None:
    write(**{"axolotl.yml": AXOLOTL.format(512) + "learning_rate: 0.1\n"})
    _, found, _ = shell()
    (file,) = found["files"]
    assert file["changes"] == [] and file["before"] == file["after"] and file["more_time_fraction"] == 0


def test_new_deleted_unreadable_and_refused_files_are_said_and_fail_nothing(shell: Shell) -> None:
    git("rm", "-q", "axolotl.yml")
    write(**{
        "new.yaml": "model: pythia-70m\nmethod: lora\n",
        "broken.yaml": "model_name_or_path: [\n",
        "cardless.yaml": "model_name_or_path: EleutherAI/pythia-70m\nmax_length: 512\nper_device_train_batch_size: 1\n",
        "wrong.yaml": "model: pythia-70m\nmicro_batch: many\n# tunecast: gpu=rtx-4090\n",
        "typo.yaml": "model: pythia-70m\n# tunecast: gup=rtx-4090\n",
        "mistyped.yaml": "model: pythia-70m\nmethod: lora\nmicro_batch: 1\nseqlen: 512\n",
        "chart.yaml": "{{ toYaml .Values.model }}: [\n",
        "values.yaml": "model: {kind: truck}\n",
    })  # fmt: skip
    code, found, err = shell("--quick", "--fail-on", "does-not-fit")
    files = by_path(found)
    assert (code, err) == (0, "")
    assert {name: file["kind"] for name, file in files.items()} == {
        "axolotl.yml": "deleted", **dict.fromkeys(("new.yaml", "broken.yaml", "cardless.yaml", "wrong.yaml"), "new"),
        "typo.yaml": "new", "mistyped.yaml": "new",
    }  # fmt: skip
    assert files["new.yaml"]["problem"] is None and files["new.yaml"]["after"]["fits"]
    assert "line 2" in files["broken.yaml"]["problem"] and "not YAML" in files["broken.yaml"]["problem"]
    assert "--gpu NAME, or a comment in it: # tunecast: gpu=rtx-4090" in files["cardless.yaml"]["problem"]
    assert files["wrong.yaml"]["problem"].startswith("wrong.yaml: micro_batch: got 'many'")
    assert files["mistyped.yaml"]["problem"].startswith("mistyped.yaml: seqlen: unknown field")
    assert "nearest: gpu" in files["typo.yaml"]["problem"]
    assert not [file for file in files.values() if "/" in (file["problem"] or "")]  # no path of this machine


def test_what_is_staged_fails_where_it_no_longer_fits(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    write(**{"axolotl.yml": AXOLOTL.format(1024).replace("micro_batch_size: 2", "micro_batch_size: 512")})
    assert shell("--staged", "--quick", "--fail-on", "does-not-fit") == (0, {**EMPTY, "head": "the index"}, "")
    git("add", "-A")
    code, found, _ = shell("--staged", "--quick", "--fail-on", "does-not-fit")
    (file,) = found["files"]
    assert (code, file["after"]["verdict"], file["before"], file["after"]["step_s"]) == (3, "does not fit", None, None)
    assert [each["key"] for each in file["changes"]][:2] == ["sequence_len", "micro_batch_size"]
    assert cli.main(["diff", "--staged", "--quick", "--short"]) == 0
    assert capsys.readouterr().out == "1 training file changed from HEAD to the index: 1 does not fit\n"


EMPTY = {"schema": "tunecast.diff/1", "base": "HEAD", "head": "the working tree", "files": [], "left_out": 0}


def test_pre_commit_says_which_revisions(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    git("checkout", "-qb", "work")
    commit(**{"axolotl.yml": AXOLOTL.format(640)})
    monkeypatch.setenv("PRE_COMMIT_FROM_REF", "main")
    monkeypatch.setenv("PRE_COMMIT_TO_REF", "HEAD")
    _, found, _ = shell("--staged", "--quick")
    assert (found["base"], found["head"], list(by_path(found))) == ("main", "HEAD", ["axolotl.yml"])


def test_the_current_folder_lends_nothing_to_the_older_state(shell: Shell, tmp_path: Path) -> None:
    """The DeepSpeed file that lies here is not the one of the last commit."""
    git("rm", "-q", "--cached", "ds.json")
    git("commit", "-qm", "without it")
    Path(".gitignore").write_text("ds.json\n")
    write(**{"trl.yaml": TRL.replace("512", "256"), "ds.json": ZERO.format(3)})
    _, found, _ = shell("--gpu", "a100-sxm-80gb", "--gpus", "2", "--quick")
    (file,) = found["files"]
    assert file["after"]["not_understood"] == 1  # the file it names is not there
    assert [each["field"] for each in file["changes"]] == ["seq_len"]


def test_markdown_goes_where_it_is_asked(shell: Shell, tmp_path: Path) -> None:
    write(**{"axolotl.yml": AXOLOTL.format(256)})
    assert cli.main(["diff", "--quick", "--md", str(tmp_path / "diff.md")]) == 0
    assert "| `axolotl.yml`<br>" in (tmp_path / "diff.md").read_text()
    assert cli.main(["diff", "--md", str(tmp_path / "no" / "diff.md")]) == 5


def test_a_script_is_read_and_not_run(shell: Shell, tmp_path: Path) -> None:
    write(**{"train.py": f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom transformers import AutoModelForCausalLM\n"})
    assert shell("--gpu", "rtx-4090", "--quick")[0] == 0
    assert not (tmp_path / "ran").exists()


def test_there_is_an_end_to_many_files(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_FILES", 1)
    write(**{f"{number}.yaml": "model: pythia-70m\n# tunecast: gpu=l4\n" for number in range(3)})
    code, found, _ = shell("--quick", "--fail-on", "any")
    assert (code, len(found["files"]), found["left_out"]) == (5, 1, 2)


def test_a_file_that_ends_its_process_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that computes for longer, or holds more, than it may."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    write(**{"axolotl.yml": AXOLOTL.format(256)})
    _, found, err = shell()
    (file,) = found["files"]
    assert file["problem"] == "takes more time or memory to predict than a training file may" and err == ""


def test_a_plan_is_of_the_cheapest_machines(shell: Shell) -> None:
    write(**{"new.yaml": "model: pythia-14m\nmethod: lora\ndata: {samples: 1000}\n"})
    _, found, _ = shell("--plan", "--gpu", "rtx-4090")
    plan = found["files"][0]["after"]["plan"]
    assert plan["total_usd"] > 0 and " x " in plan["hardware"]


def test_paths_are_those_of_the_repository(shell: Shell) -> None:
    """A model and data beside the file are in two folders while it is compared, and the same all the same."""
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 512, "n_positions": 256}
    Path("small").mkdir()
    rows = "\n".join(json.dumps({"text": "word " * number}) for number in range(1, 9))
    files = {"small/config.json": json.dumps(config), "train.jsonl": rows}
    job = "model: ./small\nmethod: lora\ndata: {{path: ./train.jsonl}}\nmicro_batch: {}\n# tunecast: gpu=l4\n"
    commit(**files, **{"job.yaml": job.format(1)})
    write(**{"job.yaml": job.format(2)})
    _, found, _ = shell()
    (file,) = found["files"]
    assert file["after"]["title"].startswith("small, LoRA") and file["before"]["total_s"] is not None
    assert "data.path" not in [each["field"] for each in file["changes"]]
    assert {"micro_batch"} <= {each["field"] for each in file["changes"]} <= {"micro_batch", "run.eval_batch"}
    assert "tunecast-" not in json.dumps(found)
    write(**{"train.jsonl": rows + "\n" + json.dumps({"text": "word " * 200})})
    change = next(each for each in shell()[1]["files"][0]["changes"] if each["field"] == "data.path")
    assert change["before"] == change["after"] == "train.jsonl"
