"""Loading, saving, evaluating and resuming: the arithmetic redone on paper."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tunecast.errors import Unsupported
from tunecast.job import Job, job_from_dict
from tunecast.job.model import resolve_model
from tunecast.prediction.outside.checkpoint import (
    SMALL_FILES_BYTES,
    Parameter,
    code_book_bytes,
    largest_shard_bytes,
    optimizer_file_bytes,
    optimizer_states,
    safetensors_bytes,
    saved_parameters,
)
from tunecast.prediction.outside.loading import KERNELS_BYTES, Stored, host_bytes
from tunecast.prediction.outside.needs import (
    HOST_BITSANDBYTES_BYTES,
    HOST_PROCESS_BYTES,
    HOST_TRAINING_BYTES,
    as_loaded,
    held_bytes,
    machine_ram_bytes,
    outside_of,
    tensors_on_paper,
)
from tunecast.prediction.outside.saving import disk_of, optimizer_steps, resuming, saving
from tunecast.tape.build.optimizers import State
from tunecast.units import KIB, MIB

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
    assert sum(state.nbytes for state in optimizer_states(optimizer, [MATRIX])) == matrix_bytes


def test_8bit_optimizers_keep_embeddings_and_small_parameters_in_32_bits() -> None:
    assert optimizer_states("adamw_8bit", [EMBED]) == [State(4 * 1_024_000)] * 2
    assert optimizer_states("adamw_8bit", [NORM]) == [State(4 * 1024)] * 2


def test_paged_state_of_small_parameters_stays_on_the_card() -> None:
    states = optimizer_states("paged_adamw_8bit", ADAPTED)
    # A has 16,384 elements, B 65,536: both under 100,000
    assert not any(state.paged for state in states)
    assert [s.nbytes for s in optimizer_states("paged_adamw_8bit", [MATRIX]) if s.paged] == [4 * MIB] * 2


def test_an_optimizer_that_is_not_written_down_is_refused() -> None:
    with pytest.raises(Unsupported, match="adalomo"):
        optimizer_states("adalomo", MODEL)


# ----------------------------------------------------------------------------------------------------- loading


def test_no_host_memory_is_needed_where_nothing_is_cast() -> None:
    assert host_bytes(MODEL, "bfloat16", Stored()) == 0


def test_a_cast_is_done_on_the_host_four_tensors_at_a_time() -> None:
    six = [Parameter(f"{i}", (MIB,), "float32", True) for i in range(6)]
    assert host_bytes(six, "float32", Stored()) == 4 * 4 * MIB
    assert host_bytes(six, "float32", Stored(device_map=False)) == 6 * 4 * MIB


def test_quantised_weights_come_one_by_one_and_int8_go_over_the_host() -> None:
    assert host_bytes([MATRIX._replace(dtype="nf4")], "bfloat16", Stored()) == KERNELS_BYTES["nf4"]
    assert host_bytes([MATRIX._replace(dtype="nf4")] * 2, "float32", Stored()) == 16 * MIB + KERNELS_BYTES["nf4"]
    eight_bit = [MATRIX._replace(dtype="int8", trainable=False)]
    assert host_bytes(eight_bit, "bfloat16", Stored()) == (2 + 2) * 4 * MIB + KERNELS_BYTES["int8"]


def test_packed_weights_are_held_with_their_scales() -> None:
    packed, maxima = [MATRIX._replace(dtype="nf4", trainable=False)], 4 * MIB // 64
    assert held_bytes(packed) == 2 * MIB + 4 * maxima + 512
    assert held_bytes(packed, double_quant=True) == 2 * MIB + maxima + 4 * maxima // 256 + 1024 + 512 + 512


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
    space = disk_of(8 * MIB, 0, steps=steps, save_total_limit=limit, keeps_best=best)
    assert (space.saves, space.kept, space.most) == counts
    assert space.peak_bytes == (None if counts[2] is None else counts[2] * space.checkpoint_bytes)


def test_a_checkpoint_is_weights_and_optimizer() -> None:
    states = optimizer_states("adamw_torch", MODEL)
    space = disk_of(safetensors_bytes(MODEL), optimizer_file_bytes(states))
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
    assert [s.nbytes for s in states if not s.on_host] == [4 * 16384] * 2


def test_code_books_are_those_of_8bit_parameters() -> None:
    # the embedding and the norm stay in 32 bits
    assert code_book_bytes("adamw_8bit", [*MODEL, MATRIX._replace(trainable=False)]) == 2 * KIB
    assert code_book_bytes("lion_8bit", MODEL) == KIB
    assert code_book_bytes("adamw_torch", MODEL) == code_book_bytes("adafactor", MODEL) == 0


def test_resuming_adapters_reads_them_to_the_card() -> None:
    assert resuming("adamw_torch", ADAPTED, []).card_bytes == 4 * (16 * 1024 + 4096 * 16)


# ---------------------------------------------------------------------------------------- from the closed form


def test_the_closed_form_names_every_tensor() -> None:
    said = tensors_on_paper(job(method="full"), resolve_model("llama-3.2-1b").raw)
    assert sum(p.elements for p in said) == 1_235_814_400
    assert all(p.trainable and p.dtype == "bfloat16" for p in said)
    assert said[0].name == "model.embed_tokens.weight"
    assert not any(p.name == "lm_head.weight" for p in said)  # tied


def test_packed_weights_keep_their_shape_and_the_rest_is_prepared() -> None:
    asked = job(method="qlora", lora={"rank": 8, "targets": ["q_proj"]})
    said = {p.name: p for p in tensors_on_paper(asked, resolve_model("llama-3.2-1b").raw)}
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
    assert told["evaluation"] is None  # no run was given that it comes between the steps of


def test_host_memory_is_that_of_the_worst_phase() -> None:
    model, weights = resolve_model("llama-3.2-1b"), 2 * 1_235_814_400
    full = outside_of(job(method="full", optimizer="sgd"), model)
    assert full.host_bytes == HOST_TRAINING_BYTES + weights
    cast = outside_of(job(method="full", optimizer="sgd", weights_dtype="float32"), model)
    assert cast.host_resident_bytes == HOST_TRAINING_BYTES + 2 * weights  # saved as it trains
    packed = outside_of(job(method="qlora", run={"save_total_limit": 2, "max_steps": 2000}), model)
    assert packed.process_bytes == HOST_PROCESS_BYTES + HOST_BITSANDBYTES_BYTES
    assert packed.disk.most == 3


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
    assert machine_ram_bytes(asked, model) == outside_of(asked, model).machine_ram_bytes


def test_what_a_machine_needs_of_files_nobody_knows() -> None:
    assert machine_ram_bytes(job(stack="litgpt"), resolve_model("llama-3.2-1b")) is None


MODELS = (
    *("llama-3.2-1b", "gemma-2-2b", "deepseek-v2-lite", "gpt2", "gpt-oss-20b", "qwen3-30b-a3b"),
    "kimi-linear-48b-a3b",  # its last layers break the pattern
)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", ["full", "qlora"])
def test_layers_that_stand_for_others_give_their_tensors(
    model: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = {} if method == "full" else {"lora": {"targets": "attention"}}
    asked, raw = job(model=model, method=method, **lora), resolve_model(model).raw
    few = tensors_on_paper(asked, raw)
    monkeypatch.setattr("tunecast.prediction.outside.paper.repeating", lambda _, config: (None, config))
    assert few == tensors_on_paper(asked, raw)
    assert len({p.name for p in few}) == len(few)
