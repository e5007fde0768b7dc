"""One unit of FSDP2: modules whose parameters travel together, and what is done around their two passes. See fsdp2.py.

After torch 2.13 and 2.15, torch/distributed/fsdp/_fully_shard: `FSDPState` with its `FSDPParamGroup`, and the
collectives of _fsdp_collectives.py. Where a comment says that a name holds something, it does so there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.records import dataclass
from tunecast.tape.build.autograd import Gradients, Leaf, Node, before_gradient_of
from tunecast.tape.build.dtypes import FLOAT16, UINT8, Dtype, Shape
from tunecast.tape.build.modules import Buffer, Module
from tunecast.tape.build.nested import map_tensors, tensors_in, watched
from tunecast.tape.build.sharding.host import is_on_host, on_card
from tunecast.tape.build.sharding.shards import Place, Shard
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels.gathered import chunk_cat_is_direct, chunk_cat_table_bytes, split_table_bytes
from tunecast.tape.op import FROM_HOST, TO_HOST, Role

if TYPE_CHECKING:
    from tunecast.tape.build.sharding.fsdp2 import FullyShard

DEFAULT, COPY_IN, GATHER, SCATTER, REDUCE = range(5)
"""Streams, in the order `FSDPCommContext` makes them."""


class Doing(Enum):
    """`TrainingState`."""

    NOTHING = "idle"
    FORWARD = "forward"
    PRE_BACKWARD = "pre_backward"
    POST_BACKWARD = "post_backward"


@dataclass(frozen=True)
class Mesh:
    """Ranks that share one copy of the model, and how many copies there are."""

    shard: int
    replicate: int = 1


def mesh_of_ranks(job: Job, ranks: int) -> Mesh:
    """Of FSDP 2, by accelerate or NeMo Automodel: a copy a machine, where the job does not say how many."""
    if job.parallel.replicate is not None:
        shard = ranks // job.parallel.replicate
    else:
        shard = min(ranks, job.hardware.gpus) if sharding_of(job).replicates_machines else ranks
    return Mesh(shard, ranks // shard)


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """`MixedPrecisionPolicy`; None: as it is."""

    compute: Dtype | None = None
    reduce: Dtype | None = None
    output: Dtype | None = None
    casts_inputs: bool = True


class ParamGroup:
    """`FSDPState` with its `FSDPParamGroup`."""

    cast_role: Role | None = Role.GRADIENTS
    """Of gradients in the weights' own dtype, where they were summed in another."""

    reshards_after_backward = True
    """`set_reshard_after_backward`."""

    def __init__(self, sharder: FullyShard, modules: Sequence[Module], reshards: bool) -> None:
        self.sharder, self.machine, self.modules, self.reshards = sharder, sharder.machine, modules, reshards
        self.path = modules[0].path
        self.does, self.group_does = Doing.NOTHING, Doing.NOTHING
        self.is_whole = False
        self.gathered: Tensor | None = None
        self.reducing: Tensor | None = None
        self.turns: list[int] = []
        self.still_to_run: set[int] = set()
        self.shards = self.cut(list(managed(modules, sharder.wrapped)))
        for module in modules:
            wrap_forward(module, self)

    def cut(self, managed_modules: Sequence[Module]) -> list[Shard]:
        """`_init_sharded_param` of each parameter; what was on the host comes to the card whole first."""
        sharder = self.sharder
        for module in managed_modules:
            for tensor in module.own.values():
                if isinstance(tensor, Buffer) and is_on_host(tensor):
                    tensor.storage = on_card(tensor).storage
        places: dict[int, list[Place]] = {}
        parameters: dict[int, Tensor] = {}
        for module in managed_modules:
            for name, tensor in module.own.items():
                if not isinstance(tensor, Buffer) and id(tensor) not in sharder.ignored:
                    parameters[id(tensor)] = tensor
                    places.setdefault(id(tensor), []).append((module, name))
        for tensor, place in sharder.also:
            if id(tensor) in places:
                places[id(tensor)].append(place)
        whole = [on_card(tensor) for tensor in parameters.values() if is_on_host(tensor)]
        shards = [Shard(p, places[n], sharder.mesh.shard, sharder.on_host) for n, p in parameters.items()]
        for shard in shards:
            self.set_dtypes(shard)
        parameters.clear()
        del whole
        return shards

    def set_dtypes(self, shard: Shard) -> None:
        """`init_dtype_attrs`."""
        policy, dtype = self.sharder.policy, shard.part.dtype
        if not dtype.floating:
            return
        if policy.compute not in (None, dtype):
            shard.compute = policy.compute
        if self.sharder.since_2_15:
            shard.grad_dtype = policy.reduce or dtype

    def made(self, shape: Shape, dtype: Dtype, role: Role = Role.TEMPORARIES) -> Tensor:
        return self.machine.run("empty", (), shape, dtype).as_role(role)

    # ------------------------------------------------------------------------------------------------- forward

    def pre_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.does is Doing.PRE_BACKWARD:  # a layer that is recomputed: its weights are there
            if self.shards and not self.is_whole:
                self.unshard()
                self.wait_for_unshard()
            return self.with_cast_inputs(args, kwargs)
        sharder = self.sharder
        if self.does is not Doing.FORWARD:
            self.does = Doing.FORWARD
            if sharder.forward_root is None:
                sharder.forward_root = self
                sharder.gather_streams_wait()
        args, kwargs = self.with_cast_inputs(args, kwargs)
        if not self.shards:
            return args, kwargs
        entering = self.group_does is not Doing.FORWARD
        self.group_does = Doing.FORWARD
        self.unshard()
        self.wait_for_unshard()
        return self.watched(args, kwargs) if entering else (args, kwargs)

    def with_cast_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = self.sharder.policy.compute
        if dtype is None or not self.sharder.policy.casts_inputs:
            return args, kwargs
        return map_tensors(caster(dtype), (args, kwargs))

    def watched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`RegisterPostBackwardFunction`: when the gradients of all inputs are there, the unit is done."""
        return watched(self.machine, (args, kwargs), self.inputs_done)

    def inputs_done(self, node: Node, gradients: Gradients) -> Gradients:
        self.post_backward()
        return gradients

    def post_forward(self, module: Module, output: Any) -> Any:
        if len(self.modules) > 1:  # `_register_group_forward_hooks`
            if id(module) in self.still_to_run:
                self.still_to_run.discard(id(module))
                if not self.still_to_run:
                    return self.leave(output)
            return self.with_cast_output(output)
        return self.leave(output)

    def leave(self, output: Any) -> Any:
        sharder = self.sharder
        if self.does is Doing.PRE_BACKWARD:
            return self.with_cast_output(output)
        self.end_forward(output)
        before: Tensor | None = None  # held until this returns, after the casts
        if sharder.forward_root is self:
            for unit in reversed(sharder.units):  # `_force_complete_incomplete_states`
                if unit is not self and unit.still_to_run:
                    unit.end_forward(output)
                    unit.still_to_run.clear()
            before = sharder.release_gathered()
            sharder.forward_root = None
        output = self.with_cast_output(output)
        del before
        return output

    def end_forward(self, output: Any) -> None:
        if self.shards:
            if not self.machine.in_backward:
                self.reshard()
                self.turns.append(len(self.sharder.order))
                self.sharder.order.append(self)
            self.group_does = Doing.NOTHING
        if self.machine.grad_enabled:
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    node = before_gradient_of(tensor, self.pre_backward)
                    if isinstance(node, Leaf):  # nothing else holds it before the tensor is used
                        self.sharder.hooked.append(node)
        self.does = Doing.NOTHING

    def with_cast_output(self, output: Any) -> Any:
        dtype = self.sharder.policy.output
        return output if dtype is None else map_tensors(caster(dtype), output)

    # ------------------------------------------------------------------------------------------------- weights

    def unshard(self) -> None:
        """`foreach_all_gather`."""
        if self.gathered is not None or self.is_whole:
            return
        machine, sharder = self.machine, self.sharder
        ranks = sharder.mesh.shard
        apart = self.group_does in (Doing.FORWARD, Doing.PRE_BACKWARD)
        with machine.on_stream(COPY_IN if apart else machine.stream):
            inputs = self.parts_to_send()
            dtypes = {shard.gathered_dtype() for shard in self.shards}
            sent_bytes = sum(shard.padded_numel * shard.gathered_dtype().itemsize for shard in self.shards)
            dtype = dtypes.pop() if len(dtypes) == 1 else UINT8
            numel = sent_bytes // dtype.itemsize
            self.gathered = self.made((numel * ranks,), dtype)
            machine.launch("fsdp::all_gather_copy_in", inputs, dtype, sent_bytes)
            del inputs
        with machine.on_stream(GATHER if apart else machine.stream):
            if apart:
                machine.wait(COPY_IN)
            machine.collective("all_gather", "shard", ranks, dtype, sent_bytes, sent_bytes * ranks, numel)

    def parts_to_send(self) -> list[Tensor]:
        """`_get_param_all_gather_inputs`: parts to be cast are cast into one buffer; those on the host come over."""
        machine = self.machine
        sent: list[Tensor] = []
        together: list[Shard] = []
        for shard in self.shards:
            if shard.on_host:
                here = machine.run(FROM_HOST, (), (shard.padded_numel,), shard.part.dtype)
                if shard.compute is not None:
                    here = machine.run("_to_copy", (here,), here.shape, shard.compute)
                sent.append(here)
            elif shard.compute is None:
                sent.append(shard.part)
            else:
                together.append(shard)
        if together:
            dtype = together[0].gathered_dtype()
            flat = self.made((sum(shard.padded_numel for shard in together),), dtype)
            machine.launch("_foreach_copy_", [shard.part for shard in together], dtype, flat.nbytes)
            sent.append(flat)
        return sent

    def wait_for_unshard(self) -> None:
        """`foreach_all_gather_copy_out`."""
        if self.gathered is None:
            return
        machine, sharder = self.machine, self.sharder
        forward = self.group_does is Doing.FORWARD
        before = sharder.release_gathered() if forward else None
        machine.wait(GATHER)
        whole = [shard.take_whole() for shard in self.shards]
        sizes = [shard.padded_numel * shard.gathered_dtype().itemsize for shard in self.shards]
        ranks = sharder.mesh.shard
        machine.launch("fsdp::split_with_sizes_copy", (self.gathered,), self.gathered.dtype, sum(sizes) * ranks)
        self.borrow(split_table_bytes(sizes, ranks, machine.card))
        for shard, tensor in zip(self.shards, whole, strict=True):
            shard.put(tensor)
        self.is_whole = True
        if forward:
            sharder.last_gathered = self.gathered
        else:
            sharder.gather_streams_wait()
        self.gathered = None
        del before

    def borrow(self, nbytes: int) -> None:
        block = self.machine.allocate(nbytes)
        self.machine.blocks[block].role = Role.TEMPORARIES
        self.machine.free(block)

    def reshard(self) -> None:
        if self.group_does is Doing.FORWARD and not self.reshards:
            return
        if self.is_whole:
            for shard in self.shards:
                shard.put(shard.part)
                shard.give_whole_back()
            self.is_whole = False

    # ------------------------------------------------------------------------------------------------ backward

    def leave_backward(self) -> None:
        if self.reshards_after_backward:
            self.reshard()

    def pre_backward(self) -> None:
        machine, sharder = self.machine, self.sharder
        self.does = Doing.PRE_BACKWARD
        sharder.stops_after_backward()
        if not self.shards or self.group_does is Doing.PRE_BACKWARD:
            return
        self.group_does = Doing.PRE_BACKWARD
        with machine.within(self.path):
            self.unshard()
            self.wait_for_unshard()
            self.set_grad_dtypes(defers=True)
            if self.turns:  # `_backward_prefetch`
                turn = self.turns.pop()
                if turn > 0:
                    sharder.order[turn - 1].prefetch()

    def prefetch(self) -> None:
        """Asked for by the unit that runs; what is made is on its account."""
        before, self.group_does = self.group_does, Doing.PRE_BACKWARD
        self.unshard()
        self.group_does = before

    def post_backward(self) -> None:
        machine, sharder = self.machine, self.sharder
        self.group_does = Doing.POST_BACKWARD
        with machine.within(self.path):
            for shard in self.shards:
                if shard.accumulated is not None and shard.whole is not None and shard.whole.grad is not None:
                    machine.launch("add_", (shard.accumulated, shard.whole.grad), shard.accumulated.dtype, 0)
                    shard.whole.grad = None
            if not sharder.reduces:
                self.set_grad_dtypes(defers=False)
                self.leave_backward()
                self.widen_gradients()
                return
            found = [(shard, shard.take_gradient()) for shard in self.shards]
            with_gradient = [shard for shard, gradient in found if gradient is not None]
            gradients = [gradient for _, gradient in found if gradient is not None]
            del found
            self.set_grad_dtypes(defers=False)
            self.leave_backward()
            if sharder.scattering:
                machine.wait(SCATTER)
                sharder.scattering.pop(0)
            if gradients:
                self.reducing = None
                self.reduce(with_gradient, gradients)

    def set_grad_dtypes(self, defers: bool) -> None:
        """`_set_unsharded_grad_dtypes` (2.15): gradients are widened as they come when they are the first of several
        micro-batches; added to wider ones, or on their way to be scattered, they stay as they are."""
        for shard in self.shards:
            whole, dtype = shard.whole, shard.grad_dtype
            if dtype is None or whole is None or not whole.requires_grad or dtype.itemsize <= whole.dtype.itemsize:
                continue
            if not defers:
                if whole.grad is not None:
                    whole.grad = whole.grad.to(dtype).as_role(Role.GRADIENTS)
                whole.grad_dtype = dtype
            elif whole.grad is not None or self.sharder.reduces:
                whole.grad_dtype = None

    def widen_gradients(self) -> None:
        """`to_accumulated_grad_if_needed` (before 2.15)."""
        dtype = None if self.sharder.since_2_15 else self.reduce_dtype()
        for shard in self.shards:
            whole = shard.whole
            if dtype is None or whole is None or whole.grad is None or whole.grad.dtype == dtype:
                continue
            gradient, whole.grad = whole.grad, None
            shard.accumulated = self.machine.run("_to_copy", (gradient,), gradient.shape, dtype).as_role(Role.GRADIENTS)
            del gradient

    def reduce_dtype(self) -> Dtype | None:
        """None: gradients travel as they are. (Before 2.15.)"""
        policy = self.sharder.policy
        return None if policy.reduce == policy.compute else policy.reduce

    def reduce(self, shards: Sequence[Shard], gradients: list[Tensor]) -> None:
        """`foreach_reduce`."""
        machine, sharder = self.machine, self.sharder
        read, replicas = gradients[-1].dtype, sharder.mesh.replicate
        dtype = shards[0].grad_dtype or self.reduce_dtype() or read
        held = self.laid_out(gradients)
        numel = sum(shard.padded_numel for shard in shards)
        with machine.on_stream(SCATTER if sharder.copies_apart else machine.stream):
            if sharder.copies_apart:
                machine.wait(DEFAULT)
            scattered = self.made((numel * sharder.mesh.shard,), dtype)
            machine.launch("fsdp::chunk_cat", gradients, dtype, scattered.nbytes)
            self.copy_together(shards, read, dtype)
        if sharder.copies_apart:
            machine.wait(SCATTER)
        gradients.clear()
        with machine.on_stream(SCATTER):
            machine.wait(DEFAULT)
            output = self.made((numel,), dtype, Role.GRADIENTS)
            self.scatter(scattered, output)
        with machine.on_stream(REDUCE if replicas > 1 else SCATTER):
            if replicas > 1:
                machine.wait(SCATTER)
                machine.collective_of("all_reduce", "replicate", replicas, dtype, numel)
                self.reducing = output
            if dtype == FLOAT16:
                machine.launch("div_", (output,), dtype, output.nbytes)
            reduced = output if sharder.since_2_15 else None  # `reduce_output`, which was the cast one's name before
            if output.dtype != shards[0].part.dtype:
                output = machine.run("_to_copy", (output,), output.shape, shards[0].part.dtype)
                output.block.role = self.cast_role
            self.hand_out(shards, output)
        if not sharder.copies_apart:
            sharder.scattering.append(scattered)
        del held, reduced

    def laid_out(self, gradients: list[Tensor]) -> Any:
        """Gradients as they are scattered, in their place; what is held of them until the end: before 2.15 the last, on
        which the loop over them leaves a name."""
        return None if self.sharder.since_2_15 else gradients[-1]

    def scatter(self, scattered: Tensor, output: Tensor) -> None:
        machine, numel, dtype = self.machine, scattered.numel(), output.dtype
        if dtype == FLOAT16:  # half of the division before, half after, lest sums overflow
            machine.launch("div_", (scattered,), dtype, scattered.nbytes)
        machine.collective_of("reduce_scatter", "shard", self.sharder.mesh.shard, dtype, numel)

    def copy_together(self, shards: Sequence[Shard], read: Dtype, written: Dtype) -> None:
        if chunk_cat_is_direct(read.name, written.name):
            self.borrow(chunk_cat_table_bytes([shard.padded_numel * written.itemsize for shard in shards]))
            return
        ranks = self.sharder.mesh.shard
        padded = [shard for shard in shards if shard.rows % ranks]
        copies = [self.machine.tensor((shard.padded_numel * ranks,), read) for shard in padded]
        del copies

    def hand_out(self, shards: Sequence[Shard], output: Tensor) -> None:
        machine, offset = self.machine, 0
        for shard in shards:
            gradient = output.alias(shard.part.shape, None, offset)
            offset += shard.padded_numel
            if shard.on_host:
                machine.launch(TO_HOST, (gradient,), gradient.dtype, gradient.nbytes)
                with machine.on_host():
                    gradient = machine.tensor(gradient.shape, gradient.dtype)
            if shard.part.grad is None:
                shard.part.grad = gradient
            else:
                machine.launch("add_", (shard.part.grad, gradient), gradient.dtype, gradient.nbytes)

    def finish(self) -> None:
        """`finalize_backward`."""
        self.reducing = self.gathered = None
        self.turns.clear()


def wrap_forward(module: Module, unit: ParamGroup) -> None:
    """The unit's hooks around a module's forward pass; inside a checkpoint, where the module's own are."""
    forward: Callable[..., Any] = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        if len(unit.modules) > 1 and not unit.still_to_run:
            unit.still_to_run.update(id(each) for each in unit.modules)
        args, kwargs = unit.pre_forward(args, kwargs)
        return unit.post_forward(module, forward(*args, **kwargs))

    object.__setattr__(module, "forward", run)


def managed(modules: Sequence[Module], wrapped: set[int]) -> Iterator[Module]:
    """`_get_managed_modules`: children first, without those of units made before."""
    tops = {id(module) for module in modules}

    def within(module: Module) -> Iterator[Module]:
        for child in module.children.values():
            if id(child) not in wrapped or id(child) in tops:
                yield from within(child)
        yield module

    for module in modules:
        yield from within(module)


def caster(dtype: Dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(dtype) if tensor.dtype.floating and tensor.dtype != dtype else tensor
