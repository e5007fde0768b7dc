"""`tunecast fit --write` changes the file somebody trains with, in that file's own words; comments and order stay."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunecast

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


@pytest.mark.whole
@pytest.mark.parametrize(("name", "text", "key"), [
    ("axolotl.yml", AXOLOTL, "micro_batch_size: "), ("factory.yaml", FACTORY, "per_device_train_batch_size: "),
])  # fmt: skip
def test_the_file_itself_is_changed(tmp_path: Path, name: str, text: str, key: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = tunecast.fit(path, {"hardware.gpu": "rtx-4090"})
    assert found.chosen is not None and found.file_patch is not None
    after = found.file_patch.after
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    assert [line.partition("#")[2] for line in after.splitlines() if "#" in line] == comments
    assert key in after and after != text
    path.write_text(after)
    read = tunecast.read(path, gpu="rtx-4090")
    assert {field: read.flat()[field] for field in ("micro_batch", "grad_accum")} == {
        field: found.chosen.job.flat()[field] for field in ("micro_batch", "grad_accum")
    }
    assert tunecast.predict(read).fits
