"""What the traced process sees of a script's own settings and length, and that other values reach the script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tunecast.tape.card import Card
from tunecast.tape.trace.facts import ScriptFacts, SettingOverride
from tunecast.tape.trace.run import trace_script

LOOP = """
import argparse, json, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accumulation-steps", type=int, default=2)
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--name")
args = parser.parse_args()
with open("config.json.txt") as file:
    config = json.load(file)
model = nn.Linear(config["model"]["block_size"], 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(100, config["model"]["block_size"])), batch_size=args.batch_size)
for number, (batch,) in enumerate(loader, start=1):
    model(batch.cuda()).square().mean().backward()
    if number % args.accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
if "memory" in sys.argv:
    torch.cuda.mem_get_info()
"""
TRAINER = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(30)]
sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
settings = TrainingArguments(
    "out",
    per_device_train_batch_size=4,
    num_train_epochs=2,
    report_to="none",
)
Trainer(LlamaForCausalLM(LlamaConfig(**sizes)), settings, train_dataset=rows).train()
"""


def facts_of(script: Path, *args: str, overrides: tuple[SettingOverride, ...] = ()) -> ScriptFacts:
    _, answer = trace_script(str(script), args, Card(), overrides=overrides, python=sys.executable, quiet=True)
    assert answer.error is None, answer.error
    return answer.facts


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("config.json.txt").write_text('{"model": {"block_size": 32, "depth": 2}}')
    Path("train.py").write_text(LOOP)
    return tmp_path / "train.py"


def test_options_files_and_the_length_of_an_epoch(loop: Path) -> None:
    config = str(loop.parent / "config.json.txt")
    facts = facts_of(loop, "--batch-size", "10")
    found = {(each.place, each.spelled, each.name): (each.value, each.takes) for each in facts.settings}
    assert found == {
        ("option", "--batch-size", "batch_size"): (10, "value"),
        ("option", "--accumulation-steps", "accumulation_steps"): (2, "value"),
        ("option", "--gradient-checkpointing", "gradient_checkpointing"): (False, "flag"),
        ("file", config, "model.block_size"): (32, "value"),
    }
    assert (facts.epoch_batches, facts.batches_per_step, facts.epoch_steps) == (10, 2.0, 5)
    assert (facts.total_steps, facts.asked) == (None, ())
    changed = facts_of(loop, overrides=(SettingOverride("file", config, "model.block_size", 16),))
    assert {each.name: each.value for each in changed.settings}["model.block_size"] == 16


def test_a_call_in_the_code_and_a_trainers_own_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    other = SettingOverride("call", "TrainingArguments", "per_device_train_batch_size", 2)
    for overrides, batch, steps in (((), 4, 16), ((other,), 2, 30)):
        facts = facts_of(script, overrides=overrides)
        assert (facts.total_steps, facts.total_steps_from) == (steps, "transformers' Trainer"), "2 x 30 rows"
        found = {each.name: each for each in facts.settings if each.place == "call"}
        assert found["per_device_train_batch_size"].value == batch
        assert found["gradient_checkpointing"].value is False
        assert found["optim"].line == f"{script}:7"
