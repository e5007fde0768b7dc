"""Loading, saving, evaluating and resuming: the arithmetic redone on paper."""

from __future__ import annotations

import dataclasses

import pytest

from tunecast.errors import Unsupported
from tunecast.job import Job, job_from_dict
from tunecast.predict.checkpoint import (
    Parameter,
    State,
    largest_shard_bytes,
    optimizer_file_bytes,
    optimizer_states,
    safetensors_bytes,
    saved_parameters,
    state_tensors,
)
from tunecast.predict.loading import loading, natural_order
from tunecast.predict.outside import (
    WORKSPACES_BYTES,
    as_loaded,
    disk,
    evaluation,
    held_bytes,
    kept_logits_bytes,
    optimizer_steps,
    outside,
    resuming,
    saving,
    state_card_bytes,
)
from tunecast.units import MIB

EMBED = Parameter("model.embed_tokens.weight", (1000, 1024), "bfloat16", True)
MATRIX = Parameter("model.layers.0.mlp.up_proj.weight", (4096, 1024), "bfloat16", True)
NORM = Parameter("model.norm.weight", (1024,), "bfloat16", True)
MODEL = [EMBED, MATRIX, NORM]
A = Parameter("base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight", (16, 1024), "float32", True)
B = Parameter("base_model.model.model.layers.0.mlp.up_proj.lora_B.default.weight", (4096, 16), "float32", True)
ADAPTED = [
    EMBED._replace(name="base_model.model.model.embed_tokens.weight", trainable=False),
    MATRIX._replace(name="base_model.model.model.layers.0.mlp.up_proj.base_layer.weight", trainable=False),
    A,
    B,
    NORM._replace(name="base_model.model.model.norm.weight", trainable=False),
]


def job(**values: object) -> Job:
    return job_from_dict({"model": "llama-3.2-1b", "weights_dtype": "bfloat16"} | values)


# ------------------------------------------------------------------------------------------------------- files


def test_a_safetensors_file_is_its_header_and_its_tensors() -> None:
    # {"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}} is 88 characters
    header = '{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
    assert len(header) == 88
    assert safetensors_bytes([Parameter("a", (2, 3), "float32", True)]) == 8 + 88 + 24


def test_wide_types_come_first_so_that_offsets_are_aligned() -> None:
    narrow, wide = Parameter("a", (3,), "bfloat16", True), Parameter("b", (1,), "float32", True)
    assert safetensors_bytes([narrow, wide]) == safetensors_bytes([wide, narrow])


def test_only_adapters_are_saved_where_there_are_any() -> None:
    assert [p.name.rpartition("proj.")[2] for p in saved_parameters(ADAPTED)] == ["lora_A.weight", "lora_B.weight"]
    assert saved_parameters(MODEL) == MODEL


def test_a_file_is_closed_before_it_passes_the_limit() -> None:
    three = [Parameter(str(i), (10,), "float32", True) for i in range(3)]
    assert largest_shard_bytes(three, shard_bytes=100) == 80
    assert largest_shard_bytes(three, shard_bytes=120) == 120
    assert largest_shard_bytes(three, shard_bytes=10) == 40  # a tensor is never cut


@pytest.mark.parametrize(
    ("optimizer", "matrix_bytes"),
    [
        ("adamw_torch_fused", 4 + 2 * 8 * MIB),  # two bfloat16 copies of 4 Mi elements and a step
        ("sgd", 0),
        ("adafactor", 4 * 4096 + 4 * 1024 + 4),  # a row's mean each, a column's mean each, the RMS
        ("adamw_8bit", 2 * 4 * MIB + 2 * 4 * 16384),  # 16384 blocks of 256
        ("lion_8bit", 4 * MIB + 4 * 16384),
        ("paged_adamw_32bit", 2 * 16 * MIB),
        ("ademamix_8bit", 3 * 4 * MIB + 3 * 4 * 16384),
    ],
)
def test_state_of_a_matrix(optimizer: str, matrix_bytes: int) -> None:
    assert sum(state.nbytes for state in state_tensors(optimizer, MATRIX)) == matrix_bytes


def test_8bit_optimizers_keep_embeddings_and_small_parameters_in_32_bits() -> None:
    assert list(state_tensors("adamw_8bit", EMBED)) == [State(4 * 1_024_000)] * 2
    assert list(state_tensors("adamw_8bit", NORM)) == [State(4 * 1024)] * 2


def test_paged_state_of_small_parameters_stays_on_the_card() -> None:
    states = optimizer_states("paged_adamw_8bit", ADAPTED)
    # A has 16,384 elements, B 65,536: both under 100,000
    assert not any(state.paged for state in states)
    assert [s.nbytes for s in optimizer_states("paged_adamw_8bit", [MATRIX]) if s.paged] == [4 * MIB] * 2


