"""litgpt on several cards: Fabric's FSDPStrategy, which its fine-tuning takes whenever there are more than one, and its
DDPStrategy, which its pretraining may.

FSDP: a unit a block and one around the model, original parameters kept (`use_orig_params`), every block recomputed
inside its unit (pretraining recomputes none). Adapters lie in the flat parameter of their block among frozen weights; a
flat parameter trains whole or not at all, so frozen weights get gradients too, which FSDP puts together, sums and drops
in the end. Until the last micro-batch of a step they are whole on every card (`no_backward_sync`): most of what LoRA
takes.

Source   litgpt/finetune/{lora,full}.py; lightning 2.6.6, fabric/strategies/fsdp.py, fabric/plugins/precision/fsdp.py.
Ignored  the checkpoint's weights arrive unit by unit (`fabric.load_raw`), which stays below the training's peak.
"""

from __future__ import annotations

from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.recompute import checkpoint
from tunecast.tape.build.sharding.ddp import Replicas
from tunecast.tape.build.sharding.fsdp1 import FlatScheme, Flattened, Options
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of

PRETRAINS = "gradient_checkpointing: litgpt's fine-tuning recomputes every block it shards; its pretraining, none"
ONLY_SHARDED = "gradient_checkpointing: litgpt recomputes only what it shards; nothing is recomputed"


def scheme_of(job: Job, machine: Machine) -> Scheme:
    if ranks_of(job) == 1:
        return Scheme(job, machine)
    if job.method == "qlora":
        raise UsageError(
            "quantization.format: litgpt refuses quantised weights on several cards. To fix: hardware.gpus 1",
            field="quantization.format",
        )
    if sharding_of(job).is_replicated:
        machine.assumptions.update(dict.fromkeys([ONLY_SHARDED] if job.gradient_checkpointing else []))
        return FabricDdp(job, machine)
    machine.assumptions.update(dict.fromkeys([] if job.gradient_checkpointing else [PRETRAINS]))
    return FabricFsdp(job, machine)


class FabricDdp(Replicas):
    """fabric/strategies/ddp.py: torch's defaults."""

    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.finds_unused = False

    def wrap(self, model: Any) -> None:
        model.gives_logits = True  # they are all that a model of litgpt's gives
        super().wrap(model)


class RecomputedModule(Module):
    """`checkpoint_wrapper(block)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.machine, super().__call__, *args, **kwargs)


class FabricFsdp(FlatScheme):
    """fabric/strategies/fsdp.py. The model is on the meta device; FSDP makes each unit's weights on the card."""

    def wrap(self, model: Any) -> None:
        job, blocks = self.job, {id(block) for block in model.layers()}
        for block in model.layers() if job.gradient_checkpointing else ():
            block.__class__ = type(type(block).__name__, (RecomputedModule, type(block)), {})
        low = DTYPES[job.autocast or job.weights_dtype]
        options = Options(self.ranks, low, low, low, use_orig_params=True)
        self.flat = Flattened(model, options, lambda module: id(module) in blocks)
