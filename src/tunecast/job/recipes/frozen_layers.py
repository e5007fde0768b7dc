"""Which layers of a model are trained while the rest is frozen, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.model import resolve_model

LISTS: Mapping[str, str] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gptj", "gpt_neo", "codegen", "bloom", "falcon"), "h"),
    "mpt": "blocks",
}
"""What a model's list of layers is called, where it is not `layers`, by `model_type`."""
COUNTS = ("num_hidden_layers", "num_layers", "n_layer")


def layer_count(model: object) -> int | None:
    """Of a model that is known without a network."""
    found = (_config(model).get(name) for name in COUNTS)
    return next((count for count in found if isinstance(count, int)), None)


def layer_names(model: object, layers: Iterable[int], modules: Iterable[str] = ("all",)) -> list[str]:
    """`layers.31`, or `layers.31.mlp` where only some modules of a layer are meant."""
    of = LISTS.get(str(_config(model).get("model_type")), "layers")
    ends = ["" if module == "all" else f".{module}" for module in modules]
    return [f"{of}.{layer}{end}" for layer in layers for end in ends]


def _config(model: object) -> Mapping[str, Any]:
    if not isinstance(model, str):
        return {}
    try:
        raw = resolve_model(model, offline=True).raw
    except TunecastError:
        return {}
    text = raw.get("text_config")
    return text if isinstance(text, Mapping) else raw
