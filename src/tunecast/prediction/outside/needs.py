"""What a run needs outside its training step: to load, to save, to evaluate, to resume; and the disk for it.

    loading     file ─mmap─► host page ─(cast)─► card ─(quantise)─► card     one thread, or four
    saving      card ─► host, a whole file's tensors at once ─► disk; then the optimizer, tensor by tensor
    evaluation  a batch of its own tape behind the run's last step
    resuming    optimizer.pt ─► host, whole ─► card

What is on the card is read off tapes, files and host memory follow from the model's tensors. Host figures are what
comes on top of the process itself (`HOST_PROCESS_BYTES`), in two kinds: memory of its own, and pages of a mapped file,
which Linux takes back when it needs them but which count as resident (and against a container's limit) until then.
Source   transformers 5.17.0, PEFT 0.21.0, accelerate 1.15.0, safetensors 0.8.0, torch 2.11.0, bitsandbytes 0.50.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeVar

from tunecast.errors import Unsupported, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.job import Data, Hardware, Job, Run
from tunecast.job.model import ModelConfig
from tunecast.job.names import BITSANDBYTES
from tunecast.job.shardings import is_spread, sharding_of
from tunecast.job.stacks import stack_of
from tunecast.prediction.memory.allocator import AllocatorSettings, rounded_bytes
from tunecast.prediction.on_card import OnCard
from tunecast.prediction.outside.checkpoint import (
    FOUR_BIT,
    QUANTIZED,
    SMALL_FILES_BYTES,
    SMALL_FILES_OF_MODEL_BYTES,
    WIDTHS,
    Parameter,
    optimizer_file_bytes,
    optimizer_states,
    safetensors_bytes,
    saved_parameters,
)
from tunecast.prediction.outside.evaluation import Evaluation, evaluation
from tunecast.prediction.outside.further import NO_FURTHER_FILES, FurtherFiles, further_files
from tunecast.prediction.outside.host_memory import (
    RankMemory,
    assumption,
    drives_assumption,
    machine_bytes,
    machine_nvme_bytes,
    sharing_ranks,
)
from tunecast.prediction.outside.loading import Loading, Stored, host_bytes, loading
from tunecast.prediction.outside.paper import tensors_of_job, tensors_on_paper
from tunecast.prediction.outside.saving import (
    Disk,
    Files,
    Resuming,
    Saving,
    disk_of,
    resuming,
    saves_of,
    saving,
)
from tunecast.prediction.outside.sharded_files import as_sharded, is_by_fsdp, is_fully_sharded, shared_files
from tunecast.records import dataclass, replace
from tunecast.result import Result
from tunecast.tape.build.checkpoint import EXPERTS_IN_ONE_TENSOR
from tunecast.tape.build.fill_in import fill_in_of
from tunecast.tape.build.job_runs import SHARED, Builder
from tunecast.tape.build.optimizers import package_of

__all__ = ["Outside", "machine_ram_bytes", "outside_of", "tensors_on_paper"]

HOST_PROCESS_BYTES = 760_012_800
"""Resident in a process that has imported torch and transformers and made a CUDA context, before any weight: 518 MB of
its own, 234 MB of libraries' pages, 8 MB shared. One H200, torch 2.11.0+cu130, transformers 5.17.0
(benchmarks/data/outside_runs.jsonl, context); 760.0 to 760.5 MB in nine processes, 774 with the Trainer and PEFT."""
HOST_TRAINING_BYTES = 1_548_587_008
"""The same after two steps, with the kernels of cuBLAS, cuDNN and torch that CUDA has loaded (full-1b, before it
saves); 1.54 to 1.57 GB in the three runs that hold nothing else by then, bitsandbytes imported or not."""
HOST_BITSANDBYTES_BYTES = 43_745_280
"""What importing it adds (load-3b-nf4, which imports it while it loads, less qlora-3b-paged, which had before);
43.1 MB on a machine without a card."""


Part = TypeVar("Part", Loading, Saving, Resuming)


@dataclass(frozen=True)
class Outside(Result):
    """Around the training step. Named as the contract's JSON; what is not known is None."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("machine_ram_bytes", "host_bytes", "host_resident_bytes", "process_bytes", "training_process_bytes"),
        *("loading", "saving", "evaluation", "resuming", "disk"),
    )

    loading: Loading
    saving: Saving
    disk: Disk
    evaluate: Callable[[], Evaluation | None]
    """What `evaluation` reads: it depends on the step's own memory, which takes longer than all else here."""
    resuming: Resuming
    process_bytes: int = HOST_PROCESS_BYTES
    """Resident before any weight."""
    training_process_bytes: int = HOST_TRAINING_BYTES
    """Resident while training."""
    machine_ram_bytes: int | None = None
    """Of the host's memory, for all ranks of a machine together; where that was asked."""
    nvme_bytes: int = 0
    """On a machine's drives while it trains."""
    further: FurtherFiles = NO_FURTHER_FILES
    """Checkpoints of a teacher, a reward model or a reference."""
    in_parts: bool = False
    """A card holds part of the model: what loading, evaluating and resuming take of it is not known."""
    is_complete: bool = True
    """Else only the files are known, as far as their time goes."""
    assumptions: tuple[str, ...] = ()

    @cached_property
    def evaluation(self) -> Evaluation | None:
        return None if self.in_parts else self.evaluate()

    @property
    def downloaded_bytes(self) -> int:
        """Checkpoints that the job begins from."""
        return self.loading.host_mapped_bytes + self.further.downloaded_bytes

    @property
    def host_bytes(self) -> int:
        """The most a process needs of the host's memory, of several the first: what no other use of the machine can
        take back."""
        before = self.process_bytes + max(self.loading.host_bytes, self.resuming.host_bytes)
        return max(before, self.training_process_bytes + self.saving.host_bytes)

    @property
    def host_resident_bytes(self) -> int:
        """The same with the pages of mapped files, as `top` and a container's limit count them."""
        loaded = max(self.loading.host_bytes + self.loading.host_mapped_bytes, self.further.largest_bytes)
        before = self.process_bytes + max(loaded, self.resuming.host_mapped_bytes, self.resuming.host_bytes)
        return max(before, self.training_process_bytes + self.saving.host_bytes)

    @cached_property
    def published(self) -> Outside | None:
        """Without what is not known of a card that holds part of the model; None where too little is."""
        if not self.is_complete:
            return None
        if not self.in_parts:
            return self
        loading, saving, resuming = _off_card(self.loading), _off_card(self.saving), _off_card(self.resuming)
        return replace(self, loading=loading, saving=saving, resuming=resuming)


