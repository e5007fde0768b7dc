"""`tunecast read PATH`: what was understood, where it stands, and what to ask next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunecast.cli.main import main

AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
adapter: lora
lora_r: 8
lora_target_linear: true
sequence_len: 1024
micro_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 0.0002
lisa_step_interval: 20
datasets:
  - path: own/data
    type: alpaca
"""
DEEPSPEED = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "own.yaml"
    path.write_text(AXOLOTL)
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["read", *words]) == 0
    return capsys.readouterr().out


def test_fields_come_with_their_lines(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "own.yaml")
    assert "lora.rank" in text
    assert "line 3, lora_r" in text
    assert "own.yaml:" not in text  # lines of the file that was given go without its name


def test_lines_of_another_file_come_with_its_name(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "ds.json").write_text(DEEPSPEED)
    file.write_text(AXOLOTL + "deepspeed: ds.json\n")
    text = printed(capsys, "own.yaml")
    assert "ds.json, line 1, zero_optimization.stage" in text
    assert "Next: tunecast predict own.yaml --gpu NAME --gpus N, or tunecast plan own.yaml" in text


def test_the_next_question_names_what_the_file_leaves_out(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "own.yaml").endswith(
        "Next: tunecast predict own.yaml --gpu NAME, or tunecast plan own.yaml\n"
    )


def test_values_of_the_command_win_in_the_frameworks_own_words(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "own.yaml", "lora_r=64")
    row = next(line for line in text.splitlines() if line.split()[:1] == ["lora.rank"])
    assert row.split(maxsplit=2)[1:] == ["64", "the command, lora_r"]


def test_json_has_what_the_contract_names(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "own.yaml", "--json"))
    assert found["schema"] == "tunecast.job/1"
    assert (found["framework"], found["job"]["lora"]["rank"]) == ("axolotl", 8)
    assert found["from"]["lora.rank"] == {"file": "own.yaml", "line": 3, "key": "lora_r"}
    assert "learning_rate" in found["ignored"]
    assert found["assumed"]["task"]["value"] == "sft"


@pytest.mark.parametrize(("text", "told"), [("a: 1\n", "no training that is known here"), ("a: [\n", "own.yaml")])
def test_what_is_no_training_is_refused(file: Path, capsys: pytest.CaptureFixture[str], text: str, told: str) -> None:
    file.write_text(text)
    assert main(["read", "own.yaml"]) == 2
    assert told in capsys.readouterr().err


def test_data_that_is_elsewhere_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "own.yaml")
    assert "Data not read: own/data. Rows count as full" in text
    assert "datasets.0.path" not in text


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e400"])
def test_what_is_no_number_stays_text(file: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    """JSON has no word for it."""
    assert json.loads(printed(capsys, "own.yaml", f"lora_r={value}", "--json"))["job"]["lora"]["rank"] == value
