"""Files of a run under DeepSpeed's ZeRO, as the Trainer has them written.

    model.safetensors | adapter_model.safetensors             the first rank, all weights in one file
    global_step500/ mp_rank_00_model_states.pt                ZeRO 1 and 2: all weights again, of adapters those alone
                    zero_pp_rank_0_mp_rank_00_model_states.pt ZeRO 3: names and shapes, a file a rank
                    zero_pp_rank_0_..._optim_states.pt        a file a rank: its part of masters and state, float32

ZeRO 3 writes the first only with stage3_gather_16bit_weights_on_model_save, which is taken to be set.
Source   transformers 5.17.0 (Trainer.save_model, _save_optimizer_and_scheduler), accelerate 1.15.0 (get_state_dict),
         DeepSpeed 0.19.8 (engine.py: _zero3_consolidated_16bit_state_dict, save_checkpoint).
Checked  ten runs of a small Llama, two ranks on CPUs (benchmarks/data/sharded_checkpoints.jsonl): weights to the byte,
         the rest to what is ignored.
Ignored  names, shapes and configuration: 4 to 17 kB a file; parts padded to a multiple of the ranks; two scripts of
         41 kB in all, and 14 kB of random state for each further rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.prediction.outside.checkpoint import (
    FOUR_BIT,
    QUANTIZED,
    WIDTHS,
    Parameter,
    optimizer_states,
    saved_parameters,
    weights_bytes,
)
from tunecast.prediction.outside.saving import Resuming, Saving

FLOAT32_BYTES = 4


def is_by_zero(job: Job) -> bool:
    return sharding_of(job).is_zero


def as_zero(job: Job, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """With mixed precision DeepSpeed casts every weight. Under ZeRO 3 the model is made in that dtype (zero.Init), and
    adapters, which come later, keep their own."""
    narrow = job.autocast
    if narrow is None:
        return tuple(parameters)
    keeps = sharding_of(job).cuts_weights
    return tuple(
        p if p.dtype in QUANTIZED or (keeps and p.is_adapter) else p._replace(dtype=narrow) for p in parameters
    )


def partitioned_bytes(job: Job, parameters: Sequence[Parameter]) -> int:
    """Masters and state in float32, of all ranks together."""
    return _partitioned_bytes(job.optimizer, tuple(parameters))


@lru_cache(maxsize=32)
def _partitioned_bytes(optimizer: str, parameters: tuple[Parameter, ...]) -> int:
    """Asked of one model for every number of ranks."""
    trained = [p._replace(dtype="float32") for p in parameters if p.trainable]
    return weights_bytes(trained) + sum(state.nbytes for state in optimizer_states(optimizer, trained))


def again_bytes(job: Job, parameters: Sequence[Parameter]) -> int:
    """The weights' second file."""
    return 0 if sharding_of(job).cuts_weights else weights_bytes(saved_parameters(parameters))


def zero_saving(job: Job, parameters: Sequence[Parameter], ranks: int) -> Saving:
    """Of the first rank: all weights on the host before the first byte is written, frozen ones too but under ZeRO 3
    with adapters (exclude_frozen_parameters); later a part of the masters.
    Ignored  on the card: under ZeRO 3 a module's own weights, gathered one module after the other."""
    held = saved_parameters(parameters) if sharding_of(job).cuts_weights else parameters
    trained = [] if job.run.save_only_model else [p for p in parameters if p.trainable]
    masters = FLOAT32_BYTES * sum(p.elements for p in trained) // ranks
    return Saving(host_bytes=max(sum(map(_held_bytes, held)), masters), card_bytes=0)


def _held_bytes(p: Parameter) -> int:
    """Of packed weights without their scales."""
    return -(-p.elements // 2) if p.dtype in FOUR_BIT else p.elements * WIDTHS[p.dtype]


def zero_resuming(job: Job, parameters: Sequence[Parameter], ranks: int) -> Resuming:
    """Every rank reads its own part, and under ZeRO 1 and 2 all of the weights, into memory of its own."""
    if job.run.save_only_model:
        return Resuming(host_bytes=0, host_mapped_bytes=0, card_bytes=0, card_lasting_bytes=0)
    return Resuming(
        host_bytes=partitioned_bytes(job, parameters) // ranks + again_bytes(job, parameters),
        host_mapped_bytes=0,
        card_bytes=0,
        card_lasting_bytes=0,
    )
