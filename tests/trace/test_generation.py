"""How long a completion becomes is the model's to say: what is traced of it is a guess, unless nothing may end it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tunecast.tape.card import Card
from tunecast.tape.trace.packages.generation import TO_THE_END, may_end_before
from tunecast.tape.trace.run import trace_script

SCRIPT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=128, eos_token_id=5)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for least in {least}:
    prompts = torch.ones(2, 4, dtype=torch.long, device="cuda")
    rows = model.generate(prompts, do_sample=True, max_new_tokens=6, min_new_tokens=least, pad_token_id=0)
    model(input_ids=rows, labels=rows).loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("least", "guessed"), [("[None]", True), ("[6, 6]", False)])
def test_completions_that_may_end_before_are_a_guess(least: str, guessed: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(least=least), encoding="utf-8")
    tape, answer = trace_script(str(path), (), Card(), steps=0)
    assert answer.finished
    assert (TO_THE_END in tape.guesses) is guessed
    assert TO_THE_END not in tape.assumptions


@pytest.mark.parametrize(
    ("config", "default", "words", "may"),
    [
        ({"eos_token_id": 5, "max_new_tokens": 6}, {}, {}, True),
        ({"eos_token_id": None, "max_new_tokens": 6}, {}, {}, False),
        ({"max_new_tokens": 6}, {"eos_token_id": [5, 6]}, {}, True),
        ({"eos_token_id": 5, "max_new_tokens": 6, "min_new_tokens": 6}, {}, {}, False),
        ({"eos_token_id": 5, "max_new_tokens": 6, "min_new_tokens": 6}, {}, {"max_new_tokens": 9}, True),
        ({"max_new_tokens": 6}, {}, {"eos_token_id": 5}, True),
    ],
)
def test_what_may_end_a_completion(
    config: dict[str, object], default: dict[str, object], words: dict[str, object], may: bool
) -> None:
    assert may_end_before(SimpleNamespace(**config), SimpleNamespace(**default), words) is may
