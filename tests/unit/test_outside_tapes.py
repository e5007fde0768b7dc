"""Loading and evaluating, read off tapes of a model of one layer: the arithmetic redone on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.prediction.engines import predict
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import Replay, replay
from tunecast.prediction.outside.evaluation import Evaluation
from tunecast.prediction.outside.needs import Outside
from tunecast.tape.build.checkpoint import natural_order
from tunecast.tape.build.loads import load_program
from tunecast.tape.card import Card
from tunecast.units import GIB, KIB, MIB

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 1, "vocab_size": 1000,
    "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": True, "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}  # fmt: skip
JOB = {"weights_dtype": "bfloat16", "autocast": None, "method": "full", "optimizer": "sgd"}
EMBED, UP, SQUARE, NORMS = 2_048_000, 8 * MIB, 2 * MIB, 3 * 2048
FREQUENCIES = 2 * 512
"""Two tables of 64 float32, each in a block of its own."""
MODEL = EMBED + 3 * UP + 4 * SQUARE + NORMS + FREQUENCIES


def load(raw: dict[str, Any] | None = None, card_bytes: int = 100 * GIB, onto_card: bool = True, **job: Any) -> Replay:
    asked = job_from_dict({"model": "llama-3.2-1b", **JOB, **job})
    rows = load_program(asked, CONFIG | (raw or {}), Card(total_bytes=card_bytes), onto_card=onto_card)
    return replay(rows, AllocatorSettings())


def outside(folder: Path, raw: dict[str, Any] | None = None, **job: Any) -> Outside:
    (folder / "config.json").write_text(json.dumps(CONFIG | (raw or {})))
    said = predict(job_from_dict({"model": str(folder), "seq_len": 128, "micro_batch": 4, **JOB, **job})).outside
    assert said is not None
    return said


def evaluated(folder: Path, raw: dict[str, Any] | None = None, **job: Any) -> Evaluation:
    said = outside(folder, raw, **job).evaluation
    assert said is not None
    return said


# ----------------------------------------------------------------------------------------------------- loading


def test_layers_are_loaded_in_the_order_of_their_numbers() -> None:
    names = ["model.layers.10.a", "model.norm.weight", "model.layers.2.a", "lm_head.weight"]
    assert sorted(names, key=lambda name: [natural_order(part) for part in name.split(".")]) == [
        names[3], names[2], names[0], names[1]
    ]  # fmt: skip


def test_the_warm_up_block_is_cut_up_for_the_weights() -> None:
    run = load()
    # the embedding is rounded to 512 bytes; of the one segment for all large weights, nothing is left to split
    assert run.model_bytes == run.load_peak_bytes == pytest.approx(MODEL, abs=64 * KIB)
    assert run.reserved_bytes == 36 * MIB  # 34 for all that is large, 2 for norms and tables
    # one by one, each of 8 MiB comes from a segment of 20 MiB that has room for two
    assert load(onto_card=False).reserved_bytes == 42 * MIB


def test_four_bit_weights_arrive_whole() -> None:
    run = load(method="qlora", quantization={"double_quant": False})
    packed = 4 * MIB // 2 + 4 * 4 * MIB // 64 + 512
    small = MIB // 2 + 4 * MIB // 64 + 512
    assert run.model_bytes == pytest.approx(EMBED + 3 * packed + 4 * small + NORMS + FREQUENCIES, abs=2 * KIB)
    # the last of the large ones, whole, and two blocks to find the largest code value; not yet attention and two norms
    before = run.model_bytes - 4 * small - 2 * 2048 - FREQUENCIES
    assert run.load_peak_bytes == before + UP + 2 * 512


def test_double_quantisation_keeps_a_byte_for_64_elements() -> None:
    once, twice = (load(method="qlora", quantization={"double_quant": double}) for double in (False, True))
    maxima = 4 * MIB // 64
    large = 4 * maxima - (maxima + 4 * maxima // 256 + 1024 + 512)
    maxima //= 4
    small = 4 * maxima - (maxima + 512 + 1024 + 512)
    assert once.model_bytes - twice.model_bytes == 3 * large + 4 * small - 1024  # the book that others are copies of


def test_the_warm_up_leaves_a_small_card_some_room() -> None:
    large = {"vocab_size": 524_288, "tie_word_embeddings": False}  # embedding and head of 1 GiB each
    # 1.8 GiB in segments' steps hold one of them and the layer; the other needs a segment of its own
    assert load(large).reserved_bytes < 2.1 * GIB < 2.8 * GIB < load(large, card_bytes=3 * GIB).reserved_bytes


def test_experts_are_merged_beside_themselves() -> None:
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    run, pair = load(experts), 4 * 2 * UP
    # gate and up of all experts, stacked, beside what they are joined to; not yet the down projections and attention
    after = pair // 2 + 4 * SQUARE + MIB
    assert run.load_peak_bytes == pytest.approx(run.model_bytes + pair - after, abs=2 * MIB)


# -------------------------------------------------------------------------------------------------- evaluation

TOKENS, WIDE = 8 * 128, {"vocab_size": 102_400}
IDS = 4 * 8 * TOKENS
"""Tokens, mask, labels and the labels shifted."""
LOSSES = 16 * KIB
"""What a loss per token and per row takes, at most."""


def test_the_loss_holds_the_logits_three_times(tmp_path: Path) -> None:
    held, hidden = evaluated(tmp_path, WIDE), TOKENS * 1024 * 2
    assert 0 <= held.transient_bytes - (IDS + TOKENS * 102_400 * (2 + 4 + 4) + hidden) < LOSSES


def test_float32_logits_are_not_copied(tmp_path: Path) -> None:
    held, hidden = evaluated(tmp_path, WIDE, weights_dtype="float32"), TOKENS * 1024 * 4
    assert 0 <= held.transient_bytes - (IDS + TOKENS * 102_400 * (4 + 4) + hidden) < LOSSES


def test_autocast_keeps_copies_of_what_trains(tmp_path: Path) -> None:
    plain = evaluated(tmp_path, WIDE)
    copied = evaluated(tmp_path, WIDE, weights_dtype="float32", autocast="bfloat16")
    weights = 2 * 102_400 * 1024 + 3 * UP + 4 * SQUARE
    assert copied.transient_bytes - plain.transient_bytes == pytest.approx(weights, abs=8 * MIB)


def test_liger_makes_no_logits(tmp_path: Path) -> None:
    assert evaluated(tmp_path, WIDE, kernels=["liger"]).transient_bytes < TOKENS * 102_400


def test_logits_larger_than_trainings_need_segments_of_their_own(tmp_path: Path) -> None:
    held = evaluated(tmp_path, WIDE)  # after steps of 4 x 128
    # the 16-bit ones fit where training had its float32 ones
    assert held.cache_growth_bytes == TOKENS * 102_400 * (4 + 4)
    assert evaluated(tmp_path, WIDE, micro_batch=8).cache_growth_bytes == 0


def test_what_evaluation_is_beside_training(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | WIDE))
    said = predict(job_from_dict({"model": str(tmp_path), "seq_len": 128, "micro_batch": 4, **JOB}))
    held, memory = said.outside and said.outside.evaluation, said.memory
    assert held is not None
    assert held.card_reserved_bytes == memory.reserved_bytes + held.cache_growth_bytes
    assert held.above_training_bytes == held.card_allocated_bytes - memory.allocated_bytes > 0
