"""A config.json of an architecture nobody has written down: what it is taken for, and when it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli.main import main
from tunecast.door.predict import predict
from tunecast.errors import NotResolved, Unsupported
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.prediction.engines import analytic
from tunecast.prediction.prediction import Prediction
from tunecast.tape.build.families.unknown import nearest
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Role, Tape

CONFIG: dict[str, Any] = {
    "model_type": "newcomer", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "vocab_size": 128,
}  # fmt: skip
JOB = job_from_dict({"model": "newcomer", "method": "full", "weights_dtype": "bfloat16", "seq_len": 16})


def built(config: dict[str, Any]) -> Tape:
    return build(JOB, config, [16], Card())


def weights_bytes(tape: Tape) -> int:
    return sum(e.nbytes for e in tape.events if isinstance(e, Alloc) and e.role is Role.WEIGHTS and e.nbytes >= 128)


def test_taken_as_llama_and_told() -> None:
    tape = built(CONFIG)
    assert tape.guesses == ("architecture newcomer taken as Llama's",)
    attention, mlp, norms = 4 * 64 * 64, 3 * 64 * 96, 2 * 64
    assert weights_bytes(tape) == 2 * (2 * 128 * 64 + 2 * (attention + mlp + norms) + 64)


def test_other_names_for_the_same_sizes() -> None:
    renamed = {"d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 96, "n_vocab": 128, "model_type": "newcomer"}
    assert weights_bytes(built(renamed)) == weights_bytes(built(CONFIG))


@pytest.mark.parametrize(
    ("name", "more", "family"),
    [
        ("qwen3_next_thing", {}, "qwen3"),
        ("gemma2b", {}, "gemma2"),
        ("newcomer", {"num_local_experts": 8, "num_experts_per_tok": 2}, "qwen3_moe"),
        ("newcomer", {"num_experts": 8, "num_experts_per_tok": 2, "is_moe": False}, "llama"),  # Doge's
        ("newcomer", {"n_routed_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 32}, "deepseek_v3"),
        ("newcomer", {"num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1}, "glm4_moe"),
        ("newcomer", {"hidden_act": "xielu"}, "arcee"),
        ("newcomer", {"hidden_act": "gelu", "layer_norm_eps": 1e-5}, "starcoder2"),
        ("newcomer", {"hidden_act": "gelu", "rms_norm_eps": 1e-5}, "llama"),
        ("newcomer", {"activation_function": "relu"}, "starcoder2"),
    ],
)
def test_nearest(name: str, more: dict[str, Any], family: str) -> None:
    guess = nearest({**CONFIG, "model_type": name, **more})
    assert guess is not None and guess.family == family
    assert guess.sentence.startswith(f"architecture {name} taken as ")


@pytest.mark.parametrize("more", [{"mamba_d_state": 16}, {"layer_types": ["linear_attention", "full_attention"]}])
def test_layers_that_are_no_attention_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="newcomer"):
        built(CONFIG | more)


def test_experts_in_some_layers_are_refused() -> None:
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2}
    assert nearest({**CONFIG, **experts}) is None
    assert nearest({**CONFIG, **experts, "interleave_moe_layer_step": 1}) is not None


def test_an_architecture_that_is_written_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunecast.prediction.traced.traced", lambda job, **how: pytest.fail("traced"))
    assert predict("gpt2").engine == "analytic"


def test_one_that_is_not_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    asked = []

    def traced(job: Job, **how: Any) -> Prediction:
        asked.append(how["python"])
        return analytic(job)

    monkeypatch.setattr("tunecast.prediction.traced.traced", traced)
    predict(str(tmp_path), python="mine")
    assert asked == ["mine"]
    predict(str(tmp_path), engine="analytic")
    assert asked == ["mine"]


def test_why_it_was_not_traced_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def no_torch(given: str | None) -> str:
        raise NotResolved("this python has no torch. To fix: pip install torch transformers", field="--python")

    monkeypatch.setattr("tunecast.prediction.traced.tracing_python", no_torch)
    found = predict(str(tmp_path))
    assert found.exactness == "estimate"
    assert found.reasons[0] == "architecture newcomer taken as Llama's"
    told = "this python has no torch. To fix: pip install torch transformers"
    assert f"not traced, so the architecture is guessed: {told}" in found.warnings
    several = predict(str(tmp_path), {"hardware.gpus": 8, "parallel.data": "ddp"})
    assert any(each.endswith("the traced engine follows a job on one card.") for each in several.warnings)


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
EXPERT, ROUTER, DENSE = 3 * 64 * 32, 8 * 64, 3 * 64 * 96


@pytest.mark.parametrize(
    ("more", "feed_forward"),
    [
        ({}, 2 * (8 * EXPERT + ROUTER)),
        ({"moe_layer_freq": [0, 1]}, DENSE + 8 * EXPERT + ROUTER),  # MiMo's list
        ({"moe_layer_freq": [1, 0]}, DENSE + 8 * EXPERT + ROUTER),
        ({"mlp_layer_types": ["dense", "sparse"]}, DENSE + 8 * EXPERT + ROUTER),  # Laguna's
        ({"first_k_dense_replace": 1}, DENSE + 8 * EXPERT + ROUTER),
        ({"num_dense_layers": 1, "num_shared_experts": 2}, DENSE + 10 * EXPERT + ROUTER),  # AFMoE's
        ({"shared_expert_intermediate_size": 32}, 2 * (9 * EXPERT + ROUTER)),
        ({"moe_layer_freq": [1, 0], "n_shared_experts": 1}, DENSE + 8 * EXPERT + ROUTER),  # none has both
    ],
)
def test_dense_layers_and_shared_experts_are_counted(more: dict[str, Any], feed_forward: int) -> None:
    attention, norms = 4 * 64 * 64 + 2 * 16, 2 * 64
    weights = 2 * 128 * 64 + 2 * (attention + norms) + 64 + feed_forward
    found = weights_bytes(built({**CONFIG, "rms_norm_eps": 1e-6, **EXPERTS, **more}))
    assert found == 2 * weights - 2 * 2 * 2 * 16  # norms of queries and keys are too small to be told from others


def test_parts_that_describe_layers_are_read() -> None:
    """DBRX's sizes stand in two parts of its config.json."""
    nested = {
        "model_type": "newcomer", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 128,
        "attn_config": {"kv_n_heads": 2}, "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 2},
    }  # fmt: skip
    guess = nearest(nested)
    assert guess is not None and guess.family == "qwen3_moe"
    plain = {**CONFIG, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2}
    assert weights_bytes(built(nested)) == weights_bytes(built(plain))


