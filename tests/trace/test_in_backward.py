"""A weight stepped as soon as its gradient is there: the closed form against a script that does it with hooks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from installed import as_installed

from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Event, Free, Op
from tunecast.tape.trace.run import trace_script

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5")
CONFIG = {
    "model_type": "llama", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip
SCRIPT = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

config, fused = json.loads(sys.argv[1])
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(LlamaConfig(**config), dtype=torch.bfloat16)
model.gradient_checkpointing_enable()
model.train()
optimizers = {p: torch.optim.AdamW([p], fused=fused or None) for p in model.parameters()}

def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for parameter in optimizers:
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(2):
    ids = torch.randint(0, 1000, (2, 256), device="cuda")
    mask = torch.ones_like(ids)
    loss = model(input_ids=ids, attention_mask=mask, labels=ids, use_cache=False).loss / 1
    loss.backward()
    del loss
"""


def told(events: tuple[Event, ...]) -> list[int]:
    """Sizes asked for and, sorted between two of them, let go; from the first embedding on."""
    out: list[int] = []
    sizes: dict[int, int] = {}
    frees: list[int] = []
    op = ""
    for event in events:
        if isinstance(event, Op):
            op = event.name
        elif isinstance(event, Free):
            frees.append(-sizes[event.block])
        elif isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            if out or op == "embedding":
                out += sorted(frees) if out else []
                out.append(event.nbytes)
            frees.clear()
    return out


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused"])
def test_same_allocations_as_hooks_make(optimizer: str, tmp_path: Path) -> None:
    job: dict[str, Any] = {
        "model": "small", "weights_dtype": "bfloat16", "autocast": None, "seq_len": 256, "micro_batch": 2,
        "optimizer": optimizer, "max_grad_norm": 0.0, "gradient_checkpointing": True, "optimizer_in_backward": True,
    }  # fmt: skip
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    tape, answer = trace_script(
        str(script), [json.dumps([CONFIG, optimizer.endswith("fused")])], Card(), steps=2, python=sys.executable
    )
    assert not answer.error
    paper = build(as_installed(job), CONFIG, [256, 256], Card())
    assert told(paper.events) == told(tape.events)
