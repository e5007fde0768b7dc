"""FSDP 1 the way accelerate wraps a transformers model (`prepare_model` with `fsdp_version: 1`), as the Trainer asks.

A unit a decoder layer and one around the model; with PEFT each adapter's weight is a unit of its own
(`fsdp_auto_wrap_policy`), so that frozen weights and trained ones are never in one. The model is loaded on the host; a
unit's weights come to the card when it is made, whole, and leave a part there. With mixed precision trained parts are
fp32 and everything is gathered and summed in the low precision; autocast stays on. Quantised weights are packed into
the dtype of the others (`bnb_4bit_quant_storage`), which a flat parameter needs; their scales are whole on each rank.

Fixed    use_orig_params true, as `accelerate launch` and the Trainer have it; backward_prefetch BACKWARD_PRE, as
         `accelerate config` writes it.
Source   accelerate 1.0.1 and 1.15.0, accelerator.py, utils/dataclasses.py; peft 0.13.2, utils/other.py; transformers
         4.48.1, trainer.py, `_fsdp_qlora_plugin_updates`; fms_acceleration_foak 0.6.0, utils.py,
         `lora_adapters_switch_ddp_from_fsdp`; fms_acceleration_peft 0.3.5, autogptq_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.gptq import LinearGPTQ
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.sharding.fsdp1 import FlatScheme, Flattened, Options
from tunecast.tape.build.sharding.host import HostOptimizer
from tunecast.tape.build.tensor import Tensor

PREFETCHES = "FSDP 1 gathers a layer ahead in the backward pass (fsdp_backward_prefetch BACKWARD_PRE)"


class AccelerateFsdp1(FlatScheme):
    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        if job.lora.dora and job.method != "full":
            raise Unsupported("lora.dora: the closed form does not know DoRA in FSDP 1's hands", field="lora.dora")
        dtype = DTYPES[job.autocast] if job.autocast else None
        reduce_dtype = DTYPES[job.parallel.reduce_dtype] if job.parallel.reduce_dtype else dtype
        replicas = job.hardware.nodes if sharding_of(job).replicates_machines else 1
        self.options = Options(
            self.ranks // replicas, dtype, reduce_dtype, dtype, use_orig_params=True, upcast=True,
            inside_checkpoint=machine.era.layers_by_position, on_host=job.parallel.offload == "parameters",
            reshard_after_forward=job.parallel.reshard_after_forward, replicas=replicas,
        )  # fmt: skip
        machine.assumptions[PREFETCHES] = None

    def wrap(self, model: Any) -> None:
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
    """GPTQ's words, which fms-acceleration shows to FSDP as parameters (`PATCH_FOR_FSDP_TRITON_V2`)."""
    return [
        words
        for module in model.modules()
        if isinstance(module, LinearGPTQ)
        for words in (module.qweight, module.qzeros)
    ]
