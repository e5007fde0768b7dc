"""Training data that a trainer's file names and that is here is read; what is elsewhere is left to the user."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunecast

FILE = """\
base_model: meta-llama/Llama-3.2-1B
adapter: lora
lora_target_linear: true
sequence_len: 512
micro_batch_size: 2
datasets:
"""
ROW = '{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.jsonl").write_text(ROW * 20)
    return tmp_path


def found(folder: Path, data_sets: str) -> object:
    path = folder / "axolotl.yml"
    path.write_text(FILE + data_sets)
    return tunecast.recipe(path).job.get("data", {}).get("path")


def test_beside_the_file(folder: Path) -> None:
    assert found(folder, "  - path: ./own.jsonl\n") == str(folder / "own.jsonl")
    job = tunecast.read(folder / "axolotl.yml", gpu="rtx-4090")
    assert tunecast.predict(job).memory.device_bytes > 0


def test_by_the_name_of_its_format(folder: Path) -> None:
    assert found(folder, "  - path: json\n    data_files: own.jsonl\n") == str(folder / "own.jsonl")


@pytest.mark.parametrize(
    "data_sets", ["  - path: some/name\n", "  - path: ./own.jsonl\n  - path: some/name\n", "  - path: axolotl.yml\n"]
)
def test_not_where_it_is_elsewhere_or_one_of_several_or_no_data(folder: Path, data_sets: str) -> None:
    assert found(folder, data_sets) is None
