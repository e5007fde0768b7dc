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

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tunecast.errors import Unsupported
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.job import Job, Quantization
from tunecast.job.model import ModelConfig
from tunecast.predict.allocator import AllocatorSettings, rounded_bytes
from tunecast.predict.checkpoint import (
    FOUR_BIT,
    QUANTIZED,
    STATES,
    WIDTHS,
    Parameter,
    State,
    optimizer_file_bytes,
    optimizer_states,
    safetensors_bytes,
    saved_parameters,
    weights_bytes,
)
from tunecast.predict.evaluation import Evaluation, evaluation
from tunecast.predict.host_memory import (
    Ranks,
    assumption,
    drives_assumption,
    machine_bytes,
    machine_nvme_bytes,
    sharing_ranks,
)
from tunecast.predict.loading import Loading, loading
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
from tunecast.records import dataclass, fields, replace

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
        """The most the run needs of the host's memory: what no other use of the machine can take back."""
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
    if job.stack in OTHER_FILES:
        raise Unsupported(f"stack: what {job.stack} loads and saves is not written down", field="stack")
    sharded, by_zero = is_fully_sharded(job), is_by_zero(job)
    if prediction is not None and job.parallel.data in ("fsdp", "hsdp") and not sharded:
        told = "what FSDP 1, or FSDP of packed weights, loads and saves is not written down"
        raise Unsupported(f"parallel: {told}", field="parallel")
    card = gpu_named(job.hardware.gpu)
    expandable = ALLOCATOR_OF_STACK.get(job.stack, job.allocator) == "expandable_segments"
    tensors = _known_tensors(_decisive(job), _with_room(model, max(job.lengths or (job.seq_len,))))
    parameters = as_sharded(job, tensors.parameters) if sharded else tensors.parameters
    around = outside(
        job,
        parameters,
        None if prediction is None else prediction.memory,
        # Checkpoints whose configuration is silent are older than that entry, and were written in float32.
        file_dtype=model.dtype if model.dtype is not None and model.dtype in WIDTHS else "float32",
        merged_experts=model.model_type not in EXPERTS_IN_ONE_TENSOR,
        buffers=tensors.buffers,
        device_map=job.parallel.data in ("ddp", "zero3"),
        settings=AllocatorSettings(expandable_segments=expandable, device_total_bytes=card.memory_bytes),
        capability=card.compute_capability,
    )
    if sharded:
        around = _fully_sharded(around, tensors.parameters, parameters)
    elif by_zero:
        around = _by_zero(around, job, as_zero(job, parameters))
    needed = (around.loading.host_bytes, around.saving.host_bytes, around.resuming.host_bytes)
    one = Ranks(around.process_bytes, around.training_process_bytes, *needed)
    return replace(
        around,
        machine_bytes=machine_bytes(job, parameters, one),
        nvme_bytes=machine_nvme_bytes(job, parameters),
        in_parts=is_cut(job),
        assumptions=tuple(filter(None, [assumption(job, parameters), drives_assumption(job, parameters)])),
    )


def is_fully_sharded(job: Job) -> bool:
    """By accelerate's FSDP 2; what packed weights become there is another matter."""
    return job.parallel.data in ("fsdp", "hsdp") and job.parallel.fsdp_version != 1 and job.quantization.format is None


