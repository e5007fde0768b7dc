"""How Automodel spreads a model: FSDP 2, and what tensor, context, expert and pipeline parallelism leave a rank.

FSDP's ranks are those that see other rows and those that share a row (`dp_shard_cp`). Experts are split over a part of
them: each rank has its own, and ranks with the same ones cut these by columns; a rank that is the only one with its
experts keeps them as they are, outside FSDP. With experts split, weights stay whole between the two passes unless
`distributed.moe.reshard_after_forward` says otherwise, and embedding and head are units of their own.

Source   components/moe/parallelizer.py, `apply_ep`, `apply_fsdp`, `parallelize_model`; components/distributed/
         parallelizer.py, `DefaultParallelizationStrategy`; optimized_tp_plans.py, `_parallelize_llama`.
Ignored  that DeepEP sends a token once to a card that has several of its experts: every expert's row is told as sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import SelfAttention
from tunecast.tape.build.dtypes import BFLOAT16, DTYPES, FLOAT32
from tunecast.tape.build.experts import Experts
from tunecast.tape.build.families.delta import GatedDeltaNet
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer, Linear, Module
from tunecast.tape.build.sharding.accelerate import store_as_floats
from tunecast.tape.build.sharding.fsdp2 import FullyShard, Mesh, MixedPrecisionPolicy, shard_experts
from tunecast.tape.build.sharding.host import on_card
from tunecast.tape.build.sharding.layers import Ends
from tunecast.tape.build.sharding.pipelined import PipelinedFsdp2
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of
from tunecast.tape.build.sharding.sequence import Ring
from tunecast.tape.build.sharding.tensor import TensorParallel, before
from tunecast.tape.build.sharding.unit import mesh_of_ranks
from tunecast.tape.build.stacks.automodel.models import trained_tower_layers
from tunecast.tape.build.tensor import Tensor

READ = "Automodel's {} parallelism follows its source and was not traced"
COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "gate_up_proj", "fc1")
ROWS = ("o_proj", "down_proj", "dense", "fc2")
FUSED = "qkv_proj"
"""Cannot be split by heads: attention is whole on every card (`_parallelize_phi3`)."""


def scheme(job: Job, machine: Machine) -> Scheme:
    ranks = ranks_of(job) * job.parallel.context
    made = Scheme(job, machine) if ranks == 1 else AutomodelFsdp(job, machine, mesh_of_ranks(job, ranks))
    if job.parallel.context > 1:
        made.sequence = Ring(machine, job.parallel.context)
    return made


class AutomodelFsdp(PipelinedFsdp2):
    """`FSDP2Config`: a unit a layer, of which the last is not given back, and the model with what is left."""

    def __init__(self, job: Job, machine: Machine, mesh: Mesh) -> None:
        super().__init__(job, machine, mesh)
        reduce = job.parallel.reduce_dtype
        policy = MixedPrecisionPolicy(BFLOAT16, DTYPES[reduce] if reduce else FLOAT32, BFLOAT16)
        self.sharder = FullyShard(machine, mesh, policy, on_host=self.sharder.on_host)

    def wrap(self, model: Any) -> None:
        sharder, parallel = self.sharder, self.job.parallel
        if self.job.quantization.format is not None:
            store_as_floats(sharder, model)
        layers, reshards = list(model.layers()), parallel.reshard_after_forward
        for of_tower in trained_tower_layers(model):
            for layer in of_tower:
                sharder.shard([layer], reshards and layer is not of_tower[-1])
        for layer in layers:
            self.wrap_experts(layer)
            kept = layer is layers[-1] and parallel.expert == 1
            sharder.shard([layer], reshards and not kept)
        if parallel.expert > 1:
            self.wrap_ends(model)
        sharder.shard_root(model)
        if parallel.pipeline > 1:
            self.hold_units()

    def wrap_experts(self, layer: Module) -> None:
        """On the ranks that have the same; none of FSDP's where there are no such."""
        mesh, ranks = self.sharder.mesh, self.job.parallel.expert
        for experts in [module for module in layer.modules() if isinstance(module, Experts) and ranks > 1]:
            if mesh.shard * mesh.replicate % ranks:
                told = f"{mesh.shard * mesh.replicate} cards that see rows or share them are no multiple of {ranks}"
                raise UsageError.at("parallel.expert", f"{told}. To fix: more cards, or parallel.expert 1")
            alike = mesh.shard * mesh.replicate // ranks
            if alike > 1:
                reshards = self.job.parallel.reshard_after_forward
                shard_experts(self.sharder, experts, reshards, Mesh(alike), columns=True)
                continue
            for tensor in experts.own.values():
                if not isinstance(tensor, Buffer):
                    self.sharder.ignored.add(id(tensor))
                    tensor.storage = on_card(tensor).storage

    def wrap_ends(self, model: Any) -> None:
        ends = [model.input_embedding(), model.output_embedding()]
        if not model.tied:
            for module in ends:
                if list(module.parameters()):
                    self.sharder.shard([module], self.job.parallel.reshard_after_forward)


