"""What no change of a set can help: weights, gradients and optimizer state that are more than the card has.

Counted without a prediction (`bounds.py`), which takes ten times as long. Changes save together at most what each saves
by itself: two that shrink the same bytes save less.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.advise.changes import with_fields
from tunecast.errors import NotResolved, UsageError
from tunecast.hardware.catalog import gpu
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.planning.bounds import memory_floor_bytes, tensors_of
from tunecast.planning.fit.search import Option
from tunecast.planning.space import Rig, Spread
from tunecast.prediction.on_card import context_of
from tunecast.prediction.outside.needs import tensors_on_paper
from tunecast.tape.build.fill_in import fill_in_of

ACTIVATIONS = {
    *("allocator", "attention", "gradient_checkpointing", "grad_accum", "kernels", "loss", "micro_batch"),
    *("offload_activations", "rl.completion_length", "rl.generations", "rl.prompt_length"),
    *("rl.steps_per_generation", "seq_len", "vision.pixels"),
}
"""Fields that change nothing that lasts from step to step."""


def lasting_bytes(job: Job) -> int:
    """Of the fullest card at the optimizer's step, at least; 0: not known."""
    hardware, parts = job.hardware, job.parallel
    try:
        model = resolve_model(job.model)
        job = fill_in_of(job, model)
        parameters = tensors_on_paper(job, model.raw)
    except NotResolved:
        return 0
    card = gpu(hardware.gpu).name
    rig = Rig(card, hardware.gpus, hardware.nodes, hardware.interconnect, hardware.inter_node_gbps)
    held = tensors_of(job, model, parameters)._replace(layer_inputs=0)
    return memory_floor_bytes(held, job, rig, Spread(parts.data, parts.layers), 1)


def is_out_of_reach(job: Job, options: Sequence[Option]) -> bool:
    """Whether no set of these options lets the job fit, for certain."""
    lasting = lasting_bytes(job)
    if not lasting:
        return False
    saved: dict[str, int] = {}
    for option in options:
        if ACTIVATIONS.issuperset(option.overrides):
            continue
        try:
            left = lasting_bytes(with_fields(job, option.overrides))
        except UsageError:  # it may go together with another
            return False
        if not left:
            return False
        group = option.rung.group
        saved[group] = max(saved.get(group, 0), lasting - left)
    return lasting - sum(saved.values()) > _capacity_bytes(job)


def _capacity_bytes(job: Job) -> int:
    """For the allocator, at most: what NCCL holds comes off it."""
    hardware = job.hardware
    if hardware.capacity_bytes is not None:
        return hardware.capacity_bytes
    card = gpu(hardware.gpu)
    return card.memory_bytes - context_of(card).nbytes - hardware.reserve_bytes
