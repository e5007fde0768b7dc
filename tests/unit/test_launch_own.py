"""A training file of one's own on a machine that does not see it: its folder goes along, and no key with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.door.launch import launch
from tunecast.door.launch_many import RenderedTogether, Together, Variant, launch_many
from tunecast.errors import UsageError
from tunecast.launching.programs.own_folder import MOST_FILES
from tunecast.launching.rendering import Rendering

pytestmark = pytest.mark.whole

AXOLOTL = """\
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: rows.jsonl
    ds_type: json
    type: completion
adapter: lora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
sequence_len: 512
micro_batch_size: 1
gradient_accumulation_steps: 1
max_steps: 5
bf16: true
optimizer: adamw_torch_fused
learning_rate: 0.0002
output_dir: ./lora-out
"""
SCRIPT = "torchrun --nproc_per_node 1 -m axolotl.cli.train axolotl.yml\n"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nnot a real one\n"
HERE = {"hardware.gpu": "h100", "hardware.gpus": 1}
STAY = (
    ".env",
    ".git/config",
    "deploy.pem",
    "notes.txt",
    "client_secret.json",
    "venv/bin/python",
    "with space.txt",
    "log.txt",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "training"
    made.mkdir()
    for name, text in {
        "axolotl.yml": AXOLOTL,
        "rows.jsonl": f"{json.dumps({'text': 'a few words'})}\n" * 8,
        "helpers/reward.py": "x = 1\n",
        **dict.fromkeys(STAY, "HF_TOKEN=hf_x\n"),
        "notes.txt": KEY,
        "log.txt": "a line\n" * 1000 + KEY,
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    (made / "link").symlink_to("/etc/hostname")
    return made


def rendered(file: Path, on: str, **how: Any) -> Rendering:
    found = launch(file, HERE, on=on, dry_run=True, **how)
    assert isinstance(found, Rendering)
    return found


ENGINES: dict[str, dict[str, str]] = {
    "ssh:box": {}, "skypilot": {"bucket": "none"}, "dstack": {"volume": "none"}, "lyceum": {},
    "kubernetes": {"own_claim": "training"},
}  # fmt: skip


@pytest.mark.parametrize("on", ENGINES)
def test_what_is_beside_the_file_goes_along_and_keys_stay(folder: Path, on: str) -> None:
    found = rendered(folder / "axolotl.yml", on, options=ENGINES[on])
    script = found.files["train.sh"]
    assert '\ncd "$(dirname "${BASH_SOURCE[0]}")"\ncd own\n' in script and str(folder) not in script
    assert "-m axolotl.cli.train axolotl.yml" in script and "--output_dir=../output" in script
    told = json.dumps([found.files, found.commands, found.notes])
    if on != "kubernetes":
        assert all(str(folder / name) in told for name in ("axolotl.yml", "rows.jsonl", "helpers/reward.py"))
    assert "hf_x" not in told and "PRIVATE KEY-----\\nnot" not in told
    for name in (*STAY, "link"):
        assert str(folder / name) not in told
    stays = next(note for note in found.notes if note.startswith("stays here"))
    assert (
        ".git/ (hidden)" in stays and "deploy.pem (named like a key)" in stays and "notes.txt (a private key)" in stays
    )
    assert "--resume_from_checkpoint=../${last%/*}" in found.files["resume.sh"]


TORCHTUNE = """\
model: {_component_: torchtune.models.llama3_2.lora_llama3_2_1b, lora_attn_modules: [q_proj], lora_rank: 4}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: tokenizer.model, max_seq_len: 512}
dataset: {_component_: torchtune.datasets.alpaca_dataset}
batch_size: 1
epochs: 1
optimizer: {_component_: torch.optim.AdamW, lr: 1e-4}
dtype: bf16
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
"""
LLAMA_FACTORY = "model_name_or_path: NousResearch/Llama-3.2-1B\nstage: sft\nfinetuning_type: lora\ndataset: a\n"


@pytest.mark.parametrize(
    ("text", "pinned"),
    [
        (AXOLOTL, {"axolotl==0.19.0", "transformers==5.16.1", "accelerate==1.13.0", "torch==2.13.0"}),
        (LLAMA_FACTORY, {"llamafactory==0.9.5", "transformers==5.6.0", "accelerate==1.11.0"}),
        (TORCHTUNE, {"torchtune==0.6.1", "torchao==0.11.0", "torch==2.13.0"}),
        (
            TORCHTUNE.replace("CEWithChunkedOutputLoss", "LinearCrossEntropyLoss"),
            {"torchtune @ git+https://github.com/meta-pytorch/torchtune", "torchao==0.11.0"},
        ),
    ],
    ids=["axolotl", "llama-factory", "torchtune", "torchtune's repository"],
)
def test_its_framework_is_installed_too(folder: Path, text: str, pinned: set[str]) -> None:
    """In releases that it can be installed with, which are those that the machine is held against."""
    (folder / "mine.yml").write_text(text)
    found = rendered(folder / "mine.yml", "ssh:box")
    lines = set(found.files["requirements.txt"].splitlines())
    assert pinned <= lines
    expected = json.loads(found.files["preflight.json"])["packages"]
    assert {f"{name}=={release}" for name, release in expected.items()} == {each for each in lines if "==" in each}
    assert any(note.startswith("as ") and "is installed: " in note for note in found.notes)


def test_other_releases_are_no_setting_of_the_file(folder: Path) -> None:
    """What the machine's check says to launch with."""
    found = launch(folder / "axolotl.yml", {**HERE, "transformers_version": "5.17.0"}, on="local", dry_run=True)
    assert isinstance(found, Rendering)
    assert "transformers==5.17.0" in found.files["requirements.txt"]
    assert "5.17.0" not in found.files["train.sh"] and not any("transformers_version" in each for each in found.notes)


