"""What a short model says of the whole one: which of its tensors come how often, and in what order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from tunecast.tape.layers import TOWERS
from tunecast.tape.shorten import Standing

One = TypeVar("One")


@lru_cache(maxsize=100_000)
def layer_number(module: str) -> int:
    """The first number in a module's name; -1 outside the language model's layers."""
    parts = module.split(".")
    if not TOWERS.isdisjoint(parts):
        return -1
    return next((int(part) for part in parts if part.isdecimal()), -1)


@lru_cache(maxsize=64)
def times_stood_for(standing: Standing) -> Counter[int]:
    """How many layers of the whole model each that is built stands for."""
    return Counter(standing.whole)


def in_passes(each: Sequence[tuple[int, One]], order: Sequence[int]) -> list[tuple[int, One]]:
    """What belongs to layers (-1: to none), of a model with more of them: `order` has of each of those the one that
    stands for it. They come in passes over the layers, rising or falling."""
    out: list[tuple[int, One]] = []
    layers: dict[int, list[One]] = {}
    """Of the pass so far."""

    def end_pass() -> None:
        falls = len(layers) > 1 and next(iter(layers)) > next(reversed(layers))
        others = [(layer, layer) for layer in sorted(layers) if layer not in order]  # of a tower that has more
        places = [*enumerate(order), *others] if layers else []
        for layer, stands in reversed(places) if falls else places:
            out.extend([(layer, one) for one in layers.get(stands, ())])
        layers.clear()

    for layer, one in each:
        if layer < 0 or (layer in layers and layer != next(reversed(layers))):
            end_pass()
        if layer < 0:
            out.append((layer, one))
        else:
            layers.setdefault(layer, []).append(one)
    end_pass()
    return out


def repeated(each: Sequence[tuple[int, One]], standing: Standing) -> list[One]:
    """What belongs to layers that stand for others, as often as they do, one after the other."""
    head, period, *_ = rhythm = standing.rhythm
    return [
        one
        for layer, one in in_passes(each, standing.short)
        for _ in range(rhythm.copies + 1 if head <= layer < head + period else 1)
    ]
