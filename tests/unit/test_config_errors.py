"""A config.json that says what no model of its architecture has is refused by the key; a fault of ours is not its."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.errors import NotResolved, TunecastError, Unsupported
from tunecast.job.config_keys import wrong_kinds
from tunecast.job.mapping import job_from_dict
from tunecast.job.model import model_config
from tunecast.job.registry import bundled_config, bundled_names
from tunecast.prediction.culprit import require_architecture
from tunecast.tape.build import decoder

JOB = {"method": "lora", "lora": {"targets": "all-linear"}, "seq_len": 64, "micro_batch": 2}


def predict(folder: Path, config: dict[str, Any]) -> tunecast.Prediction:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tunecast.predict({"model": str(folder), **JOB}, engine="analytic")


@pytest.mark.parametrize("name", sorted(bundled_names()))
def test_bundled_configs_are_of_the_kinds_declared(name: str) -> None:
    assert not list(wrong_kinds(bundled_config(name)))


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        ("llama-3.2-1b", "rope_scaling", 5),
        ("llama-3.2-1b", "hidden_act", 2),
        ("llama-3.2-1b", "max_position_embeddings", "x"),
        ("llama-3.2-1b", "intermediate_size", [128]),
        ("llama-3.2-1b", "attention_bias", "no"),
        ("gemma-2-2b", "sliding_window", "x"),
        ("phi-1.5", "partial_rotary_factor", [1]),
        ("olmoe-1b-7b", "num_experts_per_tok", -1),
        ("gpt-j-6b", "rotary_dim", -1),
        ("deepseek-v2-lite", "moe_intermediate_size", None),
        ("qwen3-30b-a3b", "mlp_only_layers", -1),
        ("qwen3-30b-a3b", "decoder_sparse_step", {}),
        ("deepseek-v2-lite", "kv_lora_rank", "x"),
        ("mpt-7b", "attn_config", 5),
        ("gemma-3-4b", "vision_config", "x"),
        ("llava-1.5-7b", "model_type", []),
        ("falcon-7b", "hidden_dropout", "x"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_key(tmp_path: Path, model: str, key: str, value: object) -> None:
    with pytest.raises(NotResolved, match=rf"\b{key}: "):
        predict(tmp_path, {**bundled_config(model), key: value})


def test_an_activation_function_nobody_wrote_down_is_not_supported(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"hidden_act: got 'mish', .*; known: silu.* To fix: --engine traced"):
        predict(tmp_path, {**bundled_config("llama-3.2-1b"), "hidden_act": "mish"})


def test_a_default_that_does_not_go_with_the_rest_is_named(tmp_path: Path) -> None:
    """Without the key, Mistral has 8 heads of keys, more than the 4 heads there are."""
    config = {**bundled_config("mistral-7b"), "num_attention_heads": 4}
    del config["num_key_value_heads"]
    with pytest.raises(NotResolved, match=r"num_attention_heads|num_key_value_heads"):
        predict(tmp_path, config)


def test_our_own_fault_stays_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: object) -> int:
        raise TypeError("ours")

    monkeypatch.setattr(decoder, "rotary_width", broken)
    config = bundled_config("llama-3.2-1b")
    with pytest.raises(TypeError, match="ours"):
        tunecast.predict({"model": "llama-3.2-1b", **JOB, "seq_len": 65})
    with pytest.raises(TypeError, match="ours"):
        predict(tmp_path, {**config, "rope_theta": 7.0})


JUNK = (
    *(None, True, 0, -1, 7, 10**9, 10**13, 2.5, -0.5, float("nan"), "", "x", "7", [], [1], ["x"], [None], {}, {"a": 1}),
    {"rope_type": "yarn"},
)


def places(config: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield *before, key
        if isinstance(value, dict):
            yield from places(value, (*before, key))


@pytest.mark.whole
def test_one_key_of_another_value_is_answered_or_refused(tmp_path: Path) -> None:
    """A sample: any key of any bundled config, any junk."""
    chance = random.Random(20261116)
    for _ in range(60):
        config = bundled_config(chance.choice(sorted(bundled_names())))
        path = chance.choice(list(places(config)))
        part = config
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = chance.choice(JUNK)
        try:
            predict(tmp_path, config)
        except TunecastError:
            pass
        except Exception as error:
            pytest.fail(f"{config['model_type']}: {path} = {part[path[-1]]!r}: {error!r}")


def test_a_plan_refuses_an_unknown_architecture_before_it_looks_for_machines() -> None:
    config = {**bundled_config("llama-3.2-1b"), "hidden_act": "mish"}
    model = model_config("m", config, "config.json")
    with pytest.raises(Unsupported, match="hidden_act: got 'mish'"):
        require_architecture(job_from_dict({"model": "m"}), model)
