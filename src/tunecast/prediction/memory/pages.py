"""The state of paged optimizers: CUDA's managed memory, outside PyTorch's allocator, which lies on the card.

Source   bitsandbytes 0.50.2: `get_paged` takes memory of cudaMallocManaged, `fill` writes zeros to it with a kernel,
         and `prefetch_state` brings it to the card in every step (functional.py, optim/optimizer.py). Pages stay where
         they were used last; where the card is full the driver moves them to the host: PyTorch can have all the same.
Checked  seven H200 runs with `paged_adamw_8bit` (benchmarks/data: closed_runs, generated_runs, h200_runs): of 0 MiB of
         such state they held 0 MiB beside what was reserved and the context, of 16, 42 and 90 MiB 128 MiB, of 138 and
         234 MiB 256 MiB.
Ignored  that a card which is full may leave the driver less than a chunk. Layers spread over cards: even shares.
"""

from __future__ import annotations

from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.job.optimizers import OPTIMIZERS
from tunecast.job.stacks import stack_of
from tunecast.prediction.outside.checkpoint import optimizer_states
from tunecast.prediction.outside.paper import tensors_of_job
from tunecast.units import MIB

CHUNK_BYTES = 128 * MIB
"""What the driver takes of the card at a time for managed memory."""


def pages_bytes(managed_bytes: int) -> int:
    """What managed memory takes of a card that has room for it."""
    return -(-managed_bytes // CHUNK_BYTES) * CHUNK_BYTES


def managed_bytes(job: Job, model: ModelConfig) -> int:
    """What a job's optimizer keeps in managed memory, on one card."""
    own = stack_of(job).quantized_optimizer if job.method == "qlora" else None
    optimizer = own or job.optimizer
    if not OPTIMIZERS[optimizer].is_paged:
        return 0
    states = optimizer_states(optimizer, tensors_of_job(job, model))
    return sum(state.nbytes for state in states if state.paged) // job.parallel.layers
