"""Models that Automodel's files name by no repository: a configuration class whose defaults are a model's, or GPT-2 and
the small model with experts of Automodel's own tests by their sizes. What a file says besides is told where it makes
another shape.

Source  nemo_automodel 0.7.0: components/models/deepseek_v4/config.py, `DeepseekV4Config`; components/models/gpt2.py,
        `build_gpt2_model`; transformers 5.17.0: models/glm4_moe_lite/configuration_glm4_moe_lite.py,
        `Glm4MoeLiteConfig`, and models/gpt2/configuration_gpt2.py, `GPT2Config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.recipes.document import Document
from tunecast.job.registry import bundled_config

CLASS_DEFAULTS: Mapping[str, str] = {"DeepseekV4Config": "deepseek-v4-flash", "Glm4MoeLiteConfig": "glm-4.7-flash"}
"""Bundled models that these classes make where they are told nothing."""
GPT2_MAKERS = ("build_gpt2_model", "GPT2Config")
GPT2_SIZES: Mapping[tuple[object, object, object], str] = {
    (768, 12, 12): "gpt2", (1024, 24, 16): "gpt2-medium", (1280, 36, 20): "gpt2-large", (1600, 48, 25): "gpt2-xl",
}  # fmt: skip
"""By width, layers and heads."""
GPT2_POSITIONS = 2048
"""Rows of the table of positions that `build_gpt2_model` makes where a file says none; GPT-2 has 1024."""
PROXIES: Mapping[tuple[str, str, str], str] = {("2048", "2", "4"): "automodel-qwen3-moe-proxy"}
"""By width, layers and experts of a `Qwen3MoeConfig` (examples/llm_finetune/qwen/qwen3_moe_2layer_proxy_*.yaml)."""
UNSAID: Mapping[str, object] = {"partial_rotary_factor": 1.0}
"""What a config.json means that does not say it."""


def inline_model(document: Document) -> tuple[str, str] | None:
    """The bundled model a file describes, and the section that does; None where it describes none of them."""
    for section in ("model.config", "model"):
        maker = str(document.get(f"{section}._target_")).rpartition(".")[2]
        if maker in CLASS_DEFAULTS:
            return CLASS_DEFAULTS[maker], section
        if maker == "Qwen3MoeConfig":
            width, layers, experts = (
                str(document.get(f"{section}.{name}")) for name in ("hidden_size", "num_hidden_layers", "num_experts")
            )
            proxy = PROXIES.get((width, layers, experts))
            return None if proxy is None else (proxy, section)
        if maker in GPT2_MAKERS:
            sizes = [document.get(f"{section}.{name}") for name in ("n_embd", "n_layer", "n_head")]
            plain = [usual if given is None else given for given, usual in zip(sizes, (768, 12, 12), strict=True)]
            name = GPT2_SIZES.get((plain[0], plain[1], plain[2])) if all(isinstance(n, int) for n in plain) else None
            return None if name is None else (name, section)
    return None


def is_as_bundled(name: str, key: str, value: Any) -> bool:
    """Whether a bundled model's config.json says the same; of a list it may tell more layers."""
    known = bundled_config(name).get(key, UNSAID.get(key))
    return bool(known[: len(value)] == value if isinstance(value, list) and isinstance(known, list) else known == value)
