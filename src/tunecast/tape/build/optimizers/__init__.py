"""Optimizers and gradient clipping on paper: the state the first step makes, and what every step borrows.

    state.py       what all share; clipping         foreach.py     torch.optim, a list of tensors a kernel
    adafactor.py   transformers' Adafactor          blockwise.py   bitsandbytes: 8-bit, 32-bit and paged state
    muon.py        torch's Muon beside AdamW

What is not written down is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.tape.build.optimizers.adafactor import Adafactor
from tunecast.tape.build.optimizers.blockwise import AdEMAMix, Blockwise
from tunecast.tape.build.optimizers.foreach import SGD, Adagrad, AdamW, FusedAdamW, RMSprop
from tunecast.tape.build.optimizers.muon import Muon
from tunecast.tape.build.optimizers.state import Optimizer, clip_gradients
from tunecast.tape.build.tensor import Tensor

__all__ = ["OPTIMIZERS", "Optimizer", "clip_gradients", "make_optimizer"]

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
}
"""By transformers' `optim` names. The others need packages nobody has written down (galore_torch, torchao, lomo)."""


def make_optimizer(job: Job, parameters: Sequence[Tensor], outer: Sequence[Tensor] = ()) -> Optimizer:
    """`outer` are the weights of embedding and head, which Muon is not for."""
    if job.optimizer == "muon":
        return Muon(parameters, outer)
    if job.optimizer not in OPTIMIZERS:
        known = ", ".join(sorted((*OPTIMIZERS, "muon")))
        raise Unsupported(
            f"optimizer: the closed form does not know {job.optimizer}; it knows {known}", field="optimizer"
        )
    return OPTIMIZERS[job.optimizer](parameters)
