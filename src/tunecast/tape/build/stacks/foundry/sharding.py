"""Composer's FSDP on paper (composer/trainer/dist_strategy.py of mosaicml 0.17.1): torch's FSDP 1, a unit a block.

`mixed_precision: DEFAULT` gathers weights in autocast's dtype and sums gradients in float32; `PURE` sums them low
too. Parameters keep their own shapes (`use_orig_params`).
"""

from __future__ import annotations

from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build.dtypes import DTYPES, FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.sharding import Scheme, ranks_of
from tunecast.tape.build.sharding.fsdp1 import FlatScheme, Flattened, Options
from tunecast.tape.build.stacks.foundry.model import Block


def scheme_of(job: Job, machine: Machine) -> Scheme:
    return Scheme(job, machine) if ranks_of(job) == 1 else ComposerFsdp(job, machine)


class ComposerFsdp(FlatScheme):
    def wrap(self, model: Any) -> None:
        job = self.job
        low = self.autocast
        reduce = DTYPES[job.parallel.reduce_dtype] if job.parallel.reduce_dtype else FLOAT32
        options = Options(
            ranks_of(job), low, reduce if low is not None else None, low, use_orig_params=True,
            reshard_after_forward=job.parallel.reshard_after_forward,
        )  # fmt: skip

        def is_block(module: Module) -> bool:
            return isinstance(module, Block)

        self.flat = Flattened(model, options, is_block)