def cut(job: Job, model: Any) -> None:
    """What of the weights a rank has, before they take memory."""
    parallel, machine = job.parallel, model.machine
    for name in ("tensor", "context", "expert", "pipeline"):
        if getattr(parallel, name) > 1:
            machine.guesses[READ.format(name)] = None
    if parallel.expert > 1:
        found = [module for module in model.modules() if isinstance(module, Experts)]
        if not found:
            told = f"got {parallel.expert}, of a model without experts that can be split; allowed: 1"
            raise UsageError.at("parallel.expert", told)
        for experts in found:
            experts.spread(parallel.expert)
    if parallel.tensor > 1:
        split_layers(model, TensorParallel(machine, parallel.tensor), bool(parallel.sequence_parallel))


def split_layers(model: Any, split: TensorParallel, sequence: bool) -> None:
    """`_parallelize_llama`; the loss takes whole logits (`full_tensor`). Linear attention is whole on every card
    (`_parallelize_qwen3_5_vlm`)."""
    split.by_words(model.input_embedding(), sequence)
    for layer in model.layers():
        for module in list(layer.modules()):
            parts = {name: part for name, part in module.children.items() if isinstance(part, Linear)}
            if not parts or (isinstance(module, GatedDeltaNet) and not sequence):
                continue
            if FUSED in parts:
                split_around(parts, split)
                continue
            if isinstance(module, SelfAttention) and "q_proj" in parts:
                split.part(module.k_proj.outputs // module.head_dim, "a number of key heads")
            elif not set(parts) <= {*COLUMNS, *ROWS}:
                told = f"{type(module).__name__} is not written down over several cards"
                raise Unsupported.at("parallel.tensor", f"{told}; allowed: 1")
            if sequence:
                split.takes_sequence(module)
            for name, part in parts.items():
                if name in ROWS:
                    split.rows(part, sequence)
                else:
                    split.columns(part, None if sequence else False)
    split.columns(model.output_embedding(), sequence, whole=True)


def split_around(parts: Mapping[str, Linear], split: TensorParallel) -> None:
    """What enters attention is summed up of parts of the features, what leaves it is put together of them."""
    split.rows(parts[FUSED], sequence=False)
    before(parts[FUSED], lambda x: part_of_features(split, x))
    split.columns(parts["o_proj"], sequence=False, whole=True)


def part_of_features(split: TensorParallel, x: Tensor) -> Tensor:
    """Replicate() -> Shard(-1): this card's; gradients of all are gathered."""
    machine, shape = x.machine, x.shape
    narrow = (*shape[:-1], shape[-1] // split.ranks)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        stacked = machine.exchange("all_gather", "tensor", split.ranks, gradients[0], (split.ranks, *narrow))
        return (machine.run("cat", (stacked,), shape, x.dtype),)

    return finish(start(machine, (x,), back), machine.run("clone", (x,), narrow, x.dtype))


def ends_of_stage(job: Job, machine: Machine) -> Ends:
    """The first stage's, or the last's."""
    if job.parallel.pipeline == 1:
        return Ends()
    is_first = machine.ends is None or machine.ends.embedding
    return Ends(is_first, not is_first, not is_first)
