"""Layers over several cards: how many the card with the head has, and what its tape then is."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.mapping import job_from_dict
from tunecast.predict.engines import prediction
from tunecast.tape.build.sharding.layers import Sizes, held, layers_beside_the_head
from tunecast.tape.build.short import fold_job
from tunecast.tape.build.stacks.transformers import model
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Role

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 10,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip


def job(**changes: Any) -> Any:
    given = {"model": "llama-3.2-1b", "method": "full", "seq_len": 128, "micro_batch": 1, "weights_dtype": "bfloat16"}
    return job_from_dict({**given, "hardware": {"gpus": 2}, "parallel": {"layers": 2}, **changes})


def test_the_first_card_takes_a_share_and_a_quarter_more_than_a_layer() -> None:
    # 4 + 10 x 2 + 4 = 28 bytes; a share of 14, and 2.5 more, cut to 2: 16. The first: 4 and 6 layers. The last: 4.
    assert layers_beside_the_head(Sizes(4, 2, 10, 4), 2) == 4
    # Three cards: 28 // 3 + 2 = 11. The first: 4 and 3 layers; the second 5; the last 2.
    assert layers_beside_the_head(Sizes(4, 2, 10, 4), 3) == 2
    # Tied: 24 bytes, a share of 12 + 2 = 14. The first: 4 and 5 layers.
    assert layers_beside_the_head(Sizes(4, 2, 10, 0), 2) == 5


def test_the_card_with_the_head_holds_its_layers_and_no_embedding() -> None:
    count = held(job(), CONFIG, model)["num_hidden_layers"]
    layer = 4 * 256 * 256 + 3 * 256 * 512 + 2 * 256
    tape = fold_job(job(), CONFIG, Card()).make_tape()
    free = {e.module for e in tape.events if isinstance(e, Alloc) and "embed" in e.module and e.role is Role.OPTIMIZER}
    weights = {e.block: e.nbytes for e in tape.events if isinstance(e, Alloc) and e.role is Role.WEIGHTS}
    arrived = 1000 * 256 * 2  # loaded, and gone before the first step
    buffers = 32 * 4 * 2  # inv_freq of 32 pairs, twice
    assert not free
    assert sum(weights.values()) - arrived == 2 * (count * layer + 256 + 1000 * 256) + buffers


def test_cards_and_layers_must_agree() -> None:
    with pytest.raises(TunecastError, match=r"hardware\.gpus 2"):
        prediction({"model": "llama-3.2-1b", "parallel": {"layers": 2}, "hardware": {"gpus": 4}})
    with pytest.raises(TunecastError, match="10 layers for 16"):
        held(job(parallel={"layers": 16}, hardware={"gpus": 16}), CONFIG, model)


def test_one_card_works_at_a_time() -> None:
    """The time is that of all layers, whatever the cards."""
    given = {"model": "llama-3.2-1b", "method": "lora", "seq_len": 512, "micro_batch": 1}
    alone = prediction(given)
    spread = prediction({**given, "parallel": {"layers": 2}, "hardware": {"gpus": 2}})
    assert alone.time is not None and spread.time is not None
    assert spread.time["step_s"] == alone.time["step_s"]
    assert spread.memory.allocated_bytes < alone.memory.allocated_bytes
