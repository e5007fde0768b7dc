"""A model beside the one that is trained: a teacher, a reward model. It is frozen, whole, and runs without history."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.tape.build.cache import Cache
from tunecast.tape.build.decoder import CausalLM
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.families import model_of
from tunecast.tape.build.fill_in import dtype_of
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import bring_all
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.stacks.transformers import Making, with_room
from tunecast.tape.build.tensor import Tensor


def frozen_model(
    machine: Machine, config: Mapping[str, Any], role: str, longest: int, making: Making = model_of,
    *, is_twin: bool = False,
) -> Any:  # fmt: skip
    """`from_pretrained` without a dtype, which is the checkpoint's own, and `eval()`; modules are named by the role.
    `is_twin`: it has the layers of the one that is trained, and their names, so that both are folded alike."""
    with machine.loading_in(DTYPES[dtype_of(config) or "float32"]):
        model = making(machine, with_room(config, longest))
        if model is None:
            name = config.get("model_type")
            raise Unsupported.at("model", f"the closed form does not know the architecture {name!r} of the {role}")
        model.name_all("" if is_twin else role)
        model.model_type = config.get("text_config", config)["model_type"]
        model.tie()
        bring_all(model)
    for parameter in model.parameters():
        parameter.requires_grad = False
    return model


def give_logits(model: Any) -> None:
    """A call of the model gives logits, whatever kernels took over its head and loss."""
    if not isinstance(model, CausalLM):
        raise Unsupported.at("model", f"logits alone are not written down of {model.model_type}")
    vars(model).pop("forward", None)
    model.output = MethodType(logits_alone, model)  # type: ignore[method-assign]


def logits_alone(self: Any, logits: Tensor, labels: None) -> Tensor:
    return logits


UNCACHED = "how {} keeps keys and values is not written down; those that the {} keeps during its pass are left out"


@contextlib.contextmanager
def caching(model: Any, role: str) -> Iterator[Cache]:
    """A pass in which a model's layers keep keys and values; whoever holds the cache has them. `use_cache` is on in
    most configurations, and only the model that is trained has it switched off (transformers/trainer.py,
    `Trainer.__init__`)."""
    machine = model.machine
    machine.cache = Cache(machine)
    try:
        yield machine.cache
        if len(machine.cache.keys) != len(list(model.layers())):
            machine.guesses[UNCACHED.format(model.model_type, role)] = None
    finally:
        machine.cache = None


def logits_of(model: Any, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Tensor:
    """Of a model that accelerate prepared: widened where autocast was on (`convert_outputs_to_fp32`)."""
    scheme = model.machine.scheme
    with model.machine.autocasting(scheme.autocast):
        logits: Tensor = first_of(model(input_ids, attention_mask, None, **images))
    return logits if scheme.autocast is None else logits.float()
