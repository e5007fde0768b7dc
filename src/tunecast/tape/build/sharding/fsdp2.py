"""torch's `fully_shard` (FSDP2) on paper: each unit's weights are gathered when it runs and given back after.

After torch 2.13 and 2.15, torch/distributed/fsdp/_fully_shard: names in backquotes are its own. A unit is one or more
modules whose parameters travel together. Four streams run beside the default one:

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

Units of FSDP2 beside experts that are spread over ranks (torch's `fully_shard` as torchtitan calls it with experts;
`apply_fsdp` of torchtitan/models/llama4/infra/parallelize.py).

Experts a rank has are shared by fewer ranks than the other weights: those that have the same ones. And since the host
stops in every layer to read how many rows go where, which unit is gathered ahead of its turn is told, not found out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tunecast.errors import UsageError
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

__all__ = ["FullyShard", "Mesh", "MixedPrecisionPolicy", "OwnUnit", "ParamGroup"]


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
        self.since_2_15 = machine.torch >= (2, 15)
        """Parameters say what dtype their gradients are summed in (`grad_dtype`), and fewer names hold buffers."""
        self.unit: type[ParamGroup] = ParamGroup
        """What units are: `OwnUnit` where the one rank there is has all of them."""
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
        self.units.append(self.unit(self, modules, reshards))

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
            if not self.since_2_15:
                unit.finish()
        if self.since_2_15:  # `_end_backward_iteration`
            for unit in self.units:
                unit.finish()
        self.order.clear()
        machine.module = ""
        machine.wait(SCATTER)
        if self.mesh.replicate > 1:
            machine.wait(REDUCE)
        self.scattering.clear()
        self.hooked.clear()
        self.waits_for_end = False

    def release_gathered(self) -> Tensor | None:
        """The buffer of the gather before, which torch before 2.15 holds by a local name to the end of the function
        that lets go of it; since then `release_all_gather_state_for_comm_reuse` does, at once."""
        released, self.last_gathered = self.last_gathered, None
        if released is not None:
            self.gather_streams_wait()
        return None if self.since_2_15 else released

    def gather_streams_wait(self) -> None:
        for stream in (COPY_IN, GATHER):
            with self.machine.on_stream(stream):
                self.machine.wait(DEFAULT)


# ---------------------------------------------------------------------------- beside experts that are spread over ranks


class OtherMesh:
    """A model's sharder with another mesh: what its units share they share with all."""

    def __init__(self, sharder: FullyShard, mesh: Mesh) -> None:
        object.__setattr__(self, "sharder", sharder)
        object.__setattr__(self, "mesh", mesh)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sharder, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.sharder, name, value)


class ToldUnit(ParamGroup):
    """`set_modules_to_forward_prefetch`, `set_modules_to_backward_prefetch`."""

    after: Sequence[ParamGroup] = ()
    before: Sequence[ParamGroup] = ()

    def pre_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_first = self.does not in (Doing.FORWARD, Doing.PRE_BACKWARD)
        args, kwargs = super().pre_forward(args, kwargs)
        for unit in self.after if is_first else ():
            unit.prefetch()
        return args, kwargs

    def pre_backward(self) -> None:
        is_first = self.group_does is not Doing.PRE_BACKWARD
        if self.before and is_first:
            self.turns.clear()  # what would be found out
        super().pre_backward()
        if self.shards and is_first:
            with self.machine.within(self.path):
                for unit in self.before:
                    unit.prefetch()


