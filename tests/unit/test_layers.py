"""Extending a tape by layers, on a model small enough for paper."""

from __future__ import annotations

import pytest

from tunecast.tape.layers import LayerRun, NotRepeating, aligned, extended, renumbered
from tunecast.tape.op import MANY, Alloc, Begin, Event, Free, Op, Phase, Tape


def toy(layers: int, odd_layer: int | None = None, far: bool = False) -> Tape:
    """Each layer keeps 10 bytes (20 in layer 0) until its backward, frees its predecessor's output of 4, and has a
    weight of 100. A list of norms takes 8 bytes a layer."""
    events: list[Event] = [Begin(Phase.LOAD)]
    block = iter(range(10**6))

    def alloc(nbytes: int, module: str) -> int:
        number = next(block)
        events.append(Alloc(number, nbytes, module=module))
        return number

    for layer in range(layers):
        events.append(Op("empty", f"model.layers.{layer}.linear"))
        alloc(100, f"model.layers.{layer}.linear")
    events.append(Begin(Phase.FORWARD))
    events.append(Op("embedding", "model.embed"))
    output = alloc(4, "model.embed")
    kept = []
    for layer in range(layers):
        name = f"model.layers.{layer}"
        events.append(Op("mm", name, flops=7))
        kept.append(alloc(20 if layer == 0 else 10 + (layer == odd_layer), name))
        new = alloc(4, name)
        events.append(Free(output))
        output = new
    events.append(Op("loss", "model.head"))
    events.append(Free(output))
    events.append(Begin(Phase.BACKWARD))
    order = [0, *range(1, layers)] if far else range(layers)
    for layer in reversed(range(layers)):
        events.append(Op("mm", f"model.layers.{layer}", flops=14))
        events.append(Free(kept[order[layer]]))
    events.append(Begin(Phase.CLIP))
    events.append(Op("stack", MANY, read_bytes=8 * layers))
    norms = alloc(8 * layers, MANY)
    events.append(Free(norms))
    return Tape(tuple(events))


@pytest.mark.parametrize("layers", [5, 6, 9, 40])
def test_extension_is_the_tape_of_more_layers(layers: int) -> None:
    small, large, truth = toy(4), toy(5), toy(layers)
    assert list(extended(small, large, 4, 5, layers, head=2).events) == renumbered(truth.events)


def test_a_period_of_two_layers() -> None:
    def alternating(layers: int) -> Tape:
        tape = toy(layers)
        return tape.with_events(
            e._replace(flops=e.flops + int(e.module[-1:]) % 2 if "layers" in e.module and e.name == "mm" else e.flops)
            if isinstance(e, Op)
            else e
            for e in tape.events
        )

    assert list(extended(alternating(5), alternating(7), 5, 7, 9, head=2).events) == renumbered(alternating(9).events)


def test_what_does_not_repeat_is_refused() -> None:
    with pytest.raises(NotRepeating):
        extended(toy(4), toy(5, odd_layer=3), 4, 5, 9, head=2)


def test_a_count_off_the_period_is_refused() -> None:
    with pytest.raises(NotRepeating):
        extended(toy(5), toy(7), 5, 7, 10, head=2)


def test_no_numbered_layers_is_refused() -> None:
    flat = Tape((Begin(Phase.LOAD), Op("mm", "encoder"), Alloc(0, 8, module="encoder")))
    with pytest.raises(NotRepeating, match="no module holds"):
        extended(flat, flat, 4, 5, 9, head=2)


def falling(layers: int, at_end: bool = False) -> Tape:
    """A pass from the last layer down. The last one makes a block more; each makes two and frees the second of the one
    before it. `at_end`: the first of each live until layer 0 is done."""
    events: list[Event] = [Begin(Phase.BACKWARD)]
    block = iter(range(10**6))
    held: list[Event] = []
    before: Event | None = None
    for layer in reversed(range(layers)):
        name = f"model.layers.{layer}"
        events.append(Op("mm", name))
        if layer == layers - 1:
            events.append(Alloc(next(block), 3, module=name))
        first, second = next(block), next(block)
        events += [Alloc(first, 5, module=name), Alloc(second, 7, module=name)]
        if before is not None:
            events.append(before)
        before = Free(second)
        if at_end:
            held.append(Free(first))
        else:
            events.append(Free(first))
    assert before is not None
    return Tape((*events, *held, Begin(Phase.CLIP), Op("stack", MANY), before))


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("layers", [5, 6, 11])
def test_the_last_layer_may_make_more_and_layer_0_may_free_for_all(layers: int, at_end: bool) -> None:
    made = extended(falling(4, at_end), falling(5, at_end), 4, 5, layers, head=2)
    assert list(made.events) == renumbered(falling(layers, at_end).events)


def test_births_are_told_from_both_ends_and_not_by_guessing() -> None:
    def run(layer: int, sizes: list[int]) -> LayerRun:
        return LayerRun(layer, tuple(Alloc(n, size, module=f"model.layers.{layer}") for n, size in enumerate(sizes)))

    assert aligned(run(3, [1, 2, 3]), run(2, [4, 5, 6])) == [0, 1, 2], "as many: each is its like"
    assert aligned(run(3, [1, 9, 2, 3]), run(2, [1, 2, 3])) == [0, None, 1, 2]
    assert aligned(run(3, [1, 2, 2, 3]), run(2, [1, 2, 3])) == [0, None, None, 2], "which of two is not said"
