"""The host's memory of one machine: that of all its ranks together.

A rank is a process. What each has of its own is there as often as a machine has cards; what only the first rank has is
there once; what ranks have a share of adds up to the machine's share of the whole.

                 loading                        saving              resuming
    DDP          each, as one card does         the first, whole    each reads all of optimizer.pt
    FSDP         each the whole model (or the   the first, whole    the first reads all of optimizer.bin
                 first, `load_on_rank_0`)       (or each a part)    (or each a part)
    ZeRO 1, 2    each the whole model           the first, whole    each its share of masters and state
    ZeRO 3       pages of the file alone        the first, whole    each its share of masters and state

Source   transformers 5.17.0: `_load_optimizer_and_scheduler` (map_location cpu on every rank), training_args.py
         (sharded_files.py has FSDP's), `_load_state_dict_into_zero3_model` (weights made in parts on the cards,
         filled from the mapped file); accelerate 1.15.0: `load_fsdp_optimizer`, `save_fsdp_model` (rank 0 alone);
         DeepSpeed: engine.py `_zero3_consolidated_16bit_state_dict`, stage3.py `_create_fp32_partitions`,
         `grad_partitions_flat_buffer`. Its own `estimate_zero3_model_states_mem_needs` has 16 bytes a weight for an
         optimizer on the host and 18 with the weights, times 1.5 for what it does not know. On drives (ZeRO-Infinity):
         `SwapBufferManager`, `AsyncPartitionedParameterSwapper`, `reserve_partitioned_swap_space`, which takes whole
         parameters for their parts; sizes in tape/build/sharding/zero.py.
Ignored  pinned memory in powers of two (torch's CachingHostAllocator); buffers of copies under way; what a data set
         keeps; activations that wait on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.hardware.cluster import mesh_of
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.prediction.outside.checkpoint import QUANTIZED, WIDTHS, Parameter, optimizer_states, weights_bytes
from tunecast.prediction.outside.sharded_files import is_by_fsdp, partitioned_bytes, writes_parts
from tunecast.prediction.price.offload import NVME_READ_BYTES_PER_S, NVME_WRITE_BYTES_PER_S
from tunecast.records import NamedTuple
from tunecast.tape.build.sharding.zero_sizes import (
    OPTIMIZER_BUFFERS,
    PARAMETER_BUFFER_SIZE,
    PARAMETER_BUFFERS,
    kept_in_memory,
    settings_of,
    sub_groups,
)
from tunecast.units import GB, gib

FLOAT32_BYTES = 4
EFFICIENT = (
    "cpu_ram_efficient_loading saves none: from_pretrained loads the whole model on every rank and then fills it with "
    "zeros on all but the first of a machine. To fix: parallel.load_on_rank_0"
)
QUANTIZED_ON_ALL = "cpu_ram_efficient_loading leaves quantised weights alone: every rank loads them"
ON_RANK_0 = (
    "rank 0 alone loads the model; the script makes it of untouched memory on the others, which are sent their shards "
    "(cpu_ram_efficient_loading)"
)
ON_DRIVES = (
    "NVMe: {drives} on the drives of a machine ({what}); in its memory, buffers of {buffers} "
    "(DeepSpeed's buffer_count; buffer_size as large as the largest weight's part needs); {rate}"
)
ONE_DRIVE = "read at {:g} and written at {:g} GB/s, as one drive of PCIe 4 (hardware.nvme_bytes_per_s)"
OFFLOADED = "; plus the machine's share of what is offloaded: {}"


class RankMemory(NamedTuple):
    """What one process needs, as on a card of its own."""

    process_bytes: int
    training_bytes: int
    loading_bytes: int
    saving_bytes: int
    resuming_bytes: int
    others_loading_bytes: int | None = None
    """Of each rank but the first; None: the same."""


def machine_bytes(job: Job, parameters: Sequence[Parameter], one: RankMemory) -> int:
    """The most the ranks of one machine need of its memory at once; of the machine with the first rank."""
    sharding, each = sharding_of(job), processes(job)
    share = job.hardware.gpus / sharing_ranks(job)
    waits = round(share * sum(waiting_bytes(job, parameters).values())) + each * buffers_bytes(job, parameters)
    others = one.loading_bytes if one.others_loading_bytes is None else one.others_loading_bytes
    loads = 0 if sharding.is_zero and sharding.cuts_weights else one.loading_bytes + (each - 1) * others
    resumes, writers = each * one.resuming_bytes, each if writes_parts(job) else 1
    if is_by_fsdp(job):
        resumes = one.resuming_bytes * writers
    elif job.run.save_only_model or is_on_drives(job):
        resumes = 0
    elif sharding.is_zero:
        resumes = round(share * partitioned_bytes(job, parameters))
    before = each * one.process_bytes + max(loads, waits + resumes)
    return max(before, each * one.training_bytes + waits + writers * one.saving_bytes)


def processes(job: Job) -> int:
    """Of one machine: a card each, but for layers on several cards (`device_map`), which one process runs."""
    return max(1, job.hardware.gpus // job.parallel.layers)


def sharing_ranks(job: Job) -> int:
    """Ranks that hold one model between them: all but those that replicate others."""
    ranks = job.hardware.cards
    return ranks // dict(mesh_of(job)).get("replicate", 1)


def waiting_bytes(job: Job, parameters: Sequence[Parameter]) -> dict[str, int]:
    """What of one model waits in host memory while it trains, by name."""
    offload, sharding = job.parallel.offload, sharding_of(job)
    if offload == "none":
        return {}
    trained = _trained(parameters)
    frozen = [p for p in parameters if not p.trainable]
    if sharding.is_fsdp:  # CPUOffload: shards, their gradients and the state, in the dtype they have
        weights = weights_bytes(trained)
        held = {"weights": weights + _held_bytes(frozen), "gradients": weights}
        return held | {"optimizer state": sum(state.nbytes for state in optimizer_states(job.optimizer, trained))}
    numel = _elements(trained)
    narrow = WIDTHS[job.autocast or job.weights_dtype]
    if is_on_drives(job):
        stays = numel - _swapped_elements(job, parameters)[0] if offload == "parameters" else 0
        return {"gradients": narrow * numel} | ({"weights": narrow * stays} if stays else {})
    held = {"masters in float32": FLOAT32_BYTES * numel, "optimizer state": _state_bytes(job, trained)}
    held["gradients"] = (FLOAT32_BYTES + (narrow if sharding.cuts_weights else 0)) * numel
    if offload == "parameters":
        held["weights"] = narrow * (numel + _elements(frozen))
    return held


def is_on_drives(job: Job) -> bool:
    return job.parallel.offload_device == "nvme"


def nvme_bytes(job: Job, parameters: Sequence[Parameter]) -> dict[str, int]:
    """What of one model lies on drives, by name; parts too small for a file of their own are counted too."""
    if not is_on_drives(job):
        return {}
    trained = _trained(parameters)
    whole = FLOAT32_BYTES * _elements(trained)
    held = {"masters in float32": whole, "optimizer state": _state_bytes(job, trained), "gradients": whole}
    if job.parallel.offload == "parameters":
        held["weights"] = WIDTHS[job.autocast or job.weights_dtype] * sum(_swapped_elements(job, parameters))
    return {name: nbytes for name, nbytes in held.items() if nbytes}


def machine_nvme_bytes(job: Job, parameters: Sequence[Parameter]) -> int:
    return round(job.hardware.gpus / sharing_ranks(job) * sum(nvme_bytes(job, parameters).values()))


def buffers_bytes(job: Job, parameters: Sequence[Parameter]) -> int:
    """Of one rank, in pinned memory, through which everything goes to drives and comes back."""
    if not is_on_drives(job):
        return 0
    ranks, narrow = sharing_ranks(job), WIDTHS[job.autocast or job.weights_dtype]
    parts, size = _parts(_trained(parameters), ranks), settings_of(job, 3, 0).sub_group_size
    largest = max(map(sum, sub_groups(parts, size)), default=0)
    held = OPTIMIZER_BUFFERS * FLOAT32_BYTES * largest
    if job.parallel.offload == "parameters":
        held += PARAMETER_BUFFERS * narrow * max(PARAMETER_BUFFER_SIZE, *_parts(parameters, ranks))
        if not all(kept_in_memory(parts, size)):
            held += narrow * ranks * largest
    return held


def _swapped_elements(job: Job, parameters: Sequence[Parameter]) -> tuple[int, int]:
    """Weights that wait on drives, of all ranks: trained and frozen ones."""
    trained, size = _trained(parameters), settings_of(job, 3, 0).sub_group_size
    kept = kept_in_memory(_parts(trained, sharing_ranks(job)), size)
    swapped = [p for p, stays in zip(trained, kept, strict=True) if not stays]
    return _elements(swapped), _elements([p for p in parameters if not p.trainable])


def _parts(parameters: Sequence[Parameter], ranks: int) -> list[int]:
    return [-(-p.elements // ranks) for p in parameters]


def drives_assumption(job: Job, parameters: Sequence[Parameter]) -> str | None:
    if not is_on_drives(job):
        return None
    what = ", ".join(nvme_bytes(job, parameters))
    drives, buffers = machine_nvme_bytes(job, parameters), processes(job) * buffers_bytes(job, parameters)
    given = job.hardware.nvme_bytes_per_s
    rate = ONE_DRIVE.format(NVME_READ_BYTES_PER_S / GB, NVME_WRITE_BYTES_PER_S / GB)
    rate = rate if given is None else f"read and written at {given / GB:g} GB/s"
    return ON_DRIVES.format(drives=gib(drives), what=what, buffers=gib(buffers), rate=rate)


def assumption(job: Job, parameters: Sequence[Parameter]) -> str | None:
    """What was taken for granted of a machine with several ranks."""
    if processes(job) * job.hardware.nodes == 1:
        return None
    sharding = sharding_of(job)
    how = sharding.host_memory
    if sharding.is_fsdp and job.parallel.cpu_ram_efficient_loading:
        by_flag = ON_RANK_0 if job.parallel.load_on_rank_0 else EFFICIENT
        how = by_flag if job.quantization.format is None else QUANTIZED_ON_ALL
    waits = waiting_bytes(job, parameters)
    return f"host memory: {how}" + (OFFLOADED.format(", ".join(waits)) if waits else "")


def _trained(parameters: Sequence[Parameter]) -> list[Parameter]:
    return [p for p in parameters if p.trainable]


def _elements(parameters: Sequence[Parameter]) -> int:
    return sum(p.elements for p in parameters)


def _state_bytes(job: Job, trained: Sequence[Parameter]) -> int:
    """Of an optimizer that steps on masters in float32."""
    return sum(
        state.nbytes for state in optimizer_states(job.optimizer, [p._replace(dtype="float32") for p in trained])
    )


def _held_bytes(parameters: Sequence[Parameter]) -> int:
    """Packed weights are a byte an element at most."""
    return sum(p.elements * (1 if p.dtype in QUANTIZED else WIDTHS[p.dtype]) for p in parameters)
