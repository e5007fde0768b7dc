"""FSDP2 the way accelerate 1.15 wraps a transformers model (`fsdp2_prepare_model`), which the Trainer and TRL use.

Trained weights become float32 where mixed precision is on; computing, sending and outputs are in its dtype, without
autocast. A unit a decoder layer, one for the embedding, one for the last norm and the head together (not given back
after the forward pass), and the model itself with what is left. With PEFT the last norm is not found, and is left.

FSDP 1 the way accelerate wraps a transformers model (`prepare_model` with `fsdp_version: 1`), as the Trainer asks.

A unit a decoder layer and one around the model; with PEFT each adapter's weight is a unit of its own
(`fsdp_auto_wrap_policy`), so that frozen weights and trained ones are never in one. The model is loaded on the host; a
unit's weights come to the card when it is made, whole, and leave a part there. With mixed precision trained parts are
fp32 and everything is gathered and summed in the low precision; autocast stays on. Quantised weights are packed into
the dtype of the others (`bnb_4bit_quant_storage`), which a flat parameter needs; their scales are whole on each rank.

Fixed    backward_prefetch BACKWARD_PRE, as `accelerate config` writes it.
Source   accelerate 1.0.1 and 1.15.0, accelerator.py, utils/dataclasses.py; peft 0.13.2, utils/other.py; transformers
         4.48.1, trainer.py, `_fsdp_qlora_plugin_updates`; fms_acceleration_foak 0.6.0, utils.py,
         `lora_adapters_switch_ddp_from_fsdp`; fms_acceleration_peft 0.3.5, autogptq_utils.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.tape.build.adapters import LoraLinear
from tunecast.tape.build.dtypes import DTYPES, FLOAT32, INT8
from tunecast.tape.build.gptq import KeptLinearGPTQ, LinearGPTQ
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.optimizers import Optimizer, clip_gradients
from tunecast.tape.build.quantized import Linear4bit, Linear8bit, change_dtype
from tunecast.tape.build.sharding.fsdp1 import FlatScheme, Flattened, Options
from tunecast.tape.build.sharding.fsdp2 import FullyShard, Mesh, MixedPrecisionPolicy
from tunecast.tape.build.sharding.host import HOST_ASSUMED, HostOptimizer, on_card
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.layers import TOWERS

# ---------------------------------------------------------------------------------------------------------------- FSDP2


STORED = (
    "4-bit weights are stored under the other weights' dtype (bnb_4bit_quant_storage), which FSDP needs to shard them"
)


FLOAT8 = (
    "matmul_dtype float8 under FSDP 2: torchao's layers as torchtitan's are taken, which nobody traced in accelerate"
)
INT8_SHARDS = "8-bit weights under FSDP 2 follow axolotl/monkeypatch/fsdp2_qlora.py and were not traced"
OTHER_PARTS = "towers beside the text are taken as in FSDP's outermost unit, as where its text layers alone are named"
"""`transformer_layer_cls_to_wrap`; where nobody names any, all that `_no_split_modules` lists must be there."""


def has_other_parts(model: Any) -> bool:
    towers = {*TOWERS, "embed_vision"}
    return any(towers & module.children.keys() for module in model.modules())


class AccelerateFsdp2(Scheme):
    loads_on_host = casts = True

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

    def wrap(self, model: Any) -> None:
        sharder = self.sharder
        if has_other_parts(model):
            self.machine.guesses[OTHER_PARTS] = None
        if self.job.matmul_dtype is not None:
            self.machine.guesses[FLOAT8] = None
        model.gives_logits = True  # they are among the outputs that are cast
        if self.job.quantization.format is not None:
            store_as_floats(sharder, model)
        elif self.job.autocast:
            with self.machine.on_host():
                for parameter in model.parameters():
                    if parameter.requires_grad and parameter.dtype != FLOAT32:
                        change_dtype(parameter, FLOAT32)
        reshards = self.job.parallel.reshard_after_forward
        if stack_of(self.job).shards_layers_alone:
            self.shard_layers(model, reshards)
            return
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

    def shard_layers(self, model: Any, reshards: bool) -> None:
        """Each matrix of an adapter is a unit of its own (`_process_lora_module_for_fsdp`)."""
        for layer in model.layers():
            for module in layer.modules():
                if isinstance(module, LoraLinear):
                    self.sharder.shard([module.lora_A], reshards)
                    self.sharder.shard([module.lora_B], reshards)
            self.sharder.shard([layer], reshards)
        self.sharder.shard_root(model)

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
        machine.collective_of("all_gather", "shard", ranks, weight.dtype, shard.padded_numel)
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
        machine.collective_of("all_reduce", "shard", mesh.shard, squares.dtype, squares.numel())
        summed = machine.tensor(norms.shape, norms.dtype)
        return machine.run("pow", (summed,), norms.shape, norms.dtype)


def store_as_floats(sharder: FullyShard, model: Any) -> None:
    """`bnb_4bit_quant_storage`: packed weights under the dtype of the others, so that they can be cut; a whole one's
    scales are on every rank. 8 bits are cut as they are."""
    machine = sharder.machine
    dtype = machine.weights_dtype
    for module in model.modules():
        if isinstance(module, Linear8bit):
            machine.guesses[INT8_SHARDS] = None
            module.state["scales"].storage = on_card(module.state["scales"]).storage
        states = [module.state] if isinstance(module, Linear4bit) else getattr(module, "packed", {}).values()
        for state in states:
            packed = state.packed
            if packed.dtype != INT8:
                machine.assumptions[STORED] = None
                packed.shape, packed.dtype = (packed.numel() // dtype.itemsize, 1), dtype
            sharder.also.append((packed, (state, "packed")))
            for tensor in state.tensors():
                tensor.storage = on_card(tensor).storage


def final_norm(model: Any) -> Module | None:
    """`_find_final_norm`: the last norm among the base model's own children."""
    norms = [child for child in model.base().children.values() if "Norm" in type(child).__name__]
    return norms[-1] if norms else None


