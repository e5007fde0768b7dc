"""Replicas: torch's DistributedDataParallel on paper, as transformers' Trainer makes it.

Every rank holds the whole model. Gradients are copied into buckets; a full bucket is summed over all ranks while the
backward pass goes on, and copied back at its end, so gradients are there twice (`gradient_as_bucket_view` is off in
accelerate). The first step has one bucket a dtype; the second makes new ones, in the order gradients came: 1 MiB, then
25 MiB each. Where unused parameters are looked for, these sizes hold from the start, in the order of the parameters,
and the outputs, logits among them, are copied (`_DDPSink`).

Source  torch 2.13, torch/nn/parallel/distributed.py; torch/csrc/distributed/c10d/reducer.cpp; comm.cpp for the
        broadcasts of weights, 250 MiB at a time, two at once. transformers 5.17, trainer.py: unused parameters are
        looked for unless layers are recomputed, and always with PEFT (`_build_accelerator_args`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build.autograd import Node, start
from tunecast.tape.build.dtypes import INT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer
from tunecast.tape.build.nested import map_tensors, tensors_in
from tunecast.tape.build.sharding.scheme import Scheme, in_whole_model
from tunecast.tape.build.standing import layer_number
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role
from tunecast.tape.symbols import ask, listed
from tunecast.units import MIB

OWNER = "DistributedDataParallel"
NCCL = 5
"""The stream of the process group."""
FIRST_BUCKET, BUCKET, BROADCAST = 1 * MIB, 25 * MIB, 250 * MIB
EVERYTHING = 1 << 62
IN_FLIGHT = 2


class Replicas(Scheme):
    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.finds_unused = not (job.method == "full" and job.gradient_checkpointing)
        self.synchronises = True
        self.came: list[Tensor] | None = None
        """The order in which gradients come, while that is still to be found out."""
        self.full: list[Tensor] = []
        self.waiting: list[Tensor] = []

    def wrap(self, model: Any) -> None:
        self.model = model
        apart = {id(p) for m in model.modules() if getattr(m, "is_apart", False) for p in m.own.values()}
        shared = [p for p in model.parameters() if id(p) not in apart]
        self.trained = [p for p in shared if p.requires_grad]
        self.broadcast([*shared, *self.buffers()])
        caps = [FIRST_BUCKET, BUCKET] if self.finds_unused else [EVERYTHING]
        with self.machine.within(OWNER):
            self.make_buckets(list(reversed(bucketed(in_whole_model(self.machine, self.trained), caps))))
            if self.finds_unused:
                count = len(in_whole_model(self.machine, self.trained))
                self.used = self.machine.run("empty", (), (count,), INT32).as_role(Role.GRADIENTS)
            else:
                self.came = []
        self.sets = list(reversed(bucketed(self.trained, caps)))
        model.gives_logits = model.gives_logits or self.finds_unused
        for parameter in self.trained:
            parameter.after_gradient = self.ready

    def step_state(self) -> Hashable:
        return None if self.came is None else len(self.came), self.syncs_buffers

    def buffers(self) -> list[Tensor]:
        found = {id(t): t for m in self.model.modules() for t in m.own.values() if isinstance(t, Buffer)}
        return list(found.values())

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """`_broadcast_coalesced`: through a copy; what is alone in its bucket is sent as it is."""
        machine = self.machine
        under_way: list[Any] = []
        for bucket in bucketed(in_whole_model(machine, tensors), [BROADCAST]):
            numel, dtype = sum(t.numel() for t in bucket), bucket[0].dtype
            flat = machine.run("cat", (), (numel,), dtype) if len(bucket) > 1 else None
            machine.collective_of("broadcast", "data", self.ranks, dtype, numel)
            under_way.append(flat)
            del flat
            if len(under_way) >= IN_FLIGHT:
                under_way.pop(0)

    def make_buckets(self, buckets: Sequence[Sequence[Tensor]]) -> None:
        sizes = [((sum(t.numel() for t in bucket),), bucket[0].dtype) for bucket in buckets]
        self.full = []
        self.full += [self.machine.run("empty", (), *size).as_role(Role.GRADIENTS) for size in sizes]

    # ---------------------------------------------------------------------------------------------------- a step

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self.synchronises = self.reduces_after(last)
        yield

    def begin_forward(self) -> None:
        super().begin_forward()
        machine = self.machine
        with machine.within(OWNER):
            if self.came:
                self.rebuild()
            buffers = self.buffers()
            if self.syncs_buffers and buffers:
                self.broadcast(buffers)
        self.syncs_buffers = self.synchronises
        self.left = [len(bucket) for bucket in self.sets]
        self.place = {id(p): number for number, bucket in enumerate(self.sets) for p in bucket}
        self.next_bucket = 0
        modules = [p.block.module for p in self.trained]
        self.of_layer = Counter(layer_number(module) for module in modules)
        self.in_layer: dict[int, list[Tensor]] = {}

    syncs_buffers = True
    """`require_forward_param_sync`: not after a pass whose gradients were not sent."""

    def rebuild(self) -> None:
        """`rebuild_buckets`: the first rank tells the others its order; old ones go before new ones are made."""
        machine, came = self.machine, self.came or []
        self.came = None
        whole = in_whole_model(machine, came)
        buckets = bucketed(whole, [FIRST_BUCKET, BUCKET])
        told = [machine.tensor((count,), INT32) for count in (*[len(whole) + 1] * 2, *[len(buckets)] * 2)]
        for tensor in told:
            tensor.block.role = Role.TEMPORARIES
        self.full = []
        told.clear()
        del tensor
        self.make_buckets(buckets)
        self.sets = bucketed(came, [FIRST_BUCKET, BUCKET])

    def end_forward(self, outputs: Any) -> Any:
        """`_DDPSink` copies every output; of those without a history the caller gets the original."""
        machine = self.machine
        if not self.finds_unused or not machine.grad_enabled:
            return outputs
        tensors = list(tensors_in(outputs))
        node = start(machine, tensors, lambda node, gradients: gradients)
        if node is None:
            return outputs
        node.outputs = len(tensors)
        with machine.within(OWNER):
            copies = {id(t): sunk(machine, node, number, t) for number, t in enumerate(tensors)}
        passed = {id(t): copies[id(t)] if t.requires_grad else t for t in tensors}
        del copies
        return map_tensors(lambda tensor: passed[id(tensor)], outputs)

    def ready(self, parameter: Tensor) -> None:
        """`autograd_hook`: into its bucket; the bucket goes as soon as it and all before it are complete."""
        if not self.synchronises:
            return
        machine = self.machine
        assert parameter.grad is not None
        if not self.waiting:
            machine.after_backward.append(self.finalize)
        self.waiting.append(parameter)
        if self.came is not None:
            self.came.append(parameter)
        machine.launch("mul", (parameter.grad,), parameter.dtype, parameter.nbytes)
        if machine.standing is not None:
            self.reduce_with_layer(parameter)
            return
        self.left[self.place[id(parameter)]] -= 1
        while self.next_bucket < len(self.sets) and not self.left[self.next_bucket]:
            self.reduce(self.sets[self.next_bucket])
            self.next_bucket += 1

    def reduce_with_layer(self, parameter: Tensor) -> None:
        """Where a layer stands for others a bucket ends with its layer, so that each has as much to send."""
        layer = layer_number(parameter.block.module)
        came = self.in_layer.setdefault(layer, [])
        came.append(parameter)
        if layer < 0 or len(came) == self.of_layer[layer]:
            for bucket in bucketed(came, [BUCKET]):
                self.reduce(bucket)
            del self.in_layer[layer]

    def reduce(self, bucket: Sequence[Tensor]) -> None:
        machine, dtype = self.machine, bucket[0].dtype
        numel = sum(parameter.numel() for parameter in bucket)
        with machine.on_stream(NCCL):
            machine.wait(0)
            machine.collective_of("all_reduce", "data", self.ranks, dtype, numel)

    def finalize(self) -> None:
        """`finalize_backward`: buckets back into gradients."""
        machine = self.machine
        machine.module = OWNER
        machine.wait(NCCL)
        for parameter in in_whole_model(machine, self.waiting):
            machine.launch("copy_", (parameter,), parameter.dtype, parameter.nbytes)
        self.waiting.clear()


def sunk(machine: Machine, node: Node, number: int, tensor: Tensor) -> Tensor:
    copy = machine.run("clone", (tensor,), tensor.shape, tensor.dtype)
    copy.node, copy.number, copy.requires_grad = node, number, True
    return copy


def bucketed(tensors: Sequence[Tensor], limits: Sequence[int]) -> list[list[Tensor]]:
    """`compute_bucket_assignment_by_size`: a bucket a dtype is open; one that has reached its limit is closed, and the
    next of that dtype has the next limit. In the order of their first tensors."""
    order, sizes = listed([tensor.nbytes for tensor in tensors])
    about = order, tuple([tensor.dtype.name for tensor in tensors]), tuple(limits)
    return [[tensors[place] for place in bucket] for bucket in ask(_assigned, about, sizes)]


def _assigned(about: tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]], *sizes: int) -> list[list[int]]:
    """Each bucket's tensors by their places."""
    order, dtypes, limits = about
    done: list[list[int]] = []
    started: dict[str, tuple[int, list[int]]] = {}
    turn: dict[str, int] = {}
    for place, dtype in enumerate(dtypes):
        filled, bucket = started.get(dtype, (0, []))
        bucket.append(place)
        filled += sizes[order[place]]
        started[dtype] = filled, bucket
        if filled >= limits[min(turn.get(dtype, 0), len(limits) - 1)]:
            done.append(bucket)
            del started[dtype]
            turn[dtype] = turn.get(dtype, 0) + 1
    return sorted([*done, *(bucket for _, bucket in started.values())])
