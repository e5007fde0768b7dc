"""litgpt on several cards: Fabric's FSDPStrategy, which its fine-tuning takes whenever there are more than one.

A unit a block and one around the model, original parameters kept (`use_orig_params`), every block recomputed inside its
unit. Adapters lie in the flat parameter of their block among frozen weights; a flat parameter trains whole or not at
all, so frozen weights get gradients too, which FSDP puts together, sums and throws away. Until the last micro-batch of
a step they are whole on every card (`no_backward_sync`): most of what LoRA takes here.

Source   litgpt/finetune/{lora,full}.py; lightning 2.6.6, fabric/strategies/fsdp.py, fabric/plugins/precision/fsdp.py.
Ignored  the checkpoint's weights arrive unit by unit (`fabric.load_raw`), which stays below the training's peak.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.tape.build.autograd import checkpointed
from tunecast.tape.build.modules import Module
from tunecast.tape.build.sharding import ranks_of
from tunecast.tape.build.sharding.fsdp1 import Flattened, Options
from tunecast.tape.build.tensor import DTYPES, Tensor

ALWAYS_SHARDED = "parallel.data: litgpt's fine-tuning shards with FSDP 1 whenever there are several cards"
ALWAYS_RECOMPUTED = "gradient_checkpointing: litgpt recomputes every block where it shards"


class Recomputed(Module):
    """`checkpoint_wrapper(block)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpointed(self.machine, super().__call__, *args, **kwargs)


class Fsdp:
    """What the loop asks; on one card nothing is done."""

    def __init__(self, job: Job) -> None:
        self.ranks = ranks_of(job)
        self.flat: Flattened | None = None
        if self.ranks > 1 and job.method == "qlora":
            raise UsageError(
                "quantization.format: litgpt refuses quantised weights on several cards. To fix: hardware.gpus 1",
                field="quantization.format",
            )

    def told(self, job: Job) -> list[str]:
        if self.ranks == 1:
            return []
        asked = {ALWAYS_SHARDED: job.parallel.data != "fsdp", ALWAYS_RECOMPUTED: not job.gradient_checkpointing}
        return [told for told, is_so in asked.items() if is_so]

    def wrap(self, job: Job, gpt: Any) -> list[Tensor]:
        """The parameters an optimizer is given."""
        if self.ranks == 1:
            return [p for p in gpt.parameters() if p.requires_grad]
        blocks = {id(block) for block in gpt.layers()}
        for block in gpt.layers():
            block.__class__ = type(type(block).__name__, (Recomputed, type(block)), {})
        low = DTYPES[job.autocast] if job.autocast else DTYPES[job.weights_dtype]
        options = Options(self.ranks, low, low, low, use_orig_params=True)
        self.flat = Flattened(gpt, options, lambda module: id(module) in blocks)
        return self.flat.parameters()

    @contextlib.contextmanager
    def no_backward_sync(self, enabled: bool) -> Iterator[None]:
        if self.flat is not None:
            self.flat.sync = not enabled
        yield
        if self.flat is not None:
            self.flat.sync = True

    def end(self) -> None:
        if self.flat is not None:
            self.flat.drop_gradients()
