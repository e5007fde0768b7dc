"""Every bundled model: built by transformers on the meta device and counted, and its entry in the index checked."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from typing import Any

import pytest

from tunecast.job import hub
from tunecast.job.model import model_config, resolve_model
from tunecast.job.registry import bundled_config, bundled_models, bundled_name, bundled_names, hub_ids

MODELS = pytest.mark.parametrize("name", bundled_models())
KEYS = {
    "hub", "aliases", "family", "parameters", "active_parameters", "parts", "published", "besides", "licence",
    "source", "checked", "departs",
}  # fmt: skip
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k", "moe_top_k")
ROUTED = re.compile(r"\.experts\.|block_sparse_moe\.(input|output)_linear")
"""Weights that only the tokens sent to them pass through; GraniteMoe names them otherwise."""
AUDIO = re.compile(r"(^|\.)(audio_tower|embed_audio)\.")
PROJECTOR = re.compile(
    r"(multi_modal|mm)_projector|merger|image_newline|(^|\.)(embed_vision|connector)\."
    r"|^model\.(projector|vision_adapter|vision_projection)\."
)
VISION = re.compile(r"(^|\.)(visual|vision_tower|vision_model)\.")


FIRST_OF_FIVE = "2026-11-16"
"""Entries checked since are counted with transformers 5 alone: 4.57 lays some out otherwise, lacks the text part of
others, and makes a module of every expert, which takes minutes where there are tens of thousands."""


def text_part(raw: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = raw.get("text_config", raw)
    return part


def built(raw: dict[str, Any]) -> Any:
    """The model transformers makes of it, without memory for any of its weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind = raw.pop("model_type")
    if kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    if kind == "gemma3n":
        pytest.importorskip("timm")  # its vision tower
    config = transformers.AutoConfig.for_model(kind, **raw)
    names = transformers.models.auto.modeling_auto
    auto = transformers.AutoModelForCausalLM
    if has_parts(raw):
        sees = kind in names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        auto = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForMultimodalLM
    with torch.device("meta"):
        return auto.from_config(config)


def has_parts(raw: dict[str, Any]) -> bool:
    return "vision_config" in raw or "audio_config" in raw


def part_of(weight: str) -> str:
    patterns = {"audio": AUDIO, "projector": PROJECTOR, "vision": VISION}
    return next((part for part, pattern in patterns.items() if pattern.search(weight)), "text")


