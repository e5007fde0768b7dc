"""`tunecast fit --write` changes the file somebody trains with, in that file's own words; comments and order stay."""

from __future__ import annotations

from pathlib import Path

import tunecast
from tunecast.advise.changes import with_fields
from tunecast.planning.fit.patch import patch_of
from tunecast.report.run.wording import wording_of

AXOLOTL = """\
# mine
base_model: NousResearch/Llama-3.2-1B   # small
adapter: lora
lora_r: 32
datasets:
  - path: some/data
    type: alpaca
sequence_len: 8192
micro_batch_size: 8     # rows
gradient_accumulation_steps: 1
gradient_checkpointing: false
"""
FACTORY = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
finetuning_type: lora
template: llama3
cutoff_len: 4096
per_device_train_batch_size: 4   # rows
gradient_accumulation_steps: 2
"""


CHANGES = {"micro_batch": 1, "grad_accum": 8, "gradient_checkpointing": True, "kernels": ["lora_triton", "liger"]}
FLAGS = {"hardware.gpu": "rtx-4090"}


def patched(path: Path, text: str, changes: dict[str, object]) -> str:
    path.write_text(text)
    wanted = with_fields(tunecast.read(path, FLAGS), changes)
    found = patch_of(path, changes, wanted, FLAGS)
    assert found is not None
    return found.after


def test_axolotl(tmp_path: Path) -> None:
    after = patched(tmp_path / "a.yml", AXOLOTL, CHANGES)
    expected = AXOLOTL.replace("micro_batch_size: 8 ", "micro_batch_size: 1 ").replace("steps: 1", "steps: 8")
    plugins = [
        "plugins: [axolotl.integrations.liger.LigerPlugin]", "liger_rope: true", "liger_rms_norm: true",
        "liger_glu_activation: true", "liger_fused_linear_cross_entropy: true",
    ]  # fmt: skip
    assert after == expected.replace("checkpointing: false", "checkpointing: true") + "\n".join([*plugins, ""])


def test_llama_factory(tmp_path: Path) -> None:
    after = patched(tmp_path / "f.yaml", FACTORY, {"micro_batch": 1, "grad_accum": 8, "kernels": ["liger"]})
    expected = FACTORY.replace("batch_size: 4 ", "batch_size: 1 ").replace("steps: 2", "steps: 8")
    assert after == f"{expected}enable_liger_kernel: true\n"


def test_what_has_no_word_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(FACTORY)
    changes = {"allocator": "expandable_segments"}
    assert patch_of(path, changes, with_fields(tunecast.read(path, FLAGS), changes), FLAGS) is None


def test_changes_are_said_in_the_words_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text(AXOLOTL)
    wording = wording_of(str(path))
    assert wording.change({"grad_accum": 4, "lora.rank": 8}) == "gradient_accumulation_steps: 4, lora_r: 8"
    assert wording.sentence("set hardware.gpus") == "set --gpus"


def test_what_the_file_has_no_words_for_is_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text(AXOLOTL)
    assert wording_of(str(path)).change({"hardware.gpu": "h100-sxm-80gb"}) == "--gpu h100-sxm-80gb"


def test_words_that_would_say_something_else_are_not_used(tmp_path: Path) -> None:
    """Packed, Axolotl makes one row of all the rows of a micro-batch: no key says two such rows."""
    path = tmp_path / "a.yml"
    path.write_text(f"{AXOLOTL}sample_packing: true\nflash_attention: true\n")
    assert wording_of(str(path)).change({"micro_batch": 2}) == "--micro-batch 2"


def test_a_job_file_and_a_model_are_said_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: gpt2\n")
    assert wording_of(str(path)).change({"micro_batch": 2}) == "micro_batch: 2"
    assert wording_of("gpt2").change({"micro_batch": 2}) == "--micro-batch 2"
