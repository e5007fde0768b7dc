"""Why a step takes as long as it does, in sentences; and what the host must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tunecast.job.job import Job
from tunecast.prediction.memory.vllm import could_use_vllm
from tunecast.prediction.outside.host_memory import processes
from tunecast.prediction.values import HostNeeds
from tunecast.units import percent

if TYPE_CHECKING:
    from tunecast.prediction.outside.needs import Outside
    from tunecast.prediction.time.runtime import StepTime

NAMES: Mapping[str, str] = {
    "matrix_products": "matmuls",
    "memory_bound": "memory-bound ops",
    "recomputation": "recomputation (gradient checkpointing)",
    "launch": "GPU waiting for the host",
    "offload": "offload copies and the optimizer on the CPU",
    "nvme": "NVMe reads and writes",
    "communication": "GPU waiting for other GPUs",
    "waiting": "waiting for the longest rows",
    "generation": "generation by vLLM",
}
"""Of a step's breakdown, where the name alone does not tell."""
BESIDE_THE_CARD = ("offload", "nvme")
"""Parts of a step that no figure of the card bounds."""
SHOWN_FROM = 0.02
"""Of a step: smaller parts are no reason."""
TOLD_FROM = 0.1
"""Of a step: padding and waiting that are worth a change."""
PLANNING_FROM = 0.03
"""Of a job: what new lengths cost, from where on it is told."""
FEW_LENGTHS = 64
IDLE_BELOW = 0.9
"""Of a step: a card that is busy less than this could do more in the same time."""


def host_needs(job: Job, outside: Outside | None) -> HostNeeds:
    """A process a card: each has its own memory; the pages of the model's file they share (`host_memory.py`).

    Ignored  pinned batches, some MB; what a data set keeps in memory (datasets maps its files).
    """
    cores = processes(job) * (1 + job.data.workers)
    return HostNeeds(cores) if outside is None else HostNeeds(cores, outside.machine_ram_bytes, outside.nvme_bytes)


def parts_told(breakdown_s: Mapping[str, float]) -> str:
    """`matmuls 61 %, memory-bound ops 29 %, attention 8 %`."""
    total = sum(breakdown_s.values())
    shown = sorted(((spent / total, name) for name, spent in breakdown_s.items() if spent > 0), reverse=True)
    return ", ".join(
        f"{NAMES.get(name, name.replace('_', ' '))} {percent(share)}" for share, name in shown if share >= SHOWN_FROM
    )


def reasons(job: Job, step: StepTime, layers: int | None = None, padding_fraction: float = 0.0) -> list[str]:
    """What bounds the step and what follows from it, a sentence each; the first names the bound."""
    told = [_bound(job, step, layers)]
    waiting = step.breakdown_s.get("waiting", 0.0) / step.step_s if step.step_s else 0.0
    evens = "packing" if job.data.group_by_length else "group_by_length or packing"
    if waiting >= TOLD_FROM:
        told.append(f"GPUs wait {percent(waiting)} of a step for the one with the longest rows: {evens} evens them out")
    elif padding_fraction >= TOLD_FROM:
        told.append(f"{percent(padding_fraction)} of the compute is padding: {evens} saves most of it")
    if job.method != "full" and step.bound_by == "compute":
        done, of = (6, 8) if job.gradient_checkpointing else (4, 6)
        told.append(f"LoRA saves little time: frozen weights still take {done} of {of} FLOPs per parameter per token")
    if job.quantization.format in ("nf4", "fp4") and step.bound_by in ("compute", "memory"):
        times = "3 x" if job.gradient_checkpointing else "2 x"
        told.append(
            f"4-bit weights are dequantized {times} per micro-batch, matmuls run in 16 bits: saves memory, not time"
        )
    return told


def whole_reasons(job: Job, phases_s: Mapping[str, float]) -> list[str]:
    """What else is worth a change in a whole job."""
    planning, total = phases_s.get("new_lengths", 0.0), sum(phases_s.values())
    if not total or planning / total < PLANNING_FROM or (job.data.pad_to_multiple_of or 1) >= FEW_LENGTHS:
        return []
    return [
        f"{percent(planning / total)} of the job goes to cuDNN planning attention for new sequence lengths: "
        f"data.pad_to_multiple_of: {FEW_LENGTHS} leaves few of them"
    ]


def _bound(job: Job, step: StepTime, layers: int | None) -> str:
    parts = parts_told(step.breakdown_s)
    if step.bound_by == "launch":
        count = f"{step.kernels:,} kernels per step" if step.kernels else "the step's kernels"
        each = f" ({step.kernels // (layers * job.grad_accum):,} per layer)" if step.kernels and layers else ""
        free = _free_batch(job, step)
        more = f"; micro_batch {free} would take about as long" if free > job.micro_batch else ""
        remedy = "vLLM generates with far fewer (rl.engine: vllm)" if could_use_vllm(job) else "torch.compile lowers it"
        return (
            f"launch-bound: the host needs {step.cpu_s:.2f} s to launch {count}{each}, the GPU "
            f"{step.gpu_busy_s:.2f} s to run them{more}; {remedy}"
        )
    if step.bound_by == "communication":
        hidden = ", not all of it hidden" if step.breakdown_s.get("communication") else ""
        return f"communication-bound: {step.communication_s:.2f} s of collectives per step{hidden}: {parts}"
    idle = 1 - step.gpu_busy_s / step.step_s
    spare = f"; the GPU is idle {percent(idle)} of the step" if 1 - idle < IDLE_BELOW else ""
    most = max(step.breakdown_s, key=step.breakdown_s.__getitem__, default="")
    return f"{most if most in BESIDE_THE_CARD else step.bound_by}-bound: {parts}{spare}"


def _free_batch(job: Job, step: StepTime) -> int:
    """The micro-batch with which the card would need as long as the host does."""
    return int(job.micro_batch * step.cpu_s / step.gpu_busy_s) if step.gpu_busy_s else job.micro_batch
