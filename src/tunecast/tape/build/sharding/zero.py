"""DeepSpeed's ZeRO-1 and ZeRO-2 on paper: optimizer state, and from stage 2 on gradients, are cut; weights are whole.

After DeepSpeed 0.19.8 (runtime/zero/stage_1_and_2.py), with the sizes of zero_sizes.py, and held against its engine
traced (tests/trace/test_deepspeed.py). What was not traced is told: ZeRO-Infinity, whose reads and writes are C++,
and rows that ranks share.

    weights       cast to the training dtype, then copied into one buffer a group of parameters (`bit16_groups_flat`)
    master        this rank's part of it in fp32 (`single_partition_of_fp32_groups`)
    backward      a bucket is made with the first gradient; each is copied into it and let go; a full one is copied
                  once more, unless all of it is one rank's, summed over ranks, and what is this rank's is kept
                  (`grads_in_partition`)
    step          each gradient is looked through for what is not finite, its norm taken of a wider copy; the part in
                  one piece, in fp32, the optimizer on the master; the new weights are gathered in place

ZeRO-1 keeps all gradients until the last micro-batch has been through, and then does the same. With the optimizer on
the host, master, state and the fp32 gradient are there, and gradients leave through a buffer of the largest weight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.tape.build.dtypes import BFLOAT16, DTYPES, FLOAT16, FLOAT32, UINT8, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer
from tunecast.tape.build.optimizers import Optimizer, make_optimizer
from tunecast.tape.build.quantized import Linear4bit, change_dtype
from tunecast.tape.build.sharding.host import HOST_ASSUMED, HostOptimizer, is_on_host, on_card
from tunecast.tape.build.sharding.scheme import Scheme, splits_rows
from tunecast.tape.build.sharding.sequence import Ulysses
from tunecast.tape.build.sharding.zero_sizes import settings_of
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import FROM_HOST, MANY, TO_HOST, Role

FOLLOWS_SOURCE = "DeepSpeed's lifetimes with {} follow its source (0.19.8), not a trace"
SIZES_TAKEN = "ZeRO's buckets are those of {}"
FLOAT64 = Dtype("float64", 8)
"""Norms are taken in it (`get_norm_dtype`)."""
REDUCE = 1
"""The stream `reduction_stream`."""
ALIGNED_TO = 2
"""`nccl_start_alignment_factor`, elements a rank."""


class Zero(Scheme):
    """What the stages share: weights in the training dtype, masters in fp32, a step on those."""

    groups_itself = loads_on_host = casts = True

    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.dtype = DTYPES[job.autocast] if job.autocast else machine.weights_dtype
        self.on_host = job.parallel.offload != "none"
        self.masters: list[Tensor] = []
        if splits_rows(job):
            self.sequence = Ulysses(machine, job.parallel.context, job.micro_batch)
        for untraced in self.untraced():
            machine.guesses[FOLLOWS_SOURCE.format(untraced)] = None
        if self.on_host:
            machine.assumptions[HOST_ASSUMED] = None

    def untraced(self) -> list[str]:
        """What of the job its engine was not traced with."""
        found = ["rows that ranks share"] if splits_rows(self.job) else []
        return found + (["drives"] if self.job.parallel.offload_device == "nvme" else [])

    def begin(self, model: Any) -> None:
        """`module.bfloat16()`, before anything is on the card."""
        stage, hidden = int(self.job.parallel.data[-1]), model.input_embedding().weight.shape[1]
        self.settings = settings_of(self.job, stage, hidden)
        self.machine.assumptions[SIZES_TAKEN.format(self.settings.told)] = None
        if self.sequence is not None:
            self.sequence.wrap(model)
        with self.machine.on_host():
            for parameter in model.parameters():
                if parameter.dtype.floating and parameter.dtype != self.dtype:
                    change_dtype(parameter, self.dtype)
        for module in model.modules():
            kept: list[Tensor] = [tensor for tensor in module.own.values() if isinstance(tensor, Buffer)]
            if isinstance(module, Linear4bit):
                kept += module.state.tensors()
            for tensor in kept:
                if is_on_host(tensor):
                    tensor.storage = on_card(tensor).storage

    def groups(self, parameters: Sequence[Tensor]) -> list[list[Tensor]]:
        """As the stack makes them: the Trainer lets biases and norms not decay."""
        if stack_of(self.job).is_plain_loop:
            return [list(parameters)]
        parts = [[p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() <= 1]]
        return [part for part in parts if part]

    def master(self, numel: int) -> Tensor:
        machine = self.machine
        with machine.on_host() if self.on_host else contextlib.nullcontext(), machine.within(MANY):
            made = machine.run("_to_copy", (), (numel,), FLOAT32).as_role(Role.OPTIMIZER)
        made.requires_grad = True
        return made

    def parameters(self, model: Any) -> list[Tensor]:
        return self.masters

    def optimizer(self, parameters: Sequence[Tensor], outer: Sequence[Tensor], linear: Sequence[Tensor]) -> Optimizer:
        return ZeroOptimizer(self, make_optimizer(self.job, parameters))

    def clip(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """Part of the step, as is the norm, which is taken whether or not it clips."""
        return None

    def take_norm(self) -> None:
        """`get_grad_norm_direct`: of a wider copy of each gradient, a group at a time."""
        machine = self.machine
        machine.module = MANY
        if self.dtype in self.checked_dtypes:
            self.look_for_overflow()
            machine.collective("all_reduce", "data", self.ranks, UINT8, 1, 1, 1)
        dtype = FLOAT32 if self.on_host else self.sums_norms_in
        for gradients in [[] for _ in self.masters] if self.on_host else self.kept_gradients():
            norms = [self.norm_of(gradient) for gradient in gradients]
            total = machine.run("stack", norms, (len(norms),), FLOAT64)
            del norms
            machine.run("sum", (total,), (), dtype)
            machine.collective_of("all_reduce", "data", self.ranks, dtype, 1)

    sums_norms_in = FLOAT32
    checked_dtypes: Collection[Dtype] = ()
    """In which gradients may have overflowed, and are looked through before each step."""

    def look_for_overflow(self) -> None:
        raise NotImplementedError

    def norm_of(self, gradient: Tensor) -> Tensor:
        wide = self.machine.run("_to_copy", (gradient,), gradient.shape, FLOAT64)
        return self.machine.run("linalg_vector_norm", (wide,), (), FLOAT64, args=(wide, 2.0, None))

    def kept_gradients(self) -> list[list[Tensor]]:
        """Of each master."""
        raise NotImplementedError

    def step(self, optimizer: Optimizer) -> None:
        raise NotImplementedError

    def forget_gradients(self) -> None:
        raise NotImplementedError


class ZeroOptimizer(Optimizer):
    def __init__(self, scheme: Zero, optimizer: Optimizer) -> None:
        super().__init__(optimizer.parameters)
        self.scheme, self.optimizer = scheme, optimizer

    def step(self) -> None:
        self.scheme.step(self.optimizer)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()
        self.scheme.forget_gradients()


class Zero12(Zero):
    checked_dtypes = (FLOAT16, BFLOAT16)

    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.cuts_gradients = sharding_of(job).cuts_gradients
        self.first = self.last = True
        """Of the micro-batches of a step."""
        self.buckets: list[Tensor] = []
        self.in_bucket: list[Tensor] = []
        self.kept: list[Tensor] = []
        """This rank's gradients: one piece for each micro-batch under way."""

    def wrap(self, model: Any) -> None:
        machine = self.machine
        self.begin(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        frozen = [p for p in model.parameters() if not p.requires_grad]
        for parameter in [*trained, *frozen]:
            if is_on_host(parameter):
                parameter.storage = on_card(parameter).storage
            machine.collective_of("broadcast", "data", self.ranks, parameter.dtype, parameter.numel())
        self.trained = trained
        self.flats: list[Tensor] = []
        self.cut_of: dict[int, list[tuple[int, int]]] = {}
        """Of each parameter, by id, the ranks that have a part of it, and how many elements."""
        groups = [self.dealt(group) for group in self.groups(trained)]
        for group in groups:
            self.flatten(group)
        self.parts = self.in_my_part(groups)
        self.mine = {number: numel for part in self.parts for number, numel in part.items()}
        if self.on_host:
            largest = max(p.numel() for p in trained)
            self.leaving = self.made((largest,), self.dtype, Role.TEMPORARIES)
        for parameter in trained:
            parameter.after_gradient = self.ready

    def made(self, shape: tuple[int, ...], dtype: Dtype, role: Role) -> Tensor:
        with self.machine.within(MANY):
            return self.machine.run("empty", (), shape, dtype).as_role(role)

    def dealt(self, group: list[Tensor]) -> list[Tensor]:
        """`_round_robin_reorder`."""
        if not self.settings.round_robin_gradients:
            return group
        return [parameter for rank in range(self.ranks) for parameter in group[rank :: self.ranks]]

    def flatten(self, group: Sequence[Tensor]) -> None:
        """`flatten_dense_tensors_aligned`, then parameters are views of it (`_update_model_bit16_weights`)."""
        machine = self.machine
        aligned = ALIGNED_TO * self.ranks
        numel = -(-sum(p.numel() for p in group) // aligned) * aligned
        flat = self.made((numel,), self.dtype, Role.ADAPTERS if self.job.method != "full" else Role.WEIGHTS)
        part, offset = numel // self.ranks, 0
        for parameter in group:
            parameter.storage = flat.storage
            end = offset + parameter.numel()
            ranks = range(offset // part, (end - 1) // part + 1)
            ends = [(rank, max(offset, rank * part), min(end, (rank + 1) * part)) for rank in ranks]
            self.cut_of[id(parameter)] = [(rank, last - first) for rank, first, last in ends]
            offset = end
        self.flats.append(flat)
        copy = machine.run("clone", (flat,), (part,), self.dtype)
        self.masters.append(self.master(part))
        del copy

    def in_my_part(self, groups: Sequence[Sequence[Tensor]]) -> list[dict[int, int]]:
        """Of each group the parameters, by id, of which the first rank has a part, and how many elements that is."""
        parts: list[dict[int, int]] = []
        for group, flat in zip(groups, self.flats, strict=True):
            left = flat.numel() // self.ranks
            part: dict[int, int] = {}
            for parameter in group:
                if left <= 0:
                    break
                part[id(parameter)] = min(left, parameter.numel())
                left -= parameter.numel()
            parts.append(part)
        return parts

    # ------------------------------------------------------------------------------------------------ gradients

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Any:
        self.last = last
        self.machine.after_backward.append(self.epilogue)
        yield
        self.first = last

    def ready(self, parameter: Tensor) -> None:
        """`process_gradients`."""
        settings = self.settings
        if not self.buckets:
            shape, count = (settings.reduce_bucket_size,), 1 + bool(settings.overlap_comm)
            self.buckets = [self.made(shape, self.dtype, Role.GRADIENTS) for _ in range(count)]
        if self.cuts_gradients or (settings.overlap_comm and self.last):
            self.put(parameter)

    def put(self, parameter: Tensor) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`."""
        machine = self.machine
        elements = sum(p.numel() for p in self.in_bucket)
        if elements + parameter.numel() > self.settings.reduce_bucket_size:
            self.reduce()
            self.buckets.reverse()
        gradient = parameter.grad
        assert gradient is not None
        if parameter.numel() <= self.settings.reduce_bucket_size:
            machine.launch("copy_", (gradient,), gradient.dtype, gradient.nbytes)
            parameter.grad = self.buckets[0].alias(parameter.shape, None)
        elif self.on_host:
            parameter.grad = machine.run("clone", (gradient,), gradient.shape, gradient.dtype)
        self.in_bucket.append(parameter)

    def reduce(self) -> None:
        """`reduce_ipg_grads`: `allreduce_bucket` sums a copy in one piece; one run is that already."""
        machine, bucket = self.machine, self.in_bucket
        if not bucket:
            return
        machine.module = MANY
        with machine.on_stream(REDUCE if self.settings.overlap_comm else machine.stream):
            if self.settings.overlap_comm:
                machine.wait(0)
            for runs in self.sums(bucket):
                copy = machine.run("cat", (), (sum(runs),), self.dtype) if len(runs) > 1 else None
                machine.collective_of("all_reduce", "data", self.ranks, self.dtype, sum(runs))
                del copy
            for parameter in bucket:
                if id(parameter) in self.mine:
                    self.keep(parameter)
                elif self.cuts_gradients:
                    parameter.grad = None
        bucket.clear()

    def sums(self, bucket: Sequence[Tensor]) -> list[list[int]]:
        """Elements of the runs of a bucket that go to one rank each (`average_tensor`), by who is summed together
        (`allreduce_and_scatter`)."""
        runs: list[list[int]] = []
        for parameter in bucket:
            for rank, numel in self.cut_of[id(parameter)]:
                if runs and runs[-1][0] == rank:
                    runs[-1][1] += numel
                else:
                    runs.append([rank, numel])
        sums: list[list[int]] = [[]]
        for _, numel in runs:
            if sum(sums[-1]) > self.settings.reduce_bucket_size:
                sums.append([])
            sums[-1].append(numel)
        return sums

    def keep(self, parameter: Tensor) -> None:
        """`copy_grads_in_partition`."""
        machine = self.machine
        if self.on_host:
            self.send_to_host(parameter)
            if self.last:
                parameter.grad = None
            return
        if not self.kept or self.kept[-1] is self.summed:
            numel = sum(p.numel() for p in self.trained if id(p) in self.mine)
            self.kept.append(self.made((numel,), self.dtype, Role.GRADIENTS))
        machine.launch("copy_", (parameter,), parameter.dtype, parameter.nbytes)
        parameter.grad = self.kept[-1].alias(parameter.shape, None)

    def send_to_host(self, parameter: Tensor) -> None:
        """What micro-batches add up goes there and comes back (`async_accumulate_grad_in_cpu_via_gpu`); of the last one
        the norm is taken of a wider copy, and this rank's part goes in float32."""
        machine = self.machine
        if not (self.first and self.last):
            if not self.first:
                machine.launch(FROM_HOST, (), parameter.dtype, parameter.nbytes)
                machine.launch("add_", (parameter, parameter), parameter.dtype, parameter.nbytes)
            machine.launch(TO_HOST, (parameter,), parameter.dtype, 0)
        if self.last:
            gradient = self.buckets[0].alias((self.mine[id(parameter)],), None)
            self.norm_of(gradient)
            self.look_through(gradient)
            wide = machine.run("_to_copy", (gradient,), gradient.shape, FLOAT32)
            machine.launch(TO_HOST, (wide,), FLOAT32, 0)

    summed: Tensor | None = None
    """The gradients of the micro-batches before."""

    def epilogue(self) -> None:
        """`independent_gradient_partition_epilogue`; of stage 1 only when the last micro-batch is through."""
        machine = self.machine
        if not self.cuts_gradients:
            if not self.last:
                return
            for parameter in self.trained if not self.settings.overlap_comm else ():
                if parameter.grad is not None:
                    self.put(parameter)
        self.reduce()
        if self.settings.overlap_comm:
            machine.wait(REDUCE)
        if len(self.kept) > 1:
            machine.launch("add_", self.kept, self.dtype, 0)
            self.kept.pop()
        self.summed = self.kept[-1] if self.kept else None
        self.buckets = []
        for parameter in self.trained:
            parameter.grad = None

    def look_for_overflow(self) -> None:
        """On the host each was when it came."""
        for gradients in () if self.on_host else self.kept_gradients():
            for gradient in gradients:
                self.look_through(gradient)

    def look_through(self, gradient: Tensor) -> None:
        """`has_inf_or_nan`: at its greatest and its least."""
        self.machine.launch("amax", (gradient,), gradient.dtype, 0)
        self.machine.launch("amin", (gradient,), gradient.dtype, 0)

    def kept_gradients(self) -> list[list[Tensor]]:
        return [[self.kept[0].alias((numel,), None) for numel in part.values()] for part in self.parts]

    def step(self, optimizer: Optimizer) -> None:
        machine = self.machine
        self.take_norm()
        for master, part in zip(self.masters, self.parts, strict=True):
            numel = master.numel()
            if self.on_host:
                with machine.on_host():
                    master.grad = machine.tensor((numel,), FLOAT32)
            else:
                piece = self.kept[0].alias((numel,), None)
                if len(part) > 1:  # `flatten`: one tensor is in one piece already
                    piece = machine.run("cat", (), (numel,), self.dtype)
                master.grad = piece
                if self.dtype != FLOAT32:
                    master.grad = machine.run("_to_copy", (piece,), (numel,), FLOAT32)
                del piece
                master.grad.block.role = Role.GRADIENTS
                if master is self.masters[-1]:
                    self.forget_gradients()
                machine.launch("mul_", (master.grad,), FLOAT32, master.grad.nbytes)
            if not self.on_host:
                optimizer.step()  # of this group: the others have no gradients now
                master.grad = None
                machine.launch("copy_", (master,), self.dtype, numel * self.dtype.itemsize)
            machine.module = MANY
        if self.on_host:
            HostOptimizer(optimizer, fused=True).step()
            for master in self.masters:
                master.grad = None
                machine.launch(FROM_HOST, (), self.dtype, master.numel() * self.dtype.itemsize)
        for flat in self.flats:
            machine.collective_of("all_gather", "data", self.ranks, self.dtype, flat.numel() // self.ranks)

    def forget_gradients(self) -> None:
        self.kept.clear()
        self.summed = None
