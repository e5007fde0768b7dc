"""Layers spread over cards: which of them the fullest card of a job holds, and what arrives there.

A pipeline's stages, and the cards of `device_map="auto"`, hold some layers whole and no others: their program is that
of a model with fewer layers.

`device_map="auto"` fills the cards in order, each up to an even share of the weights and one and a quarter layers more,
and leaves the rest to the last, which has the head: there the logits are made, so it is taken for the fullest. Where
head and embedding are one weight, both are on the first card, and that is.

Source   accelerate 1.15, utils/modeling.py, `get_balanced_memory` and `infer_auto_device_map`
Ignored  copies of the rotary tables and of the logits that accelerate's hooks make on their way to other cards
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.tape.build.autograd import Node
from tunecast.tape.build.modules import Module
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.tensor import DTYPES, Dtype, Machine, Tensor
from tunecast.tape.card import Card
from tunecast.tape.shorten import LAYER_COUNTS, with_layers

SPREAD = 'device_map="auto": the card that has the head is taken for the fullest'
QUANTIZED_BYTES = {"nf4": 0.5, "fp4": 0.5, "gptq": 0.5, "int8": 1.0}
"""Of a weight, as accelerate counts it (`CustomDtype.INT4`)."""


class Sizes(NamedTuple):
    """Bytes, as `compute_module_sizes` has them."""

    embedding: float
    layer: float
    layers: int
    head: float
    """0 where it is the embedding."""


def held(job: Job, config: Mapping[str, Any], model: Callable[[Machine, Mapping[str, Any]], Any]) -> Mapping[str, Any]:
    """The config.json of what one card holds: of a pipeline, the first stage, which waits longest for its gradients and
    takes what does not divide. `model` makes a stack's module tree of a config."""
    stages, spread = job.parallel.pipeline, job.parallel.layers
    if stages == 1 and spread == 1:
        return config
    total = layer_count(config)
    field, parts = ("parallel.pipeline", stages) if stages > 1 else ("parallel.layers", spread)
    if total < parts:
        raise UsageError(f"{field}: {total} layers for {parts} cards. To fix: fewer", field=field)
    if stages > 1:
        return with_layers(config, -(-total // stages))
    return with_layers(config, layers_beside_the_head(sizes_of(job, model(Machine(Card()), config)), spread))


def layer_count(config: Mapping[str, Any]) -> int:
    text = config.get("text_config", config)
    return next(int(text[name]) for name in LAYER_COUNTS if name in text)


def sizes_of(job: Job, model: Any) -> Sizes:
    if model is None:
        raise Unsupported(
            "model: the closed form does not know this architecture. To fix: --engine traced", field="model"
        )
    width = DTYPES[job.weights_dtype].itemsize
    inside = QUANTIZED_BYTES.get(job.quantization.format or "", width)
    layers = list(model.layers())
    layer = sum(p.numel() * (inside if p.dim() > 1 else width) for p in layers[-1].parameters())
    embedding = model.input_embedding().weight.numel() * width
    head = 0 if model.tied else model.output_embedding().weight.numel() * width
    return Sizes(embedding, layer, len(layers), head)


def layers_beside_the_head(sizes: Sizes, cards: int) -> int:
    """Of the last card; of the first where the head is the embedding."""
    total = sizes.embedding + sizes.layer * sizes.layers + sizes.head
    share = total // cards + int(1.25 * sizes.layer)
    first = min(sizes.layers, int((share - sizes.embedding) // sizes.layer))
    if not sizes.head:
        return max(1, first)
    middle = int(share // sizes.layer) * (cards - 2)
    return max(1, sizes.layers - max(0, first) - middle)


class OneCardOfSeveral(Scheme):
    """The card with the head of a model spread by `device_map`."""

    def wrap(self, model: Any) -> None:
        self.machine.assumptions[SPREAD] = None
        if not model.tied:
            old = model.input_embedding()
            new = Arriving(self.machine, old.weight.shape[1], old.weight.dtype)
            new.path = old.path
            replace_child(model, old, new)


class Arriving(Module):
    """In the embedding's place: hidden states from the card before, whose gradient goes back there."""

    def __init__(self, machine: Machine, width: int, dtype: Dtype) -> None:
        super().__init__(machine)
        self.width, self.dtype = width, dtype
        self.weight: Any = None
        self.gives_gradient = False

    def forward(self, ids: Tensor) -> Tensor:
        out = self.machine.run("_to_copy", (), (*ids.shape, self.width), self.dtype)
        if self.machine.grad_enabled:
            out.node, out.requires_grad = Node(self.machine, lambda node, gradients: (), (), ()), True
        return out


def replace_child(module: Module, old: Module, new: Module) -> None:
    for name, child in list(module.children.items()):
        if child is old:
            setattr(module, name, new)
        else:
            replace_child(child, old, new)
