"""Layers spread over cards: what each kind of card holds, and what arrives at it and leaves it.

A pipeline's stages, and the cards of `device_map="auto"`, hold some layers whole and no others: their program is that
of a model with fewer layers. Which card is the fullest depends on the job: one in the middle may have the most weights,
the one with the head has the logits, a pipeline's first stage the most micro-batches under way. So there are a few to
ask about (`candidates`): the first card, the heaviest in between, the one with the head. Cards that are alike are one.

Of a pipeline they are the first stage and the last; a stage in between has fewer micro-batches than the first, and no
end of the model. Interleaved, a rank is asked for all of its stages.

Ignored  copies of the rotary tables that accelerate's hooks make on their way to other cards; that parts beside the
         text model (a tower) are on one card: each is counted with them
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.records import NamedTuple
from tunecast.tape.build.autograd import Node
from tunecast.tape.build.dtypes import Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module, ModuleList, bring
from tunecast.tape.build.sharding.device_map import CardShare, outline, split
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.card import Card
from tunecast.tape.shorten import LAYER_COUNTS, PER_LAYER, with_layers

SPREAD = 'device_map="auto": the figures are of the fullest of its GPUs'
ENDS = "ends_held"
"""Where a card's config.json says which ends of the model it holds (`Ends`)."""
ModelOf = Callable[[Machine, Mapping[str, Any]], Any]


class Ends(NamedTuple):
    """What a card holds besides layers."""

    embedding: bool = True
    norm: bool = True
    head: bool = True


def ends_of(config: Mapping[str, Any]) -> Ends:
    return Ends(*config.get(ENDS, ()))


