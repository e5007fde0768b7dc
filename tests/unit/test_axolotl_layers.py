"""Which layers of a model with experts get adapters or 4 bits under Axolotl, and which under PEFT alone."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Role, Tape

pytestmark = pytest.mark.whole

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 16,
}  # fmt: skip
MIXTRAL = {**SIZES, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = {
    **SIZES, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
LLAMA4 = {
    **SIZES, "model_type": "llama4_text", "num_local_experts": 4, "intermediate_size_mlp": 128,
    "interleave_moe_layer_step": 1,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 512,
}  # fmt: skip
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


def built(config: dict[str, Any], **values: Any) -> Tape:
    job = {"model": "llama-3.2-1b", "seq_len": 64, "method": "lora", "weights_dtype": "bfloat16", **values}
    return build(job_from_dict(job), config, [64], Card())


def adapted(config: dict[str, Any], dropout: float = 0.0, **values: Any) -> set[str]:
    lora = {"rank": 4, "targets": "all-linear", "dropout": dropout}
    return names(built(config, lora=lora, **values), Role.ADAPTERS)


def names(tape: Tape, role: Role) -> set[str]:
    paths = (event.module for event in tape.events if isinstance(event, Alloc) and event.role is role)
    return {path.removesuffix(".lora_A").removesuffix(".lora_B").rpartition(".")[2] for path in paths}


def test_experts_are_no_linear_layers_where_names_are_listed() -> None:
    """PEFT's all-linear means experts and routers too, which it adapts as parameters; a list of the layers' names does
    not (PEFT 0.21.0, `_convert_peft_config_moe`)."""
    for config in (MIXTRAL, QWEN):
        assert adapted(config, stack="axolotl") == adapted(config, stack="llama-factory") == ATTENTION
        assert adapted(config, stack="transformers") > ATTENTION


def test_a_dense_layers_names_mean_the_experts() -> None:
    """PEFT turns gate_proj, up_proj and down_proj of a list into the experts' parameters."""
    mixed = {**QWEN, "mlp_only_layers": [0]}
    assert adapted(mixed, stack="axolotl") > ATTENTION


def test_dropout_of_experts() -> None:
    mixed = {**QWEN, "mlp_only_layers": [0]}
    assert adapted(mixed, dropout=0.1, stack="axolotl") == adapted(mixed, stack="axolotl")
    with pytest.raises(UsageError, match="PEFT refuses it for experts"):
        adapted(mixed, dropout=0.1, stack="llama-factory")


def weights_bytes(config: dict[str, Any], experts: bool = False, release: str = "5.17.0") -> int:
    tape = built(
        config, stack="axolotl", method="qlora",
        quantization={"format": "nf4", "experts": experts, "prepare_kbit": False},
        lora={"rank": 4, "targets": "attention"}, transformers_version=release,
    )  # fmt: skip
    return sum(event.nbytes for event in tape.events if isinstance(event, Alloc) and event.role is Role.WEIGHTS)


def test_linear_experts_of_llama_4_are_quantised() -> None:
    """From 2 bytes an element to half a byte and its scales."""
    elements = 2 * 3 * 4 * 64 * 96
    saved = weights_bytes(LLAMA4) - weights_bytes(LLAMA4, experts=True)
    assert 1.3 * elements < saved < 1.5 * elements
    tape = built(
        LLAMA4, stack="axolotl", method="qlora", quantization={"format": "nf4", "experts": True},
        lora={"rank": 4, "targets": "attention"},
    )  # fmt: skip
    assert any("linear layers" in each for each in tape.guesses)


def test_layers_that_are_more_than_linear_stay_since_5_5() -> None:
    """Falcon's: 4 matrices of 64 x 96, 64 x 64, 64 x 256 and 256 x 64 in 2 bytes each."""
    elements = 64 * (96 + 64 + 256 + 256)
    packed = weights_bytes(FALCON, release="5.4.0")
    assert packed + 1.3 * elements < weights_bytes(FALCON) < packed + 1.5 * elements
