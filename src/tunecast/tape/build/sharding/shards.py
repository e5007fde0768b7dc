"""A parameter in two forms: the part this rank keeps, and the whole that comes and goes.

After torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `FSDPParam`. The part is cut along rows and
padded, so that every rank's has the size of the first's; the first rank's is full, which is the rank a tape follows.
The whole is one tensor for the whole run whose memory is taken and given back (`resize_`), since the backward pass
finds it again in what the forward pass saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tunecast.errors import Unsupported
from tunecast.tape.build.dtypes import Dtype
from tunecast.tape.build.event_log import HOST
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.tensor import Storage, Tensor
from tunecast.tape.op import Role

EMPTY = -1


class Resizable(Storage):
    """Memory that can be given back while tensors still refer to it (`UntypedStorage.resize_`)."""

    __slots__ = ("nbytes",)

    def __init__(self, machine: Machine, nbytes: int) -> None:
        super().__init__(machine, EMPTY)
        self.nbytes = nbytes

    @property
    def is_there(self) -> bool:
        return self.block != EMPTY

    def take(self, role: Role) -> None:
        if self.block == EMPTY:
            self.block = self.machine.allocate(self.nbytes)
            self.machine.blocks[self.block].role = role

    def give_back(self) -> None:
        if self.block != EMPTY:
            number, self.block = self.block, EMPTY
            self.machine.free(number)

    def __del__(self) -> None:
        self.give_back()


class WholeWeight(Tensor):
    """An unsharded parameter."""

    __slots__ = ("grad_dtype",)
    fixes_gradients = False
    grad_dtype: Dtype | None
    """What gradients are cast to when they come; None: to nothing."""


Place = tuple[Any, str]
"""Who holds a parameter, mostly a module, and under which name."""


class Shard:
    """`FSDPParam`: `part` is the sharded parameter, `whole` the unsharded one."""

    def __init__(self, parameter: Tensor, places: Sequence[Place], ranks: int, on_host: bool) -> None:
        machine = parameter.machine
        self.machine, self.places, self.ranks, self.on_host = machine, places, ranks, on_host
        self.module, self.role = places[0][0].path, Role.WEIGHTS
        if parameter.storage is not None:
            block = parameter.block
            self.module, self.role = block.module, block.role or Role.WEIGHTS
        rows, *rest = parameter.shape
        self.rows = rows
        self.rows_a_rank = -(-rows // ranks)
        self.row_numel = prod(rest)
        self.padded_numel = self.rows_a_rank * self.row_numel
        """Of one rank's part; padding included."""
        with machine.on_stream(HOST if on_host else machine.stream), machine.within(self.module):
            machine.launch("zeros", (), parameter.dtype, self.padded_numel * parameter.dtype.itemsize)
            self.part = machine.tensor((self.rows_a_rank, *rest), parameter.dtype).as_role(self.role)
        self.part.requires_grad = parameter.requires_grad
        self.shape = parameter.shape
        self.whole: WholeWeight | None = None
        self.accumulated: Tensor | None = None
        """A whole gradient, wider than the weight, that waits for more micro-batches: torch before 2.15."""
        self.compute: Dtype | None = None
        """What parts are cast to before they are gathered, where that is another dtype."""
        self.grad_dtype: Dtype | None = None
        """What whole gradients are summed in (torch 2.15, `unsharded_grad_dtype`); None: what they come in."""
        self.put(self.part)

    def put(self, tensor: Tensor) -> None:
        """As the parameter of every module that has it."""
        for holder, name in self.places:
            if isinstance(holder, Module):
                holder.own[name] = tensor
            object.__setattr__(holder, name, tensor)

    def gathered_dtype(self) -> Dtype:
        return self.compute or self.part.dtype

    def take_whole(self) -> Tensor:
        """`init_all_gather_outputs`, `alloc_all_gather_outputs`, `init_unsharded_param`: padding is gathered too."""
        if self.whole is None:
            dtype = self.gathered_dtype()
            storage = Resizable(self.machine, self.padded_numel * self.ranks * dtype.itemsize)
            self.whole = WholeWeight(self.machine, storage, self.shape, dtype)
            self.whole.grad_dtype = self.grad_dtype or dtype
            self.whole.requires_grad = self.part.requires_grad
        self.machine.launch("empty", (), self.whole.dtype, 0, kernels=0)
        self.whole.storage.take(Role.WEIGHTS)  # type: ignore[attr-defined]
        return self.whole

    def give_whole_back(self) -> None:
        if self.whole is None:
            return
        if not isinstance(self.whole.storage, Resizable):  # bitsandbytes casts a layer's bias in place
            raise Unsupported.at(
                "parallel.data",
                f"what becomes of {self.module}, which is cast in place while it is gathered, is not "
                "written down. To fix: quantization.prepare_kbit false, or ddp",
            )
        self.whole.storage.give_back()

    def take_gradient(self) -> Tensor | None:
        """The whole gradient, which is then the caller's alone."""
        if self.accumulated is not None:
            gradient, self.accumulated = self.accumulated, None
            return gradient
        if self.whole is None or self.whole.grad is None:
            return None
        gradient, self.whole.grad = self.whole.grad, None
        return gradient
