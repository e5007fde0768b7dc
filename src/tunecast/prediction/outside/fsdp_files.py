"""Files and host memory of a run under accelerate's FSDP 2, as the Trainer asks for them.

    FULL_STATE_DICT      model.safetensors                     the first rank gathers all weights and writes them
                         pytorch_model_fsdp.bin                the same once more, of adapters both times those alone
                         optimizer.bin                         all of the state, gathered on the first rank's host
    SHARDED_STATE_DICT   pytorch_model_fsdp_0/__0_0.distcp ... a file a rank, its parts one by one
                         optimizer_0/__0_0.distcp ...          the same of the state; no model.safetensors

`save_only_model` leaves the first file alone; the Trainer refuses it with SHARDED_STATE_DICT.

Loading  Every rank loads the whole model into its own memory and casts there what trains; its part goes to the card.
         `cpu_ram_efficient_loading` saves nothing of that: from_pretrained loads on every rank all the same and then,
         on ranks but the first of a machine, fills weights with zeros (transformers 5.6; before, with memory nobody
         has touched), which accelerate casts as it does the first rank's (`fsdp2_prepare_model`). Only where the script
         makes the model of untouched memory on these ranks, in the dtype it is cast to (`parallel.load_on_rank_0`,
         docs/host_memory.md), do they hold nothing: the first one's weights are sent to them, one by one. Not on the
         meta device: accelerate knows an optimizer's weights by address, and there all have the same. Quantised
         weights are left out of all this.
Source   transformers 5.17.0 (trainer.py: `save_model`, `_save_optimizer_and_scheduler`; training_args.py;
         modeling_utils.py: `_load_pretrained_model`, `_move_missing_keys_from_meta_to_device`), accelerate 1.15.0
         (fsdp_utils.py), torch 2.13 (`get_optimizer_state_dict`, checkpoint/filesystem.py).
Checked  runs of a small Llama, two ranks on CPUs: files to the byte or to names and shapes
         (benchmarks/data/sharded_checkpoints.jsonl), host memory of 436 million weights within 10 %
         (benchmarks/data/sharded_loading.jsonl).
Ignored  what sending the first rank's weights takes: a second for 70 billion on NVLink.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.prediction.outside.checkpoint import (
    Parameter,
    optimizer_states,
    saved_parameters,
    weights_bytes,
)
from tunecast.prediction.outside.saving import Resuming, Saving
from tunecast.records import replace
from tunecast.tape.build.eras import era_of
from tunecast.tape.build.optimizers import State

FLOAT32_BYTES = 4
PART_BYTES = 1_600
"""Around each tensor's part in a .distcp file, a torch.save of its own: 1,585 to 1,612 bytes in 30 to 60 of them."""
COPIED_AHEAD_BYTES = 10_000_000
"""torch/distributed/checkpoint/filesystem.py, `per_thread_copy_ahead`: on the host before it is written."""


def is_by_fsdp(job: Job) -> bool:
    return sharding_of(job).is_fsdp


def is_fully_sharded(job: Job) -> bool:
    """By accelerate's FSDP 2; what packed weights become there is another matter."""
    return is_by_fsdp(job) and job.parallel.fsdp_version != 1 and job.quantization.format is None


def writes_parts(job: Job) -> bool:
    """Every rank writes and reads its own."""
    return is_by_fsdp(job) and job.parallel.state_dict_type == "sharded"


def as_sharded(job: Job, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """What trains becomes float32 where there is mixed precision (accelerate 1.15, `fsdp2_prepare_model`)."""
    wide = job.autocast is not None
    return tuple(p._replace(dtype="float32") if wide and p.trainable else p for p in parameters)


def fsdp_loading_bytes(loads_bytes: int, loaded: Sequence[Parameter], parameters: Sequence[Parameter]) -> int:
    """Host memory of the first rank; without `cpu_ram_efficient_loading` of every one. `loads_bytes` is what
    from_pretrained takes."""
    return loads_bytes + _cast_bytes(loaded, parameters)


def others_loading_bytes(
    job: Job, loads_bytes: int, loaded: Sequence[Parameter], parameters: Sequence[Parameter]
) -> int:
    """Host memory of each rank but the first."""
    if job.parallel.load_on_rank_0:
        return 0
    if not job.parallel.cpu_ram_efficient_loading:
        return loads_bytes + _cast_bytes(loaded, parameters)
    if not era_of(job).zeroes_other_ranks:
        return max(loads_bytes, _cast_bytes(loaded, parameters))
    zeros = weights_bytes([p for p in loaded if not p.is_adapter])
    return max(loads_bytes + zeros, weights_bytes(parameters))


def _cast_bytes(loaded: Sequence[Parameter], parameters: Sequence[Parameter]) -> int:
    return sum(FLOAT32_BYTES * p.elements for p, q in zip(loaded, parameters, strict=True) if p.dtype != q.dtype)


def fsdp_saving(job: Job, of: Saving, parameters: Sequence[Parameter], states: Sequence[State], ranks: int) -> Saving:
    """Of the first rank: all weights, frozen ones too, then all of the state. Where parts are written, of every rank:
    the largest of them and what is copied ahead."""
    if writes_parts(job):
        return replace(of, host_bytes=_largest_part_bytes(parameters, states, ranks) + COPIED_AHEAD_BYTES)
    return replace(of, host_bytes=max(of.host_bytes, weights_bytes(parameters), sum(s.nbytes for s in states)))


def fsdp_resuming(
    job: Job, of: Resuming, parameters: Sequence[Parameter], states: Sequence[State], ranks: int
) -> Resuming:
    """Parts are read one by one; else the first rank reads a whole file."""
    if not writes_parts(job):
        return of
    return replace(of, host_bytes=_largest_part_bytes(parameters, states, ranks), host_mapped_bytes=0)


def _largest_part_bytes(parameters: Sequence[Parameter], states: Sequence[State], ranks: int) -> int:
    weights = max((weights_bytes([p]) for p in saved_parameters(parameters)), default=0)
    return -(-max([weights, *(s.nbytes for s in states)]) // ranks)


def parts_bytes(nbytes: int, tensors: int, ranks: int) -> int:
    """Of .distcp files together; what a tensor has no row of on a rank is not written, but that is left out here."""
    return nbytes + tensors * ranks * PART_BYTES


def fsdp_disk_bytes(job: Job, parameters: Sequence[Parameter], optimizer_bytes: int, ranks: int) -> tuple[int, int]:
    """Of the weights where they are in parts (0: they are not), and of everything else; `optimizer_bytes` is that of a
    whole file."""
    saved = saved_parameters(parameters)
    if not writes_parts(job):
        return 0, 0 if job.run.save_only_model else optimizer_bytes + weights_bytes(saved)
    states = optimizer_states(job.optimizer, parameters)
    held = [state for state in states if state.nbytes > FLOAT32_BYTES]
    counts = len(states) - len(held)
    return (
        parts_bytes(weights_bytes(saved), len(saved), ranks),
        parts_bytes(sum(state.nbytes for state in held), len(held), ranks) + counts * (PART_BYTES + FLOAT32_BYTES),
    )
