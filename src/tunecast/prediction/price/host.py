"""The host's part of a step: the CPU time that work takes before the card has it, by kind of work.

Eager PyTorch launches one operation after another from one thread. Forward, Python calls it through modules, and
autograd records it; backward, the engine's thread comes to nodes, many of which launch nothing, and runs in C++ what
was recorded; a recomputed layer is forward again, with Python called about every tensor it keeps. Packages have Python
of their own around their kernels: PEFT's around an adapted layer, bitsandbytes' around a 4-bit weight, Liger's around
Triton's launcher. An optimizer's operations are recorded by nobody and belong to no module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.records import dataclass, replace
from tunecast.tape.op import CALLS, CHECKPOINT, EXCHANGE, HOOK, LET_GO, NODES, PASS, RECOMPUTE, TENSORS, Op, Phase

LEAN = frozenset({Phase.CLIP, Phase.OPTIMIZER})
UNRECORDED = frozenset({Phase.GENERATE, Phase.SCORE})
"""Phases in which autograd records nothing (`torch.no_grad`)."""
UNRECORDED_SHARE = 0.77
"""Of what an operation of a forward pass takes, what one without history does. Seven models so small that an H200
always waits, each with history and without by turns: passes without take 0.83 to 0.89 of those with, which by the
operations and calls on their tapes is 0.75 to 0.81 of an operation (benchmarks/host_generation.py,
data/host_generation.jsonl). Tokens of `generate()` on the same host then come out 1 to 10 % below what they took."""
MODES = (Phase.FORWARD, Phase.OPTIMIZER, Phase.GENERATE)
"""A phase of each kind that the host tells apart."""


def mode_of(phase: Phase) -> int:
    """Its place among `MODES`."""
    return 1 if phase in LEAN else 2 if phase in UNRECORDED else 0


FORWARD, ENGINE, OPTIMIZER, LISTS, UPDATE = "forward", "engine", "optimizer", "lists", "update"
FOUR_BIT, FOUR_BIT_ENGINE, EIGHT_BIT = "4 bit", "4 bit, engine", "8 bit"
EXPERTS, EXPERTS_ENGINE, TRITON, TRITON_ENGINE = "experts", "experts, engine", "triton", "triton, engine"
KINDS_S: Mapping[str, float] = {
    FORWARD: 20.0e-6,
    CALLS: 36.7e-6,
    ENGINE: 11.5e-6,
    NODES: 18.4e-6,
    HOOK: 10.0e-6,
    CHECKPOINT: 307e-6,
    RECOMPUTE: 435e-6,
    PASS: 600e-6,
    EXCHANGE: 543e-6,
    FOUR_BIT: 133e-6,
    FOUR_BIT_ENGINE: 125e-6,
    EIGHT_BIT: 236e-6,
    EXPERTS: 159e-6,
    EXPERTS_ENGINE: 133e-6,
    TRITON: 204e-6,
    TRITON_ENGINE: 172e-6,
    OPTIMIZER: 13.7e-6,
    LISTS: 63e-6,
    UPDATE: 74e-6,
    TENSORS: 3.4e-6,
    LET_GO: 9.1e-6,
}
"""Seconds of one thread for a piece of each kind, on a host that launches every `MEASURED_LAUNCH_S`: 90 models so small
that an H200 always waits, full training, LoRA and QLoRA, 20 families, 9 optimizers, with and without checkpointing and
Liger's kernels (benchmarks/host_kinds.py, data/host_kinds.jsonl; torch 2.11, transformers 5.17, peft 0.21, bitsandbytes
0.50), and steps of two real ones on two other hosts. benchmarks/host_fit.py finds them all at once; PASS and HOOK are
of a CPU. Passes are then off by 8 % in the median, nine of ten by less than 23: as much as the same pass differs from
one minute to the next."""
COUNTED = (CHECKPOINT, RECOMPUTE, CALLS, NODES, TENSORS, LET_GO)
MEASURED_LAUNCH_S = 35.1e-6
"""By the calibration's loop on that host: `calibration.MODULES`."""
WRITTEN = ("kernel", "rope", "layernorm", "_fg_")
"""In the names of Triton's kernels that a package launches from Python; a compiler's are called as operations are."""


