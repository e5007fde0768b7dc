"""LoRA on experts' stacked weights that are named themselves: PEFT's `target_parameters`."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Role

HIDDEN, INNER, EXPERTS, RANK = 64, 32, 4, 8
QWEN = {
    "model_type": "qwen3_moe", "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "num_experts": EXPERTS,
    "num_experts_per_tok": 2, "moe_intermediate_size": INNER,
}  # fmt: skip
UP = EXPERTS * (HIDDEN + 2 * INNER)
DOWN = EXPERTS * (HIDDEN + INNER)
"""Elements of both matrices for each rank."""


def adapters_bytes(targets: list[str] | str, dropout: float = 0.0, config: dict[str, Any] = QWEN, **more: Any) -> int:
    job = {
        "model": "llama-3.2-1b", "stack": "axolotl", "seq_len": 64, "method": "lora", "weights_dtype": "bfloat16",
        "lora": {"rank": RANK, "targets": targets, "dropout": dropout, "adapter_dtype": "bfloat16"}, **more,
    }  # fmt: skip
    events = build(job_from_dict(job), config, [64], Card()).events
    return sum(event.nbytes for event in events if isinstance(event, Alloc) and event.role is Role.ADAPTERS)


def test_a_stack_has_two_matrices_for_each_expert() -> None:
    """Of 2 layers, in 2 bytes."""
    assert adapters_bytes(["experts.down_proj"]) == 2 * 2 * RANK * DOWN
    assert adapters_bytes(["mlp.experts.gate_up_proj", "experts.down_proj"]) == 2 * 2 * RANK * (UP + DOWN)


def test_names_of_layers_mean_two_in_one_and_twice_the_rank() -> None:
    """PEFT's conversion of transformers 4's names doubles it, where a parameter that is named keeps it."""
    assert adapters_bytes(["q_proj", "gate_proj", "up_proj"]) - adapters_bytes(["q_proj"]) == 2 * 2 * 2 * RANK * UP
    assert adapters_bytes(["q_proj", "experts.gate_up_proj"]) - adapters_bytes(["q_proj"]) == 2 * 2 * RANK * UP


def test_as_many_as_peft_makes() -> None:
    """PEFT 0.21.0 with transformers 5.17.0, counted once: a dense layer's names mean the experts, and that layer itself
    gets none."""
    mixed = {**QWEN, "mlp_only_layers": [0]}
    assert adapters_bytes("all-linear", config=mixed) == 2 * 18432


def test_packed_experts_too() -> None:
    packed = {"method": "qlora", "quantization": {"format": "nf4", "experts": True, "prepare_kbit": False}}
    assert adapters_bytes(["experts.down_proj"], **packed) == 2 * 2 * RANK * DOWN


def test_no_dropout_and_no_other_names() -> None:
    """Axolotl lets dropout pass only where PEFT itself turned names of layers into parameters."""
    with pytest.raises(UsageError, match="PEFT refuses it for experts"):
        adapters_bytes(["experts.down_proj"], dropout=0.1)
    with pytest.raises(UsageError, match="has no"):
        adapters_bytes(["expert.down_proj"])