def stored_buffers(model: Any) -> int:
    """What a checkpoint holds besides the parameters."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return sum(value.numel() for name, value in model.state_dict().items() if name not in names)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@MODELS
def test_transformers_builds_as_many_parameters(name: str) -> None:
    raw, entry = bundled_config(name), bundled_models()[name]
    release = pytest.importorskip("transformers").__version__
    if int(release.partition(".")[0]) < 5 and str(entry["checked"]) >= FIRST_OF_FIVE:
        pytest.skip(f"counted with transformers 5, not {release}")
    text = text_part(raw)
    model = built(bundled_config(name))
    sizes = {weight: parameter.numel() for weight, parameter in model.named_parameters()}  # each once, tied or not
    assert sum(sizes.values()) == entry["parameters"]
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert resolve_model(name).tied == (head.weight is embedding.weight)
    text = {**text, **text.get("ffn_config", {})}
    experts = next((text[key] for key in EXPERTS if text.get(key)), None)
    assert (experts is None) == ("active_parameters" not in entry)
    if experts is not None:
        one_each = sum(size for weight, size in sizes.items() if ROUTED.search(weight)) // experts
        idle = experts - next(text[key] for key in CHOSEN if key in text)
        assert sum(sizes.values()) - idle * one_each == entry["active_parameters"]
    assert has_parts(raw) == ("parts" in entry)
    if "parts" in entry:
        counted: Counter[str] = Counter()
        for weight, size in sizes.items():
            counted[part_of(weight)] += size
        assert {part: counted[part] for part in entry["parts"]} == entry["parts"]
    if "buffers" in entry.get("besides", ""):
        assert entry["published"] - entry["parameters"] == stored_buffers(model)


def test_there_are_as_many_as_promised_and_of_every_kind() -> None:
    names = set(bundled_models())
    assert len(names) >= 283
    assert names == bundled_names()
    kinds = {bundled_config(name)["model_type"] for name in names}
    assert {"gpt2", "mpt", "llama", "llama4", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"} < kinds
    assert {"gemma", "gemma2", "gemma3", "gemma3_text", "phi3", "deepseek_v2", "deepseek_v3", "olmo2"} < kinds
    assert {"falcon", "smollm3", "granite", "granitemoe", "gpt_oss", "mllama", "qwen2_vl", "qwen2_5_vl"} < kinds


@MODELS
def test_an_entry_is_whole(name: str) -> None:
    entry = bundled_models()[name]
    assert set(entry) <= KEYS
    assert re.fullmatch(r"[a-z0-9.-]+", name)
    assert re.fullmatch(r"[a-z0-9-]+", entry["family"])
    assert all(hub.is_hub_id(hub_id) for hub_id in hub_ids(entry))
    assert entry.get("active_parameters", 0) < entry["parameters"]
    if "parts" in entry:
        assert sum(entry["parts"].values()) == entry["parameters"]
    # a count that is not known is said to be not known
    assert ("published" in entry) == ("no exact published count" not in entry["source"])


@MODELS
def test_the_published_count_is_ours_and_what_is_stored_besides(name: str) -> None:
    entry, model = bundled_models()[name], resolve_model(name)
    if "published" not in entry:
        return
    more = entry["published"] - entry["parameters"]
    if "tied head" in entry.get("besides", ""):
        assert model.tied and more == model.vocab_size * model.hidden_size
    elif "rotary" in entry.get("besides", ""):
        assert more == model.layers * model.head_dim // 2
    elif "masks" in entry.get("besides", ""):
        assert more == model.layers * 1024 * 1024
    elif "share others'" in entry.get("besides", ""):
        text = text_part(model.raw)
        each = 2 * model.hidden_size * model.kv_heads * model.head_dim + model.head_dim  # and the norm of its keys
        assert more == text["num_kv_shared_layers"] * each
    elif "buffers" in entry.get("besides", "") and "first_k_dense_replace" not in model.raw:
        assert more > 0  # counted where transformers builds it
    elif "correction biases" in entry.get("besides", ""):
        assert more == (model.layers - model.raw["first_k_dense_replace"]) * model.raw["n_routed_experts"]
    else:
        assert more == 0 and "besides" not in entry


@MODELS
def test_a_configuration_is_read_and_holds_no_code(name: str) -> None:
    raw = bundled_config(name)
    assert not {"auto_map", "transformers_version", "quantization_config", "_name_or_path"} & set(raw)
    model = model_config(name, raw, "bundled")
    assert model.notes == ()
    assert model.heads % model.kv_heads == 0


def test_no_spelling_means_two_models() -> None:
    seen: dict[str, str] = {name: name for name in bundled_models()}
    for name, entry in bundled_models().items():
        ids = [hub_id.lower() for hub_id in hub_ids(entry)]
        assert len(set(ids)) == len(ids), name
        for spelling in {*ids, *(hub_id.rpartition("/")[2] for hub_id in ids)}:
            assert seen.setdefault(spelling, name) == name, spelling
            assert bundled_name(spelling.upper()) == name


def test_a_bare_name_from_the_hub_is_understood_and_a_stranger_is_not() -> None:
    assert resolve_model("Llama-3.1-8B-Instruct").source == "bundled (llama-3.1-8b)"
    assert resolve_model("deepseek-r1").layers == 61
    assert bundled_name("someone/llama-3.1-8b") is None
    assert bundled_name("../models/llama-3.1-8b") is None
