"""torch's `fully_shard` (FSDP2) on paper: each unit's weights are gathered when it runs and given back after.

After torch 2.13, torch/distributed/fsdp/_fully_shard: names in backquotes are its own. A unit is one or more modules
whose parameters travel together. Four streams run beside the default one:

    forward   copy-in stream   this rank's parts in the dtype of computation, the buffer for everybody's
              gather stream    all_gather into that buffer
              default stream   whole weights, copied out of it; the buffer waits for the next unit's copy-out
    backward  the same, the next unit's gather asked for before this one's gradients; buffers go at once
              default stream   whole gradients put together for scattering; that buffer waits for the next unit's
              scatter stream   reduce_scatter, and the cast to the weights' dtype: the gradients of this rank's parts
              reduce stream    with replicas: all_reduce of those

    sharder = FullyShard(machine, Mesh(8), Policy(BFLOAT16, FLOAT32))
    for layer in model.layers(): sharder.shard([layer])
    sharder.shard_root(model)            # parameters of the model are this rank's parts from here on
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.sharding.shards import Place, Shard
from tunecast.tape.build.sharding.unit import (
    COPY_IN,
    DEFAULT,
    GATHER,
    REDUCE,
    SCATTER,
    Doing,
    Mesh,
    MixedPrecisionPolicy,
    ParamGroup,
)
from tunecast.tape.build.tensor import Tensor

__all__ = ["FullyShard", "Mesh", "MixedPrecisionPolicy", "ParamGroup"]


class FullyShard:
    """All units of one model, and what they share (`FSDPStateContext`, `FSDPCommContext`)."""

    def __init__(
        self, machine: Machine, mesh: Mesh, policy: MixedPrecisionPolicy | None = None, on_host: bool = False
    ) -> None:
        self.machine, self.mesh, self.policy = machine, mesh, policy or MixedPrecisionPolicy()
        self.on_host = on_host
        """`CPUOffloadPolicy`: parts and their gradients live on the host."""
        self.copies_apart = False
        """Gradients are put together on the scatter stream, in its memory: torch before 2.5."""
        self.reduces = True
        """Off while gradients wait for more micro-batches (`set_requires_gradient_sync`)."""
        self.units: list[ParamGroup] = []
        self.wrapped: set[int] = set()
        self.ignored: set[int] = set()
        """Parameters that stay whole (`ignored_params`), by id."""
        self.also: list[tuple[Tensor, Place]] = []
        """Who holds a parameter besides modules; of use until all are cut."""
        self.root: ParamGroup | None = None
        self.forward_root: ParamGroup | None = None
        self.last_gathered: Tensor | None = None
        self.scattering: list[Tensor] = []
        self.order: list[ParamGroup] = []
        self.waits_for_end = False
        self.hooked: list[Any] = []

    def shard(self, modules: Sequence[Module], reshards: bool = True) -> None:
        """`fully_shard(modules, reshard_after_forward=reshards)`."""
        self.wrapped.update(id(module) for module in modules)
        self.units.append(ParamGroup(self, modules, reshards))

    def shard_root(self, model: Module) -> None:
        """What no other unit has; it is not given back after the forward pass, which would end where it is needed."""
        self.shard([model], reshards=False)
        self.root = self.units[-1]
        self.also.clear()
        places = {id(module): place for place, module in reversed(list(enumerate(model.modules())))}
        self.units.sort(key=lambda unit: min(places[id(module)] for module in unit.modules))

    def shard_of(self, part: Tensor) -> Shard | None:
        """Whose part it is; None of what is whole."""
        return next((shard for unit in self.units for shard in unit.shards if shard.part is part), None)

    @contextlib.contextmanager
    def unreduced(self) -> Iterator[None]:
        self.reduces = False
        try:
            yield
        finally:
            self.reduces = True

    def stops_after_backward(self) -> None:
        """`_register_root_post_backward_final_callback`."""
        if not self.waits_for_end:
            self.waits_for_end = True
            self.machine.after_backward.append(self.end_backward)

    def end_backward(self) -> None:
        """`_root_post_backward_final_callback`: units whose inputs wanted no gradient come last."""
        machine = self.machine
        self.forward_root = None
        for unit in self.units:
            unit.still_to_run.clear()
            if unit.shards:
                if unit.group_does is not Doing.POST_BACKWARD:
                    unit.post_backward()
                unit.group_does = Doing.NOTHING
            unit.does = Doing.NOTHING
            unit.finish()
        self.order.clear()
        machine.module = ""
        machine.wait(SCATTER)
        if self.mesh.replicate > 1:
            machine.wait(REDUCE)
        self.scattering.clear()
        self.hooked.clear()
        self.waits_for_end = False

    def gather_streams_wait(self) -> None:
        for stream in (COPY_IN, GATHER):
            with self.machine.on_stream(stream):
                self.machine.wait(DEFAULT)
