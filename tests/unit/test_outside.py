"""Loading, saving, evaluating and resuming: the arithmetic redone on paper."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tunecast.errors import Unsupported
from tunecast.job import Job, job_from_dict
from tunecast.job.model import resolve_model
from tunecast.predict.allocator import AllocatorSettings
from tunecast.predict.checkpoint import (
    SMALL_FILES_BYTES,
    Parameter,
    State,
    code_book_bytes,
    largest_shard_bytes,
    optimizer_file_bytes,
    optimizer_states,
    safetensors_bytes,
    saved_parameters,
    state_tensors,
)
from tunecast.predict.evaluation import Evaluation, block_bytes, kept_logits_bytes, state_card_bytes, workspaces_bytes
from tunecast.predict.evaluation import evaluation as evaluation_of
from tunecast.predict.loading import KERNELS_BYTES, loading, natural_order
from tunecast.predict.outside import (
    HOST_BITSANDBYTES_BYTES,
    HOST_PROCESS_BYTES,
    HOST_TRAINING_BYTES,
    as_loaded,
    held_bytes,
    machine_ram_bytes,
    outside,
    outside_of,
    tensors_on_paper,
)
from tunecast.predict.prediction import Memory
from tunecast.predict.saving import disk, optimizer_steps, resuming, saving
from tunecast.units import GIB, KIB, MIB

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


def evaluation(job: Job, parameters: list[Parameter], states: list[State]) -> Evaluation:
    return evaluation_of(job, parameters, states, model_bytes=held_bytes(parameters))


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
    # the weight itself, and two blocks to find the largest code value
    assert held.card_allocated_bytes == held.model_bytes + 8 * MIB + 2 * 512
    assert held.host_bytes == KERNELS_BYTES["nf4"]


def test_double_quantisation_keeps_a_byte_for_64_elements() -> None:
    packed = [MATRIX._replace(dtype="nf4", trainable=False)]
    maxima = 4 * MIB // 64
    held = loading(packed, "bfloat16", double_quant=True)
    kept = 2 * MIB + maxima + 4 * maxima // 256 + 1024 + 512 + 512
    assert held_bytes(packed, double_quant=True) == kept
    assert held.model_bytes == kept + 1024  # the code book all weights' own are copied from
    twice = [packed[0], packed[0]._replace(name="another")]
    assert loading(twice, "bfloat16", double_quant=True).model_bytes == 2 * kept + 1024


def test_int8_weights_go_over_the_host() -> None:
    held = loading([MATRIX._replace(dtype="int8", trainable=False)], "bfloat16")
    assert held.host_bytes == (2 + 2) * 4 * MIB + KERNELS_BYTES["int8"]
    assert held.card_allocated_bytes == (2 + 2 + 1) * 4 * MIB + 4 * 4096


def test_buffers_come_last() -> None:
    assert loading(MODEL, "bfloat16", buffers=(128, 600)).model_bytes == loading(MODEL, "bfloat16").model_bytes + 1536


def test_the_warm_up_leaves_a_small_card_some_room() -> None:
    three = [Parameter(f"{i}", (512, MIB), "bfloat16", True) for i in range(3)]  # of 1 GiB
    small = AllocatorSettings(device_total_bytes=4 * GIB)
    # 2.8 GiB, 2868 MiB in segments' steps, hold two; the third needs a segment of its own
    assert loading(three, "bfloat16", settings=small).card_reserved_bytes == (2868 + 1024) * MIB
    assert loading(three, "bfloat16").card_reserved_bytes == 3 * GIB


def test_experts_are_merged_beside_themselves() -> None:
    pair = Parameter("model.layers.0.mlp.experts.gate_up_proj", (8, 1024, 1024), "bfloat16", False)
    assert loading([pair], "bfloat16").card_allocated_bytes == 2 * 16 * MIB
    assert loading([pair], "bfloat16", merged_experts=False).card_allocated_bytes == 16 * MIB


def test_the_base_is_loaded_without_adapters_and_in_the_dtype_asked_for() -> None:
    prepared = [p._replace(dtype="float32") if p.name.endswith("norm.weight") else p for p in ADAPTED]
    assert as_loaded("bfloat16", prepared) == [p._replace(trainable=False) for p in MODEL]


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


def test_saving_clones_the_code_books_of_double_quantisation() -> None:
    packed = [MATRIX._replace(dtype="nf4", trainable=False), A, B]
    assert saving(packed, []).card_bytes == 0
    assert saving(packed, [], double_quant=True).card_bytes == KIB


# ------------------------------------------------------------------------------------------ evaluation, resuming


def test_a_large_tensor_keeps_what_is_left_of_its_segment() -> None:
    assert block_bytes(501 * MIB) == 502 * MIB  # 1 MiB is not split off
    assert block_bytes(501 * MIB, expandable=True) == 501 * MIB
    assert block_bytes(501 * MIB - 512) == 501 * MIB - 512  # more than 1 MiB is
    assert block_bytes(9 * MIB) == 9 * MIB  # shares a segment


def test_logits_larger_than_trainings_need_segments_of_their_own() -> None:
    wide = [EMBED._replace(shape=(65_536, 1024)), MATRIX]
    small = job(seq_len=128, micro_batch=4)
    grown = evaluation(small, wide, []).cache_growth_bytes
    assert grown == 8 * 128 * 65_536 * (2 + 4 + 4)
    assert evaluation(dataclasses.replace(small, micro_batch=8), wide, []).cache_growth_bytes == 0
    memory = Memory(100 * MIB, 3 * GIB, 4 * GIB, 5 * GIB, {}, "backward", {})
    held = evaluation_of(small, wide, [], memory, model_bytes=memory.model_bytes)
    assert held.card_reserved_bytes == 4 * GIB + grown
    assert held.above_training_bytes == held.card_allocated_bytes - 3 * GIB


def test_workspaces_are_larger_on_hopper() -> None:
    assert (workspaces_bytes((9, 0)), workspaces_bytes((8, 9))) == (64 * MIB, 16 * MIB + 256 * KIB)


def test_the_loss_holds_the_logits_three_times() -> None:
    held = evaluation(job(seq_len=128), MODEL, [])
    tokens = 8 * 128
    logits = tokens * 1000 * (2 + 4 + 4)
    layer = tokens * (3 * 4096 * 2 + 2 * 1024 * 2)
    assert layer > logits  # of so small a vocabulary
    assert held.transient_bytes == workspaces_bytes() + 4 * 8 * tokens + layer
    wide = [EMBED._replace(shape=(102_400, 1024)), MATRIX, NORM]
    hidden = tokens * 1024 * 2
    assert evaluation(job(seq_len=128), wide, []).transient_bytes == (
        workspaces_bytes() + 4 * 8 * tokens + tokens * 102_400 * 10 + hidden
    )


def test_float32_logits_are_not_copied() -> None:
    wide = [EMBED._replace(shape=(102_400, 1024), dtype="float32")]
    held = evaluation(job(seq_len=128, weights_dtype="float32", autocast=None), wide, [])
    assert held.transient_bytes - workspaces_bytes() == 1024 * (102_400 * 8 + 1024 * 4 + 32)


def test_autocast_keeps_copies_of_what_trains() -> None:
    whole = [p._replace(dtype="float32") for p in (EMBED._replace(shape=(102_400, 1024)), MATRIX, NORM)]
    frozen = [p._replace(trainable=False) for p in whole]
    more = evaluation(job(seq_len=128), whole, []).transient_bytes
    assert more - evaluation(job(seq_len=128), frozen, []).transient_bytes == 2 * (102_400 * 1024 + 4 * MIB)


def test_liger_makes_no_logits() -> None:
    wide = [EMBED._replace(shape=(102_400, 1024)), MATRIX]
    assert evaluation(job(seq_len=128, kernels=["liger"]), wide, []).transient_bytes < 1024 * 102_400


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
    assert held.host_bytes == 2 * (sum(s.nbytes for s in states) + 2 * KIB)
    assert held.card_lasting_bytes == 2 * 4 * MIB + 2 * KIB
    assert state_card_bytes(states) == 2 * 4 * 16384


def test_code_books_are_those_of_8bit_parameters() -> None:
    # the embedding and the norm stay in 32 bits
    assert code_book_bytes("adamw_8bit", [*MODEL, MATRIX._replace(trainable=False)]) == 2 * KIB
    assert code_book_bytes("lion_8bit", MODEL) == KIB
    assert code_book_bytes("adamw_torch", MODEL) == code_book_bytes("adafactor", MODEL) == 0


def test_resuming_adapters_reads_them_to_the_card() -> None:
    assert resuming("adamw_torch", ADAPTED, []).card_bytes == 4 * (16 * 1024 + 4096 * 16)


def test_everything_together() -> None:
    said = outside(job(method="lora", micro_batch=1), ADAPTED, save_total_limit=2, steps=2000)
    assert said.disk.most == 3
    assert said.loading.model_bytes >= 2 * (1_024_000 + 4 * MIB + 1024)
    assert said.evaluation.batch == 8


def test_host_memory_is_that_of_the_worst_phase() -> None:
    full = outside(job(micro_batch=1, optimizer="sgd"), MODEL)
    weights = 2 * (1_024_000 + 4 * MIB + 1024)
    assert full.host_bytes == HOST_TRAINING_BYTES + weights
    cast = outside(job(micro_batch=1, optimizer="sgd", weights_dtype="float32"), MODEL, device_map=False)
    assert cast.host_resident_bytes == HOST_TRAINING_BYTES + weights  # saved as it trains
    packed = outside(job(method="qlora", micro_batch=1), [MATRIX._replace(dtype="nf4", trainable=False), EMBED, A, B])
    assert packed.process_bytes == HOST_PROCESS_BYTES + HOST_BITSANDBYTES_BYTES


# ---------------------------------------------------------------------------------------- from the closed form


def test_the_closed_form_names_every_tensor() -> None:
    said = tensors_on_paper(job(method="full"), resolve_model("llama-3.2-1b").raw)
    assert sum(p.elements for p in said.parameters) == 1_235_814_400
    assert all(p.trainable and p.dtype == "bfloat16" for p in said.parameters)
    assert said.parameters[0].name == "model.embed_tokens.weight"
    assert not any(p.name == "lm_head.weight" for p in said.parameters)  # tied
    assert said.buffers == (128, 128)  # 32 frequencies, and as they were


def test_packed_weights_keep_their_shape_and_the_rest_is_prepared() -> None:
    asked = job(method="qlora", lora={"rank": 8, "targets": ["q_proj"]})
    said = {p.name: p for p in tensors_on_paper(asked, resolve_model("llama-3.2-1b").raw).parameters}
    query = "base_model.model.model.layers.3.self_attn.q_proj"
    assert said[f"{query}.base_layer.weight"][1:] == ((2048, 2048), "nf4", False)
    assert said[f"{query}.lora_A.weight"][1:] == ((8, 2048), "float32", True)
    assert said["base_model.model.model.layers.3.mlp.up_proj.weight"].dtype == "nf4"
    assert said["base_model.model.model.embed_tokens.weight"][2:] == ("float32", False)
    assert sum(p.trainable for p in said.values()) == 2 * 16


def test_a_job_from_its_model() -> None:
    asked = job(method="full", data={"samples": 8000, "epochs": 1}, micro_batch=8, optimizer="adamw_torch")
    said = outside_of(asked, resolve_model("llama-3.2-1b"))
    assert said.loading.model_bytes >= 2 * 1_235_814_400
    assert said.disk.saves == 2
    told = json.loads(json.dumps(said.to_dict()))
    assert told["disk"]["peak_bytes"] == 2 * said.disk.checkpoint_bytes
    assert told["host_bytes"] == said.host_bytes
    assert told["evaluation"]["card_reserved_bytes"] is None  # no prediction of the step was given


def test_an_architecture_nobody_has_written_down_is_refused() -> None:
    unknown = dataclasses.replace(resolve_model("llama-3.2-1b"), raw_json='{"model_type": "unheard-of"}')
    with pytest.raises(Unsupported, match="unheard-of"):
        outside_of(job(), unknown)


def test_a_fully_sharded_checkpoint_holds_float32_and_the_weights_twice():
    """Llama 3.2 1B, 1,235,814,400 weights: 4 bytes of each loaded and cast by every rank; 4 + 4 + 8 on the disk."""
    weights = 1_235_814_400
    spread = {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp"}, "autocast": "bfloat16", "method": "full"}
    said = outside_of(job(**spread), resolve_model("llama-3.2-1b"))
    alone = outside_of(job(autocast="bfloat16", method="full"), resolve_model("llama-3.2-1b"))
    assert said.loading.host_bytes - alone.loading.host_bytes == 4 * weights
    assert said.disk.weights_bytes == pytest.approx(4 * weights, rel=1e-3)
    assert said.disk.checkpoint_bytes == pytest.approx((4 + 4 + 8) * weights, rel=1e-3)
    assert said.saving.host_bytes == pytest.approx(8 * weights, rel=1e-3)  # the state, gathered after the weights
    plain = outside_of(job(**spread | {"autocast": None}), resolve_model("llama-3.2-1b"))
    assert plain.disk.weights_bytes == pytest.approx(2 * weights, rel=1e-3)
    adapted = outside_of(job(**spread | {"method": "lora"}), resolve_model("llama-3.2-1b"))
    assert adapted.disk.checkpoint_bytes < weights // 10 < adapted.saving.host_bytes


def test_a_checkpoint_of_the_model_alone():
    """Llama 3.2 1B in bfloat16: 2 bytes a weight, 4 under FSDP with mixed precision; no more, and nothing to read."""
    weights, model = 1_235_814_400, resolve_model("llama-3.2-1b")
    only: dict[str, Any] = {"run": {"save_only_model": True}, "method": "full", "autocast": "bfloat16"}
    sharded = {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp"}}
    zero = {"hardware": {"gpus": 8}, "parallel": {"data": "zero3"}, "optimizer": "adamw_torch"}
    for spread, each in (({}, 2), (sharded, 4), (zero, 2)):
        said = outside_of(job(**only | spread), model)
        assert said.disk.checkpoint_bytes == pytest.approx(each * weights, rel=1e-3)
        assert said.saving.host_bytes == pytest.approx(each * weights, rel=1e-3)
        assert (said.disk.optimizer_bytes, said.resuming.host_bytes) == (0, 0)
        assert said.disk.small_bytes < SMALL_FILES_BYTES


def test_ranks_that_write_their_parts_gather_nothing():
    """4 + 8 bytes a weight, once; of the largest tensor, 128,256 x 2,048 in float32, an eighth on each host."""
    weights, model = 1_235_814_400, resolve_model("llama-3.2-1b")
    parts = {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp", "state_dict_type": "sharded"}}
    said = outside_of(job(method="full", autocast="bfloat16", **parts), model)
    assert said.disk.checkpoint_bytes == pytest.approx(12 * weights, rel=1e-3)
    assert said.disk.weights_bytes == pytest.approx(4 * weights, rel=1e-3)
    assert said.saving.host_bytes == 128_256 * 2048 * 4 // 8 + 10_000_000
    assert said.resuming.host_bytes == 128_256 * 2048 * 4 // 8
    assert said.disk.writers == 8


SPREADS: list[dict[str, Any]] = [
    {},
    {"hardware": {"gpus": 4}},
    {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp"}},
    {"hardware": {"gpus": 4, "nodes": 2}, "parallel": {"data": "hsdp", "state_dict_type": "sharded"}},
    {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp", "cpu_ram_efficient_loading": True, "load_on_rank_0": True}},
    {"hardware": {"gpus": 8}, "parallel": {"data": "zero3", "offload": "optimizer"}},
    {"hardware": {"gpus": 2}, "parallel": {"data": "zero2"}, "run": {"save_only_model": True}},
]


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_what_a_machine_needs_is_known_without_the_rest(spread: dict[str, Any], method: str) -> None:
    asked = job(method=method, autocast="bfloat16", optimizer="adamw_torch", seq_len=512, micro_batch=4, **spread)
    model = resolve_model("llama-3.2-1b")
    assert machine_ram_bytes(asked, model) == outside_of(asked, model).machine_bytes


def test_what_a_machine_needs_of_files_nobody_knows() -> None:
    assert machine_ram_bytes(job(stack="litgpt"), resolve_model("llama-3.2-1b")) is None


MODELS = ("llama-3.2-1b", "gemma-2-2b", "deepseek-v2-lite", "gpt2", "gpt-oss-20b", "qwen3-30b-a3b")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", ["full", "qlora"])
def test_layers_that_stand_for_others_give_their_tensors(
    model: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = {} if method == "full" else {"lora": {"targets": "attention"}}
    asked, raw = job(model=model, method=method, **lora), resolve_model(model).raw
    few = tensors_on_paper(asked, raw)
    monkeypatch.setattr("tunecast.tape.build.short.repeating", lambda *_: None)
    assert few == tensors_on_paper(asked, raw)
    assert len({p.name for p in few.parameters}) == len(few.parameters)
