"""What float8 costs in time: two passes through everything that is cast, and full sums backward."""

from __future__ import annotations

import pytest

from tunecast.hardware import gpu
from tunecast.job import job_from_dict
from tunecast.prediction.price import op_seconds
from tunecast.tape.build.job_runs import whole_tape
from tunecast.tape.card import Card
from tunecast.tape.op import Begin, Op, Phase

WIDTH, INNER, TOKENS = 1024, 2816, 2048
CONFIG = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1024, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


def forward_ops(**fields: object) -> list[Op]:
    job = job_from_dict(
        {"model": "llama-3.2-1b", "method": "full", "stack": "torchtitan", "seq_len": TOKENS, "micro_batch": 1,
         "gradient_checkpointing": False, "compile": True, **fields}
    )  # fmt: skip
    step, phase = whole_tape(job, CONFIG, Card()).steps()[1], None
    found = []
    for event in step:
        if isinstance(event, Begin):
            phase = event.phase
        elif isinstance(event, Op) and phase is Phase.FORWARD:
            found.append(event)
    return found


def test_the_largest_value_is_known_only_when_all_have_been_read() -> None:
    """Each weight of the feed-forward is read twice by compiled code: for its largest value, then to be cast."""
    reads = [op for op in forward_ops(matmul_dtype="float8") if op.name.startswith("triton::")]
    up = [op for op in reads if op.shapes[:1] == ((INNER, WIDTH),)]
    largest = [op for op in up if op.written_bytes < 1024]
    cast = [op for op in up if op.written_bytes >= INNER * WIDTH]
    layers = CONFIG["num_hidden_layers"]
    assert len(largest) == len(cast) == 2 * layers  # gate and up
    assert {op.read_bytes // (4 * INNER * WIDTH) for op in up} == {1}  # in float32, as autocast finds them


def test_sums_in_full_are_slower_on_hopper_alone() -> None:
    def seconds(name: str, by_engine: bool) -> float:
        shapes = ((8192, 4096), (4096, 14336))
        return op_seconds(
            Op("_scaled_mm", flops=2 * 8192 * 4096 * 14336, dtype="bfloat16", shapes=shapes, by_engine=by_engine),
            gpu(name),
        )

    assert seconds("h200", True) / seconds("h200", False) == pytest.approx(1 / 0.945, rel=0.01)
    assert seconds("b200-sxm-180gb", True) == seconds("b200-sxm-180gb", False)
