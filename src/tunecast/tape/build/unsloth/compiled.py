"""Runs a layer's compiled graphs (`blocks.py`) in the place of its code."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tunecast.tape.build.autograd import Gradients, Node, start
from tunecast.tape.build.tensor import FLOAT32, Machine, Tensor
from tunecast.tape.build.unsloth.biased import BiasedBlock, DroppingBiasedBlock
from tunecast.tape.build.unsloth.blocks import ROWS, Block, Shapes, shapes_of
from tunecast.tape.build.unsloth.dropping import DroppingBlock
from tunecast.tape.build.unsloth.fast_lora import adapters
from tunecast.tape.build.unsloth.graph import Size
from tunecast.tape.build.unsloth.plan import Plan, pooled, reusing
from tunecast.tape.symbols import ask


class Plans(NamedTuple):
    inference: Plan
    forward: Plan
    backward: Plan
    saved: tuple[str, ...]


def block_of(shapes: Shapes, batch: int, length: int, padded: int) -> Block:
    if shapes.biased:
        return (DroppingBiasedBlock if shapes.drops else BiasedBlock)(shapes, batch, length, padded)
    return (DroppingBlock if shapes.drops else Block)(shapes, batch, length, padded)


class Compilation(NamedTuple):
    """What a layer is compiled for, but for the sizes of the batch."""

    shapes: Shapes
    table: int
    """Numbers in a rotary table."""


_known: dict[Hashable, Plans] = {}
"""By what they do: plans that do the same are one object, so that sizes which lead to the same plans share a tape."""


@lru_cache(maxsize=64)
def plans_of(of: Compilation, batch: int, length: int, padded: int) -> Plans:
    """Compiled for the first batch; later ones run the same plans with their own sizes."""
    shapes, table = of
    block = block_of(shapes, batch, length, padded)
    inference = block.inference()
    forward, saved = block.forward()
    sizes = {name: buffer.size for name, buffer in saved.items()}
    sizes |= {"x": Size(shapes.hidden, ROWS), "cos": Size(table), "sin": Size(table)}
    backward = block.backward(sizes)
    plans = Plans(
        pooled(inference, inference.ordered()), reusing(forward, forward.ordered(), "forward"),
        reusing(backward, backward.ordered(), "inference"), tuple(saved),
    )  # fmt: skip
    return _known.setdefault((of, padded > 0, *[plan.signature() for plan in plans[:3]]), plans)


class Compiled:
    """The layers of one model; each is first tried with history, before it runs without."""

    def __init__(self, machine: Machine, padded: Callable[[int], int]) -> None:
        self.machine, self.padded = machine, padded
        """`padded`: the length attention is given, 0 where it is a row's own."""
        self.first: tuple[int, int] | None = None
        self.tried: set[str] = set()
        self.tuned: set[Any] = set()

    def __call__(self, layer: Any, x: Tensor, tables: Sequence[Tensor]) -> Tensor:
        shapes = shapes_of(layer)
        batch, length, _ = x.shape
        self.first = self.first or (batch, length)
        compilation = Compilation(shapes, int(tables[0].numel()))
        plans: Plans = ask(plans_of, compilation, (*self.first, self.padded(self.first[1])))
        block = block_of(shapes, batch, length, self.padded(length))
        machine = self.machine
        if machine.grad_enabled:
            self.tried.add(layer.path)
            return self.with_history(layer, x, plans, block)
        if layer.path not in self.tried:
            self.tried.add(layer.path)
            trial = plans.forward.run(machine, block, {}, self.tuned)
            del trial
        [out] = plans.inference.run(machine, block, {}, self.tuned)
        return shaped(out, x.shape)

    def with_history(self, layer: Any, x: Tensor, plans: Plans, block: Block) -> Tensor:
        machine, shape = self.machine, x.shape
        attention, mlp = layer.self_attn, layer.mlp
        projections = (
            attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
            mlp.gate_proj, mlp.up_proj, mlp.down_proj,
        )  # fmt: skip
        parameters = [weight for proj in projections for weight in adapters(proj)]
        as_they_are = 6 if block.s.biased else 0  # PEFT's own: those of queries, keys and values

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            given = dict(zip(("x", *plans.saved), node.taken, strict=True))
            node.taken = node.saved = ()
            dx, *made = plans.backward.run(machine, block, given, self.tuned)
            pairs = enumerate(zip(made, parameters, strict=True))
            return [shaped(dx, shape), *[laid_out(g, p, turned=place >= as_they_are) for place, (g, p) in pairs]]

        node = start(machine, (x, *parameters), back)
        out, *saved = plans.forward.run(machine, block, {}, self.tuned)
        result = shaped(out, shape)
        if node is not None:
            node.keep(machine, (x, *saved))
            result.node, result.requires_grad = node, True
        return result


def shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return Tensor(x.machine, x.storage, shape, x.dtype if x.dtype.itemsize > 1 else x.machine.weights_dtype)


def laid_out(gradient: Tensor, parameter: Tensor, turned: bool) -> Tensor:
    """Unsloth's functions lay an adapter's gradient out the other way round than the adapter, so that it is copied."""
    strides = (1, parameter.shape[0]) if turned else None
    return Tensor(gradient.machine, gradient.storage, parameter.shape, FLOAT32, strides)
