"""What litgpt calls the things of a config.json (litgpt/config.py): its own attributes, from the Hub's.

The vocabulary is the checkpoint's: `padded_vocab_size` is chosen model by model so that the Hub's weights fit as they
are. Embedding and head are two tensors in litgpt, also where the Hub ties them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GATED = ("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gemma", "gemma2", "gemma3_text")
"""With RMSNorm and a gated MLP; the others have LayerNorm."""
GEMMAS = ("gemma", "gemma2", "gemma3_text")


@dataclass(frozen=True)
class LitRelease:
    """What moved memory between litgpt's releases."""

    norm_in_float: bool = False
    """RMSNorm multiplies by its weight before it returns to the lower precision."""
    windows: bool = False
    """The sliding windows of Mistral and Phi-3 are masks; Gemma 2's always were."""
    stable_embedding: bool = False
    """QLoRA replaces the embedding by one that trains, behind the optimizer's back."""
    whole_heads: bool = False
    """Queries, keys and values lie behind each other, earlier they are interleaved by group; the residual is added
    before the MLP runs; logits made chunk by chunk are capped too."""
    keeps_inputs: bool = True
    """bitsandbytes is pinned to 0.42, whose `MatMul4Bit` keeps its input; later 0.45 to 0.49 are asked for."""


SINCE: Mapping[tuple[int, ...], LitRelease] = {
    (0,): LitRelease(),
    (0, 4, 6): LitRelease(norm_in_float=True),
    (0, 4, 13): LitRelease(norm_in_float=True, windows=True),
    (0, 5, 0): LitRelease(norm_in_float=True, windows=True, stable_embedding=True),
    (0, 5, 5): LitRelease(
        norm_in_float=True, windows=True, stable_embedding=True, whole_heads=True, keeps_inputs=False
    ),
}  # fmt: skip
"""Read: 0.3.1, 0.4.13 and 0.5.13, and for when each change came the wheels of 0.4.5, 0.4.6, 0.4.12, 0.5.0, 0.5.3 and
0.5.5. What lit-gpt was before it had releases is taken for the first."""
NEWEST = SINCE[0, 5, 5]


def release_of(version: str | None) -> LitRelease | None:
    """By litgpt's version; null is the newest. None: no version."""
    if version is None:
        return NEWEST
    parts = version.split(".")
    if not all(part.isdecimal() for part in parts):
        return None
    number = tuple(int(part) for part in parts)
    return SINCE[max(since for since in SINCE if since <= number)] if number < (0, 6) else None


@dataclass(frozen=True)
class LitConfig:
    """Names are litgpt's."""

    model_type: str
    n_layer: int
    n_embd: int
    n_head: int
    n_query_groups: int
    head_size: int
    rope_n_elem: int
    padded_vocab_size: int
    intermediate_size: int
    block_size: int
    gated: bool
    bias: bool = False
    attn_bias: bool = False
    lm_head_bias: bool = False
    parallel_residual: bool = False
    shared_attention_norm: bool = False
    norms_before: bool = True
    norms_after: bool = False
    norm_qk: str = ""
    window: int = 0
    window_period: int = 1
    """Which layers have the window: all, every other from the first on, or all but every sixth."""
    score_cap: bool = False
    logit_cap: bool = False

    @property
    def rms_norm(self) -> bool:
        return self.model_type in GATED

    @property
    def gemma(self) -> bool:
        return self.model_type in GEMMAS

    @property
    def two_ropes(self) -> bool:
        return self.model_type == "gemma3_text"

    def has_window(self, layer: int) -> bool:
        if not self.window:
            return False
        if self.window_period == 6:
            return (layer + 1) % 6 != 0
        return layer % self.window_period == 0