class OwnUnit(ToldUnit):
    """A unit whose weights no other rank has: they are cast into place, and nothing is gathered or scattered."""

    is_asked_for = False
    cast_role = None

    def unshard(self) -> None:
        self.is_asked_for = not self.is_whole

    def wait_for_unshard(self) -> None:
        if not self.is_asked_for:
            return
        machine, sharder = self.machine, self.sharder
        before = sharder.release_gathered() if self.group_does is Doing.FORWARD else None
        given: Any = None
        for each in self.shards:
            cast = each.compute
            given = each.part if cast is None else machine.run("_to_copy", (each.part,), each.part.shape, cast)
            whole = each.take_whole()
            machine.launch("copy_", (given,), whole.dtype, whole.nbytes)
        for each in self.shards:
            assert each.whole is not None
            each.put(each.whole)
        self.is_whole, self.is_asked_for = True, False
        sharder.gather_streams_wait()
        del before, given

    def laid_out(self, gradients: list[Tensor]) -> Any:
        return None

    def scatter(self, scattered: Tensor, output: Tensor) -> None:
        """torchtitan's `disable_fsdp_gradient_division`: by 1, which 2.15 leaves out."""
        given = scattered
        if not self.sharder.since_2_15:
            given = self.machine.run("div", (scattered,), scattered.shape, output.dtype)
        self.machine.launch("copy_", (given,), output.dtype, output.nbytes)


class ColumnsUnit(ToldUnit):
    """`Shard(1)`, where ranks outnumber experts: each has a part of every one it gathers."""

    cast_role = None

    def cut(self, managed_modules: Sequence[Module]) -> list[Shard]:
        ranks, shards = self.sharder.mesh.shard, []
        for module in managed_modules:
            for name, parameter in module.own.items():
                if parameter.shape[1] % ranks:  # torch refuses it too
                    told = f"{parameter.shape[1]} columns of an expert cannot be split over {ranks} cards"
                    raise UsageError.at("parallel.expert", told)
                each = ColumnsShard(parameter, [(module, name)], ranks)
                self.set_dtypes(each)
                shards.append(each)
        return list(shards)

    def laid_out(self, gradients: list[Tensor]) -> Any:
        """All columns of a rank behind each other. The loop's names hold the last gradient as it was (since 2.15 they
        are another function's), and `zip` holds the first for a round more."""
        held = first = None
        for place in range(len(gradients)):
            first = held if place == 1 else None
            held = gradients[place]
            gradients[place] = self.machine.run("cat", (held,), held.shape, held.dtype)
        del first
        return None if self.sharder.since_2_15 else held


class ColumnsShard(Shard):
    """What is gathered is put into the weight's own order from a second copy."""

    beside: Tensor | None = None

    def __init__(self, parameter: Tensor, places: Sequence[Place], ranks: int) -> None:
        shape = parameter.shape
        parameter.shape = (shape[1], shape[0], *shape[2:])
        super().__init__(parameter, places, ranks, on_host=False)
        self.shape = shape

    def take_whole(self) -> Tensor:
        whole = super().take_whole()
        self.beside = self.machine.run("empty_like", (), whole.shape, whole.dtype)
        return whole

    def put(self, tensor: Tensor) -> None:
        if self.beside is not None:
            self.machine.launch("cat", (self.beside,), tensor.dtype, tensor.nbytes)
            self.beside = None
        super().put(tensor)


def shard(sharder: FullyShard, modules: Sequence[Module], reshards: bool) -> ToldUnit:
    """`fully_shard(modules, reshard_after_forward=reshards)`."""
    return _added(sharder, ToldUnit(_wraps(sharder, modules), modules, reshards))


def shard_experts(sharder: FullyShard, experts: Module, reshards: bool, mesh: Mesh, columns: bool) -> ToldUnit:
    """The same on a mesh of their own; `columns`: with `shard_placement_fn=lambda param: Shard(1)`."""
    kind = OwnUnit if mesh.shard == 1 else ColumnsUnit if columns else ToldUnit
    on_mesh: Any = OtherMesh(_wraps(sharder, [experts]), mesh)
    return _added(sharder, kind(on_mesh, [experts], reshards))


def _wraps(sharder: FullyShard, modules: Sequence[Module]) -> FullyShard:
    sharder.wrapped.update(id(module) for module in modules)
    return sharder


def _added(sharder: FullyShard, unit: ToldUnit) -> ToldUnit:
    sharder.units.append(unit)
    return unit