def as_sharded(job: Job, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """What trains becomes float32 where there is mixed precision (accelerate 1.15, `fsdp2_prepare_model`)."""
    wide = job.autocast is not None
    return tuple(p._replace(dtype="float32") if wide and p.trainable else p for p in parameters)


def _fully_sharded(told: Outside, loaded: Sequence[Parameter], parameters: Sequence[Parameter]) -> Outside:
    """Files and host memory as the Trainer asks for FSDP 2: all but what is on the card.

    Loading  Every rank loads the whole model into its own memory and casts there what trains; its shard goes to the
             card (training_args.py: `cpu_ram_efficient_loading` false).
    Saving   Rank 0 gathers everything and writes it twice, model.safetensors and pytorch_model_fsdp.bin, of adapters
             both times those alone; then optimizer.bin (`state_dict_type` FULL_STATE_DICT; trainer.py, `save_model`,
             `_save_optimizer_and_scheduler`; accelerate, `save_fsdp_model`). Other ranks hold nothing of it.
    Checked  three runs of a small Llama, two ranks on CPUs (benchmarks/data/sharded_checkpoints.jsonl): weights to the
             byte, the rest to names and shapes, up to 20 kB.
    """
    cast = sum(4 * p.elements for p, q in zip(loaded, parameters, strict=True) if p.dtype != q.dtype)
    again = weights_bytes(saved_parameters(parameters))
    return replace(
        told,
        loading=replace(told.loading, host_bytes=told.loading.host_bytes + cast),
        saving=replace(told.saving, host_bytes=max(told.saving.host_bytes, weights_bytes(parameters))),
        disk=replace(told.disk, optimizer_bytes=told.disk.optimizer_bytes + again),
    )


def _by_zero(told: Outside, job: Job, parameters: Sequence[Parameter]) -> Outside:
    """Files and host memory as DeepSpeed has them."""
    ranks = sharing_ranks(job)
    more = partitioned_bytes(job, parameters) + again_bytes(job, parameters)
    weights = safetensors_bytes(saved_parameters(parameters))
    return replace(
        told,
        saving=zero_saving(job, parameters, ranks),
        resuming=zero_resuming(job, parameters, ranks),
        disk=replace(told.disk, weights_bytes=weights, optimizer_bytes=more),
    )


def is_cut(job: Job) -> bool:
    """Whether a card holds part of the model: files are the same, what is on the card is not."""
    parts = job.parallel
    return parts.data != "ddp" or (parts.layers, parts.tensor, parts.pipeline, parts.expert) != (1, 1, 1, 1)


OTHER_FILES = frozenset({"litgpt", "torchtune", "torchtitan", "megatron", "nemo", "llm-foundry", "fsdp_qlora"})
"""Stacks with checkpoints of their own; the others load and save as transformers does."""
EXPERTS_IN_ONE_TENSOR = frozenset({"gpt_oss", "llama4_text", "llama4"})
"""Architectures whose checkpoints hold a layer's experts as transformers does (conversion_mapping.py has no merge)."""


class Tensors(NamedTuple):
    parameters: tuple[Parameter, ...]
    buffers: tuple[int, ...]
    """Bytes of each."""


UNDECISIVE = frozenset(
    (
        *("id", "seq_len", "lengths", "micro_batch", "grad_accum", "optimizer", "max_grad_norm", "allocator"),
        *("data", "run", "hardware", "parallel"),
    )
)
"""Fields that change no tensor of a model; its tables of positions have room for the longest row (`with_room`)."""


def _decisive(job: Job) -> tuple[tuple[str, Any], ...]:
    names = (each.name for each in fields(job))
    return tuple((name, getattr(job, name)) for name in names if name not in UNDECISIVE)


@lru_cache(maxsize=32)
def _known_tensors(decisive: tuple[tuple[str, Any], ...], config: str) -> Tensors:
    """Many jobs have the same, and a prediction asks twice: how long loading and saving take, and what they need."""
    return tensors_on_paper(Job(**dict(decisive), seq_len=1), json.loads(config))


def _with_room(model: ModelConfig, longest: int) -> str:
    from tunecast.tape.build.stacks.transformers import with_room

    raw = model.raw
    roomy = with_room(raw, longest)
    return model.raw_json if roomy == raw else json.dumps(roomy, sort_keys=True)


def tensors_on_paper(job: Job, config: Mapping[str, Any]) -> Tensors:
    """Names, shapes and dtypes of the model that trains, as the closed form builds it.

    It is built unquantised, for a packed weight has lost its shape; then every linear layer but the head is packed. And
    it is built with the layers that stand for all, where there are such: the others are like them but for their names.
    """
    from tunecast.tape.build.adapters import insert_adapters
    from tunecast.tape.build.gptq import packed_bytes
    from tunecast.tape.build.modules import Buffer, Linear
    from tunecast.tape.build.short import repeating
    from tunecast.tape.build.stacks import transformers
    from tunecast.tape.build.tensor import DTYPES, Machine
    from tunecast.tape.card import Card
    from tunecast.tape.shorten import stand_in, with_layers

    packed_as = job.quantization.format
    adapted = job.method != "full"
    plain = replace(job, method="lora" if adapted else "full", quantization=Quantization(), kernels=())
    rhythm = repeating(transformers.model, config)
    few = config if rhythm is None else with_layers(config, rhythm.small)
    model = transformers.load(plain, few, Machine(Card(), DTYPES[job.weights_dtype], job.attention))
    head = model.output_embedding()
    linear = {id(m.weight) for m in model.modules() if isinstance(m, Linear) and m is not head}
    packed = linear if packed_as is not None else set()
    if adapted:
        insert_adapters(plain, model)
    made: dict[int, Parameter | int] = {}
    paths = [layer.path for layer in model.layers()]
    layer_of = {id(part): number for number, layer in enumerate(model.layers()) for part in layer.modules()}
    before: list[Parameter | int] = []
    layers: list[list[Parameter | int]] = [[] for _ in paths]
    after: list[Parameter | int] = []
    upcast = packed_as not in (None, "gptq") and job.quantization.prepare_kbit
    for module in model.modules():
        number = layer_of.get(id(module))
        place = layers[number] if number is not None else after if any(layers) else before
        for name, tensor in module.own.items():
            if id(tensor) in made:
                continue
            if isinstance(tensor, Buffer):
                made[id(tensor)] = tensor.nbytes
                place.append(tensor.nbytes)
                continue
            path = f"base_model.model.{module.path}.{name}" if adapted else f"{module.path}.{name}"
            p = Parameter(path, tensor.shape, tensor.dtype.name, not adapted)
            if id(tensor) in packed and packed_as == "gptq":  # the file has it packed; counted in 16-bit elements
                p = p._replace(shape=(packed_bytes(*tensor.shape) // 2,))
            elif id(tensor) in packed and packed_as is not None:
                p = p._replace(dtype=packed_as)
            elif p.is_adapter:
                p = p._replace(trainable=True, dtype="float32" if packed_as == "int8" else p.dtype)
            elif upcast:
                p = p._replace(dtype="float32")
            made[id(tensor)] = p
            place.append(p)
    if rhythm is not None:
        likes = [(layer, stand_in(rhythm, layer)) for layer in range(rhythm.total)]
        layers = [_renamed(layers[like], paths[like], layer) for layer, like in likes]
    every = [*before, *(each for layer in layers for each in layer), *after]
    return Tensors(
        tuple(each for each in every if isinstance(each, Parameter)),
        tuple(each for each in every if isinstance(each, int)),
    )


def _renamed(of: Iterable[Parameter | int], path: str, layer: int) -> list[Parameter | int]:
    """The tensors of a layer as those of another."""
    old, new = f"{path}.", f"{path.rpartition('.')[0]}.{layer}."
    return [each._replace(name=each.name.replace(old, new, 1)) if isinstance(each, Parameter) else each for each in of]


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
    double_quant = job.quantization.double_quant
    files = _files(
        tuple(parameters),
        tuple(buffers),
        job.optimizer,
        job.weights_dtype,
        file_dtype,
        device_map,
        double_quant,
        merged_experts,
        settings,
    )
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
        process_bytes=HOST_PROCESS_BYTES + (HOST_BITSANDBYTES_BYTES if uses_bitsandbytes(job) else 0),
    )


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
    settings: AllocatorSettings,
) -> Files:
    states = tuple(optimizer_states(optimizer, parameters))
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
        saving(parameters, states, merged_experts=merged_experts, double_quant=double_quant),
        resuming(optimizer, parameters, states, double_quant=double_quant),
        safetensors_bytes(saved_parameters(parameters)),
        optimizer_file_bytes(states),
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