def lit_config(config: Mapping[str, Any], release: LitRelease = NEWEST) -> LitConfig | None:
    """None: no architecture of litgpt's, or one nobody wrote down (experts, latent attention)."""
    kind = config.get("model_type")
    special = SPECIAL.get(str(kind))
    if special is None:
        return None
    hidden, heads = int(config["hidden_size"]), config["num_attention_heads"]
    head_size = int(config.get("head_dim") or hidden // heads)
    common: dict[str, Any] = {
        "model_type": kind,
        "n_layer": int(config["num_hidden_layers"]),
        "n_embd": hidden,
        "n_head": int(heads),
        "n_query_groups": int(config.get("num_key_value_heads") or heads),
        "head_size": head_size,
        "rope_n_elem": int(head_size * rotary_share(config)),
        "padded_vocab_size": int(config["vocab_size"]),
        "intermediate_size": int(config.get("intermediate_size") or 4 * hidden),
        "block_size": int(config.get("max_position_embeddings") or 0),
    }
    return LitConfig(**{**common, "gated": kind in GATED, **special(config, release)})


def rotary_share(config: Mapping[str, Any]) -> float:
    places = (config, config.get("rope_parameters") or {})
    names = ("partial_rotary_factor", "rotary_pct", "rope_pct")
    return next((float(place[name]) for place in places for name in names if place.get(name)), 1.0)


def _llama(config: Mapping[str, Any], release: LitRelease) -> dict[str, Any]:
    return {"bias": bool(config.get("mlp_bias")), "attn_bias": bool(config.get("attention_bias"))}


def _windowed(config: Mapping[str, Any], release: LitRelease) -> dict[str, Any]:
    return {"window": int(config.get("sliding_window") or 0) if release.windows else 0}


def _phi_3(config: Mapping[str, Any], release: LitRelease) -> dict[str, Any]:
    """litgpt gives the model of 4096 positions a window of 2048, whatever config.json says of it."""
    short = config.get("max_position_embeddings") == 4096
    return {"window": 2048} if short and release.windows else _windowed(config, release)


def _gemma_2(config: Mapping[str, Any], release: LitRelease) -> dict[str, Any]:
    return {
        "window": int(config.get("sliding_window") or 4096),
        "window_period": 2,
        "norms_after": True,
        "score_cap": True,
        "logit_cap": True,
    }


def _gemma_3(config: Mapping[str, Any], release: LitRelease) -> dict[str, Any]:
    return {
        "window": int(config.get("sliding_window") or 1024),
        "window_period": 6,
        "norms_after": True,
        "norm_qk": "default",
    }


def _neox(config: Mapping[str, Any], release: LitRelease) -> dict[str, Any]:
    share = float(config.get("rotary_pct") or config.get("partial_rotary_factor") or 0.25)
    return {
        "bias": True,
        "parallel_residual": bool(config.get("use_parallel_residual", True)),
        "rope_n_elem": int(config["hidden_size"] // config["num_attention_heads"] * share),
    }


def _phi(config: Mapping[str, Any], release: LitRelease) -> dict[str, Any]:
    return {"bias": True, "lm_head_bias": True, "parallel_residual": True, "shared_attention_norm": True}


def _falcon(config: Mapping[str, Any], release: LitRelease) -> dict[str, Any]:
    groups = config.get("num_kv_heads") or config["num_attention_heads"]
    new = bool(config.get("new_decoder_architecture"))
    return {
        "n_query_groups": int(groups) if new else (1 if config.get("multi_query") else config["num_attention_heads"]),
        "parallel_residual": bool(config.get("parallel_attn", True)),
        "shared_attention_norm": not new,
    }


SPECIAL: Mapping[str, Any] = {
    "llama": _llama,
    "mistral": _windowed,
    "phi3": _phi_3,
    "qwen2": lambda config, release: {"attn_bias": True},
    "qwen3": lambda config, release: {"norm_qk": "default"},
    "gemma": lambda config, release: {},
    "gemma2": _gemma_2,
    "gemma3_text": _gemma_3,
    "olmo": lambda config, release: {"gated": True},
    "olmo2": lambda config, release: {"norms_before": False, "norms_after": True, "norm_qk": "olmo2"},
    "gpt_neox": _neox,
    "phi": _phi,
    "stablelm": lambda config, release: {"gated": True},
    "falcon": _falcon,
}
"""What each family sets beyond its sizes."""