def held(job: Job, config: Mapping[str, Any], model: ModelOf) -> Mapping[str, Any]:
    """The config.json of what is priced: of a pipeline, the first stage, which takes what does not divide; of cards
    that work one after another, all layers. `model` makes a stack's module tree of a config."""
    _require_layers(job, config)
    stages = job.parallel.pipeline
    if stages == 1:
        return config
    total = layer_count(config)
    if counts_ends(job, total):
        return with_layers(config, (total + 2) // stages - 1)
    return with_layers(config, -(-total // stages))


def counts_ends(job: Job, layers: int) -> bool:
    """Whether Megatron takes each end of the model for a layer (`account_for_embedding_in_pipeline_split`,
    `account_for_loss_in_pipeline_split`): it refuses layers that do not divide, and does so where they then do."""
    stages = job.parallel.pipeline * job.parallel.virtual_stages
    return stack_of(job).uses_megatron and layers % stages > 0 and (layers + 2) % stages == 0


def candidates(job: Job, config: Mapping[str, Any], model: ModelOf) -> Sequence[Mapping[str, Any]]:
    """The config.json of each card that may be the fullest."""
    if job.parallel.layers == 1:
        first = held(job, config, model)
        return (first, last_stage(job, config)) if job.parallel.pipeline > 1 else (first,)
    _require_layers(job, config)
    cards, width, packed = job.parallel.layers, job.weights_dtype, job.quantization.format
    return _spread(model, json.dumps(config, sort_keys=True, default=str), cards, width, packed)


def last_stage(job: Job, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Layers that do not divide are the earlier stages'. To torchtitan each end of the model is as much as a layer
    (distributed/pipeline_parallel.py, `generate_llm_fqn_per_model_part`). Interleaved, the last rank has the last of
    every so many stages."""
    ranks, chunks = job.parallel.pipeline, job.parallel.virtual_stages
    total, stages = layer_count(config), ranks * chunks
    ends = 2 if stack_of(job).counts_ends or counts_ends(job, total) else 0
    every, over = divmod(total + ends, stages)
    count = chunks * every + sum(stage < over for stage in range(ranks - 1, stages, ranks)) - ends // 2
    count = max(1, count)
    return {**with_layers(from_layer(config, total - count), count), ENDS: [False, True, True]}


def _require_layers(job: Job, config: Mapping[str, Any]) -> None:
    stages, spread = job.parallel.pipeline, job.parallel.layers
    if stages == 1 and spread == 1:
        return
    total = layer_count(config)
    field, parts = ("parallel.pipeline", stages) if stages > 1 else ("parallel.layers", spread)
    if total < parts:
        raise UsageError(f"{field}: {total} layers for {parts} cards. To fix: fewer", field=field)


def layer_count(config: Mapping[str, Any]) -> int:
    text = config.get("text_config", config)
    return next(int(text[name]) for name in LAYER_COUNTS if name in text)


@lru_cache(maxsize=64)
def _spread(
    model_of: ModelOf, written: str, cards: int, weights_dtype: str, packed: str | None
) -> Sequence[Mapping[str, Any]]:
    config = json.loads(written)
    model = model_of(Machine(Card()), config)
    if model is None:
        raise Unsupported(
            "model: the closed form does not know this architecture. To fix: --engine traced", field="model"
        )
    every = split(outline(model, weights_dtype, packed), cards, quantizes=packed not in (None, "gptq"))
    return tuple(of_card(config, card) for card in worth_asking(every))


def worth_asking(cards: Sequence[CardShare]) -> list[CardShare]:
    """Those with an end of the model that takes memory, and of the others the heaviest."""
    ends = [card for card in cards if card.embedding or card.head]
    between = [card for card in cards if not (card.embedding or card.head)]
    return [*ends, *sorted(between, key=lambda card: -card.nbytes)[:1]]


def of_card(config: Mapping[str, Any], card: CardShare) -> Mapping[str, Any]:
    """A card without layers is given one: a model without is none."""
    first = card.layers[0] if card.layers else 0
    here = with_layers(from_layer(config, first), max(1, len(card.layers)))
    return {**here, ENDS: [card.embedding, card.norm, card.head]}


def from_layer(config: Mapping[str, Any], first: int) -> dict[str, Any]:
    """A config.json whose layers begin with the model's `first`."""
    if "text_config" in config:
        return {**config, "text_config": from_layer(config["text_config"], first)}
    later: dict[str, Any] = {name: config[name][first:] for name in PER_LAYER if isinstance(config.get(name), list)}
    if config.get("first_k_dense_replace"):
        later["first_k_dense_replace"] = max(0, config["first_k_dense_replace"] - first)
    return {**config, **later}


class OneCardOfSeveral(Scheme):
    """One of the cards a model is spread over by `device_map`."""

    leaving: Leaving | None = None

    def wrap(self, model: Any) -> None:
        self.machine.assumptions[SPREAD] = None
        ends = self.machine.ends or Ends()
        if not ends.norm:
            for norm in after_layers(model):
                replace_child(model, norm, Passing(self.machine))
        if not ends.head:
            old = model.output_embedding()
            self.leaving = leaving = Leaving(self.machine, base_of(old), returned=ends.embedding)
            leaving.path = old.path
            replace_child(model, old, leaving)
            let_go(old)
            model.vocabulary = leaving.outputs
        if not ends.embedding:
            old = model.input_embedding()
            new = Arriving(self.machine, base_of(old).weight.shape[1], base_of(old).weight.dtype)
            new.path = old.path
            replace_child(model, old, new)
            let_go(old)

    def end_forward(self, outputs: Any) -> Any:
        """The first card, which has the batch, is sent the logits (accelerate's `io_same_device`)."""
        logits = None if self.leaving is None else self.leaving.sent_back(self.autocast)
        if logits is None or not isinstance(outputs, tuple):
            return outputs
        widened = logits if self.autocast is None else logits.float()
        return (outputs[0], widened, *outputs[2:])


def base_of(module: Any) -> Any:
    """Without its adapter."""
    return getattr(module, "base_layer", module)


def after_layers(model: Any) -> list[Module]:
    """What a model does to the last layer's result with weights that are vectors: its norm."""
    first = next(iter(model.layers()))
    found: list[Module] = []
    for parent in model.modules():
        for number, child in enumerate(parent.children.values()):
            if isinstance(child, ModuleList) and any(layer is first for layer in child):
                found += list(parent.children.values())[number + 1 :]
    return [module for module in found if {p.dim() for p in module.parameters()} == {1}]


class Passing(Module):
    """In the place of a norm that another card has."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states


class Leaving(Linear):
    """In the head's place: to one number a token, which is next to nothing, and sends hidden states the gradient that
    comes back from the card they go to. `returned`: the logits then come to this card."""

    def __init__(self, machine: Machine, head: Any, returned: bool) -> None:
        super().__init__(machine, head.weight.shape[1], 1)
        self.vocabulary, self.returned = head.weight.shape[0], returned
        self.rows: Any = None
        self.weight.requires_grad = head.weight.requires_grad
        bring(self.weight, head.path, dtype=head.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.rows = x.shape[:-1]
        return super().forward(x)

    def sent_back(self, autocast: Dtype | None) -> Tensor | None:
        """None where kernels made no logits."""
        if not self.returned or self.rows is None:
            return None
        return self.machine.run("_to_copy", (), (*self.rows, self.vocabulary), autocast or self.weight.dtype)


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


def let_go(module: Module) -> None:
    """Of its weights, whoever still knows the module."""
    for part in module.modules():
        for name in list(part.own):
            del part.own[name]
            object.__setattr__(part, name, None)


def replace_child(module: Module, old: Module, new: Module) -> None:
    for name, child in list(module.children.items()):
        if child is old:
            setattr(module, name, new)
        else:
            replace_child(child, old, new)
