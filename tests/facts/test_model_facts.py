"""The bundled models: a source for each, and as many parameters as they are known to have.

What is counted here on paper, test_model_registry.py counts again with transformers, for every architecture.
"""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from tunecast.job.model import ModelConfig, bundled_models, resolve_model
from tunecast.job.registry import bundled_config

MODELS = pytest.mark.parametrize("name", bundled_models())
PLAIN = {
    "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma", "gemma2", "olmo2", "granite",
}  # fmt: skip
"""Architectures whose parameters a reader can count from their sizes."""


def parameters(m: ModelConfig) -> int:
    """Counted on paper: embedding, head, and a layer's attention, feed-forward and norms."""
    raw, h, i = m.raw, m.hidden_size, m.intermediate_size
    if m.model_type == "gpt2":
        block = (h * 3 * h + 3 * h) + (h * h + h) + (h * i + i) + (i * h + h) + 4 * h
        return m.vocab_size * h + raw["n_positions"] * h + m.layers * block + 2 * h
    queries, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
    attention = h * queries + 2 * h * keys + queries * h
    if m.model_type == "qwen2":
        attention += queries + 2 * keys  # biases
    if m.model_type in ("qwen3", "qwen3_moe"):
        attention += 2 * m.head_dim  # norms of queries and keys
    if m.model_type == "olmo2":
        attention += queries + keys  # norms of all of them
    feed_forward = 3 * h * i
    if m.model_type == "qwen3_moe":
        feed_forward = raw["num_experts"] * (3 * h * raw["moe_intermediate_size"] + h)  # and the router
    if m.model_type == "mixtral":
        feed_forward = raw["num_local_experts"] * (3 * h * i + h)
    norms = (4 if m.model_type == "gemma2" else 2) * h
    embeddings = m.vocab_size * h * (1 if m.tied else 2)
    return embeddings + m.layers * (attention + feed_forward + norms) + h


@MODELS
def test_a_model_has_as_many_parameters_as_it_is_known_to(name):
    model = resolve_model(name)
    if model.raw["model_type"] in PLAIN:
        assert parameters(model) == bundled_models()[name]["parameters"]


def test_most_are_counted_on_paper():
    assert sum(bundled_config(name)["model_type"] in PLAIN for name in bundled_models()) > 100


@MODELS
def test_a_model_has_a_history(name):
    entry = bundled_models()[name]
    assert entry["source"] and entry["checked"] and "/" in entry["hub"]


def test_the_index_and_the_files_are_of_the_same_models():
    folder = files("tunecast.job") / "models"
    assert {entry.name for entry in folder.iterdir()} == {f"{name}.json" for name in bundled_models()}
    for entry in folder.iterdir():
        assert "auto_map" not in json.loads(entry.read_text("utf-8"))
