"""A million tokens in a row: what must be there by hand, and nothing quadratic that need not be."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.prediction.engines import predict
from tunecast.prediction.values import Memory

TOKENS = 1_000_000
LAYERS, WIDTH, WORDS = 32, 4096, 128_256
LORA = {
    "model": "llama-3.1-8b", "method": "lora", "weights_dtype": "bfloat16", "seq_len": TOKENS, "micro_batch": 1,
    "gradient_checkpointing": True,
}  # fmt: skip
KEPT = LAYERS * TOKENS * WIDTH * 2
"""Between recomputed layers: what goes into each, in bf16."""
MASK = TOKENS * TOKENS


def memory(**change: Any) -> Memory:
    return predict(job_from_dict(LORA | change)).memory


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_the_whole_loss(attention: str) -> None:
    """Logits in bf16, in fp32, their log-softmax, and the gradient in bf16 are 12 bytes a word."""
    found = memory(attention=attention)
    assert KEPT <= found.breakdown_bytes["activations"] < 1.1 * KEPT
    assert found.breakdown_bytes["logits_and_loss"] == pytest.approx(12 * TOKENS * WORDS, rel=0.01)
    assert found.allocated_bytes - found.breakdown_bytes["logits_and_loss"] < KEPT + 0.1 * MASK


@pytest.mark.parametrize("without_logits", [{"kernels": ["liger"]}, {"loss": "chunked"}], ids=["liger", "chunked"])
def test_without_logits(without_logits: dict[str, Any]) -> None:
    """The peak is inside a recomputed layer, and less than the mask nobody makes."""
    found = memory(attention="flash_attention_2", **without_logits)
    assert KEPT < found.allocated_bytes < 2.5 * KEPT < MASK


def test_scores_written_out_are_counted() -> None:
    """Eager attention: 32 heads, a million by a million, a few times over; what is reserved stays of that order."""
    found = memory(attention="eager")
    scores = 32 * MASK * 2
    assert 7 * scores < found.allocated_bytes < 10 * scores
    assert found.reserved_bytes < 2 * found.allocated_bytes