def test_where_its_checkpoints_are_not_known_it_begins_again_and_says_so(folder: Path) -> None:
    assert "\n# From the beginning: " in rendered(folder / "axolotl.yml", "local").files["resume.sh"]
    assert "\n# From the last checkpoint on" in rendered(folder / "axolotl.yml", "ssh:box").files["resume.sh"]


@pytest.mark.parametrize(("on", "there"), [("local", "NAME"), ("slurm", "NAME"), ("ssh:box", "../output")])
def test_several_of_one_file_do_not_write_over_each_other(folder: Path, on: str, there: str) -> None:
    """In its own folder, where they are started, the file names one place for all of them."""
    file = folder / "axolotl.yml"
    found = launch_many(
        [Variant(file, {**HERE, "lora.rank": rank}, f"rank-{rank}") for rank in (8, 16)],
        Together(None, None, {}, {}, True, True),
        on=on,
        dry_run=True,
    )
    assert isinstance(found, RenderedTogether)
    for each in found.jobs:
        assert f" --output_dir={there.replace('NAME', each.name)} " in each.files["train.sh"]
    assert len({each.name for each in found.jobs}) == 2
    assert any("a folder of its own name" in note for note in found.notes) is (there == "NAME")
    alone = rendered(file, "local")
    assert "output_dir" not in alone.files["train.sh"], "alone it is started as it is"


def test_ssh_copies_each_folder_once(folder: Path) -> None:
    commands = rendered(folder / "axolotl.yml", "ssh:box").commands
    copies = [words[-1] for words in commands if words[0] == "scp"]
    there = [each.partition("/own/")[2] for each in copies[1:]]
    assert sorted(there) == ["", "helpers/"]
    assert sum("own/helpers" in word for word in commands[0]) == 1


def test_a_cluster_needs_a_claim_with_the_folder(folder: Path) -> None:
    shown = rendered(folder / "axolotl.yml", "kubernetes")
    assert "claimName: PLACEHOLDER_own_claim" in shown.files["files.yaml"]
    assert any("own_claim=NAME" in note for note in shown.notes)
    with pytest.raises(UsageError, match="own_claim=NAME"):
        launch(folder / "axolotl.yml", HERE, on="kubernetes", options={"image": "registry.example/me/job:1"})
    found = rendered(folder / "axolotl.yml", "kubernetes", options={"own_claim": "training"})
    assert "claimName: training" in found.files["files.yaml"] and "mountPath: /job/own" in found.files["files.yaml"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda here: here.parent / "rows.jsonl", "outside its folder"),
        (lambda here: Path("../rows.jsonl"), "outside its folder"),
        (lambda here: here / "rows.jsonl", "another one there"),
    ],
)
def test_what_it_could_not_find_there_is_refused(folder: Path, change: Any, told: str) -> None:
    (folder.parent / "rows.jsonl").write_text((folder / "rows.jsonl").read_text())
    file = folder / "axolotl.yml"
    file.write_text(AXOLOTL.replace("rows.jsonl", str(change(folder))))
    with pytest.raises(UsageError, match=f"{told}.*To fix"):
        rendered(file, "ssh:box")
    assert rendered(file, "local").files["train.sh"]


def test_a_folder_that_is_too_large_is_refused(folder: Path) -> None:
    for number in range(MOST_FILES):
        (folder / f"{number}.txt").touch()
    with pytest.raises(UsageError, match=r"more than 500 files.*To fix"):
        rendered(folder / "axolotl.yml", "skypilot", options={"bucket": "none"})


def test_a_script_says_where_results_are_kept(folder: Path) -> None:
    (folder / "run.sh").write_text(f"#!/bin/bash\n{SCRIPT}")
    found = rendered(folder / "run.sh", "ssh:box")
    assert '\nexec bash run.sh "$@"\n' in found.files["train.sh"]
    assert any("../output is kept" in note for note in found.notes)
