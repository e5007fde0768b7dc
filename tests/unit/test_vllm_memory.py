"""What vLLM holds beside the trainer, on paper."""

from __future__ import annotations

from math import ceil

import pytest

from tunecast.door.read import read
from tunecast.errors import Unsupported
from tunecast.hardware.catalog import known_gpu
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.prediction.memory.vllm import (
    GRAPH_BYTES,
    MOST_ASLEEP_BYTES,
    NONE,
    OTHER_BYTES,
    VllmShare,
    attention_layers,
    engine_of,
    graphs,
    requested_bytes,
    server_cards,
    token_bytes,
    vllm_share,
)
from tunecast.prediction.on_card import OnCard, job_on_card
from tunecast.prediction.prediction import Prediction, memory_of
from tunecast.report.run.memory import figures_text
from tunecast.report.run.on_card import run_figures
from tunecast.tape.op import Alloc, Begin, Free, Phase, Role, Tape
from tunecast.units import GIB, MIB

CARD = known_gpu("h100-sxm-80gb")
MODEL = resolve_model("qwen2.5-7b")
WEIGHTS = 7_615_616_512


def grpo(
    *, stack: str = "trl", gpus: int = 1, method: str = "lora", parallel: dict[str, str] | None = None, **vllm: object
) -> Job:
    fields = {"engine": "vllm", "completion_length": 1024, "generations": 8, "vllm": vllm}
    rows = {"seq_len": 1536, "micro_batch": 8, "grad_accum": 4, "parallel": parallel or {}}
    hardware = {"gpu": CARD.name, "gpus": gpus}
    return read(
        {
            "model": MODEL.name,
            "task": "grpo",
            "method": method,
            "stack": stack,
            "hardware": hardware,
            "rl": fields,
            **rows,
        }
    )


def test_the_cache_takes_what_the_fraction_leaves() -> None:
    engine = engine_of(grpo(), MODEL, CARD)
    assert engine.requested_bytes == ceil(0.3 * CARD.memory_bytes)
    assert engine.weights_bytes == 2 * WEIGHTS
    # 28 layers of 4 key and 4 value heads of 128 in two bytes
    assert engine.token_bytes == 28 * (4 + 4) * 128 * 2
    # rows and residual, 3,584 wide, and three tensors of the MLP, 18,944 wide, of 4,096 tokens
    assert engine.moment_bytes == 4096 * 2 * (2 * 3584 + 3 * 18944)
    # max_num_seqs 8 x 4: graphs of 1, 2, 4, 8, 16, ... 64 tokens, and of up to 32 that decode
    assert graphs(32) == (3 + 8) + (3 + 4)
    rest = engine.weights_bytes + engine.moment_bytes + 18 * GRAPH_BYTES + OTHER_BYTES
    assert engine.cache_bytes == engine.requested_bytes - rest
    assert engine.at_once == 32


def test_graphs_are_those_vllm_lists() -> None:
    """`PIECEWISE=51 (largest=512), FULL=35 (largest=256)`, a log of vllm-project/vllm#39559."""
    assert graphs(256) == 51 + 35


def test_the_profile_run_only_borrows() -> None:
    engine, share = engine_of(grpo(), MODEL, CARD), vllm_share(grpo(), MODEL, CARD)
    assert share.nbytes == share.awake_bytes == engine.requested_bytes - engine.moment_bytes
    assert share.low_bytes < share.nbytes < share.high_bytes
    assert "estimated" in share.told


def test_adapters_under_zero_3_are_merged_into_whole_weights() -> None:
    """Three quarters come from other cards, beside the engine: no room is left of 79 GiB for a model that stays."""
    job = grpo(gpus=4, parallel={"data": "zero3"})
    share = vllm_share(job, MODEL, CARD)
    assert share.syncing_bytes - share.nbytes == 2 * WEIGHTS * 3 // 4
    assert vllm_share(grpo(gpus=4, parallel={"data": "fsdp"}), MODEL, CARD).syncing_bytes == 0
    assert on_card(share._replace(syncing_bytes=58 * GIB)).fits
    assert not on_card(share._replace(syncing_bytes=59 * GIB)).fits


def test_asleep_graphs_stay() -> None:
    engine, share = engine_of(grpo(), MODEL, CARD), vllm_share(grpo(sleep=True), MODEL, CARD)
    assert share.nbytes == 18 * GRAPH_BYTES + OTHER_BYTES
    assert share.high_bytes == MOST_ASLEEP_BYTES
    assert share.awake_bytes == engine.requested_bytes - engine.moment_bytes


def test_a_server_holds_nothing_of_the_cards_that_train() -> None:
    job = grpo(place="server", cards=2)
    assert vllm_share(job, MODEL, CARD).nbytes == 0
    assert server_cards(job) == 2
    # the field's default is for engines beside the trainer
    assert engine_of(job, MODEL, CARD).requested_bytes == ceil(0.92 * CARD.memory_bytes)
    assert requested_bytes(job, CARD) == 0 < requested_bytes(grpo(), CARD)