def _off_card(of: Part) -> Part:
    unknown: dict[str, Any] = {name: None for name in vars(of) if name.startswith(("card_", "model_"))}
    return replace(of, **unknown)


def outside_of(
    job: Job, model: ModelConfig, on_card: Callable[[], OnCard] | None = None, builder: Builder = SHARED
) -> Outside:
    """Everything around a job's step, its tensors read off the closed form. Raises Unsupported where that has none.

    `on_card` is the training run, asked for when evaluation is: that comes between its steps.
    Ignored  the towers of a multimodal model, which the closed form does not build; a checkpoint that is stored
             quantised. What a job has no field for follows the Trainer's defaults. Of a card that holds part of a
             model (`in_parts`) only files and host memory are known.
    """
    job = fill_in_of(job, model)
    if not stack_of(job).uses_trainer:
        raise Unsupported(f"stack: what {job.stack} loads and saves is not written down", field="stack")
    parameters, files = _files_of_job(job, model)
    expandable = (stack_of(job).allocator or job.allocator) == "expandable_segments"
    card_bytes = gpu_named(job.hardware.gpu).memory_bytes
    settings = AllocatorSettings(expandable_segments=expandable, device_total_bytes=card_bytes)
    base = as_loaded(job.weights_dtype, tensors_of_job(job, model))
    loads = loading(job, model, base, _stored(job, model), settings)
    return Outside(
        loading=replace(loads, host_bytes=files.loading_bytes),
        saving=files.saving,
        disk=_disk_of(job, files),
        evaluate=lambda: None if on_card is None else evaluation(job, model, on_card(), builder),
        resuming=files.resuming,
        process_bytes=_process_bytes(job),
        machine_ram_bytes=machine_bytes(job, parameters, _ranks_of(job, files)),
        nvme_bytes=machine_nvme_bytes(job, parameters),
        further=further_files(job, model),
        in_parts=is_spread(job),
        # What FSDP 1, or FSDP of packed weights, loads and saves is not written down.
        is_complete=not is_by_fsdp(job) or is_fully_sharded(job),
        assumptions=tuple(filter(None, [assumption(job, parameters), drives_assumption(job, parameters)])),
    )


def machine_ram_bytes(job: Job, model: ModelConfig) -> int | None:
    """Host memory that one machine of a job needs, all its ranks together: `machine_bytes` of `outside_of`, for whoever
    asks of many jobs. None where the files of the job's stack or model are not known."""
    job = fill_in_of(job, model)
    parts, hardware = job.parallel, job.hardware
    asked = replace(
        job,
        id=None,
        micro_batch=1,
        grad_accum=1,
        data=Data(),
        run=Run(save_only_model=job.run.save_only_model),
        hardware=Hardware(gpus=hardware.gpus, nodes=hardware.nodes),
        parallel=replace(parts, sync_each_batch=False, reshard_after_forward=True, reduce_dtype=None),
    )
    return _machine_ram_bytes(asked, model)


