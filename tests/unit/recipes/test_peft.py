"""PEFT's adapter_config.json, alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.readers import read_job
from tunecast.job.recipes import Recipe, find_recipe

LORA: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "gpt2", "r": 4, "lora_alpha": 12,
    "lora_dropout": 0.1, "target_modules": ["c_attn"], "bias": "none", "modules_to_save": None, "rank_pattern": {},
    "inference_mode": True,
}  # fmt: skip


def recipe(folder: Path, **changes: Any) -> Recipe:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(LORA | changes))
    found = find_recipe(path)
    assert found is not None
    return found


def unread(found: Recipe) -> set[str]:
    return {each.key for each in found.not_understood}


def test_an_adapter_says_what_is_trained(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    assert (found.framework, found.refused, unread(found)) == ("peft", None, set())
    assert found.job["model"] == "gpt2"
    lora = found.job["lora"]
    assert (lora["rank"], lora["alpha"], lora["dropout"], lora["targets"]) == (4, 12, 0.1, ["c_attn"])


def test_the_model_may_be_missing(tmp_path: Path) -> None:
    recipe(tmp_path, base_model_name_or_path=None)
    path = str(tmp_path / "adapter_config.json")
    with pytest.raises(TunecastError, match="peft that names no model"):
        read_job(path)
    assert read_job(path, {"model": "gpt2"}).lora.rank == 4


@pytest.mark.parametrize("kind", ["IA3", "ADALORA", "PROMPT_TUNING", "VERA", "x" * 500])
def test_other_types_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    assert (recipe(tmp_path, peft_type=kind).refused or "").startswith(f"adapters of type {kind.upper()[:40]}")


def test_other_tasks_are_refused(tmp_path: Path) -> None:
    assert (recipe(tmp_path, task_type="SEQ_CLS").refused or "").startswith("classification")


@pytest.mark.parametrize(
    ("key", "value"),
    [("rank_pattern", {"a": 2}), ("bias", "all"), ("layers_to_transform", [1]), ("target_modules", ".*attn$")],
)
def test_what_is_not_modelled_is_named(tmp_path: Path, key: str, value: object) -> None:
    assert unread(recipe(tmp_path, **{key: value})) == {key}


@pytest.mark.parametrize("junk", [[], {}, [1], "x", 10**30, True, {"a": [None]}])
def test_junk_breaks_nothing(tmp_path: Path, junk: object) -> None:
    for name in LORA:
        path = tmp_path / "adapter_config.json"
        path.write_text(json.dumps(LORA | {name: junk}))
        found = find_recipe(path)
        assert found is None or found.to_dict()
