"""Packages whose kernels models take by themselves: programs of symbols with them, what is told, what is not exact."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.advise.unstated import taken
from tunecast.job import job_from_dict
from tunecast.job.kernels import CHOSEN, INSTALLED, TAKEN, chosen_kernels
from tunecast.planning.space import Freedom
from tunecast.planning.technique import techniques_of
from tunecast.prediction.engines import analytic
from tunecast.tape.build.families import FAMILIES
from tunecast.tape.build.job_runs import Builder, build, fold_job, paper_run
from tunecast.tape.build.request import BuildRequest, Contents
from tunecast.tape.card import Card, shared_memory_bytes

pytestmark = pytest.mark.whole

SIZES: dict[str, Any] = {
    "hidden_size": 320, "num_hidden_layers": 6, "num_attention_heads": 10, "num_key_value_heads": 2, "vocab_size": 2048,
    "intermediate_size": 736, "max_position_embeddings": 4096,
}  # fmt: skip
DELTA = {
    "model_type": "qwen3_5_text", "full_attention_interval": 3, "linear_num_key_heads": 3, "linear_num_value_heads": 6,
    "linear_key_head_dim": 96, "linear_value_head_dim": 56, "head_dim": 64,
}  # fmt: skip
MAMBA = {
    "model_type": "granitemoehybrid", "layer_types": ["mamba", "mamba", "attention"] * 2, "num_local_experts": 0,
    "mamba_n_heads": 16, "mamba_d_head": 40, "mamba_n_groups": 2, "mamba_d_state": 24, "shared_intermediate_size": 736,
}  # fmt: skip
CONV = {"model_type": "lfm2", "layer_types": ["conv", "conv", "full_attention"] * 2}
MODELS = {"delta": SIZES | DELTA, "mamba": SIZES | MAMBA, "conv": SIZES | CONV}
CARDS = {
    "h200": Card(), "a100": Card("NVIDIA A100", 85_000_000_000, (8, 0), 108),
    "l40s": Card("NVIDIA L40S", 47 << 30, (8, 9), 142),
}  # fmt: skip


def job_of(model: str, **values: Any) -> Any:
    kernels = list(TAKEN[MODELS[model]["model_type"]])
    return job_from_dict({"model": "small", "weights_dtype": "bfloat16", "kernels": kernels, **values})


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("model", MODELS)
def test_a_program_of_symbols_is_the_program(model: str, method: str) -> None:
    builder = Builder()
    for card, batch, length in [
        ("h200", 2, 256),
        ("h200", 4, 256),
        ("h200", 3, 333),
        ("a100", 2, 256),
        ("l40s", 2, 96),
    ]:
        job = job_of(model, method=method, seq_len=length, micro_batch=batch)
        served = fold_job(job, MODELS[model], CARDS[card], keeps_ops=True, builder=builder)
        plain = paper_run(BuildRequest(job, MODELS[model], CARDS[card], length, Contents.BOTH))
        assert served.program == plain.program
        assert served.operations is not None and plain.operations is not None
        step = served.operations.pattern.step(1, 1, served.operations.values)
        assert step == plain.operations.pattern.step(1, 1)
    assert not builder.fallbacks


def test_tiles_follow_the_cards_shared_memory() -> None:
    """Of the decay a part for each tile of keys: 128 wide on Hopper and, in 16 bits, on an A100; 64 on Ada."""
    job = job_of("delta", method="full", seq_len=256, micro_batch=2)
    two_parts_bytes, layers = 2 * 2 * 256 * 6 * 4, 4
    for name, card in CARDS.items():
        sizes = [getattr(event, "nbytes", 0) for event in build(job, MODELS["delta"], [256], card).events]
        assert sizes.count(two_parts_bytes) == (layers if name == "l40s" else 0)
    assert [shared_memory_bytes(card.capability) for card in CARDS.values()] == [232448, 166912, 101376]


@pytest.mark.parametrize("model", MODELS)
def test_what_is_installed_is_told(model: str) -> None:
    kernels = TAKEN[MODELS[model]["model_type"]]
    without = build(job_of(model, kernels=[]), MODELS[model], [96], Card())
    having = build(job_of(model), MODELS[model], [96], Card())
    assert any(f"--kernels {','.join(kernels)}" in told for told in without.assumptions)
    assert any(told.startswith(f"installed: {' and '.join(kernels)}") for told in having.assumptions)
    assert not without.guesses and not having.guesses
    older = build(job_of(model, transformers_version="5.10.0"), MODELS[model], [96], Card())
    assert any("before 5.17" in told for told in older.guesses)


def test_every_architecture_that_takes_kernels_is_known() -> None:
    assert TAKEN.keys() <= FAMILIES.keys()
    assert {name for names in TAKEN.values() for name in names} == set(INSTALLED)


def test_nobody_chooses_what_is_installed() -> None:
    """A plan tries Liger with and without, and leaves what is installed as it is; so does the advice."""
    job = job_from_dict({"model": "llama-3.2-1b", "kernels": ["fla", "mamba-ssm"]})
    assert chosen_kernels(job) == () and not set(CHOSEN) & set(INSTALLED)
    tried = {technique.kernels for technique in techniques_of(job, Freedom(frozenset()))}
    assert tried == {("fla", "mamba-ssm"), ("liger", "fla", "mamba-ssm")}


def test_a_model_that_takes_kernels_asks_for_them() -> None:
    job = analytic(job_from_dict({"model": "qwen3.5-0.8b", "hardware": {"gpu": "h200"}})).job
    asked = {each.field: each.instead for each in taken(job, "qwen3_5_text")}
    assert asked["kernels"] == {"kernels": ["fla", "causal-conv1d"]}
    assert "kernels" not in {each.field for each in taken(job, "llama")}


@pytest.mark.parametrize(("model", "share"), [("qwen3.5-0.8b", 0.5), ("granite-4.0-h-micro", 0.2)])
def test_kernels_take_less_memory_and_time(model: str, share: float) -> None:
    values = {
        "model": model, "method": "lora", "seq_len": 2048, "micro_batch": 1, "gradient_checkpointing": False,
        "hardware": {"gpu": "h200"}, "transformers_version": "5.17.0",  # since 5.18 Granite's own scan takes less
    }  # fmt: skip
    without = analytic(job_from_dict(values), timed=True)
    kernels = list(TAKEN[without.model.model_type])
    having = analytic(job_from_dict({**values, "kernels": kernels}), timed=True)
    assert having.smallest_capacity_bytes < without.smallest_capacity_bytes
    assert having.time is not None and without.time is not None
    assert having.time.step_s < share * without.time.step_s
