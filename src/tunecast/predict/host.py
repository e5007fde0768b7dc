"""The host's part of a step: the CPU time an operation takes before the card has it.

Eager PyTorch launches one operation after another from one thread. Forward, Python calls it through modules, and
autograd records it; backward, the engine's thread runs in C++ what was recorded; a recomputed layer is forward again.
An optimizer's operations are recorded by nobody and belong to no module.
"""

from __future__ import annotations

from tunecast.job.job import Job
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

    def op_s(self, op: Op, phase: Phase) -> float:
        if not op.kernels:
            return self.launch_s * self.hook if op.name == HOOK else 0.0
        share = self.optimizer if phase in LEAN else self.backward if op.by_engine else 1.0
        if op.name.startswith("triton::"):
            share += self.triton
        return self.launch_s * share + self.more_kernels_s * (op.kernels - 1)


DEFAULT_HOST = Host()


def host_of(job: Job) -> Host:
    """`hardware.launch_us` where the job says it."""
    given = getattr(job.hardware, "launch_us", None)
    return DEFAULT_HOST if given is None else replace(DEFAULT_HOST, launch_s=given * 1e-6)
