"""The host's part of a step: the CPU time an operation takes before the card has it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunecast.job.job import Job
from tunecast.tape.op import Op, Phase


@dataclass(frozen=True)
class Host:
    """Seconds of one CPU thread. Forward, Python calls each operation through modules and autograd records it; backward,
    the engine's C++ thread runs what was recorded."""

    launch_s: float = 30e-6
    """Of an operation in the forward pass."""
    backward: float = 0.6
    """Of an operation in the backward pass, as a share of `launch_s`."""

    def op_s(self, op: Op, phase: Phase) -> float:
        return self.launch_s * (self.backward if op.by_engine else 1.0) * (1 if op.kernels else 0)


DEFAULT_HOST = Host()


def host_of(job: Job) -> Host:
    given = getattr(job.hardware, "launch_us", None)
    return DEFAULT_HOST if given is None else replace(DEFAULT_HOST, launch_s=given * 1e-6)