# --------------------------------------------------------------------------------------------------------------- FSDP 1


PREFETCHES = "FSDP 1 gathers a layer ahead in the backward pass (fsdp_backward_prefetch BACKWARD_PRE)"


class AccelerateFsdp1(FlatScheme):
    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        if job.lora.dora and job.method != "full":
            raise Unsupported.at("lora.dora", "the closed form does not know DoRA in FSDP 1's hands")
        dtype = DTYPES[job.autocast] if job.autocast else None
        reduce_dtype = DTYPES[job.parallel.reduce_dtype] if job.parallel.reduce_dtype else dtype
        usual = job.hardware.nodes if sharding_of(job).replicates_machines else 1
        replicas = job.parallel.replicate or usual
        self.options = Options(
            self.ranks // replicas, dtype, reduce_dtype, dtype, use_orig_params=job.parallel.use_orig_params,
            upcast=True, inside_checkpoint=machine.era.layers_by_position, on_host=job.parallel.offload == "parameters",
            reshard_after_forward=job.parallel.reshard_after_forward, replicas=replicas,
        )  # fmt: skip
        machine.assumptions[PREFETCHES] = None

    def wrap(self, model: Any) -> None:
        if has_other_parts(model):
            self.machine.guesses[OTHER_PARTS] = None
        layers = {id(layer) for layer in model.layers()}
        adapts = self.job.method != "full"

        def chosen(module: Module) -> bool:
            if id(module) in layers:
                return True
            weight = getattr(module, "weight", None)
            return adapts and not module.children and weight is not None and weight.requires_grad

        ignored: frozenset[int] = frozenset()
        if "foak" in self.job.kernels and self.job.quantization.format is not None:
            ignored = frozenset(id(p) for p in model.parameters() if p.requires_grad)
        self.flat = Flattened(model, self.options, chosen, ignored, packed_words(model))

    def optimizer(self, parameters: Sequence[Tensor], outer: Sequence[Tensor], linear: Sequence[Tensor]) -> Optimizer:
        made = super().optimizer(parameters, outer, linear)
        return HostOptimizer(made) if self.options.on_host else made


def packed_words(model: Any) -> list[Tensor]:
    """GPTQ's words, which fms-acceleration shows to FSDP as parameters (`PATCH_FOR_FSDP_TRITON_V2`). Those of
    gptqmodel's layers are buffers, which every rank holds whole."""
    return [
        words
        for module in model.modules()
        if isinstance(module, LinearGPTQ) and not isinstance(module, KeptLinearGPTQ)
        for words in (module.qweight, module.qzeros)
    ]
