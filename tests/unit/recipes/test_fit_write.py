"""`tunecast fit --write` changes the file somebody trains with, in that file's own words; comments and order stay."""

from __future__ import annotations

from pathlib import Path

import tunecast
from tunecast.advise.changes import with_fields
from tunecast.planning.fit.patch import patch_of

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
