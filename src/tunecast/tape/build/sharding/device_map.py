"""Which card of `device_map="auto"` gets which parts of a model, as transformers decides it from the weights alone.

Every card but the last may take an even share of the weights and one and a quarter layers more; the first keeps room
for the largest part still to come free of that, and the last takes what is left. Parts come in the order of the
module tree; one that does not fit is opened, and a layer, which is never opened, goes to the next card.

    70B in float32, 8 cards   an even share is 32.9 GiB, with 1.25 layers of 3.2 more 36.8
                              the first: 36.8 - 3.9 for the head: the embedding and 9 layers; six others: 11 each;
                              the last: 5, the norm and the head

Source   transformers 5.17, integrations/accelerate.py: `get_balanced_memory`, `infer_auto_device_map`; quantizers/
         quantizer_bnb_4bit.py: `adjust_max_memory`. accelerate 1.15, utils/modeling.py, decides alike.
Ignored  that a card may have less memory than its share: the last then has more, and beyond that the host
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.modules import Linear, Module, ModuleList

QUANTIZED_BYTES = {"nf4": 0.5, "fp4": 0.5, "gptq": 0.5, "int8": 1.0}
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
    leaves: int
    """Modules with weights of their own."""


def outline(model: Any, weights_dtype: str, packed: str | None = None) -> Outline:
    """`packed`: the format of quantised weights."""
    width = DTYPES[weights_dtype].itemsize
    inside = QUANTIZED_BYTES.get(packed or "", width)
    names: dict[int, str] = {}
    head = model.output_embedding()
    seen: set[int] = set()

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
        inner = [
            piece(child, prefix + key, isinstance(module, ModuleList) or not child.children)
            for key, child in module.children.items()
        ]
        nbytes = sum(part.nbytes for part in (*own, *inner))
        return TreePiece(name, nbytes, () if whole else (*own, *inner))

    pieces = piece(model, "", False).pieces
    layers = tuple(names[id(layer)] for layer in model.layers())
    leaves = sum(1 for module in model.modules() if module.own)
    return Outline(pieces, layers, names[id(model.input_embedding())], names[id(head)], model.tied, leaves)


def share_bytes(model: Outline, cards: int, quantizes: bool) -> float:
    """What each card but the last may take."""
    total = sum(piece.nbytes for piece in model.pieces)
    largest_layer = max(piece.nbytes for piece in unopened(model.pieces) if piece.name in model.layers)
    share = total // cards + int(LAYERS_MORE * max(largest_layer, total // model.leaves))
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