@lru_cache(maxsize=4096)
def _machine_ram_bytes(job: Job, model: ModelConfig) -> int | None:
    if not stack_of(job).uses_trainer:
        return None
    try:
        parameters, files = _files_of_job(job, model)
    except (Unsupported, UsageError):
        return None
    return machine_bytes(job, parameters, _ranks_of(job, files))


def _ranks_of(job: Job, files: Files) -> RankMemory:
    needed = (files.loading_bytes, files.saving.host_bytes, files.resuming.host_bytes)
    return RankMemory(_process_bytes(job), HOST_TRAINING_BYTES, *needed, files.others_loading_bytes)


def _stored(job: Job, model: ModelConfig) -> Stored:
    # Checkpoints whose configuration is silent are older than that entry, and were written in float32.
    dtype = model.dtype if model.dtype is not None and model.dtype in WIDTHS else "float32"
    return Stored(dtype, device_map=sharding_of(job).loads_onto_card)


def _files_of_job(job: Job, model: ModelConfig) -> tuple[tuple[Parameter, ...], Files]:
    """What the job loads and saves, as its ranks share that; and the parameters that train."""
    loaded = tensors_of_job(job, model)
    parameters = as_sharded(job, loaded)
    files = files_of(job, parameters, _stored(job, model), model.model_type not in EXPERTS_IN_ONE_TENSOR)
    return parameters, shared_files(job, files, loaded, parameters, sharing_ranks(job))


def _disk_of(job: Job, files: Files) -> Disk:
    return disk_of(
        files.weights_bytes,
        files.optimizer_bytes,
        saves=saves_of(job),
        save_steps=job.run.save_steps,
        save_total_limit=job.run.save_total_limit,
        small_bytes=SMALL_FILES_OF_MODEL_BYTES if job.run.save_only_model else SMALL_FILES_BYTES,
        writers=files.writers,
    )


def _process_bytes(job: Job) -> int:
    return HOST_PROCESS_BYTES + (HOST_BITSANDBYTES_BYTES if uses_bitsandbytes(job) else 0)


def files_of(job: Job, parameters: Sequence[Parameter], stored: Stored, merged_experts: bool = True) -> Files:
    """`merged_experts`: the checkpoint holds each expert apart (Mixtral, Qwen MoE, DeepSeek; not gpt-oss)."""
    double, saves = job.quantization.double_quant, not job.run.save_only_model
    return _files(tuple(parameters), job.optimizer, saves, job.weights_dtype, stored, double, merged_experts)


@lru_cache(maxsize=32)
def _files(
    parameters: tuple[Parameter, ...],
    optimizer: str,
    saves_optimizer: bool,
    dtype: str,
    stored: Stored,
    double_quant: bool,
    merged_experts: bool,
) -> Files:
    states = tuple(optimizer_states(optimizer, parameters))
    saved = states if saves_optimizer else ()
    return Files(
        states,
        host_bytes(as_loaded(dtype, parameters), dtype, stored, double_quant),
        saving(parameters, saved, merged_experts=merged_experts, double_quant=double_quant),
        resuming(optimizer if saves_optimizer else None, parameters, saved, double_quant=double_quant),
        safetensors_bytes(saved_parameters(parameters)),
        optimizer_file_bytes(saved) if saves_optimizer else 0,
    )


def uses_bitsandbytes(job: Job) -> bool:
    return job.quantization.format in BITSANDBYTES or package_of(job.optimizer) == "bitsandbytes"


def as_loaded(dtype: str, parameters: Iterable[Parameter]) -> list[Parameter]:
    """The base model as from_pretrained makes it: no adapters yet, nothing cast by prepare_model_for_kbit_training."""
    return [
        p._replace(
            name=p.name.removeprefix("base_model.model.").replace(".base_layer", ""),
            dtype=p.dtype if p.dtype in QUANTIZED else dtype,
        )
        for p in parameters
        if not p.is_adapter
    ]


def held_bytes(parameters: Iterable[Parameter], double_quant: bool = False) -> int:
    """The model's tensors on the card, packed ones with their scales (`loading` says which)."""

    def tensors(p: Parameter) -> list[int]:
        if p.dtype == "int8":
            return [p.elements, 4 * (p.elements // p.shape[-1])]
        if p.dtype not in FOUR_BIT:
            return [p.elements * WIDTHS[p.dtype]]
        maxima = -(-p.elements // 64)
        scales = [maxima, 4 * -(-maxima // 256), 4 * 256, 4] if double_quant else [4 * maxima]
        return [-(-p.elements // 2), 4 * 16, *scales]

    return sum(rounded_bytes(nbytes) for p in parameters for nbytes in tensors(p))
