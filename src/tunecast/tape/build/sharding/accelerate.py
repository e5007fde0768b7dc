"""FSDP2 the way accelerate 1.15 wraps a transformers model (`fsdp2_prepare_model`), which the Trainer and TRL use.

Trained weights become float32 where mixed precision is on; computing, sending and outputs are in its dtype, without
autocast. A unit a decoder layer, one for the embedding, one for the last norm and the head together (not given back
after the forward pass), and the model itself with what is left. With PEFT the last norm is not found, and is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.tape.build.dtypes import DTYPES, FLOAT32, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.optimizers import Optimizer, clip_gradients
from tunecast.tape.build.quantized import Linear4bit, change_dtype
from tunecast.tape.build.sharding.fsdp2 import FullyShard, Mesh, MixedPrecisionPolicy
from tunecast.tape.build.sharding.host import HOST_ASSUMED, HostOptimizer, on_card
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.tensor import Tensor

STORED = (
    "4-bit weights are stored under the other weights' dtype (bnb_4bit_quant_storage), which FSDP needs to shard them"
)


class AccelerateFsdp2(Scheme):
    def __init__(self, job: Job, machine: Machine, mesh: Mesh) -> None:
        super().__init__(job, machine)
        dtype = DTYPES[job.autocast] if job.autocast else None
        reduce = job.parallel.reduce_dtype
        policy = MixedPrecisionPolicy(dtype, DTYPES[reduce] if reduce else dtype, dtype)
        self.sharder = FullyShard(machine, mesh, policy, on_host=job.parallel.offload == "parameters")
        if self.sharder.on_host:
            machine.assumptions[HOST_ASSUMED] = None

    def step_state(self) -> Hashable:
        return ()

    def loading(self) -> contextlib.AbstractContextManager[None]:
        return self.machine.on_host()

    @property
    def autocast(self) -> Dtype | None:
        return None

    def wrap(self, model: Any) -> None:
        sharder = self.sharder
        if any("vision_tower" in module.children for module in model.modules()):
            raise Unsupported(
                "parallel.data: how a model with a vision tower is wrapped is not written down; allowed: ddp",
                field="parallel.data",
            )
        model.gives_logits = True  # they are among the outputs that are cast
        if self.job.quantization.format is not None:
            store_as_floats(sharder, model)
        elif self.job.autocast:
            with self.machine.on_host():
                for parameter in model.parameters():
                    if parameter.requires_grad and parameter.dtype != FLOAT32:
                        change_dtype(parameter, FLOAT32)
        reshards = self.job.parallel.reshard_after_forward
        for layer in model.layers():
            sharder.shard([layer], reshards)
        embedding, head = model.input_embedding(), model.output_embedding()
        norm = final_norm(model) if self.job.method == "full" else None
        tied = embedding.weight is head.weight
        if not tied:
            sharder.shard([embedding], reshards)
        tail = [module for module in (norm, embedding if tied else None, head) if module is not None]
        sharder.shard(tail, reshards=False)
        sharder.shard_root(model)

    def run(self, model: Any, forward: Callable[..., Any], *args: Any) -> Any:
        root = self.sharder.root
        assert root is not None
        args, _ = root.pre_forward(args, {})
        return root.post_forward(model, forward(model, *args))

    def whole(self, weight: Tensor) -> Tensor:
        """TRL: `weight.full_tensor()` of one that its unit has not gathered (with PEFT: the head's)."""
        shard = self.sharder.shard_of(weight)
        if shard is None:
            return weight
        machine, ranks = self.machine, self.sharder.mesh.shard
        nbytes = shard.padded_numel * weight.dtype.itemsize
        machine.collective("all_gather", "shard", ranks, weight.dtype, nbytes, nbytes * ranks, shard.padded_numel)
        gathered = machine.tensor((shard.rows_a_rank * ranks, *weight.shape[1:]), weight.dtype)
        return gathered.alias(shard.shape, None)

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.reduces_after(last) else self.sharder.unreduced()

    def clip(self, parameters: Sequence[Tensor]) -> Tensor | None:
        with self.machine.on_host() if self.sharder.on_host else contextlib.nullcontext():
            return clip_gradients(parameters, self.over_ranks)

    def optimizer(self, parameters: Sequence[Tensor], outer: Sequence[Tensor], linear: Sequence[Tensor]) -> Optimizer:
        optimizer = super().optimizer(parameters, outer, linear)
        return HostOptimizer(optimizer) if self.sharder.on_host else optimizer

    def over_ranks(self, norms: Tensor) -> Tensor:
        """DTensor's `_NormPartial`: squares are summed over the ranks that have parts, and the root is taken."""
        machine, mesh = self.machine, self.sharder.mesh
        squares = machine.run("pow", (norms,), norms.shape, norms.dtype)
        nbytes = squares.nbytes
        machine.collective("all_reduce", "shard", mesh.shard, norms.dtype, nbytes, nbytes, norms.numel())
        summed = machine.tensor(norms.shape, norms.dtype)
        return machine.run("pow", (summed,), norms.shape, norms.dtype)


def store_as_floats(sharder: FullyShard, model: Any) -> None:
    """`bnb_4bit_quant_storage`: packed weights under the dtype of the others, so that they can be cut; a whole one's
    scales are on every rank."""
    machine = sharder.machine
    machine.assumptions[STORED] = None
    for module in model.modules():
        if isinstance(module, Linear4bit):
            packed = module.weight
            dtype = machine.weights_dtype
            packed.shape, packed.dtype = (packed.numel() // dtype.itemsize, 1), dtype
            sharder.also.append((packed, (module.state, "packed")))
            for tensor in module.state.tensors():
                tensor.storage = on_card(tensor).storage


def final_norm(model: Any) -> Module | None:
    """`_find_final_norm`: the last norm among the base model's own children."""
    norms = [child for child in model.base().children.values() if "Norm" in type(child).__name__]
    return norms[-1] if norms else None
