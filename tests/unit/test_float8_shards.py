"""Products in float8 of weights that FSDP 2 gathers (accelerate's `_prepare_ao` before `_prepare_fsdp2`)."""

from __future__ import annotations

from typing import Any

from tunecast.job import job_from_dict
from tunecast.prediction.data.lengths import Epoch
from tunecast.prediction.time.timing import lengths_to_price
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Op, Tape

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 2048,
    "num_key_value_heads": 2, "intermediate_size": 384, "tie_word_embeddings": False,
}  # fmt: skip
JOB: dict[str, Any] = {
    "model": "llama-3.2-1b", "stack": "axolotl", "seq_len": 256, "micro_batch": 1, "autocast": "bfloat16",
    "weights_dtype": "bfloat16", "parallel": {"data": "fsdp"}, "hardware": {"gpus": 4}, "matmul_dtype": "float8",
}  # fmt: skip


def tape_of(**more: Any) -> Tape:
    return build(job_from_dict({**JOB, **more}), LLAMA, [256, 256], Card())


def counted(tape: Tape, *names: str) -> int:
    return sum(isinstance(e, Op) and e.name in names for e in tape.steps()[1])


def test_all_layers_but_the_first_and_the_last() -> None:
    """13 of 15 linear layers: a product forward, two backward. Weights are gathered as without."""
    tape, plain = tape_of(gradient_checkpointing=False), tape_of(gradient_checkpointing=False, matmul_dtype=None)
    assert counted(tape, "_scaled_mm") == 13 * 3 and counted(plain, "_scaled_mm") == 0
    assert counted(tape, "all_gather", "reduce_scatter") == counted(plain, "all_gather", "reduce_scatter") > 0
    assert any("FSDP 2" in told for told in tape.guesses)


def test_beside_liger() -> None:
    tape = tape_of(gradient_checkpointing=False, kernels=["liger"])
    assert counted(tape, "_scaled_mm") == 13 * 3 and any("liger" in told for told in tape.guesses)


def test_a_packed_row_is_priced_by_128_tokens() -> None:
    """250 tokens on average are 256."""
    epoch = Epoch(2, 2, 2, 2, 500.0, 500.0, {250: 1.0})
    packed = {"data": {"packing": True}}
    assert lengths_to_price(job_from_dict({**JOB, **packed}), epoch) == (256,)
    assert lengths_to_price(job_from_dict({**JOB, **packed, "matmul_dtype": None}), epoch) == (250,)
