"""How torchtitan spreads a model (torchtitan/models/llama3/infra/parallelize.py): which ranks do what, FSDP2's units.

The model is made on the meta device and shared out there: no card ever holds more than its part (`to_empty`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.records import NamedTuple
from tunecast.tape.build.dtypes import BFLOAT16, DTYPES
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer, bring_all
from tunecast.tape.build.optimizers.state import clip_by_norm, total_norm
from tunecast.tape.build.sharding.accelerate import AccelerateFsdp1
from tunecast.tape.build.sharding.fsdp1 import Options
from tunecast.tape.build.sharding.fsdp2 import (
    FullyShard,
    Mesh,
    MixedPrecisionPolicy,
    OwnUnit,
    shard,
    shard_experts,
)
from tunecast.tape.build.sharding.pipelined import PipelinedFsdp2
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.sharding.tensor import TensorParallel
from tunecast.tape.build.stacks.torchtitan.model import Transformer
from tunecast.tape.build.stacks.torchtitan.releases import TitanRelease
from tunecast.tape.build.tensor import Storage, Tensor
from tunecast.tape.op import Role


class TitanRanks(NamedTuple):
    """`ParallelDims`."""

    replicate: int
    shard: int
    context: int
    tensor: int
    pipeline: int
    expert: int = 1

    @property
    def fsdp(self) -> int:
        """Weights are shared out over the ranks of a sequence too (`dp_shard_cp`)."""
        return self.shard * self.context

    @property
    def experts_fsdp(self) -> int:
        """Ranks that have the same experts (`efsdp`); neighbours have others."""
        return self.fsdp // self.expert


def ranks_of(job: Job) -> TitanRanks:
    world = job.hardware.gpus * job.hardware.nodes
    parallel = job.parallel
    others = parallel.tensor * parallel.pipeline * parallel.context  # which divide the cards (job/check.py)
    data = world // others
    shard = data
    if parallel.replicate is not None:
        shard = data // parallel.replicate
    elif sharding_of(job).replicates_machines:
        shard = max(1, job.hardware.gpus // others)
    if shard % parallel.expert:
        raise UsageError.at("parallel.expert", f"{shard} cards that share weights are no multiple of {parallel.expert}")
    return TitanRanks(data // shard, shard, parallel.context, parallel.tensor, parallel.pipeline, parallel.expert)


def split_layers(model: Transformer, split: TensorParallel, release: TitanRelease) -> None:
    """`apply_tp`: with sequence parallelism. Norms see a part of the sequence, and their weights are whole."""
    if model.first:
        split.by_words(model.tok_embeddings, sequence=True)
        split.awaits(model.layers()[0])
    if model.last:
        split.columns(model.output, sequence=True, whole=not release.splits_loss)
    for layer in model.layers():
        attention, feed_forward = layer.attention, layer.feed_forward
        split.part(attention.n_kv_heads, "a number of key heads")
        split.takes_sequence(attention)
        for linear in (attention.wq, attention.wk, attention.wv, feed_forward.w1, feed_forward.w3):
            split.columns(linear)
        split.takes_sequence(feed_forward)
        for linear in (attention.wo, feed_forward.w2):
            split.rows(linear, sequence=True)


class TitanFsdp(PipelinedFsdp2):
    """`apply_fsdp`. Every micro-batch's gradients are reduced."""

    def __init__(self, job: Job, machine: Machine, release: TitanRelease, ranks: TitanRanks) -> None:
        Scheme.__init__(self, job, machine)
        self.release, self.dims = release, ranks
        policy = MixedPrecisionPolicy(
            None if job.autocast is None else BFLOAT16,
            DTYPES[job.parallel.reduce_dtype or "float32"],
            casts_inputs=not release.is_rewritten,
        )
        on_host = job.parallel.offload == "parameters"
        self.sharder = FullyShard(machine, Mesh(ranks.fsdp, ranks.replicate), policy, on_host)
        if release.is_rewritten and ranks.fsdp == 1:
            self.sharder.unit = OwnUnit

    def wrap(self, model: Transformer) -> None:
        sharder, release = self.sharder, self.release
        sharder.copies_apart = release.copies_apart
        on_meta(model)
        if self.dims.expert > 1:
            self.wrap_with_experts(model)
            return
        layers = model.layers()
        reshards = self.dims.pipeline == 1 and self.job.parallel.reshard_after_forward
        if release.shards_ends_apart and model.first:
            sharder.shard([model.tok_embeddings], reshards)
        for place, layer in enumerate(layers):
            is_last = place == len(layers) - 1 and release.keeps_last_layer
            sharder.shard([layer], reshards and not is_last)
        if release.shards_ends_apart and model.last:
            sharder.shard([model.norm, model.output], False)
        sharder.shard_root(model)
        sharder.units[0].reshards = reshards and release.gives_root_back
        if self.dims.pipeline > 1:
            self.hold_units()

    def wrap_with_experts(self, model: Transformer) -> None:
        """The `apply_fsdp` of models with experts, whose unit they are beside their layer's. Without a pipeline."""
        sharder, dims = self.sharder, self.dims
        mesh = Mesh(dims.experts_fsdp, dims.replicate)
        reshards = self.job.parallel.reshard_after_forward
        embedding = shard(sharder, [model.tok_embeddings], reshards)
        layers = []
        for layer in model.layers():
            experts = []
            if "moe" in layer.children:
                module = layer.moe.experts  # type: ignore[attr-defined]
                experts.append(shard_experts(sharder, module, reshards, mesh, columns=dims.fsdp > module.count))
            layers.append((shard(sharder, [layer], reshards), *experts))
        head = shard(sharder, [model.norm, model.output], False)
        sharder.shard_root(model)
        embedding.after, head.before = layers[0][:1], layers[-1][:1]
        for place, (unit, *_) in enumerate(layers):
            unit.after = layers[place + 1] if place + 1 < len(layers) else (head,)
            unit.before = layers[place - 1] if place else (embedding,)

    def clip(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """torchtitan/distributed/utils.py, `_clip_grad_norm_with_ep`: experts apart."""
        if self.dims.fsdp * self.dims.replicate == 1:
            return Scheme.clip(self, parameters)
        if self.dims.expert == 1:
            return super().clip(parameters)
        machine = self.machine
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for parameter in parameters:
            if parameter.grad is not None:
                is_dense = not parameter.block.module.endswith(".experts")
                parts[is_dense].append(parameter.grad)
        norms = [total_norm(part, self.over_ranks) for part in parts]
        squares = [machine.run("pow", (norm,), (), norm.dtype) for norm in norms]
        total = machine.run("add", squares, (), norms[0].dtype)
        del squares
        machine.launch("pow_", (total,), total.dtype, total.nbytes)
        for part in parts:
            clip_by_norm(part, total)
        return total

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Flat(AccelerateFsdp1):
    """FSDP 1, which torchtitan had until April 2024: a unit a layer and one around the model."""

    casts = True

    def __init__(self, job: Job, machine: Machine, ranks: TitanRanks) -> None:
        Scheme.__init__(self, job, machine)
        dtype = None if job.autocast is None else BFLOAT16
        reduced = DTYPES[job.parallel.reduce_dtype or "float32"]
        self.options = Options(ranks.fsdp, dtype, reduced, use_orig_params=True)


def scheme_of(job: Job, machine: Machine, release: TitanRelease, ranks: TitanRanks) -> Scheme:
    if ranks.fsdp * ranks.replicate == 1 and not release.is_rewritten:
        return Scheme(job, machine)
    return Flat(job, machine, ranks) if job.parallel.fsdp_version == 1 else TitanFsdp(job, machine, release, ranks)


def on_meta(model: Transformer) -> None:
    """Nothing, with a name."""
    machine = model.machine
    for module in model.modules():
        for tensor in module.own.values():
            if not isinstance(tensor, Buffer):
                with machine.within(module.path):
                    tensor.storage = Storage(machine, machine.allocate(0))
                tensor.block.role = Role.WEIGHTS


def to_empty(model: Transformer, scheme: Scheme) -> None:
    """Weights, and buffers, come to the card: parts of them from nowhere, or all."""
    if isinstance(scheme, TitanFsdp):
        scheme.wrap(model)
    with scheme.loading() if isinstance(scheme, Flat) else contextlib.nullcontext():
        bring_all(model)
    if isinstance(scheme, Flat):
        scheme.wrap(model)
