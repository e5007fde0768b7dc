"""What a run needs outside its training step: to load, to save, to evaluate, to resume; and the disk for it.

    loading     file ─mmap─► host page ─(cast)─► card ─(quantise)─► card     one thread, or four
    saving      card ─► host, a whole file's tensors at once ─► disk; then the optimizer, tensor by tensor
    evaluation  the forward pass without saved activations; the logits, three times over
    resuming    optimizer.pt ─► host, whole ─► card

Pure arithmetic on the model's tensors; nothing is read or imported. Host figures are what comes on top of the process
itself (`HOST_PROCESS_BYTES`), in two kinds: memory of its own, and pages of a mapped file, which Linux takes back when
it needs them but which count as resident (and against a container's limit) until then.
Source   transformers 5.17.0, PEFT 0.21.0, accelerate 1.15.0, safetensors 0.8.0, torch 2.11.0, bitsandbytes 0.50.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tunecast.errors import Unsupported
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.job import Data, Hardware, Job, Run
from tunecast.job.model import ModelConfig
from tunecast.predict.allocator import AllocatorSettings, rounded_bytes
from tunecast.predict.checkpoint import (
    FOUR_BIT,
    QUANTIZED,
    SMALL_FILES_BYTES,
    SMALL_FILES_OF_MODEL_BYTES,
    STATES,
    WIDTHS,
    Parameter,
    State,
    optimizer_file_bytes,
    optimizer_states,
    safetensors_bytes,
    saved_parameters,
)
from tunecast.predict.evaluation import Evaluation, evaluation
from tunecast.predict.fsdp_files import (
    as_sharded,
    fsdp_disk_bytes,
    fsdp_loading,
    fsdp_resuming,
    fsdp_saving,
    is_by_fsdp,
    is_fully_sharded,
    others_loading_bytes,
    writes_parts,
)
from tunecast.predict.host_memory import (
    Ranks,
    assumption,
    drives_assumption,
    machine_bytes,
    machine_nvme_bytes,
    sharing_ranks,
)
from tunecast.predict.loading import Loading, loading
from tunecast.predict.paper import tensors_of_job, tensors_on_paper
from tunecast.predict.prediction import ALLOCATOR_OF_STACK, Memory, Prediction
from tunecast.predict.saving import Disk, Resuming, Saving, disk_of, optimizer_steps, resuming, saves_of, saving
from tunecast.predict.zero_files import (
    again_bytes,
    as_zero,
    is_by_zero,
    partitioned_bytes,
    zero_resuming,
    zero_saving,
)
from tunecast.records import dataclass, replace
from tunecast.tape.build.fill_in import fill_in_of

__all__ = ["Outside", "machine_ram_bytes", "outside", "outside_of", "tensors_on_paper"]

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


@dataclass(frozen=True)
class Outside:
    loading: Loading
    saving: Saving
    disk: Disk
    evaluation: Evaluation
    resuming: Resuming
    process_bytes: int = HOST_PROCESS_BYTES
    """Resident before any weight."""
    training_process_bytes: int = HOST_TRAINING_BYTES
    """Resident while training."""
    machine_bytes: int | None = None
    """Of the host's memory, for all ranks of a machine together; where that was asked."""
    nvme_bytes: int = 0
    """On a machine's drives while it trains."""
    in_parts: bool = False
    """A card holds part of the model: what loading, evaluating and resuming take of it is not known, and not told."""
    assumptions: tuple[str, ...] = ()

    @property
    def host_bytes(self) -> int:
        """The most a process needs of the host's memory, of several the first: what no other use of the machine can
        take back."""
        before = self.process_bytes + max(self.loading.host_bytes, self.resuming.host_bytes)
        return max(before, self.training_process_bytes + self.saving.host_bytes)

    @property
    def host_resident_bytes(self) -> int:
        """The same with the pages of mapped files, as `top` and a container's limit count them."""
        loaded = self.loading.host_bytes + self.loading.host_mapped_bytes
        before = self.process_bytes + max(loaded, self.resuming.host_mapped_bytes, self.resuming.host_bytes)
        return max(before, self.training_process_bytes + self.saving.host_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; what is not known is None."""
        space = self.disk
        return {
            "machine_ram_bytes": self.machine_bytes,
            "host_bytes": self.host_bytes,
            "host_resident_bytes": self.host_resident_bytes,
            "process_bytes": self.process_bytes,
            "training_process_bytes": self.training_process_bytes,
            "loading": self._told(self.loading),
            "saving": self._told(self.saving),
            "evaluation": None if self.in_parts else dict(vars(self.evaluation)),
            "resuming": self._told(self.resuming),
            "disk": vars(space) | {"checkpoint_bytes": space.checkpoint_bytes, "peak_bytes": space.peak_bytes},
        }

    def _told(self, of: Loading | Saving | Resuming) -> dict[str, Any]:
        unknown = ("card_", "model_") if self.in_parts else ()
        return {name: None if name.startswith(unknown) else value for name, value in vars(of).items()}


def outside_of(job: Job, model: ModelConfig, prediction: Prediction | None = None) -> Outside:
    """Everything around a job's step, its tensors read off the closed form. Raises Unsupported where that has none.

    Ignored  the towers of a multimodal model, which the closed form does not build; a checkpoint that is stored
             quantised. What a job has no field for follows the Trainer's defaults. Of a card that holds part of a
             model (`in_parts`) only files and host memory are known.
    """
    job = fill_in_of(job, model)
    if job.stack in OTHER_FILES:
        raise Unsupported(f"stack: what {job.stack} loads and saves is not written down", field="stack")
    if prediction is not None and is_by_fsdp(job) and not is_fully_sharded(job):
        told = "what FSDP 1, or FSDP of packed weights, loads and saves is not written down"
        raise Unsupported(f"parallel: {told}", field="parallel")
    card = gpu_named(job.hardware.gpu)
    expandable = ALLOCATOR_OF_STACK.get(job.stack, job.allocator) == "expandable_segments"
    settings = AllocatorSettings(expandable_segments=expandable, device_total_bytes=card.memory_bytes)
    parameters, files = _files_of_job(job, model, settings)
    around = _around(
        job,
        parameters,
        files,
        None if prediction is None else prediction.memory,
        settings=settings,
        capability=card.compute_capability,
    )
    return replace(
        around,
        machine_bytes=machine_bytes(job, parameters, _ranks_of(job, files)),
        nvme_bytes=machine_nvme_bytes(job, parameters),
        in_parts=is_cut(job),
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
    if job.stack in OTHER_FILES:
        return None
    try:
        parameters, files = _files_of_job(job, model, AllocatorSettings())
    except Unsupported:
        return None
    return machine_bytes(job, parameters, _ranks_of(job, files))


def _ranks_of(job: Job, files: Files) -> Ranks:
    needed = (files.loading.host_bytes, files.saving.host_bytes, files.resuming.host_bytes)
    return Ranks(_process_bytes(job), HOST_TRAINING_BYTES, *needed, files.others_loading_bytes)


def _files_of_job(job: Job, model: ModelConfig, settings: AllocatorSettings) -> tuple[tuple[Parameter, ...], Files]:
    """What the job loads and saves, as its ranks share that; and the parameters that train."""
    sharded = is_fully_sharded(job)
    tensors = tensors_of_job(job, model)
    parameters = as_sharded(job, tensors.parameters) if sharded else tensors.parameters
    files = _files(
        parameters,
        tensors.buffers,
        job.optimizer,
        job.weights_dtype,
        # Checkpoints whose configuration is silent are older than that entry, and were written in float32.
        model.dtype if model.dtype is not None and model.dtype in WIDTHS else "float32",
        job.parallel.data in ("ddp", "zero3"),
        job.quantization.double_quant,
        model.model_type not in EXPERTS_IN_ONE_TENSOR,
        not job.run.save_only_model,
        settings,
    )
    if sharded:
        files = _fully_sharded(job, files, tensors.parameters, parameters)
    elif is_by_zero(job):
        files = _by_zero(job, files, as_zero(job, parameters))
    return parameters, files


def _fully_sharded(job: Job, files: Files, loaded: Sequence[Parameter], parameters: Sequence[Parameter]) -> Files:
    """As fsdp_files.py has it: all but what is on the card."""
    ranks, states = sharing_ranks(job), () if job.run.save_only_model else files.states
    weights, others = fsdp_disk_bytes(job, parameters, files.optimizer_bytes, ranks)
    return files._replace(
        loading=fsdp_loading(files.loading, loaded, parameters),
        others_loading_bytes=others_loading_bytes(job, files.loading, loaded, parameters),
        saving=fsdp_saving(job, files.saving, parameters, states, ranks),
        resuming=fsdp_resuming(job, files.resuming, parameters, states, ranks),
        weights_bytes=weights or files.weights_bytes,
        optimizer_bytes=others,
        writers=ranks if writes_parts(job) else 1,
    )


_saved_bytes = lru_cache(maxsize=32)(lambda parameters: safetensors_bytes(saved_parameters(parameters)))


def _by_zero(job: Job, files: Files, parameters: tuple[Parameter, ...]) -> Files:
    """Files and host memory as DeepSpeed has them."""
    ranks = sharing_ranks(job)
    more = 0 if job.run.save_only_model else partitioned_bytes(job, parameters) + again_bytes(job, parameters)
    return files._replace(
        saving=zero_saving(job, parameters, ranks),
        resuming=zero_resuming(job, parameters, ranks),
        weights_bytes=_saved_bytes(parameters),
        optimizer_bytes=more,
    )


def is_cut(job: Job) -> bool:
    """Whether a card holds part of the model: files are the same, what is on the card is not."""
    parts = job.parallel
    return parts.data != "ddp" or (parts.layers, parts.tensor, parts.pipeline, parts.expert) != (1, 1, 1, 1)


OTHER_FILES = frozenset(
    {"litgpt", "torchtune", "torchtitan", "megatron", "nemo", "automodel", "llm-foundry", "fsdp_qlora"}
)
"""Stacks with checkpoints of their own; the others load and save as transformers does."""
EXPERTS_IN_ONE_TENSOR = frozenset({"gpt_oss", "llama4_text", "llama4"})
"""Architectures whose checkpoints hold a layer's experts as transformers does (conversion_mapping.py has no merge)."""


def outside(
    job: Job,
    parameters: Sequence[Parameter],
    memory: Memory | None = None,
    *,
    file_dtype: str = "bfloat16",
    device_map: bool = True,
    merged_experts: bool = True,
    buffers: Sequence[int] = (),
    settings: AllocatorSettings | None = None,
    capability: tuple[int, int] = (9, 0),
    eval_batch: int | None = None,
    save_steps: int | None = None,
    save_total_limit: int | None = None,
    keeps_best: bool = False,
    steps: int | None = None,
) -> Outside:
    """Everything around the step. `parameters` are those of the model that trains, `memory` the step's prediction.

    What is not given is the job's own (`run`). `merged_experts`: the checkpoint holds each expert
    apart and transformers merges them (Mixtral, Qwen MoE, DeepSeek; not gpt-oss, nor Llama 4).
    """
    settings = settings or AllocatorSettings(expandable_segments=job.allocator == "expandable_segments")
    files = _files(
        tuple(parameters),
        tuple(buffers),
        job.optimizer,
        job.weights_dtype,
        file_dtype,
        device_map,
        job.quantization.double_quant,
        merged_experts,
        not job.run.save_only_model,
        settings,
    )
    return _around(
        job,
        parameters,
        files,
        memory,
        settings=settings,
        capability=capability,
        eval_batch=eval_batch,
        save_steps=save_steps,
        save_total_limit=save_total_limit,
        keeps_best=keeps_best,
        steps=steps,
    )


def _around(
    job: Job,
    parameters: Sequence[Parameter],
    files: Files,
    memory: Memory | None,
    *,
    settings: AllocatorSettings,
    capability: tuple[int, int],
    eval_batch: int | None = None,
    save_steps: int | None = None,
    save_total_limit: int | None = None,
    keeps_best: bool = False,
    steps: int | None = None,
) -> Outside:
    return Outside(
        loading=files.loading,
        saving=files.saving,
        disk=disk_of(
            files.weights_bytes,
            files.optimizer_bytes,
            steps=optimizer_steps(job) if steps is None else steps,
            saves=None if save_steps is not None or steps is not None else saves_of(job),
            save_steps=save_steps or job.run.save_steps,
            save_total_limit=save_total_limit or job.run.save_total_limit,
            keeps_best=keeps_best,
            small_bytes=SMALL_FILES_OF_MODEL_BYTES if job.run.save_only_model else SMALL_FILES_BYTES,
            writers=files.writers,
        ),
        evaluation=evaluation(
            job,
            parameters,
            files.states,
            memory,
            model_bytes=files.model_bytes if memory is None else memory.model_bytes,
            batch=eval_batch or job.run.eval_batch,
            expandable=settings.expandable_segments,
            capability=capability,
        ),
        resuming=files.resuming,
        process_bytes=_process_bytes(job),
    )


def _process_bytes(job: Job) -> int:
    return HOST_PROCESS_BYTES + (HOST_BITSANDBYTES_BYTES if uses_bitsandbytes(job) else 0)


class Files(NamedTuple):
    """What follows from the tensors alone, whatever is done with them."""

    states: tuple[State, ...]
    loading: Loading
    saving: Saving
    resuming: Resuming
    weights_bytes: int
    optimizer_bytes: int
    model_bytes: int
    """As loaded, with what the loader's blocks have to spare, and as changed since: adapters, prepare_kbit."""
    others_loading_bytes: int | None = None
    """Of the host, for each rank but the first; None: the same."""
    writers: int = 1


@lru_cache(maxsize=32)
def _files(
    parameters: tuple[Parameter, ...],
    buffers: tuple[int, ...],
    optimizer: str,
    dtype: str,
    file_dtype: str,
    device_map: bool,
    double_quant: bool,
    merged_experts: bool,
    saves_optimizer: bool,
    settings: AllocatorSettings,
) -> Files:
    states = tuple(optimizer_states(optimizer, parameters))
    saved = states if saves_optimizer else ()
    base = as_loaded(dtype, parameters)
    loads = loading(
        base,
        dtype,
        file_dtype=file_dtype,
        device_map=device_map,
        double_quant=double_quant,
        merged_experts=merged_experts,
        buffers=buffers,
        settings=settings,
    )
    return Files(
        states,
        loads,
        saving(parameters, saved, merged_experts=merged_experts, double_quant=double_quant),
        resuming(optimizer if saves_optimizer else None, parameters, saved, double_quant=double_quant),
        safetensors_bytes(saved_parameters(parameters)),
        optimizer_file_bytes(saved) if saves_optimizer else 0,
        loads.model_bytes + held_bytes(parameters, double_quant) - held_bytes(base, double_quant),
    )


def uses_bitsandbytes(job: Job) -> bool:
    kept = STATES.get(job.optimizer)
    return job.quantization.format is not None or (kept is not None and kept.width_bytes is not None)


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
