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
    "activation_function": "hidden_act", "moe_top_k": "num_experts_per_tok", "moe_k": "num_experts_per_tok",
}  # fmt: skip
INNER = ("attn_config", "ffn_config")
"""Parts of a config.json that describe layers (DBRX)."""
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
    "deepseek_v3": "DeepSeek V3", "glm4_moe": "GLM 4.5",
}  # fmt: skip
UNGATED = ("relu2", "xielu")
"""Functions of two products with nothing between them (transformers 5.17.0: Nemotron, Apertus, Arcee)."""
GATED = ("silu", "swish")
"""Functions of MLPs whose two products are multiplied; others are, where norms have no mean, as Gemma's."""
SOME_LAYERS = ("interleave_moe_layer_step", "moe_layer_freq", "moe_layer_interval", "moe_layers", "moe_every_n_layers")
"""Settings that give experts to some layers, which the nearest architectures read otherwise; a list of
`moe_layer_freq` tells them one by one."""
LEADING_DENSE = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
"""How many layers without experts come first."""
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_WIDTHS = ("shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size")
"""Experts that every token passes through, by number or by width."""
OTHER_LAYERS = ("linear_", "mamba_", "ssm_", "conv_", "rwkv", "lru_")
"""Settings of layers that are no attention."""


class Guess(NamedTuple):
    family: str
    config: Config
    sentence: str


def nearest(config: Config) -> Guess | None:
    """None: config.json does not speak of the same things, or speaks of layers that are no attention, or of weights
    that no known architecture has (an embedding for each layer, Gemma 3n's and 4's), or of an indexer, whose scores of
    all pairs of tokens outgrow the rest (MiniMax M3's)."""
    name = config["model_type"]
    inner = [config[part] for part in INNER if isinstance(config.get(part), Mapping)]
    told = {key: value for part in (*inner, config) for key, value in part.items() if value is not None}
    renamed = {USUAL_NAMES[key]: value for key, value in told.items() if key in USUAL_NAMES}
    usual = {**told, **renamed, **{key: value for key, value in told.items() if key in NEEDED}}
    kinds = set(usual.get("layer_types") or ())
    if any(key.startswith(OTHER_LAYERS) for key in usual) or any("attention" not in kind for kind in kinds):
        return None
    if "linear_attention" in kinds or not all(isinstance(usual.get(key), int) for key in NEEDED):
        return None  # a width of its own in every layer is a list
    if usual.get("hidden_size_per_layer_input") or usual.get("sparse_attention_config"):
        return None
    usual.setdefault("num_key_value_heads", usual["num_attention_heads"])
    activation = usual.get("hidden_act", GATED[0])
    ungated = activation in UNGATED
    usual["hidden_act"] = usual.get("hidden_act") if usual.get("hidden_act") in ACTIVATIONS else "silu"
    experts = 0 if usual.get("is_moe") is False else next((usual[key] for key in EXPERTS if usual.get(key)), 0)
    if experts and "kv_lora_rank" in usual:
        family = "deepseek_v3"
    elif experts:
        dense = _dense_layers(usual)
        if "num_experts_per_tok" not in usual or dense is None:
            return None
        usual = {"moe_intermediate_size": usual["intermediate_size"], **usual}
        shared = _shared_experts(usual)
        if shared and dense == list(range(len(dense))):
            family = "glm4_moe"
            usual |= {"n_routed_experts": experts, "n_shared_experts": shared, "first_k_dense_replace": len(dense)}
            usual = {"use_qk_norm": True, "partial_rotary_factor": 1.0, **usual, "n_group": 1, "topk_group": 1}
        else:
            family = "qwen3_moe"
            usual |= {"num_experts": experts, "mlp_only_layers": dense}
    elif ungated:
        family, usual["hidden_act"] = "arcee", "relu2"
    elif activation not in GATED and "rms_norm_eps" not in usual:
        family = "starcoder2"
    else:
        family = max((known for known in RELATIVES if name.startswith(known)), key=len, default="llama")
    return Guess(family, usual, f"architecture {name} taken as {TITLES[family]}'s")


def _dense_layers(usual: Config) -> list[int] | None:
    """The layers without experts; None where they come in turns that are not listed."""
    layers = range(usual["num_hidden_layers"])
    for each in (usual.get("moe_layer_freq"), usual.get("mlp_layer_types")):
        if isinstance(each, list) and len(each) >= len(layers):  # of a shorter model the first are
            return [layer for layer in layers if each[layer] in (0, "dense")]
    if any(usual.get(key, 1) != 1 for key in SOME_LAYERS):
        return None
    leading = next((usual[key] for key in LEADING_DENSE if isinstance(usual.get(key), int)), 0)
    return [layer for layer in layers if layer < leading or layer in (usual.get("mlp_only_layers") or ())]


def _shared_experts(usual: Config) -> int:
    """As many of an expert's width as the shared ones have together."""
    told = next((usual[key] for key in SHARED_EXPERTS if isinstance(usual.get(key), int)), None)
    if told is not None:
        return int(told)
    width = next((usual[key] for key in SHARED_WIDTHS if isinstance(usual.get(key), int)), 0)
    expert = usual["moe_intermediate_size"]
    return width // expert if isinstance(expert, int) and expert > 0 else 0
