"""Models of which some parameters are trained and all others frozen, on paper.

Modules are named by parts of the names of what they hold, as in LLaMA-Factory (llamafactory/model/adapter.py,
`_setup_freeze_tuning`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.eras import Era
from tunecast.tape.build.modules import Buffer
from tunecast.tape.build.quantized import change_dtype
from tunecast.tape.build.tensor import Tensor


def freeze_others(job: Job, model: Any, trained: Collection[str]) -> None:
    """`requires_grad_(False)` for all but those. Some stacks widen what is trained."""
    chosen = [tensor for name, tensor in named_parameters(model) if is_trained(name, trained)]
    if not chosen:
        raise UsageError.at("trained", f"this model has no {' or '.join(trained)}")
    for tensor in model.parameters():
        tensor.requires_grad = False
    for tensor in chosen:
        tensor.requires_grad = True
        if widens(job) and tensor.dtype != FLOAT32:
            change_dtype(tensor, FLOAT32)


def freeze_parts(job: Job, model: Any) -> None:
    """Of a model with a vision tower: all that is not of the parts that are trained."""
    trained = trained_parts(job)
    if trained is None or not model.towers():
        return
    for module in model.modules():
        if model.part_of(module.path) not in trained:
            for tensor in module.own.values():
                tensor.requires_grad = False


def trained_parts(job: Job) -> Collection[str] | None:
    """None: all."""
    return stack_of(job).trained_parts if job.vision.trained is None else job.vision.trained


def is_adapted(job: Job, model: Any, layer: Any) -> bool:
    """Whether a layer is of a part that gets adapters."""
    trained = trained_parts(job)
    return trained is None or not model.towers() or model.part_of(layer.path) in trained


def widens(job: Job) -> bool:
    """Whether parameters that are trained become float32."""
    return stack_of(job).widens_trained and job.autocast is not None


def is_trained(name: str, trained: Collection[str]) -> bool:
    return any(f".{part}." in f".{name}." for part in trained)


def named_parameters(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Each once: a weight that two modules share has the name of the first."""
    seen: set[int] = set()
    for module in model.modules():
        for name, tensor in module.own.items():
            if id(tensor) not in seen and not isinstance(tensor, Buffer):
                seen.add(id(tensor))
                yield f"{module.path}.{name}", tensor


def checkpointing_of(job: Job, layer: Any) -> tuple[bool, bool]:
    """Whether a layer is checkpointed, and whether its first input is made to need a gradient: with
    llamafactory/model/model_utils/checkpointing.py, `get_custom_gradient_checkpointing_func`, layers with something to
    train alone."""
    if job.trained is None or not stack_of(job).widens_trained:
        return True, False
    trains = any(tensor.requires_grad for tensor in layer.parameters())
    return trains, trains


def embeddings_give_gradient(job: Job, era: Era) -> bool:
    """Whether recomputation makes the backward pass go through every layer, whatever is trained: transformers'
    `gradient_checkpointing_enable` does, in whose place LLaMA-Factory has its own."""
    some = job.trained is not None or trained_parts(job) is not None
    return some and era.gives_input_gradient and not stack_of(job).widens_trained
