"""Which layers of a model are trained while the rest is frozen, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tunecast.job.model import known_model

LISTS: Mapping[str, str] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gptj", "gpt_neo", "codegen", "bloom", "falcon"), "h"),
    "mpt": "blocks",
}
"""What a model's list of layers is called, where it is not `layers`, by `model_type`."""


def layer_count(model: object) -> int | None:
    """Of a model that is known without a network."""
    known = known_model(model)
    return None if known is None else known.layers


def layer_names(model: object, layers: Iterable[int], modules: Iterable[str] = ("all",)) -> list[str]:
    """`layers.31`, or `layers.31.mlp` where only some modules of a layer are meant."""
    known = known_model(model)
    of = LISTS.get("" if known is None else known.model_type, "layers")
    ends = ["" if module == "all" else f".{module}" for module in modules]
    return [f"{of}.{layer}{end}" for layer in layers for end in ends]