@lru_cache(maxsize=10_000)
def kind_of(name: str, by_engine: bool, lean: bool) -> str:
    """What an operation of this name is to the host."""
    if name in KINDS_S:  # of the host alone
        return name
    if name.startswith("optimizer_update"):
        return UPDATE
    if lean:
        return LISTS if name.startswith(("_foreach", "_fused")) else OPTIMIZER
    if name == "dequantize_4bit":
        return FOUR_BIT_ENGINE if by_engine else FOUR_BIT
    if name.startswith("int8_"):
        return EIGHT_BIT
    if name == "_grouped_mm":
        return EXPERTS_ENGINE if by_engine else EXPERTS
    if name.startswith("triton::") and any(part in name for part in WRITTEN):
        return TRITON_ENGINE if by_engine else TRITON
    return ENGINE if by_engine else FORWARD


@dataclass(frozen=True)
class Host:
    """Its own speed is an input (`hardware.launch_us`, or `tunecast calibrate`); what kinds of work take of each other
    is alike on all. `benchmarks/time_h200.py` says how well steps that wait for it are known."""

    launch_s: float = 33e-6
    """Of an operation in the forward pass and all that comes with it: the H200's host, median of 7 runs that wait for
    it. It moves by a fifth from step to step; published figures for eager PyTorch begin at 13."""
    more_kernels_s: float = 4e-6
    """Of each further kernel of one operation: cudaLaunchKernel alone."""
    nvme_bytes_per_s: float | None = None
    """Of its drives together; None: see `price/offload.py`."""

    def op_s(self, op: Op, phase: Phase) -> float:
        speed = self.launch_s / MEASURED_LAUNCH_S
        if not op.kernels:
            if op.name not in KINDS_S:
                return 0.0
            return KINDS_S[op.name] * speed * (op.shapes[0][0] if op.name in COUNTED else 1)
        kind = kind_of(op.name, op.by_engine, phase in LEAN)
        share = UNRECORDED_SHARE if kind == FORWARD and phase in UNRECORDED else 1.0
        return KINDS_S[kind] * share * speed + self.more_kernels_s * (op.kernels - 1)


DEFAULT_HOST = Host()
STEP_S, MICRO_BATCH_S = 7.6e-3, 1.0e-3
STEP_MODULE_S, MICRO_BATCH_MODULE_S = 5.6e-6, 5.1e-6
"""Of transformers' Trainer (5.17) around a step and around each of its micro-batches, and of each module it walks over:
model.train(), floating_point_ops, zero_grad, clipping and the optimizer's groups all do. CPU time of loops that compute
nothing, with models of 215 to 2,389 modules, 1 and 4 micro-batches a step, on an AMD EPYC (benchmarks/trainer_loop.py);
taken to be that of a host which launches every 33 us."""
LAYER_MODULES, ADAPTER_MODULES, ADAPTED = 13, 10, 7
"""Of a Llama's layer; of an adapter beside a projection (PEFT 0.21); projections of a layer, where all are adapted."""


def loop_s(job: Job, layers: int, host: Host) -> float:
    """What the Trainer does around an optimizer step. It reads every micro-batch's loss (`logging_nan_inf_filter`), so
    the card has nothing to do meanwhile."""
    if not stack_of(job).uses_trainer:
        return 0.0
    adapters = 0
    if job.method in ("lora", "qlora"):
        targets = job.lora.targets
        adapters = len(targets) if isinstance(targets, tuple) else ADAPTED
    modules = layers * (LAYER_MODULES + ADAPTER_MODULES * adapters)
    once, each = STEP_S + STEP_MODULE_S * modules, MICRO_BATCH_S + MICRO_BATCH_MODULE_S * modules
    return (once + job.grad_accum * each) * host.launch_s / DEFAULT_HOST.launch_s


def host_of(job: Job) -> Host:
    """`hardware.launch_us` and `hardware.nvme_bytes_per_s` where the job says them."""
    launch_us, nvme = job.hardware.launch_us, job.hardware.nvme_bytes_per_s
    host = DEFAULT_HOST if launch_us is None else replace(DEFAULT_HOST, launch_s=launch_us * 1e-6)
    return host if nvme is None else replace(host, nvme_bytes_per_s=float(nvme))