def test_an_optimizer_that_is_not_written_down_is_refused() -> None:
    with pytest.raises(Unsupported, match="galore_adamw"):
        optimizer_states("galore_adamw", MODEL)


# ----------------------------------------------------------------------------------------------------- loading


def test_layers_are_loaded_in_the_order_of_their_numbers() -> None:
    names = ["model.layers.10.a", "model.norm.weight", "model.layers.2.a", "lm_head.weight"]
    assert sorted(names, key=natural_order) == [names[3], names[2], names[0], names[1]]


def test_no_host_memory_is_needed_where_nothing_is_cast() -> None:
    held = loading(MODEL, "bfloat16")
    assert (held.host_bytes, held.host_mapped_bytes) == (0, 2 * (1_024_000 + 4 * MIB + 1024))


def test_a_cast_is_done_on_the_host_four_tensors_at_a_time() -> None:
    six = [Parameter(f"{i}", (MIB,), "float32", True) for i in range(6)]
    assert loading(six, "float32").host_bytes == 4 * 4 * MIB
    assert loading(six, "float32", device_map=False).host_bytes == 6 * 4 * MIB


def test_the_warm_up_block_is_cut_up_for_the_weights() -> None:
    three = [Parameter(f"{i}", (4, MIB), "bfloat16", True) for i in range(3)]
    held = loading(three, "bfloat16")
    assert held.card_allocated_bytes == held.card_reserved_bytes == held.model_bytes == 24 * MIB
    # One by one, each of 8 MiB comes from a segment of 20 MiB that has room for two.
    assert loading(three, "bfloat16", device_map=False).card_reserved_bytes == 40 * MIB


def test_four_bit_weights_arrive_whole() -> None:
    packed = [MATRIX._replace(dtype="nf4", trainable=False)]
    held = loading(packed, "bfloat16")
    scales = 4 * 4 * MIB // 64
    assert held.model_bytes == 2 * MIB + scales + 512 == held_bytes(packed)
    assert held.card_allocated_bytes == held.model_bytes + 8 * MIB


def test_double_quantisation_keeps_a_byte_for_64_elements() -> None:
    packed = [MATRIX._replace(dtype="nf4", trainable=False)]
    maxima = 4 * MIB // 64
    held = loading(packed, "bfloat16", double_quant=True)
    assert held.model_bytes == 2 * MIB + maxima + 4 * maxima // 256 + 1024 + 512 + 512
    assert held.model_bytes == held_bytes(packed, double_quant=True)


def test_int8_weights_go_over_the_host() -> None:
    held = loading([MATRIX._replace(dtype="int8", trainable=False)], "bfloat16")
    assert held.host_bytes == (2 + 2) * 4 * MIB
    assert held.card_allocated_bytes == (2 + 2 + 1) * 4 * MIB + 4 * 4096


def test_experts_are_merged_beside_themselves() -> None:
    pair = Parameter("model.layers.0.mlp.experts.gate_up_proj", (8, 1024, 1024), "bfloat16", False)
    assert loading([pair], "bfloat16").card_allocated_bytes == 2 * 16 * MIB
    assert loading([pair], "bfloat16", merged_experts=False).card_allocated_bytes == 16 * MIB


def test_the_base_is_loaded_without_adapters_and_in_the_dtype_asked_for() -> None:
    prepared = [p._replace(dtype="float32") if p.name.endswith("norm.weight") else p for p in ADAPTED]
    assert as_loaded(job(method="lora"), prepared) == [p._replace(trainable=False) for p in MODEL]


# ------------------------------------------------------------------------------------------------ saving, disk


def test_saving_brings_a_whole_file_to_the_host() -> None:
    held = saving(MODEL, optimizer_states("adamw_torch", MODEL))
    assert held.host_bytes == 2 * (1_024_000 + 4 * MIB + 1024)
    assert held.card_bytes == 0


def test_saving_adapters_takes_the_largest_of_the_optimizers_tensors_at_least() -> None:
    assert saving([B], [State(10 * MIB)]).host_bytes == 10 * MIB


def test_splitting_experts_again_copies_every_pair() -> None:
    pairs = [Parameter(f"layers.{i}.experts.gate_up_proj", (8, 64, 64), "bfloat16", True) for i in range(3)]
    assert saving(pairs, []).card_bytes == 3 * 8 * 64 * 64 * 2
    assert saving(pairs, [], merged_experts=False).card_bytes == 0


@pytest.mark.parametrize(
    ("steps", "limit", "best", "counts"),
    [
        (1200, None, False, (3, 3, 3)),  # at 500, 1000 and the end
        (1000, None, False, (2, 2, 2)),
        (1200, 1, False, (3, 1, 2)),
        (1200, 1, True, (3, 2, 3)),  # the newest and the best
        (400, 2, False, (1, 1, 1)),
        (None, 2, False, (None, 2, 3)),
        (None, None, False, (None, None, None)),
    ],
)
def test_count_of_checkpoints(
    steps: int | None, limit: int | None, best: bool, counts: tuple[int | None, int | None, int | None]
) -> None:
    space = disk(MODEL, [], steps=steps, save_total_limit=limit, keeps_best=best)
    assert (space.saves, space.kept, space.most) == counts
    assert space.peak_bytes == (None if counts[2] is None else counts[2] * space.checkpoint_bytes)


