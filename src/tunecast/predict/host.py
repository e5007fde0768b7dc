"""The host's part of a step: the CPU time an operation takes before the card has it.

Eager PyTorch launches one operation after another from one thread. Forward, Python calls it through modules, and
autograd records it; backward, the engine's thread runs in C++ what was recorded; a recomputed layer is forward again.
An optimizer's operations are recorded by nobody and belong to no module.
"""

from __future__ import annotations

from tunecast.job.job import Job
from tunecast.predict.spreading import TRAINER
from tunecast.records import dataclass, replace
from tunecast.tape.op import HOOK, Op, Phase

LEAN = frozenset({Phase.CLIP, Phase.OPTIMIZER})


@dataclass(frozen=True)
class Host:
    """Seconds of one thread, and shares of them. `benchmarks/time_h200.py` says how well they are known.

    A host's own speed is an input (`hardware.launch_us`, or `tunecast calibrate`); the shares follow from what has to
    be done, and were seen alike on a CPU without any card (torch 2.13: backward 0.62 of forward without the launch
    itself, checkpointing 20 us more for each saved tensor where an operation takes 9).
    """

    launch_s: float = 33e-6
    """Of an operation in the forward pass: the H200's host, median of 7 runs that wait for it. It moves by a fifth from
    step to step; published figures for eager PyTorch begin at 13."""
    backward: float = 0.8
    """Of it, what an operation takes that the engine runs (the same runs)."""
    optimizer: float = 0.3
    """Of an optimizer's operation: recorded by nobody, called by no module (Adafactor, two runs)."""
    hook: float = 0.65
    """Of a Python call about a saved tensor, three of which checkpointing makes for each tensor it does not keep (eight
    runs with small batches)."""
    triton: float = 1.0
    """What Triton's launcher, written in Python, takes more (two runs with Liger's kernels)."""
    more_kernels_s: float = 4e-6
    """Of each further kernel of one operation: cudaLaunchKernel alone."""
    nvme_bytes_per_s: float | None = None
    """Of its drives together; None: see `price/offload.py`."""

    def op_s(self, op: Op, phase: Phase) -> float:
        if not op.kernels:
            return self.launch_s * self.hook if op.name == HOOK else 0.0
        share = self.optimizer if phase in LEAN else self.backward if op.by_engine else 1.0
        if op.name.startswith("triton::"):
            share += self.triton
        return self.launch_s * share + self.more_kernels_s * (op.kernels - 1)


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
    if job.stack not in TRAINER:
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
