"""Files and host memory of a run whose ranks hold parts of the model: accelerate's FSDP 2, then DeepSpeed's ZeRO.

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

ZeRO, as the Trainer has its files written:

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
    safetensors_bytes,
    saved_parameters,
    weights_bytes,
)
from tunecast.prediction.outside.saving import Files, Resuming, Saving
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
    wide = is_fully_sharded(job) and job.autocast is not None
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
    if not era_of(job.transformers_version).zeroes_other_ranks:
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


def shared_files(
    job: Job, files: Files, loaded: Sequence[Parameter], parameters: Sequence[Parameter], ranks: int
) -> Files:
    """What a job loads and saves, as `ranks` that hold one model between them share that."""
    if is_fully_sharded(job):
        return _fully_sharded(job, files, loaded, parameters, ranks)
    return _by_zero(job, files, as_zero(job, parameters), ranks) if sharding_of(job).is_zero else files


def _fully_sharded(
    job: Job, files: Files, loaded: Sequence[Parameter], parameters: Sequence[Parameter], ranks: int
) -> Files:
    """All but what is on the card."""
    states = () if job.run.save_only_model else files.states
    weights, others = fsdp_disk_bytes(job, parameters, files.optimizer_bytes, ranks)
    return files._replace(
        loading_bytes=fsdp_loading_bytes(files.loading_bytes, loaded, parameters),
        others_loading_bytes=others_loading_bytes(job, files.loading_bytes, loaded, parameters),
        saving=fsdp_saving(job, files.saving, parameters, states, ranks),
        resuming=fsdp_resuming(job, files.resuming, parameters, states, ranks),
        weights_bytes=weights or files.weights_bytes,
        optimizer_bytes=others,
        writers=ranks if writes_parts(job) else 1,
    )


def _by_zero(job: Job, files: Files, parameters: tuple[Parameter, ...], ranks: int) -> Files:
    """Files and host memory as DeepSpeed has them."""
    more = 0 if job.run.save_only_model else partitioned_bytes(job, parameters) + again_bytes(job, parameters)
    return files._replace(
        saving=zero_saving(job, parameters, ranks),
        resuming=zero_resuming(job, parameters, ranks),
        weights_bytes=_saved_bytes(parameters),
        optimizer_bytes=more,
    )


_saved_bytes = lru_cache(maxsize=32)(lambda parameters: safetensors_bytes(saved_parameters(parameters)))