def test_a_checkpoint_is_weights_and_optimizer() -> None:
    states = optimizer_states("adamw_torch", MODEL)
    space = disk(MODEL, states)
    assert space.checkpoint_bytes == safetensors_bytes(MODEL) + optimizer_file_bytes(states) + space.small_bytes
    assert space.optimizer_bytes == pytest.approx(2 * space.weights_bytes, rel=1e-3)


def test_steps_follow_from_the_data() -> None:
    # 1000 rows in micro-batches of 2 are 500, four to a step 125, three times over
    assert optimizer_steps(job(micro_batch=2, grad_accum=4, data={"samples": 1000})) == 375
    assert optimizer_steps(job(micro_batch=1, seq_len=1000, data={"tokens": 10_500, "epochs": 1})) == 11
    assert optimizer_steps(job()) is None


# ------------------------------------------------------------------------------------------ evaluation, resuming


def test_the_loss_holds_the_logits_three_times() -> None:
    held = evaluation(job(seq_len=128), MODEL, [])
    tokens = 8 * 128
    logits = tokens * 1000 * (2 + 4 + 4)
    layer = tokens * (3 * 4096 * 2 + 2 * 1024 * 2)
    assert layer > logits  # of so small a vocabulary
    assert held.transient_bytes == WORKSPACES_BYTES + 4 * 8 * tokens + layer
    wide = [EMBED._replace(shape=(100_000, 1024)), MATRIX, NORM]
    hidden = tokens * 1024 * 2
    assert evaluation(job(seq_len=128), wide, []).transient_bytes == (
        WORKSPACES_BYTES + 4 * 8 * tokens + tokens * 100_000 * 10 + hidden
    )


def test_float32_logits_are_not_copied() -> None:
    wide = [EMBED._replace(shape=(100_000, 1024), dtype="float32")]
    held = evaluation(job(seq_len=128, weights_dtype="float32", autocast=None), wide, [])
    assert held.transient_bytes - WORKSPACES_BYTES == 1024 * (100_000 * 8 + 1024 * 4 + 32)


def test_autocast_keeps_copies_of_what_trains() -> None:
    whole = [p._replace(dtype="float32") for p in (EMBED._replace(shape=(100_000, 1024)), MATRIX, NORM)]
    frozen = [p._replace(trainable=False) for p in whole]
    more = evaluation(job(seq_len=128), whole, []).transient_bytes
    assert more - evaluation(job(seq_len=128), frozen, []).transient_bytes == 2 * (100_000 * 1024 + 4 * MIB)


def test_liger_makes_no_logits() -> None:
    wide = [EMBED._replace(shape=(100_000, 1024)), MATRIX]
    assert evaluation(job(seq_len=128, kernels=["liger"]), wide, []).transient_bytes < 1024 * 100_000


def test_kept_logits_lie_beside_their_sum() -> None:
    assert kept_logits_bytes(tokens=10, vocabulary=100, batches=1) == 4000
    assert kept_logits_bytes(tokens=10, vocabulary=100, batches=3) == 2 * 3 * 4000


def test_resuming_reads_the_optimizer_into_host_memory() -> None:
    states = optimizer_states("adamw_torch", MODEL)
    held = resuming("adamw_torch", MODEL, states)
    assert held.host_bytes == sum(s.nbytes for s in states)
    assert (held.card_bytes, held.card_lasting_bytes) == (0, 0)


def test_resuming_bitsandbytes_copies_twice_and_unpages() -> None:
    states = optimizer_states("paged_adamw_8bit", [MATRIX])
    held = resuming("paged_adamw_8bit", [MATRIX], states)
    assert held.host_bytes == 2 * sum(s.nbytes for s in states)
    assert held.card_lasting_bytes == 2 * 4 * MIB
    assert state_card_bytes(states) == 2 * 4 * 16384


def test_resuming_adapters_reads_them_to_the_card() -> None:
    assert resuming("adamw_torch", ADAPTED, []).card_bytes == 4 * (16 * 1024 + 4096 * 16)


def test_everything_together() -> None:
    said = outside(job(method="lora", micro_batch=1), ADAPTED, save_total_limit=2, steps=2000)
    assert dataclasses.asdict(said).keys() == {"loading", "saving", "disk", "evaluation", "resuming"}
    assert said.disk.most == 3
    assert said.loading.model_bytes >= 2 * (1_024_000 + 4 * MIB + 1024)
    assert said.evaluation.batch == 8