def test_an_indexer_is_refused() -> None:
    assert nearest({**CONFIG, **EXPERTS, "attn_config": "x"}) is not None  # whatever else stands there
    assert nearest({**CONFIG, **EXPERTS, "sparse_attention_config": {"sparse_topk_blocks": 16}}) is None


@pytest.mark.parametrize("more", [{"hidden_size_per_layer_input": 8}, {"intermediate_size": [96, 128]}])
def test_weights_that_no_known_architecture_has_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="newcomer"):
        built(CONFIG | more)


def test_a_function_without_a_gate_has_two_products() -> None:
    tape = built(CONFIG | {"hidden_act": "relu2"})
    assert tape.guesses == ("architecture newcomer taken as Arcee's",)
    assert weights_bytes(built(CONFIG)) - weights_bytes(tape) == 2 * 2 * 64 * 96


def test_missing_sizes_are_refused() -> None:
    with pytest.raises(Unsupported, match="newcomer"):
        built({name: value for name, value in CONFIG.items() if name != "intermediate_size"})


def test_a_model_with_eyes_counts_its_text_part_and_says_so() -> None:
    seeing = {"model_type": "seeing", "text_config": CONFIG | {"model_type": "llama"}, "vision_config": {}}
    assert built(seeing).guesses == ("only the text part of seeing is counted",)


def test_the_first_lines_say_that_the_model_was_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for how in ([], ["--short"]):
        main(["predict", str(tmp_path), "--method", "full", "--seq-len", "16", *how])
        told = " ".join(capsys.readouterr().out.split())
        assert "an estimate: architecture newcomer taken as Llama's" in told[:400]
