"""A second model that is only asked, beside the one that is trained: how a rank holds it.

After trl/models/utils.py of 1.16.0, `prepare_deepspeed` and `prepare_fsdp`, and accelerate's `prepare_model` with
`evaluation_mode`.

    alone, DDP    whole on each card, under autocast
    FSDP 2        one unit with all of it: its parts come whole when it is asked, all at once, and go again
    FSDP 1        units as the trained model's, in the dtype they were loaded in
    ZeRO-1, 2     whole on each card, in the engine's dtype (stage 0)
    ZeRO-3        cut as the trained model's, without masters or gradients

Of several cards nobody traced it, and a tape of one says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.records import replace, replace_unchecked
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer
from tunecast.tape.build.quantized import change_dtype
from tunecast.tape.build.sharding.host import is_on_host, on_card
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of

UNTRACED = "a second model on several cards follows the source of TRL 1.16 (`prepare_fsdp`, `prepare_deepspeed`)"


def second_scheme(job: Job, machine: Machine) -> Scheme:
    """How the job's rank holds a model that has no adapters, and that nobody trains."""
    job = replace_unchecked(job, method="full", gradient_checkpointing=False)
    sharding = sharding_of(job)
    if job.hardware.cards > 1:
        machine.guesses[UNTRACED] = None
    if sharding.is_zero:
        from tunecast.tape.build.sharding.zero3 import AskedZero3

        return AskedZero3(job, machine) if sharding.cuts_weights else InEngine(job, machine)
    if ranks_of(job) == 1 or sharding.is_replicated:
        return Scheme(job, machine)
    if (job.parallel.fsdp_version or machine.era.fsdp_version) == 1:
        from tunecast.tape.build.sharding.accelerate import AccelerateFsdp1

        made = AccelerateFsdp1(job, machine)
        made.options = replace(made.options, upcast=False)
        return made
    return OneUnit(job, machine)


class InEngine(Scheme):
    """A DeepSpeed engine of stage 0: all weights on the card, in the engine's dtype."""

    loads_on_host = casts = True

    def wrap(self, model: Any) -> None:
        bring_whole(model, self.job)


def bring_whole(model: Any, job: Job) -> None:
    """`module.bfloat16()`, then to the card."""
    machine = model.machine
    dtype = DTYPES[job.autocast] if job.autocast else machine.weights_dtype
    seen: set[int] = set()
    for module in model.modules():
        for tensor in module.own.values():
            if id(tensor) in seen or not is_on_host(tensor):
                continue
            seen.add(id(tensor))
            if tensor.dtype.floating and tensor.dtype != dtype and not isinstance(tensor, Buffer):
                with machine.on_host():
                    change_dtype(tensor, dtype)
            tensor.storage = on_card(tensor).storage


class OneUnit(Scheme):
    """`fully_shard(model)` alone, without a unit a layer."""

    loads_on_host = casts = True

    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        from tunecast.tape.build.sharding.accelerate import AccelerateFsdp2
        from tunecast.tape.build.sharding.unit import mesh_of_ranks

        self.sharder = AccelerateFsdp2(job, machine, mesh_of_ranks(job, self.ranks)).sharder

    def wrap(self, model: Any) -> None:
        self.sharder.shard([model], self.job.parallel.reshard_after_forward)
        self.sharder.root = self.sharder.units[-1]

    def run(self, model: Any, forward: Callable[..., Any], *args: Any) -> Any:
        root = self.sharder.root
        assert root is not None
        args, _ = root.pre_forward(args, {})
        return root.post_forward(model, forward(model, *args))
