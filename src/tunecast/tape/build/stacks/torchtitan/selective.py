"""Selective activation checkpointing, per operation (torchtitan/distributed/activation_checkpoint.py; torch's
torch/utils/checkpoint.py, `create_selective_checkpoint_contexts`): results of dear operations are kept, everything else
of a layer is computed again.

Of the matrix products every second one is computed again, and every one with a weight of the size of a router's
(`per_op_sac_force_recompute_mm_shapes_by_fqns`), which is not counted. A product in float8 is a product: the policy
sees the call on the tensors before it is taken apart. What the host has read it does not read again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tunecast.tape.build.autograd import CheckpointFrame
from tunecast.tape.build.dtypes import Dtype, Shape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor

PRODUCTS = frozenset(("mm", "_scaled_mm"))
SAVED = PRODUCTS | {
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "reduce_scatter",
    "max",
}
"""`_op_sac_save_list`."""


class SavePolicy:
    """One call's count of products."""

    def __init__(self, saved: frozenset[str]) -> None:
        self.saved, self.products = saved, 0

    def __call__(self, name: str) -> bool:
        if name in PRODUCTS:
            self.products += 1
            return self.products % 2 == 1
        return name in self.saved


class Choosing(Machine):
    """What a machine turns into inside a checkpointed call."""

    selection: SelectiveSaves

    def run(
        self, name: str, inputs: Sequence[Tensor], shape: Shape, dtype: Dtype, flops: int = 0,
        args: tuple[Any, ...] | None = None, strides: Shape | None = None,
    ) -> Tensor:  # fmt: skip
        selection = self.selection
        if args is not None or not selection.keeps(name, inputs):
            return super().run(name, inputs, shape, dtype, flops, args, strides)
        if selection.again:
            return selection.take(name)[0]
        return selection.keep(name, [super().run(name, inputs, shape, dtype, flops, args, strides)])[0]

    def run_many(
        self, name: str, inputs: Sequence[Tensor], outs: Sequence[tuple[Shape, Dtype]], flops: int = 0,
        args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, kernels: int = 1,
    ) -> list[Tensor]:  # fmt: skip
        selection = self.selection
        if not selection.keeps(name, inputs):
            return super().run_many(name, inputs, outs, flops, args, kwargs, kernels)
        if selection.again:
            return selection.take(name)
        return selection.keep(name, super().run_many(name, inputs, outs, flops, args, kwargs, kernels))

    def exchange(self, name: str, group: str, ranks: int, given: Tensor, shape: Shape) -> Tensor:
        selection = self.selection
        if not selection.policy_of(name):
            return super().exchange(name, group, ranks, given, shape)
        if selection.again:
            return selection.take(name)[0]
        return selection.keep(name, [super().exchange(name, group, ranks, given, shape)])[0]

    def run_region(self, name: str, region: Callable[[], list[Tensor]]) -> list[Tensor]:
        selection = self.selection
        if not selection.keeps(name, ()):
            return super().run_region(name, region)
        return selection.take(name) if selection.again else selection.keep(name, super().run_region(name, region))

    def synchronize(self) -> None:
        if not self.selection.again:
            super().synchronize()


class SelectiveSaves:
    """What one checkpointed call has kept."""

    def __init__(self, saved: frozenset[str], routers: frozenset[Shape] = frozenset()) -> None:
        self.saved, self.routers = saved, routers
        self.kept: dict[str, list[list[Any]]] = {}
        self.again = False
        self.policy_of = SavePolicy(saved)

    def keeps(self, name: str, inputs: Sequence[Tensor]) -> bool:
        is_router = name == "mm" and inputs[1].shape in self.routers
        return not is_router and self.policy_of(name)

    def finds(self, name: str) -> bool:
        """In the place of running it."""
        return self.again and name in self.saved

    def keep(self, name: str, made: list[Tensor]) -> list[Tensor]:
        self.kept.setdefault(name, []).append([None if t is None else t.detach() for t in made])
        return made

    def take(self, name: str) -> list[Tensor]:
        return self.kept[name].pop(0)


@contextlib.contextmanager
def choosing(machine: Machine, selection: SelectiveSaves) -> Iterator[None]:
    before = machine.__class__, getattr(machine, "selection", None)
    machine.__class__, machine.selection = Choosing, selection  # type: ignore[attr-defined]
    try:
        yield
    finally:
        machine.__class__, machine.selection = before  # type: ignore[attr-defined]


class SelectiveFrame(CheckpointFrame):
    """The recomputation finds what was kept in the place of running it."""

    selection: SelectiveSaves

    def recompute(self) -> None:
        selection = self.selection
        selection.again, selection.policy_of = True, SavePolicy(selection.saved)
        with choosing(self.machine, selection):
            super().recompute()


def checkpoint_selectively(
    machine: Machine, function: Callable[..., Any], saved: frozenset[str], routers: frozenset[Shape],
    stops_early: bool, *args: Any,
) -> Any:  # fmt: skip
    if machine.graph is not None:  # the compiler is told which values are dear; what is needed of them it keeps
        machine.graph.keeps = SavePolicy(saved)
        try:
            with machine.graph.checkpointing():
                return function(*args)
        finally:
            machine.graph.keeps = None
    frame = SelectiveFrame(machine, function, args)
    frame.stops_early = stops_early
    frame.selection = SelectiveSaves(saved, routers)
    with machine.packing(frame.pack), choosing(machine, frame.selection):
        return function(*args)
