"""What the traced engine can be asked of a job. What it cannot is refused by name, with what to do instead.

A job is a description; a script is the thing itself. So most of what a job cannot say yet, `tunecast trace` can run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tunecast.errors import UsageError, nearest
from tunecast.job.job import Job
from tunecast.units import gib

ENGINES: Mapping[str, str] = {
    "analytic": "the closed form: milliseconds, no torch needed",
    "traced": "the real training code, run under fake tensors",
}

STACKS: frozenset[str] = frozenset({"transformers", "unsloth"})
"""Stacks whose kernels, casts and loss are traced: `tape/trace/recipe.py` and `recipes_unsloth.py`."""

TRACE_INSTEAD = "To fix: trace your own script, `tunecast trace -- train.py`"


def require_engine(name: str) -> None:
    if name in ENGINES:
        return
    near = nearest(name, ENGINES) or next(iter(ENGINES))
    raise UsageError(f"--engine: got {name!r}; allowed: {', '.join(ENGINES)}; nearest: {near}", field="--engine")


def require_modelled(job: Job) -> None:
    """Raises one `UsageError` with a line for each field that asks for what is not modelled."""
    found = [(field, told) for field, rule in RULES.items() if (told := rule(job)) is not None]
    if found:
        raise UsageError("\n".join(f"{field}: {told}" for field, told in found), field=found[0][0])


def _stack(job: Job) -> str | None:
    if job.stack in STACKS:
        return None
    return f"got {job.stack}, known but not modelled yet; allowed: {', '.join(sorted(STACKS))}. {TRACE_INSTEAD}"


def _cards(job: Job) -> str | None:
    hardware = job.hardware
    if hardware.gpus * hardware.nodes == 1:
        return None
    several = hardware.nodes > 1
    got = f"got {hardware.gpus} on each of {hardware.nodes} machines" if several else f"got {hardware.gpus}"
    nodes = f" --nnodes {hardware.nodes}" if several else ""
    remedy = f"`tunecast trace --nproc-per-node {hardware.gpus}{nodes} -- train.py`"
    return f"{got}; a job is predicted on one card yet; allowed: 1. To fix: trace your own script, {remedy}"


def _parallel(job: Job) -> str | None:
    parts = job.parallel
    if (parts.data, parts.offload, parts.layers, parts.tensor, parts.pipeline, parts.context, parts.expert) == (
        *("ddp", "none"),
        *(1, 1, 1, 1, 1),
    ):
        return None
    return (
        "a job that is sharded or offloaded is not modelled yet; allowed: the defaults. "
        "To fix: trace your own script, `tunecast trace --nproc-per-node N -- train.py`"
    )


def _matmul_dtype(job: Job) -> str | None:
    if job.matmul_dtype is None:
        return None
    return f"got {job.matmul_dtype}, known but not modelled yet; allowed: null. {TRACE_INSTEAD}"


def _adapter_dtype(job: Job) -> str | None:
    """PEFT either casts adapters to float32 or leaves them in the dtype of the weights they adapt."""
    if job.method == "full" or job.lora.adapter_dtype in ("float32", job.weights_dtype):
        return None
    return f"got {job.lora.adapter_dtype} with weights_dtype {job.weights_dtype}; allowed: float32, or the weights' own"


RULES: Mapping[str, Callable[[Job], str | None]] = {
    "stack": _stack,
    "hardware.gpus": _cards,
    "parallel": _parallel,
    "matmul_dtype": _matmul_dtype,
    "lora.adapter_dtype": _adapter_dtype,
}


def job_assumptions(job: Job) -> list[str]:
    """What the traced run takes for granted about this job, beyond what the tape itself says."""
    told = [f"the figures are the most of {max(6, len(job.lengths or ()))} optimizer steps, from an empty cache on"]
    if job.hardware.reserve_bytes:
        told.append(f"others hold {gib(job.hardware.reserve_bytes)} of the card (--reserve)")
    if job.data.packing:
        told.append("packed rows are full rows of one sample: masks that keep packed samples apart are left out")
    if job.autocast == "float16":
        told.append("the loss scaler's own few hundred bytes are left out")
    return told
