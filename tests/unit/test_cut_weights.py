"""What trains on cut weights without having been compared: optimizers a part at a time, Axolotl's own FSDP 2 units."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.errors import TunecastError
from tunecast.job import job_from_dict
from tunecast.prediction.prediction import Prediction
from tunecast.tape.build.job_runs import whole_tape
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Role

FSDP2 = {"data": "fsdp", "fsdp_version": 2}
FSDP1 = {"data": "fsdp", "fsdp_version": 1}
ZERO3 = {"data": "zero3"}
SIZES: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "vocab_size": 2304,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096,
}  # fmt: skip


def predicted(parallel: dict[str, Any], **fields: Any) -> Prediction:
    given = {
        "model": "llama-3.2-1b", "seq_len": 256, "micro_batch": 1, "stack": "axolotl", "method": "full",
        "parallel": parallel, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 4}, **fields,
    }  # fmt: skip
    return predict(job_from_dict(given), engine="analytic")


def state_bytes(parallel: dict[str, Any], optimizer: str) -> int:
    job = job_from_dict(
        {
            "model": "small", "seq_len": 256, "micro_batch": 1, "stack": "axolotl", "method": "full",
            "parallel": parallel, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 4}, "optimizer": optimizer,
        }
    )  # fmt: skip
    events = whole_tape(job, SIZES, Card()).events
    return sum(event.nbytes for event in events if isinstance(event, Alloc) and event.role is Role.OPTIMIZER)


@pytest.mark.parametrize(
    ("parallel", "optimizer", "share"),
    [(FSDP2, "adamw_torch_8bit", 2 / 8), (FSDP1, "adamw_8bit", 2 / 8), (ZERO3, "adamw_8bit", 6 / 12)],
    ids=["fsdp2", "fsdp1", "zero3"],
)
def test_eight_bits_of_a_part_are_less_than_32(parallel: dict[str, Any], optimizer: str, share: float) -> None:
    """Two moments of a byte and their scales (4 bytes a 256) against two of 4 bytes; what is small stays wide. ZeRO has
    masters of 4 bytes besides."""
    narrow, wide = state_bytes(parallel, optimizer), state_bytes(parallel, "adamw_torch_fused")
    assert share < narrow / wide < share + 0.05


@pytest.mark.parametrize("parallel", [FSDP2, FSDP1, ZERO3], ids=["fsdp2", "fsdp1", "zero3"])
def test_an_optimizer_that_was_not_compared_says_so(parallel: dict[str, Any]) -> None:
    said = predicted(parallel, optimizer="adamw_torch_8bit")
    assert said.exactness == "estimate" and any("optimizer adamw_torch_8bit" in reason for reason in said.reasons)
    plain = predicted(parallel, optimizer="adamw_torch_fused")
    assert not any(reason.startswith("optimizer ") for reason in plain.reasons)


def test_what_fails_in_the_framework_is_refused() -> None:
    """Axolotl: "FSDP2 not compatible with adamw_8bit, use `adamw_torch_8bit` instead"; Muon with FSDP 2 alone."""
    with pytest.raises(TunecastError, match="bitsandbytes take none of FSDP 2's shards; allowed: adamw_torch_8bit"):
        predicted(FSDP2, optimizer="adamw_8bit")
    for parallel in (FSDP1, ZERO3):
        with pytest.raises(TunecastError, match="got muon, which is not known on"):
            predicted(parallel, optimizer="muon")


@pytest.mark.parametrize("kernels", [["cut_cross_entropy"], ["liger"]], ids=["cut", "liger"])
def test_a_fused_head_beside_adapters(kernels: list[str]) -> None:
    """Axolotl leaves the head to the outermost unit, which is whole in the forward pass; accelerate cuts it alone."""
    said, plain = (predicted(FSDP2, method="lora", kernels=each, seq_len=4096) for each in (kernels, []))
    assert said.memory.allocated_bytes < plain.memory.allocated_bytes
    with pytest.raises(TunecastError, match="reads a weight nobody gathers"):
        predicted(FSDP2, method="lora", kernels=kernels, stack="transformers")
