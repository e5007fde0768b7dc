"""Optimizers from packages of their own, made as transformers' Trainer makes them (trainer_optimizer.py, 5.17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from tunecast.errors import UsageError

RATE = 1e-5
GALORE = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
APOLLO = {
    "rank": 128, "proj": "random", "scale_type": "channel", "update_proj_gap": 200, "scale": 1.0, "proj_type": "std",
}  # fmt: skip
Parameters = Sequence[torch.nn.Parameter]
Make = Callable[[Any, Parameters], Any]


def from_package(module: str, package: str, name: str, **options: Any) -> Make:
    def make(model: Any, parameters: Parameters) -> Any:
        return imported(module, package, name)(parameters, lr=RATE, **options)

    return make


def schedule_free(name: str) -> Make:
    """The Trainer puts it into training mode before every step."""

    def make(model: Any, parameters: Parameters) -> Any:
        optimizer = imported("schedulefree", "schedulefree", name)(parameters, lr=RATE)
        optimizer.train()
        return optimizer

    return make


def low_rank(module: str, package: str, name: str, settings: dict[str, Any], **options: Any) -> Make:
    """`_setup_low_rank_optimizer`, of every linear layer but the head: the rest first, then those with a rank."""

    def make(model: Any, parameters: Parameters) -> Any:
        chosen = {id(weight) for weight in projected_weights(model)}
        groups = [
            {"params": [p for p in parameters if id(p) not in chosen]},
            {"params": [p for p in parameters if id(p) in chosen], **settings},
        ]
        return imported(module, package, name)(groups, lr=RATE, **options)

    return make


def layerwise(one: Make) -> Make:
    """An optimizer a parameter, run as soon as its gradient is there (`optimizer_hook`)."""

    def make(model: Any, parameters: Parameters) -> Any:
        chosen = {id(weight) for weight in projected_weights(model)}
        optimizers = {p: one(_Only(p) if id(p) in chosen else _Only(), [p]) for p in parameters}

        def optimizer_hook(parameter: torch.nn.Parameter) -> None:
            if parameter.grad is not None:
                optimizers[parameter].step()
                optimizers[parameter].zero_grad()

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(optimizer_hook)
        from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

        return LayerWiseDummyOptimizer(optimizers)

    return make


def lomo(model: Any, parameters: Parameters) -> Any:
    """It steps inside its own backward pass; the step after it does nothing (accelerate/optimizer.py, `step`)."""
    from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

    optimizer = LayerWiseDummyOptimizer()
    optimizer.fused_backward = imported("lomo_optim", "lomo-optim", "Lomo")(model, lr=RATE).fused_backward
    return optimizer


class _Only:
    """A model that is one linear layer, or none."""

    def __init__(self, *weights: torch.nn.Parameter) -> None:
        self.weights = weights


def projected_weights(model: Any) -> list[torch.nn.Parameter]:
    if isinstance(model, _Only):
        return list(model.weights)
    head = model.get_output_embeddings()
    found = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    if not found:
        raise UsageError("optimizer: this model has no linear layers a projection works on", field="optimizer")
    return found


def imported(module: str, package: str, name: str, field: str = "optimizer") -> Any:
    try:
        return getattr(import_module(module), name)
    except ImportError:
        raise UsageError(f"{field}: it needs {package}. To fix: pip install {package}", field=field) from None


_GALORE_ADAMW = low_rank("galore_torch", "galore-torch", "GaLoreAdamW", GALORE, no_deprecation_warning=True)
_GALORE_8BIT = low_rank("galore_torch", "galore-torch", "GaLoreAdamW8bit", GALORE)
_GALORE_ADAFACTOR = low_rank(
    "galore_torch", "galore-torch", "GaLoreAdafactor", GALORE, scale_parameter=False, relative_step=False
)
_APOLLO = low_rank("apollo_torch", "apollo-torch", "APOLLOAdamW", APOLLO)
PACKAGED: dict[str, Make] = {
    "adamw_torch_4bit": from_package("torchao.optim", "torchao", "AdamW4bit", block_size=256),
    "adamw_torch_8bit": from_package("torchao.optim", "torchao", "AdamW8bit", block_size=256),
    "lomo": lomo,
    "grokadamw": from_package("grokadamw", "grokadamw", "GrokAdamW"),
    "stable_adamw": from_package("optimi", "torch-optimi", "StableAdamW", weight_decay=0.0),
    "schedule_free_adamw": schedule_free("AdamWScheduleFree"),
    "schedule_free_radam": schedule_free("RAdamScheduleFree"),
    "schedule_free_sgd": schedule_free("SGDScheduleFree"),
    "galore_adamw": _GALORE_ADAMW,
    "galore_adamw_8bit": _GALORE_8BIT,
    "galore_adafactor": _GALORE_ADAFACTOR,
    "galore_adamw_layerwise": layerwise(_GALORE_ADAMW),
    "galore_adamw_8bit_layerwise": layerwise(_GALORE_8BIT),
    "galore_adafactor_layerwise": layerwise(_GALORE_ADAFACTOR),
    "apollo_adamw": _APOLLO,
    "apollo_adamw_layerwise": layerwise(_APOLLO),
}
