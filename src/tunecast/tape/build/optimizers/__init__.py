"""Optimizers and gradient clipping on paper: the state the first step makes, and what every step borrows.

    state.py       what all share; clipping         foreach.py     torch.optim, a list of tensors a kernel
    adafactor.py   transformers' Adafactor          blockwise.py   bitsandbytes: 8-bit, 32-bit and paged state
    muon.py        torch's Muon beside AdamW        low_rank.py    GaLore and APOLLO
    one_by_one.py  StableAdamW, GrokAdamW, LOMO     in_backward.py a step a weight, while gradients come
    torchao.py     4- and 8-bit AdamW

What is not written down is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.tape.build.optimizers.adafactor import Adafactor
from tunecast.tape.build.optimizers.blockwise import AdEMAMix, Blockwise
from tunecast.tape.build.optimizers.foreach import (
    SGD,
    Adagrad,
    AdamW,
    FusedAdamW,
    RMSprop,
    ScheduleFreeAdamW,
    ScheduleFreeSGD,
)
from tunecast.tape.build.optimizers.in_backward import InBackward
from tunecast.tape.build.optimizers.low_rank import Apollo, GaLore, GaLoreAdafactor, GaLoreAdamW8bit, LowRank
from tunecast.tape.build.optimizers.muon import Muon
from tunecast.tape.build.optimizers.one_by_one import GrokAdamW, Lomo, StableAdamW
from tunecast.tape.build.optimizers.state import Optimizer, clip_gradients
from tunecast.tape.build.optimizers.torchao import LowBitAdamW
from tunecast.tape.build.tensor import Tensor

__all__ = ["OPTIMIZERS", "Optimizer", "clip_gradients", "is_known", "make_optimizer"]

OPTIMIZERS: dict[str, Callable[[Sequence[Tensor]], Optimizer]] = {
    "adamw_torch": AdamW,
    "adamw_torch_fused": FusedAdamW,
    "sgd": SGD,
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
    "adafactor": Adafactor,
    "adamw_8bit": Blockwise,
    "adamw_bnb_8bit": Blockwise,
    "paged_adamw_8bit": partial(Blockwise, paged=True),
    "paged_adamw_32bit": partial(Blockwise, bits=32, paged=True),
    "lion_8bit": partial(Blockwise, states=1),
    "lion_32bit": partial(Blockwise, states=1, bits=32),
    "paged_lion_8bit": partial(Blockwise, states=1, paged=True),
    "paged_lion_32bit": partial(Blockwise, states=1, bits=32, paged=True),
    "rmsprop_bnb": partial(Blockwise, states=1, bits=32, without_bfloat16=True),
    "rmsprop_bnb_8bit": partial(Blockwise, states=1, without_bfloat16=True),
    "rmsprop_bnb_32bit": partial(Blockwise, states=1, bits=32, without_bfloat16=True),
    "ademamix": partial(AdEMAMix, bits=32),
    "ademamix_8bit": AdEMAMix,
    "paged_ademamix_32bit": partial(AdEMAMix, bits=32, paged=True),
    "paged_ademamix_8bit": partial(AdEMAMix, paged=True),
    "schedule_free_adamw": ScheduleFreeAdamW,
    "schedule_free_radam": ScheduleFreeAdamW,
    "schedule_free_sgd": ScheduleFreeSGD,
    "stable_adamw": StableAdamW,
    "grokadamw": GrokAdamW,
    "lomo": Lomo,
    "adamw_torch_4bit": partial(LowBitAdamW, bits=4),
    "adamw_torch_8bit": partial(LowBitAdamW, bits=8),
}
"""By transformers' `optim` names. The others need packages nobody has written down (lomo-optim, torchdistx), or other
machines (adamw_torch_xla, adamw_torch_npu_fused)."""
LOW_RANK: dict[str, type[LowRank]] = {
    "galore_adamw": GaLore,
    "galore_adamw_8bit": GaLoreAdamW8bit,
    "galore_adafactor": GaLoreAdafactor,
    "apollo_adamw": Apollo,
}
LAYERWISE = "_layerwise"


def is_known(name: str) -> bool:
    return name == "muon" or name in OPTIMIZERS or name.removesuffix(LAYERWISE) in LOW_RANK


def make_optimizer(
    job: Job, parameters: Sequence[Tensor], outer: Sequence[Tensor] = (), linear: Sequence[Tensor] = ()
) -> Optimizer:
    """`outer` are the weights of embedding and head, which Muon is not for; `linear` those GaLore is for."""
    if job.optimizer == "muon":
        return Muon(parameters, outer)
    kind = LOW_RANK.get(job.optimizer.removesuffix(LAYERWISE))
    if kind is not None:
        if not linear:
            raise UsageError("optimizer: this model has no linear layers a projection works on", field="optimizer")
        if not job.optimizer.endswith(LAYERWISE):
            return kind(parameters, linear)
        if job.grad_accum > 1:
            raise UsageError(
                f"optimizer: transformers refuses {job.optimizer} with grad_accum {job.grad_accum}. To fix: "
                "grad_accum 1",
                field="optimizer",
            )
        return InBackward(parameters, lambda own: kind(own, linear))
    if job.optimizer not in OPTIMIZERS:
        known = ", ".join(sorted((*OPTIMIZERS, *LOW_RANK, *(name + LAYERWISE for name in LOW_RANK), "muon")))
        raise Unsupported(
            f"optimizer: the closed form does not know {job.optimizer}; it knows {known}", field="optimizer"
        )
    return OPTIMIZERS[job.optimizer](parameters)
