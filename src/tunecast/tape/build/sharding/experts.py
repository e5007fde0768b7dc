"""Units of FSDP2 beside experts that are spread over ranks (torch's `fully_shard` as torchtitan calls it with experts;
`apply_fsdp` of torchtitan/models/llama4/infra/parallelize.py).

Experts a rank has are shared by fewer ranks than the other weights: those that have the same ones. And since the host
stops in every layer to read how many rows go where, which unit is gathered ahead of its turn is told, not found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build.modules import Module
from tunecast.tape.build.sharding.fsdp2 import FullyShard, Mesh, ParamGroup
from tunecast.tape.build.sharding.shards import Place, Shard
from tunecast.tape.build.sharding.unit import DEFAULT, REDUCE, SCATTER, Doing
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role


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


class OtherwiseReduced(ToldUnit):
    def laid_out(self, gradients: list[Tensor]) -> Any:
        """Gradients as they are scattered, in their place; what is held of them until they are."""
        raise NotImplementedError

    def scatter(self, scattered: Tensor, output: Tensor) -> None:
        raise NotImplementedError

    def reduce(self, shards: Sequence[Shard], gradients: list[Tensor]) -> None:
        machine, sharder = self.machine, self.sharder
        read, replicas = gradients[0].dtype, sharder.mesh.replicate
        dtype = self.reduce_dtype() or read
        held = self.laid_out(gradients)
        numel = sum(each.padded_numel for each in shards)
        scattered = self.made((numel * sharder.mesh.shard,), dtype)
        machine.launch("fsdp::chunk_cat", gradients, dtype, scattered.nbytes)
        self.copy_together(shards, read, dtype)
        gradients.clear()
        with machine.on_stream(SCATTER):
            machine.wait(DEFAULT)
            output = self.made((numel,), dtype, Role.GRADIENTS)
            self.scatter(scattered, output)
        with machine.on_stream(REDUCE if replicas > 1 else SCATTER):
            if replicas > 1:
                machine.wait(SCATTER)
                nbytes = output.nbytes
                machine.collective("all_reduce", "replicate", replicas, dtype, nbytes, nbytes, numel)
                self.reducing = output
            if output.dtype != shards[0].part.dtype:
                output = machine.run("_to_copy", (output,), output.shape, shards[0].part.dtype)
            self.hand_out(shards, output)
        sharder.scattering.append(scattered)
        del held


class OwnUnit(OtherwiseReduced):
    """A unit whose weights no other rank has: they are cast into place, and nothing is gathered or scattered."""

    is_asked_for = False

    def unshard(self) -> None:
        self.is_asked_for = not self.is_whole

    def wait_for_unshard(self) -> None:
        if not self.is_asked_for:
            return
        machine, sharder = self.machine, self.sharder
        before: Any = None
        if self.group_does is Doing.FORWARD and sharder.last_gathered is not None:
            before = sharder.last_gathered
            sharder.gather_streams_wait()
            sharder.last_gathered = None
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
        divided = self.machine.run("div", (scattered,), scattered.shape, output.dtype)
        self.machine.launch("copy_", (divided,), output.dtype, output.nbytes)


class ColumnsUnit(OtherwiseReduced):
    """`Shard(1)`, where ranks outnumber experts: each has a part of every one it gathers."""

    def cut(self, managed_modules: Sequence[Module]) -> list[Shard]:
        ranks, shards = self.sharder.mesh.shard, []
        for module in managed_modules:
            for name, parameter in module.own.items():
                if parameter.shape[1] % ranks:  # torch refuses it too
                    told = f"{parameter.shape[1]} columns of an expert cannot be split over {ranks} cards"
                    raise UsageError(f"parallel.expert: {told}", field="parallel.expert")
                each = ColumnsShard(parameter, [(module, name)], ranks)
                each.compute = self.sharder.policy.compute
                shards.append(each)
        return list(shards)

    def laid_out(self, gradients: list[Tensor]) -> Any:
        """All columns of a rank behind each other. The loop's names hold the last gradient as it was, and `zip` holds
        the first for a round more."""
        held = first = None
        for place in range(len(gradients)):
            first = held if place == 1 else None
            held = gradients[place]
            gradients[place] = self.machine.run("cat", (held,), held.shape, held.dtype)
        del first
        return held

    def scatter(self, scattered: Tensor, output: Tensor) -> None:
        numel, ranks = scattered.numel(), self.sharder.mesh.shard
        self.machine.collective("reduce_scatter", "shard", ranks, output.dtype, scattered.nbytes, output.nbytes, numel)


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
