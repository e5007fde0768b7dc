"""The optimizers that job/optimizers.py declares, as the Trainer makes them (trainer_optimizer.py, 5.17)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.job.optimizers import OPTIMIZERS, OptimizerKind, optimizer_of

RATE = 1e-5
Parameters = Sequence[torch.nn.Parameter]


def make_optimizer(job: Job, parameters: Parameters, outer: Sequence[Any] = (), model: Any = None) -> Any:
    """`outer` are the weights of embedding and head, which Muon is not for."""
    kind = optimizer_of(job)
    if not kind.runs:
        known = sorted(name for name, each in OPTIMIZERS.items() if each.runs)
        raise UsageError(
            f"optimizer: the traced engine does not build {kind.name!r} yet; it builds {', '.join(known)}. "
            "To fix: trace your own script with `tunecast trace`.",
            field="optimizer",
        )
    if kind.layerwise:
        return _layerwise(kind, model, parameters)
    if kind.in_backward:
        return _fused_backward(kind, model)
    if kind.spares_ends:
        return _beside_adamw(kind, parameters, outer)
    return _optimizer(kind, parameters, projected_weights(model) if kind.projection else ())


def _optimizer(kind: OptimizerKind, parameters: Parameters, projected: Parameters) -> Any:
    """`_setup_low_rank_optimizer` where some weights are projected: the rest first, then those with a rank."""
    groups: Any = parameters
    if kind.projection:
        chosen = {id(weight) for weight in projected}
        groups = [
            {"params": [p for p in parameters if id(p) not in chosen]},
            {"params": [p for p in parameters if id(p) in chosen], **kind.projection},
        ]
    optimizer = _class_of(kind)(groups, lr=RATE, **kind.options)
    if hasattr(optimizer, "train"):  # schedulefree's: the Trainer puts it into training mode before every step
        optimizer.train()
    return optimizer


def _layerwise(kind: OptimizerKind, model: Any, parameters: Parameters) -> Any:
    """An optimizer per parameter, run as soon as its gradient is there (`optimizer_hook`)."""
    chosen = {id(weight) for weight in projected_weights(model)}
    optimizers = {p: _optimizer(kind, [p], [p] if id(p) in chosen else []) for p in parameters}

    def optimizer_hook(parameter: torch.nn.Parameter) -> None:
        if parameter.grad is not None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(optimizer_hook)
    from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

    return LayerWiseDummyOptimizer(optimizers)


def _fused_backward(kind: OptimizerKind, model: Any) -> Any:
    """It steps inside its own backward pass; the step after it does nothing (accelerate/optimizer.py, `step`)."""
    from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

    optimizer = LayerWiseDummyOptimizer()
    optimizer.fused_backward = _class_of(kind)(model, lr=RATE).fused_backward
    return optimizer


def _beside_adamw(kind: OptimizerKind, parameters: Parameters, outer: Sequence[Any]) -> Any:
    first_and_last = {id(weight) for weight in outer}
    matrices = [p for p in parameters if p.dim() == 2 and id(p) not in first_and_last]
    chosen = {id(p) for p in matrices}
    rest = [p for p in parameters if id(p) not in chosen]
    return InTurn([_class_of(kind)(matrices, lr=RATE)] + ([torch.optim.AdamW(rest, lr=RATE)] if rest else []))


class InTurn(torch.optim.Optimizer):
    """Optimizers that share a model's parameters, as one: their steps are one step, so their own hooks do not run."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([p for o in optimizers for group in o.param_groups for p in group["params"]], {})
        self.optimizers = optimizers

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]
            self.state.update(optimizer.state)


def projected_weights(model: Any) -> list[torch.nn.Parameter]:
    """Of every linear layer but the head."""
    head = model.get_output_embeddings()
    found = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    if not found:
        raise UsageError("optimizer: this model has no linear layers a projection works on", field="optimizer")
    return found


def _class_of(kind: OptimizerKind) -> Any:
    module, _, name = kind.runs.partition(":")
    return imported(module, kind.package or module.partition(".")[0], name)


def imported(module: str, package: str, name: str, field: str = "optimizer") -> Any:
    try:
        return getattr(import_module(module), name)
    except ImportError:
        raise UsageError(f"{field}: it needs {package}. To fix: pip install {package}", field=field) from None
