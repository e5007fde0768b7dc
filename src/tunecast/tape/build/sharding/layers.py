"""Which card of `device_map="auto"` gets which parts of a model, as transformers decides it from the weights alone.

Every card but the last may take an even share of the weights and one and a quarter layers more (since transformers 5.18
of the largest leaf, where that is larger: mostly the embedding); the first keeps room for the largest part still to
come free of that, and the last takes what is left. Parts come in the order of the module tree; one that does not fit is
opened, and a layer, which is never opened, goes to the next card.

    70B in float32, 8 cards   (5.17) an even share is 32.9 GiB, with 1.25 layers of 3.2 more 36.8
                              the first: 36.8 - 3.9 for the head: the embedding and 9 layers; six others: 11 each;
                              the last: 5, the norm and the head

Source   transformers 5.17 and 5.22, integrations/accelerate.py: `get_balanced_memory`, `infer_auto_device_map`;
         quantizers/quantizer_bnb_4bit.py: `adjust_max_memory`. accelerate 1.15, utils/modeling.py, decides alike.
Ignored  that a card may have less memory than its share: the last then has more, and beyond that the host

Layers spread over cards: what each kind of card holds, and what arrives at it and leaves it.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.names import BITSANDBYTES
from tunecast.job.stacks import stack_of
from tunecast.records import NamedTuple
from tunecast.tape.build.autograd import Node
from tunecast.tape.build.dtypes import DTYPES, Dtype
from tunecast.tape.build.eras import Era, era_of
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.modules import Linear, Module, ModuleList, bring
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.card import Card
from tunecast.tape.shorten import CUT, LAYER_COUNTS, with_layers

# ------------------------------------------------------------------------------------------ which card gets which parts


QUANTIZED_BYTES = {
    "nf4": 0.5, "fp4": 0.5, "gptq": 0.5, "awq": 0.5, "int8": 1.0, "finegrained_fp8": 1.0, "torchao_int8": 1.0,
    "torchao_float8": 1.0,
}  # fmt: skip
"""Of a weight, as `param_element_size` counts it."""
WHILE_QUANTIZING = 0.9
"""Of what a card may take, where bitsandbytes quantises."""
LAYERS_MORE = 1.25


class TreePiece(NamedTuple):
    """A module or a parameter, by its place in the tree."""

    name: str
    nbytes: float
    pieces: tuple[TreePiece, ...] = ()
    """None where it is never opened."""


class CardShare(NamedTuple):
    """What one card holds."""

    layers: tuple[int, ...]
    embedding: bool
    norm: bool
    """What comes after the last layer and is not the head."""
    head: bool
    nbytes: float


class Outline(NamedTuple):
    """A model as far as its split asks. A head that is the embedding has no bytes."""

    pieces: tuple[TreePiece, ...]
    layers: tuple[str, ...]
    embedding: str
    head: str
    tied: bool
    leaf_bytes: float
    """Of the modules with weights of their own the one that counts: the mean, of transformers 5.18 on the largest."""


def outline(model: Any, weights_dtype: str, packed: str | None = None) -> Outline:
    """`packed`: the format of quantised weights."""
    width = DTYPES[weights_dtype].itemsize
    inside = QUANTIZED_BYTES.get(packed or "", width)
    names: dict[int, str] = {}
    head = model.output_embedding()
    seen: set[int] = set()
    leaves: list[float] = []

    def piece(module: Module, name: str, whole: bool) -> TreePiece:
        names[id(module)] = name
        prefix = f"{name}." if name else ""
        quantized = isinstance(module, Linear) and module is not head and not module.fan_in_fan_out
        own = []
        for key, tensor in module.own.items():
            shared = id(tensor) in seen or (module is head and model.tied and key == "weight")
            seen.add(id(tensor))
            each = inside if quantized and tensor.dim() > 1 else width
            own.append(TreePiece(prefix + key, 0 if shared else tensor.numel() * each))
        if own:
            leaves.append(sum(part.nbytes for part in own))
        inner = [
            piece(child, prefix + key, isinstance(module, ModuleList) or not child.children)
            for key, child in module.children.items()
        ]
        nbytes = sum(part.nbytes for part in (*own, *inner))
        return TreePiece(name, nbytes, () if whole else (*own, *inner))

    pieces = piece(model, "", False).pieces
    layers = tuple(names[id(layer)] for layer in model.layers())
    leaf_bytes = max(leaves) if model.machine.era.rounds_by_largest_leaf else sum(leaves) // len(leaves)
    return Outline(pieces, layers, names[id(model.input_embedding())], names[id(head)], model.tied, leaf_bytes)


def share_bytes(model: Outline, cards: int, quantizes: bool) -> float:
    """What each card but the last may take."""
    total = sum(piece.nbytes for piece in model.pieces)
    largest_layer = max(piece.nbytes for piece in unopened(model.pieces) if piece.name in model.layers)
    share = total // cards + int(LAYERS_MORE * max(largest_layer, model.leaf_bytes))
    return share * WHILE_QUANTIZING if quantizes else share


def unopened(pieces: Sequence[TreePiece]) -> Iterator[TreePiece]:
    for piece in pieces:
        if piece.pieces:
            yield from unopened(piece.pieces)
        else:
            yield piece


def placed(pieces: Sequence[TreePiece], cards: int, share: float) -> dict[str, int]:
    """The card of every piece that was not opened further."""
    waiting = list(pieces)
    found: dict[str, int] = {}
    card, used = 0, 0.0
    largest, reserving = _largest(waiting)
    while waiting:
        piece = waiting.pop(0)
        reserving = [name for name in reserving if not is_within(name, piece.name)]
        if not reserving:
            largest, reserving = _largest(waiting)
        room = share - (0 if card else largest)
        if card == cards - 1 or used + piece.nbytes <= room:
            found[piece.name] = card
            used += piece.nbytes
        elif piece.pieces:
            waiting[:0] = piece.pieces
            largest, reserving = _largest(waiting)
        else:
            waiting.insert(0, piece)
            card, used = card + 1, 0.0
    return found


def _largest(pieces: Sequence[TreePiece]) -> tuple[float, list[str]]:
    every = list(unopened(pieces))
    most = max((piece.nbytes for piece in every), default=0.0)
    return most, [piece.name for piece in every if piece.nbytes == most]


def is_within(name: str, outer: str) -> bool:
    return f"{name}.".startswith(f"{outer}.")


def split(model: Outline, cards: int, quantizes: bool = False) -> tuple[CardShare, ...]:
    """What each card holds, in their order; one that holds nothing is left out."""
    places = placed(model.pieces, cards, share_bytes(model, cards, quantizes))

    def card_of(name: str) -> int:
        return next(card for outer, card in places.items() if is_within(name, outer))

    layers = [card_of(name) for name in model.layers]
    embedding = card_of(model.embedding)
    head = embedding if model.tied else card_of(model.head)
    norm, held = _after_layers(model, places), _bytes_by_card(model.pieces, places)
    every = (
        CardShare(
            tuple(number for number, place in enumerate(layers) if place == card),
            card == embedding, card == norm, card == head, held.get(card, 0.0),
        )
        for card in range(cards)
    )  # fmt: skip
    return tuple(card for card in every if card.layers or card.embedding or card.head)


def _after_layers(model: Outline, places: Mapping[str, int]) -> int:
    """The card of what follows the last layer and is not the head; where nothing does, of the layer itself."""
    order = list(places)
    last = next(number for number, outer in enumerate(order) if is_within(model.layers[-1], outer))
    return next((places[name] for name in order[last + 1 :] if name != model.head), places[order[last]])


def _bytes_by_card(pieces: Sequence[TreePiece], places: Mapping[str, int]) -> dict[int, float]:
    held: dict[int, float] = {}
    for piece in pieces:
        if piece.name in places:
            held[places[piece.name]] = held.get(places[piece.name], 0.0) + piece.nbytes
        else:
            for card, nbytes in _bytes_by_card(piece.pieces, places).items():
                held[card] = held.get(card, 0.0) + nbytes
    return held


# ------------------------------------------------------------------------------------------------- what each card holds


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
    return _spread(model, json.dumps(config, sort_keys=True, default=str), cards, width, packed, era_of(job))


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
        raise UsageError.at(field, f"{total} layers for {parts} cards. To fix: fewer")


def layer_count(config: Mapping[str, Any]) -> int:
    text = config.get("text_config", config)
    return next(int(text[name]) for name in LAYER_COUNTS if name in text)


@lru_cache(maxsize=64)
def _spread(
    model_of: ModelOf, written: str, cards: int, weights_dtype: str, packed: str | None, era: Era
) -> Sequence[Mapping[str, Any]]:
    config = json.loads(written)
    model = model_of(Machine(Card(), Setup(era=era)), config)
    if model is None:
        raise Unsupported.at("model", "the closed form does not know this architecture. To fix: --engine traced")
    every = split(outline(model, weights_dtype, packed), cards, quantizes=packed in BITSANDBYTES)
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
    listed = [name for name in CUT if isinstance(config.get(name), list | str)]
    later: dict[str, Any] = {name: config[name][first:] for name in listed}
    if config.get("first_k_dense_replace"):
        later["first_k_dense_replace"] = max(0, config["first_k_dense_replace"] - first)
    return {**config, **later}


class OneCardOfSeveral(Scheme):
    """One of the cards a model is spread over by `device_map`."""

    leaving: Leaving | None = None

    def wrap(self, model: Any) -> None:
        self.machine.assumptions[SPREAD] = None
        ends = self.machine.ends or Ends()
        self.leaving = cut_ends(model, ends, returned=ends.embedding)

    def end_forward(self, outputs: Any) -> Any:
        """The first card, which has the batch, is sent the logits (accelerate's `io_same_device`)."""
        logits = None if self.leaving is None else self.leaving.sent_back(self.autocast)
        if logits is None or not isinstance(outputs, tuple):
            return outputs
        widened = logits if self.autocast is None else logits.float()
        return (outputs[0], widened, *outputs[2:])


def cut_ends(model: Any, ends: Ends, returned: bool = False) -> Leaving | None:
    """Of the model's ends what this card has not; gives what stands in the head's place, where that is elsewhere."""
    machine, leaving = model.machine, None
    if not ends.norm:
        for norm in after_layers(model):
            replace_child(model, norm, Passing(machine))
    if not ends.head:
        old = model.output_embedding()
        leaving = Leaving(machine, base_of(old), returned=returned)
        leaving.path = old.path
        replace_child(model, old, leaving)
        let_go(old)
        model.vocabulary = leaving.outputs
    if not ends.embedding:
        old = model.input_embedding()
        new = Arriving(machine, base_of(old).weight.shape[1], base_of(old).weight.dtype)
        new.path = old.path
        replace_child(model, old, new)
        let_go(old)
    return leaving


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
