"""Architectures nobody has written down: which known one a config.json is taken for, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.modules import ACTIVATIONS

Config = Mapping[str, Any]

USUAL_NAMES = {
    "n_embd": "hidden_size", "d_model": "hidden_size", "dim": "hidden_size",
    "n_layer": "num_hidden_layers", "n_layers": "num_hidden_layers", "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads", "n_heads": "num_attention_heads", "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads", "n_head_kv": "num_key_value_heads", "kv_n_heads": "num_key_value_heads",
    "n_inner": "intermediate_size", "ffn_dim": "intermediate_size", "ffn_hidden_size": "intermediate_size",
    "d_ff": "intermediate_size", "n_vocab": "vocab_size", "hidden_activation": "hidden_act",
    "activation_function": "hidden_act",
}  # fmt: skip
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
RELATIVES = {
    "qwen2": "Qwen 2", "qwen3": "Qwen 3", "gemma": "Gemma", "gemma2": "Gemma 2", "granite": "Granite",
    "olmo2": "OLMo 2", "cohere2": "Command R7B", "mistral": "Mistral", "phi3": "Phi 3", "smollm3": "SmolLM3",
    "glm4": "GLM 4",
}  # fmt: skip
"""Families a name that begins like theirs is taken for."""
TITLES = {
    **RELATIVES, "llama": "Llama", "arcee": "Arcee", "starcoder2": "StarCoder 2", "qwen3_moe": "Qwen 3 MoE",
    "deepseek_v3": "DeepSeek V3",
}  # fmt: skip
UNGATED = ("relu2", "xielu")
"""Functions of two products with nothing between them (transformers 5.17.0: Nemotron, Apertus, Arcee)."""
GATED = ("silu", "swish")
"""Functions of MLPs whose two products are multiplied; others are, where norms have no mean, as Gemma's."""
SOME_LAYERS = ("interleave_moe_layer_step", "moe_layer_freq", "moe_layer_interval", "moe_layers", "moe_every_n_layers")
"""Settings that give experts to some layers, which the nearest architectures read otherwise."""
OTHER_LAYERS = ("linear_", "mamba_", "ssm_", "conv_", "rwkv", "lru_")
"""Settings of layers that are no attention."""


class Guess(NamedTuple):
    family: str
    config: Config
    sentence: str


def nearest(config: Config) -> Guess | None:
    """None: config.json does not speak of the same things, or speaks of layers that are no attention, or of weights
    that no known architecture has (an embedding for each layer, Gemma 3n's and 4's)."""
    name = config["model_type"]
    usual = {USUAL_NAMES.get(key, key): value for key, value in config.items() if value is not None}
    usual = {**usual, **{key: value for key, value in config.items() if key in NEEDED}}
    kinds = set(usual.get("layer_types") or ())
    if any(key.startswith(OTHER_LAYERS) for key in usual) or any("attention" not in kind for kind in kinds):
        return None
    if "linear_attention" in kinds or not all(isinstance(usual.get(key), int) for key in NEEDED):
        return None  # a width of its own in every layer is a list
    if usual.get("hidden_size_per_layer_input"):
        return None
    usual.setdefault("num_key_value_heads", usual["num_attention_heads"])
    activation = usual.get("hidden_act", GATED[0])
    ungated = activation in UNGATED
    usual["hidden_act"] = usual.get("hidden_act") if usual.get("hidden_act") in ACTIVATIONS else "silu"
    experts = 0 if usual.get("is_moe") is False else next((usual[key] for key in EXPERTS if usual.get(key)), 0)
    if experts and "kv_lora_rank" in usual:
        family = "deepseek_v3"
    elif experts:
        if "num_experts_per_tok" not in usual or any(usual.get(key, 1) != 1 for key in SOME_LAYERS):
            return None
        family = "qwen3_moe"
        usual = {"moe_intermediate_size": usual["intermediate_size"], **usual, "num_experts": experts}
    elif ungated:
        family, usual["hidden_act"] = "arcee", "relu2"
    elif activation not in GATED and "rms_norm_eps" not in usual:
        family = "starcoder2"
    else:
        family = max((known for known in RELATIVES if name.startswith(known)), key=len, default="llama")
    return Guess(family, usual, f"architecture {name} taken as {TITLES[family]}'s")