def test_other_engines_and_tasks_hold_nothing() -> None:
    for plain in (read({"model": MODEL.name}), read({"model": MODEL.name, "task": "grpo", "stack": "trl"})):
        assert vllm_share(plain, MODEL, CARD) == NONE
        assert server_cards(plain) == 0


def test_unsloth_lends_its_weights() -> None:
    own, lent = (vllm_share(grpo(stack=stack), MODEL, CARD).nbytes for stack in ("trl", "unsloth"))
    assert own - lent == 2 * WEIGHTS


def test_cards_share_weights_and_heads() -> None:
    engine = engine_of(grpo(gpus=2, tensor=2), MODEL, CARD)
    assert engine.weights_bytes == WEIGHTS
    assert engine.token_bytes == 28 * 2 * 2 * 128 * 2
    assert engine.sequences == 2 * 32
    with pytest.raises(Unsupported, match=r"rl\.vllm\.tensor: vLLM shares its weights among 2 of 3 cards"):
        vllm_share(grpo(gpus=3, tensor=2), MODEL, CARD)


def test_too_small_a_fraction_is_refused_with_the_least_that_is_not() -> None:
    with pytest.raises(Unsupported, match=r"vLLM does not start on h100-sxm-80gb.* To fix: 0\.2 or more"):
        vllm_share(grpo(memory_fraction=0.15), MODEL, CARD)
    assert vllm_share(grpo(memory_fraction=0.2), MODEL, CARD).nbytes
    assert "it may not start" in vllm_share(grpo(memory_fraction=0.183), MODEL, CARD).told


def test_a_context_the_cache_cannot_hold_is_told() -> None:
    told = vllm_share(grpo(memory_fraction=0.2), MODEL, CARD).told
    assert "vllm_max_model_length" in told and "131,072" in told


@pytest.mark.parametrize(
    ("config", "nbytes"),
    [
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}, 2 * 2 * 4 * 16 * 2),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 2 * 576 * 2),
        (
            {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_attention_heads": 4, "head_dim": 8},
            2 * 4 * 8 * 2,
        ),
    ],
)
def test_a_token_of_the_cache(config: dict[str, object], nbytes: int) -> None:
    assert token_bytes(config, 1) == nbytes


def test_layers_that_keep_a_state_have_no_cache() -> None:
    assert attention_layers({"layers_block_type": ["mamba", "attention", "mamba"]}) == 1


MODEL_BYTES, STEP_BYTES = 20 * GIB, 30 * GIB


def on_card(share: VllmShare) -> OnCard:
    """A model that stays, and a step that takes more and gives it back, twice."""
    events: list[object] = [Begin(Phase.LOAD, 0), Alloc(0, MODEL_BYTES, Role.WEIGHTS)]
    for step in (0, 1):
        block = step + 1
        events += [Begin(Phase.FORWARD, step), Alloc(block, STEP_BYTES, Role.ACTIVATIONS), Free(block)]
    return job_on_card(grpo(), CARD, Tape(tuple(events)), vllm=share)  # type: ignore[arg-type]


def test_it_is_on_the_card_and_not_the_allocators() -> None:
    alone, beside = on_card(NONE), on_card(VllmShare(9 * GIB, 10 * GIB, 12 * GIB, 10 * GIB, "estimated"))
    assert alone.capacity_bytes - beside.capacity_bytes == 10 * GIB
    memory = memory_of(beside)
    assert memory.device_bytes - memory_of(alone).device_bytes == memory.breakdown_bytes["vllm"] == 10 * GIB
    assert sum(memory.breakdown_bytes.values()) == memory.device_bytes
    assert (
        memory.range_bytes.device[0] <= memory.device_bytes - GIB
        and memory.device_bytes + 2 * GIB <= memory.range_bytes.device[1]
    )
    assert beside.guesses == ("estimated",)
    assert not on_card(VllmShare(0, 40 * GIB, 0, 40 * GIB)).fits


def test_the_sum_is_shown() -> None:
    share = VllmShare(9 * GIB, 10 * GIB, 12 * GIB, 10 * GIB)
    text = figures_text(run_figures(Prediction(grpo(), None, on_card(share)), "a run", details=False))
    assert "10.00 GiB of vLLM" in text


def test_asleep_it_leaves_the_step_its_room_and_awake_it_fits_beside_the_model() -> None:
    """20 GiB stay while 50 GiB are awake: 70 of the card's 79, more than the step's 50 and 1 asleep."""
    held = on_card(VllmShare(GIB, GIB, GIB, 50 * GIB))
    assert held.fits
    assert held.vllm.nbytes == MODEL_BYTES + 50 * GIB - held.shown.reserved_bytes
    assert memory_of(held).device_bytes == MODEL_BYTES + 50 * GIB + held.context.nbytes
    small = on_card(VllmShare(GIB, GIB, GIB, 10 * GIB))
    assert small.vllm.nbytes == GIB


def test_one_that_cannot_wake_up_does_not_fit() -> None:
    held = on_card(VllmShare(GIB, GIB, GIB, 70 * GIB))
    assert not held.fits
    assert held.capacity_bytes < MODEL_BYTES < held.smallest_capacity_bytes + MIB
