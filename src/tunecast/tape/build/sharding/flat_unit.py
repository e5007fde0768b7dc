"""One flat parameter of FSDP 1: how it is made, gathered, let go, and what becomes of its gradient. See fsdp1.py.

Source  torch 2.13, torch/distributed/fsdp/_flat_param.py (`FlatParamHandle`) and _runtime_utils.py; names of steps are
        theirs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.autograd import before_gradient_of, edge_of
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module, bring
from tunecast.tape.build.nested import tensors_in
from tunecast.tape.build.sharding.flat_parts import (
    GROUP,
    REPLICAS,
    ParameterShard,
    Weight,
    Whole,
    lengths,
    on_host,
    send,
    uniform_dtype,
)
from tunecast.tape.build.sharding.shards import Resizable
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

if TYPE_CHECKING:
    from tunecast.tape.build.sharding.fsdp1 import Flattened

UNSHARD, POST_BACKWARD, PRE_UNSHARD, ALL_REDUCE = 1, 2, 3, 4
"""Streams, in the order they are made (`_init_streams`)."""
FREED = (11, 12, 13, 14)
"""No streams: where the default one was when a unit was let go, the newest such event first."""
IN_FLIGHT = 2
"""`_max_num_inflight_all_gathers`."""


class HandleState(Enum):
    IDLE = 0
    FORWARD = 1
    BACKWARD_PRE = 2
    BACKWARD_POST = 3


class FlatParamHandle:
    """`FlatParamHandle` and the FSDP instance around it."""

    def __init__(self, owner: Flattened, module: Module, weights: Sequence[Weight], root: bool) -> None:
        self.owner, self.module, self.weights, self.root = owner, module, weights, root
        self.machine: Machine = module.machine
        self.state = HandleState.IDLE
        self.prefetched = self.needs_unshard_backward = self.ran_pre_backward = False
        self.index: int | None = None
        """`_post_forward_index`."""
        self.held: list[Any] = []
        """`_post_backward_hook_state`: the nodes its hooks are on."""
        self.saved_grad: Tensor | None = None
        self.flatten()

    # ------------------------------------------------------------------------------------------ making

    def flatten(self) -> None:
        """`_init_flat_param_and_metadata` and `shard`."""
        owner, machine = self.owner, self.machine
        options, tensors = owner.options, [weight.tensor for weight in self.weights]
        self.trains = any(tensor.requires_grad for tensor in tensors)
        self.dtype = uniform_dtype(self.module.path, tensors)
        self.compute_dtype = options.param_dtype or self.dtype
        self.reduce_dtype = options.reduce_dtype or options.param_dtype or self.dtype
        self.sizes, self.padding = lengths(tensors, self.dtype, self.compute_dtype, options)
        self.numel = sum(self.sizes)
        self.shard_numel = -(-self.numel // options.parts)
        with machine.within(self.module.path):
            moved = [self.moved(tensor) for tensor in tensors if on_host(tensor)]
            if options.sync_module_states:
                send(tensors, options.ranks)
            flat = machine.run("cat", tensors[:3], (self.numel,), self.dtype)
            self.shard = machine.run("clone", (flat,), (self.shard_numel,), self.dtype) if options.shards else flat
            if options.on_host:
                self.shard = self.copied_to_host(self.shard)
        self.name_shard()
        del flat, moved
        self.full: Any = Resizable(machine, self.shard_numel * options.parts * self.compute_dtype.itemsize)
        if not options.shards:
            self.full = Whole(machine, self.shard)
        self.low: Resizable | None = None
        self.whole = Tensor(machine, self.full, (self.numel,), self.compute_dtype)
        self.whole.requires_grad = self.trains
        self.pieces = list(self.made_pieces()) if options.use_orig_params and self.trains else []
        for weight in self.weights:
            weight.tensor.storage = self.full
            if not self.trains and weight.tensor.dtype.floating:  # packed weights stay what they are
                weight.tensor.dtype = self.compute_dtype
        if options.param_dtype is not None and options.upcast and self.trains and self.dtype != FLOAT32:
            self.owner.upcast.append(self)

    def moved(self, tensor: Tensor) -> Tensor:
        """To the card; a packed weight's scales, which are nobody's parameters, come with it and stay."""
        for scales in self.owner.scales.get(id(tensor), ()):
            if on_host(scales):
                bring(scales, self.module.path)
        return self.machine.run("_to_copy", (), tensor.shape, tensor.dtype)

    def name_shard(self) -> None:
        adapters = self.trains and self.owner.adapts
        self.shard.block.role = Role.ADAPTERS if adapters else Role.WEIGHTS

    def copied_to_host(self, part: Tensor) -> Tensor:
        self.machine.launch("_to_copy", (part,), part.dtype, part.nbytes)
        with self.machine.on_host():
            return self.machine.run("_to_copy", (part,), part.shape, part.dtype)

    def made_pieces(self) -> Iterator[ParameterShard]:
        """Of the first rank's part."""
        start, weights = 0, iter(self.weights)
        for size, is_padding in zip(self.sizes, self.padding, strict=True):
            if not is_padding:
                tensor = next(weights).tensor
                if start < self.shard_numel and tensor.requires_grad:
                    yield ParameterShard(self.shard, min(size, self.shard_numel - start), tensor.dim() > 1)
            start += size

    def widen(self) -> None:
        """accelerate: `param.data = param.data.to(torch.float32)`; original parameters still show the old part."""
        where = self.machine.on_host() if self.owner.options.on_host else contextlib.nullcontext()
        with self.machine.within(self.module.path), where:
            self.shard = self.machine.run("_to_copy", (self.shard,), self.shard.shape, FLOAT32)
        self.dtype = FLOAT32
        if self.pieces:
            for weight in self.weights:
                weight.tensor.dtype = FLOAT32
        self.name_shard()

    def init_attributes(self) -> None:
        """`init_flat_param_attributes`: tensors made once and emptied."""
        machine, ranks = self.machine, self.owner.options.ranks
        if self.compute_dtype != self.dtype:
            self.low = Resizable(machine, self.shard_numel * self.compute_dtype.itemsize)
            machine.run("empty_like", (), self.shard.shape, self.compute_dtype)
        if not self.owner.options.shards:
            return
        machine.run("empty", (), (self.shard_numel * ranks,), self.compute_dtype)
        if self.low is not None:
            machine.run("empty", (), (self.shard_numel * ranks,), self.dtype)

    # ------------------------------------------------------------------------------------------ gathering

    def unshard(self) -> None:
        """`_unshard`."""
        machine, ranks = self.machine, self.owner.options.ranks
        missing, copy = not self.full.is_there, None
        if self.owner.options.on_host or (missing and self.low is not None):  # from the host even when not missing
            with machine.on_stream(PRE_UNSHARD):
                copy = self.pre_unshard()
            with machine.on_stream(UNSHARD):
                machine.wait(PRE_UNSHARD)
        self.owner.limit()
        with machine.on_stream(UNSHARD):
            if missing:
                self.full.take(Role.WEIGHTS)
                machine.collective_of("all_gather", GROUP, ranks, self.compute_dtype, self.shard_numel)
            del copy
            if self.state is HandleState.FORWARD:
                self.make_views()
            elif self.state is HandleState.BACKWARD_PRE and self.pieces:
                self.show(True)
            if self.low is not None:
                self.low.give_back()

    def pre_unshard(self) -> Tensor | None:
        """This rank's part as it will be sent, where that is not what it keeps: on the card, in the low precision."""
        machine, copy = self.machine, None
        if self.low is not None:
            self.low.take(Role.TEMPORARIES)
        if self.owner.options.on_host:
            copy = machine.run("_to_copy", (self.shard,), self.shard.shape, self.dtype)
        if self.low is None:
            return copy
        machine.launch("copy_", (self.shard,), self.compute_dtype, self.low.nbytes)
        return None

    def make_views(self) -> None:
        """`_use_unsharded_views`: with a history even where gradients are off."""
        if not self.trains:
            return
        machine = self.machine
        enabled, machine.grad_enabled = machine.grad_enabled, True
        parts = self.whole.split(self.sizes, 0)
        parts = [part for part, is_padding in zip(parts, self.padding, strict=True) if not is_padding]
        for weight, part in zip(self.weights, parts, strict=True):
            weight.view = part.view(*weight.tensor.shape)
        machine.grad_enabled = enabled
        self.show(True)

    def show(self, whole: bool) -> None:
        """What the modules have for weights. Other code may look at them between calls: PEFT at their dtype."""
        for weight in self.weights:
            for module, name in weight.places:
                setattr(module, name, weight.view if whole else weight.tensor)

    def reshard(self, free: bool) -> None:
        """`_reshard`."""
        kept = self.state is HandleState.FORWARD and not self.owner.options.reshard_after_forward
        if self.pieces and not (kept and self.machine.grad_enabled):  # else they are looked at again in the backward
            self.show(False)
            for piece in self.pieces:
                piece.storage, piece.dtype = self.shard.storage, self.shard.dtype
        if free:
            self.full.give_back()
            self.owner.note_free()
        self.prefetched = False

    # ------------------------------------------------------------------------------------------ forward

    def call(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`FullyShardedDataParallel.forward`."""
        if self.root:
            self.owner.before_forward()
        with self.machine.within(self.module.path):
            self.pre_forward(args, kwargs)
            output = inner(*args, **kwargs)
            return self.post_forward(output)

    def pre_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.state is HandleState.BACKWARD_PRE:
            return
        self.state = HandleState.FORWARD
        if not self.prefetched:
            self.unshard()
        self.machine.wait(UNSHARD)
        if not self.machine.grad_enabled or self.held:
            return
        if self.trains:
            edge = edge_of(self.whole)
            assert edge is not None
            leaf = edge[0]
            leaf.hooks = (self.post_backward,)
            self.held.append(leaf)
            return
        inputs = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.requires_grad]
        for tensor in inputs[:1]:  # layers have one
            self.held.append(self.hooked(tensor, self.post_backward_reshard_only))

    def post_forward(self, output: Any) -> Any:
        if self.state is HandleState.BACKWARD_PRE:
            return output
        order = self.owner.post_forward_order
        if not self.index:
            self.index = len(order)
        order.append(self)
        self.reshard(not self.root and self.owner.options.reshard_after_forward)
        if self.machine.grad_enabled:
            self.needs_unshard_backward = self.ran_pre_backward = False
            if self.root:
                self.owner.queued = False
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    self.hooked(tensor, self.pre_backward)
                    self.needs_unshard_backward = True
        self.state = HandleState.IDLE
        return output

    def hooked(self, tensor: Tensor, hook: Callable[[], None]) -> Any:
        """A trained unit's hook counts as part of the tensor's own operation, a frozen one's, which lets go of the unit
        above, as part of the operation before (where a layer's graph is not one of its own): so a layer frees what it
        or its neighbour made, and stands for others."""
        machine = self.machine
        if not self.trains and not self.owner.options.inside_checkpoint:
            return before_gradient_of(tensor, hook)
        module = machine.module if tensor.node is None else tensor.node.module

        def run() -> None:
            with machine.within(module):
                hook()

        return before_gradient_of(tensor, run)

    # ------------------------------------------------------------------------------------------ backward

    def pre_backward(self) -> None:
        if self.ran_pre_backward:
            return
        owner = self.owner
        if self.root and not owner.queued:
            owner.queued = True
            self.machine.after_backward.append(owner.after_backward)
            owner.drop_gradients()
        self.state = HandleState.BACKWARD_PRE
        if self.needs_unshard_backward:
            if not self.prefetched:
                self.unshard()
            self.machine.wait(UNSHARD)
        self.needs_unshard_backward = False
        self.prefetch()
        if self.gradient is not None:  # added to when this pass's has come
            self.saved_grad, self.gradient = self.gradient, None
        self.ran_pre_backward = True

    def prefetch(self) -> None:
        """`_prefetch_handle`: of the unit whose forward pass ended before this one's."""
        if not self.owner.options.backward_prefetch or self.index is None or self.index < 1:
            return
        unit = self.owner.post_forward_order[self.index - 1]
        if unit.needs_unshard_backward and not unit.prefetched:
            before, unit.state = unit.state, HandleState.BACKWARD_PRE
            unit.unshard()
            unit.state, unit.prefetched = before, True

    def post_backward(self) -> None:
        """The whole gradient is there: let go of the weights, sum it over the ranks, keep this rank's part."""
        self.state = HandleState.BACKWARD_POST
        assert self.whole.grad is not None
        self.whole.grad.block.module = self.module.path
        self.reshard(self.owner.frees_in_backward())
        if not self.owner.sync:
            self.share_whole()
            return
        machine, ranks = self.machine, self.owner.options.ranks
        with machine.on_stream(POST_BACKWARD):
            machine.wait(0)
            computed = gradient = self.whole.grad
            self.whole.grad = None
            assert gradient is not None
            if not self.owner.options.shards:
                self.saved_grad = self.summed_in_place(gradient)
                return
            gradient = gradient.to(self.reduce_dtype)
            padded = gradient
            if self.shard_numel * ranks > self.numel:
                padded = machine.run("constant_pad_nd", (gradient,), (self.shard_numel * ranks,), gradient.dtype)
            part = machine.run("empty_like", (), (self.shard_numel,), gradient.dtype)
            machine.launch("div_", (padded,), padded.dtype, padded.nbytes)
            machine.collective_of("reduce_scatter", GROUP, ranks, padded.dtype, padded.numel())
            if self.owner.options.replicas == 1:
                self.keep(part)
            else:
                with machine.on_stream(ALL_REDUCE):
                    machine.wait(POST_BACKWARD)
                    replicas = self.owner.options.replicas
                    machine.collective_of("all_reduce", REPLICAS, replicas, part.dtype, part.numel())
                    self.keep(part)
            del computed, padded, gradient

    def keep(self, part: Tensor) -> None:
        """`_accumulate_sharded_grad`: in the weights' own dtype."""
        machine, options = self.machine, self.owner.options
        if options.ranks * options.replicas > 2:
            machine.launch("div_", (part,), part.dtype, part.nbytes)
        part = part.to(self.dtype)
        if self.saved_grad is None:
            self.saved_grad = part
            part.block.role = Role.GRADIENTS
        else:
            machine.launch("add_", (self.saved_grad, part), part.dtype, part.nbytes)
        self.share(self.saved_grad)

    def summed_in_place(self, gradient: Tensor) -> Tensor:
        """`_reduce_grad_no_shard`."""
        self.machine.launch("div_", (gradient,), gradient.dtype, gradient.nbytes)
        self.machine.collective_of("all_reduce", GROUP, self.owner.options.ranks, gradient.dtype, gradient.numel())
        return gradient

    def post_backward_reshard_only(self) -> None:
        self.state = HandleState.BACKWARD_POST
        self.reshard(self.owner.frees_in_backward())

    def finish_backward(self) -> None:
        """`_post_backward_final_callback`, of one unit."""
        if self.full.is_there:
            self.reshard(self.owner.frees_in_backward())
        self.held.clear()
        if self.trains and self.owner.sync and self.saved_grad is not None:
            part, self.saved_grad = self.saved_grad, None
            self.gradient = self.copied_to_host(part) if self.owner.options.on_host else part
        self.ran_pre_backward = self.needs_unshard_backward = self.prefetched = False
        self.index, self.state = None, HandleState.IDLE

    # ------------------------------------------------------------------------------------------ this rank's gradient

    @property
    def gradient(self) -> Tensor | None:
        """`flat_param.grad` where it is this rank's part."""
        return self.shard.grad

    @gradient.setter
    def gradient(self, part: Tensor | None) -> None:
        self.shard.grad = part
        if part is not None:
            self.share(part)

    def share(self, part: Tensor) -> None:
        """`_use_sharded_grad_views`: of each original parameter its piece of this rank's part."""
        for piece in self.pieces:
            piece.grad = Tensor(self.machine, part.storage, piece.shape, part.dtype)

    def share_whole(self) -> None:
        """`_use_unsharded_grad_views`: a gradient must have its parameter's shape, so one is made to be replaced."""
        whole = self.whole.grad
        assert whole is not None
        for piece in self.pieces:
            if piece.grad is None:
                self.machine.run("empty_like", (), piece.shape, piece.dtype)
            piece.grad = Tensor(self.machine, whole.storage, piece.shape, whole.dtype)
