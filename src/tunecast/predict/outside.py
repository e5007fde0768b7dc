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
from dataclasses import dataclass
from math import ceil

from tunecast.job.job import Job
from tunecast.predict.allocator import AllocatorSettings, rounded_bytes
from tunecast.predict.checkpoint import (
    FOUR_BIT,
    QUANTIZED,
    SMALL_FILES_BYTES,
    STATES,
    WIDTHS,
    Parameter,
    State,
    largest_shard_bytes,
    optimizer_file_bytes,
    optimizer_states,
    safetensors_bytes,
    saved_parameters,
    weights_bytes,
)
from tunecast.predict.loading import Loading, loading
from tunecast.predict.prediction import Memory
from tunecast.units import GIB, MIB

HOST_PROCESS_BYTES = 1 * GIB
"""Resident in a process that has imported torch and transformers and made a CUDA context, before any weight."""
EVAL_BATCH = 8
"""TrainingArguments.per_device_eval_batch_size, whatever the training batch is."""
SAVE_STEPS = 500
WORKSPACES_BYTES = 2 * 32 * MIB
"""cuBLAS's, of the two threads that ran the forward and the backward pass, on Hopper; 2 x 8.125 MiB on other cards
(CUDABlas.cpp, parseChosenWorkspaceSize)."""


@dataclass(frozen=True)
class Saving:
    host_bytes: int
    card_bytes: int
    """Allocated on top of what is held while saving."""


@dataclass(frozen=True)
class Disk:
    weights_bytes: int
    optimizer_bytes: int
    small_bytes: int
    saves: int | None
    """How often the run saves; None: its length is not known."""
    kept: int | None
    """Checkpoints that stay."""
    most: int | None
    """Checkpoints there at once: the new one is written before the oldest goes."""

    @property
    def checkpoint_bytes(self) -> int:
        return self.weights_bytes + self.optimizer_bytes + self.small_bytes

    @property
    def peak_bytes(self) -> int | None:
        return None if self.most is None else self.most * self.checkpoint_bytes


@dataclass(frozen=True)
class Evaluation:
    batch: int
    seq_len: int
    transient_bytes: int
    """What the forward pass and the loss hold on top of weights and optimizer state."""
    card_allocated_bytes: int
    above_training_bytes: int | None
    """Peak less that of the training step; negative: evaluation needs less. None: no prediction was given."""


@dataclass(frozen=True)
class Resuming:
    host_bytes: int
    host_mapped_bytes: int
    card_bytes: int
    """On top of model and state while the checkpoint is read."""
    card_lasting_bytes: int
    """What a resumed run holds on the card and a fresh one does not: the state of a paged optimizer."""


@dataclass(frozen=True)
class Outside:
    loading: Loading
    saving: Saving
    disk: Disk
    evaluation: Evaluation
    resuming: Resuming


def outside(
    job: Job,
    parameters: Sequence[Parameter],
    memory: Memory | None = None,
    *,
    file_dtype: str = "bfloat16",
    device_map: bool = True,
    merged_experts: bool = True,
    settings: AllocatorSettings | None = None,
    eval_batch: int = EVAL_BATCH,
    save_steps: int = SAVE_STEPS,
    save_total_limit: int | None = None,
    keeps_best: bool = False,
    steps: int | None = None,
) -> Outside:
    """Everything around the step. `parameters` are those of the model that trains, `memory` the step's prediction.

    What a job has no field for follows the Trainer's defaults. `merged_experts`: the checkpoint holds each expert
    apart and transformers merges them (Mixtral, Qwen MoE, DeepSeek; not gpt-oss, nor Llama 4).
    """
    states = optimizer_states(job.optimizer, parameters)
    return Outside(
        loading=loading(
            as_loaded(job, parameters),
            job.weights_dtype,
            file_dtype=file_dtype,
            device_map=device_map,
            double_quant=job.quantization.double_quant,
            merged_experts=merged_experts,
            settings=settings or AllocatorSettings(expandable_segments=job.allocator == "expandable_segments"),
        ),
        saving=saving(parameters, states, merged_experts=merged_experts),
        disk=disk(
            parameters,
            states,
            steps=optimizer_steps(job) if steps is None else steps,
            save_steps=save_steps,
            save_total_limit=save_total_limit,
            keeps_best=keeps_best,
        ),
        evaluation=evaluation(job, parameters, states, memory, batch=eval_batch),
        resuming=resuming(job.optimizer, parameters, states),
    )


def as_loaded(job: Job, parameters: Iterable[Parameter]) -> list[Parameter]:
    """The base model as from_pretrained makes it: no adapters yet, nothing cast by prepare_model_for_kbit_training."""
    return [
        p._replace(
            name=p.name.removeprefix("base_model.model.").replace(".base_layer", ""),
            dtype=p.dtype if p.dtype in QUANTIZED else job.weights_dtype,
        )
        for p in parameters
        if not p.is_adapter
    ]


def saving(parameters: Sequence[Parameter], states: Sequence[State], *, merged_experts: bool = True) -> Saving:
    """Trainer._save_checkpoint: the weights, then the optimizer.

    Host     safetensors brings every tensor of a file to the host and keeps them until it is written
             (_flatten_as_ptr): a whole file, of up to 50 GB. torch.save brings the optimizer's tensors one by one.
    Card     nothing, but for merged experts: reverting the merge makes contiguous copies of each gate and up
             projection (Chunk.convert) and holds all of them before the first byte is written.
    """
    saved = saved_parameters(parameters)
    pairs = [p for p in saved if p.is_expert_pair] if merged_experts else []
    return Saving(
        host_bytes=max(largest_shard_bytes(saved), max((s.nbytes for s in states if not s.paged), default=0)),
        card_bytes=weights_bytes(pairs),
    )


def disk(
    parameters: Sequence[Parameter],
    states: Sequence[State],
    *,
    steps: int | None = None,
    save_steps: int = SAVE_STEPS,
    save_total_limit: int | None = None,
    keeps_best: bool = False,
) -> Disk:
    """Size and number of checkpoints.

    A run saves every `save_steps` and at its end (DefaultFlowCallback.on_step_end). `save_total_limit` N deletes the
    oldest after the new one is written (rotate_checkpoints): N + 1 at once. The newest and the best are never deleted,
    so with load_best_model_at_end (`keeps_best`) a limit of 1 keeps 2.
    """
    saves = None if steps is None else ceil(steps / save_steps)
    if save_total_limit is None or save_total_limit <= 0:
        kept = most = saves
    else:
        kept = max(save_total_limit, 2) if keeps_best else save_total_limit
        most = kept + 1
        if saves is not None:
            kept, most = min(kept, saves), min(most, saves)
    return Disk(
        weights_bytes=safetensors_bytes(saved_parameters(parameters)),
        optimizer_bytes=optimizer_file_bytes(states),
        small_bytes=SMALL_FILES_BYTES,
        saves=saves,
        kept=kept,
        most=most,
    )


def optimizer_steps(job: Job) -> int | None:
    """Steps of the whole run, where the job says how much data there is; tokens are taken as full rows."""
    rows = job.data.samples
    if rows is None and job.data.tokens is not None:
        rows = ceil(job.data.tokens / job.seq_len)
    if rows is None:
        return None
    ranks = job.hardware.gpus * job.hardware.nodes
    an_epoch = max(1, ceil(ceil(rows / (job.micro_batch * ranks)) / job.grad_accum))
    return ceil(an_epoch * job.data.epochs)


def evaluation(
    job: Job,
    parameters: Sequence[Parameter],
    states: Sequence[State],
    memory: Memory | None = None,
    *,
    batch: int = EVAL_BATCH,
    seq_len: int | None = None,
) -> Evaluation:
    """Trainer.evaluate between two steps, without compute_metrics: gradients are gone, state stays, logits are dropped.

    At the loss, t tokens over a vocabulary of v: the logits as the head gives them, their float32 copy where they are
    not float32 (ForCausalLMLoss), and the float32 log-probabilities: 10 t v bytes of bfloat16, 8 t v of float32.
    In a layer, three tensors of the widest projection and two of the hidden size, which rarely is more.
    Under autocast every trainable float32 matrix leaves a 16-bit copy in autocast's cache until the forward pass ends,
    gradients or not (autocast_mode.cpp, cached_cast); a frozen one is cast anew and dropped.
    Liger's loss makes no logits (Trainer.prediction_step passes skip_logits): then the layers decide.
    Checked  against the tracer, Llama 3.2 1B, 8 x 1024 tokens: full, full in float32 and LoRA agree to 1 MiB of 12 GiB.
    Ignored  compute_metrics, which keeps float32 logits of every batch on the card (`kept_logits_bytes`); eager
             attention's scores; SFTTrainer's own metrics.
    """
    tokens = batch * (seq_len or job.seq_len)
    head = next((p for p in parameters if p.name.endswith(HEADS)), None)
    head = head or next(p for p in parameters if p.is_embedding)
    vocabulary, hidden = head.shape
    low = WIDTHS[job.autocast or head.dtype]
    copies = cast = 0
    if job.autocast is not None:
        whole = [p for p in parameters if p.dtype == "float32" and len(p.shape) > 1]
        matrices = [p for p in whole if p is head or not p.is_embedding]
        copies = sum(p.elements * low for p in matrices if p.trainable)
        cast = max((p.elements * low for p in matrices if not p.trainable), default=0)
    at_loss = tokens * (vocabulary * (low + (4 if low < 4 else 0) + 4) + hidden * WIDTHS[head.dtype])
    layers = [p for p in parameters if len(p.shape) == 2 and p is not head and not p.is_embedding]
    widest = max((max(p.shape) for p in layers), default=0)
    in_layer = tokens * (3 * widest * low + 2 * hidden * WIDTHS[head.dtype]) + cast
    ids = 4 * 8 * tokens  # input_ids, attention_mask, labels and the labels shifted, int64
    transient = WORKSPACES_BYTES + copies + ids + (in_layer if "liger" in job.kernels else max(at_loss, in_layer))
    model = held_bytes(parameters, job.quantization.double_quant) if memory is None else memory.model_bytes
    allocated = model + state_card_bytes(states) + transient
    return Evaluation(
        batch=batch,
        seq_len=seq_len or job.seq_len,
        transient_bytes=transient,
        card_allocated_bytes=allocated,
        above_training_bytes=None if memory is None else allocated - memory.allocated_bytes,
    )


HEADS = ("lm_head.weight", "embed_out.weight")


def kept_logits_bytes(tokens: int, vocabulary: int, batches: int) -> int:
    """Card memory for the logits that evaluation with compute_metrics keeps: float32, and joined to the others anew
    for every batch, so that old and new lie side by side (EvalLoopContainer.add). eval_accumulation_steps bounds it."""
    return 2 * batches * tokens * vocabulary * 4 if batches > 1 else tokens * vocabulary * 4


def resuming(optimizer: str, parameters: Sequence[Parameter], states: Sequence[State]) -> Resuming:
    """Trainer.train(resume_from_checkpoint=...), on one card.

    Weights  A full model's file is mapped and copied into the model in place; adapters are read to the card first
             (load_peft_weights: infer_device) and then copied.
    State    torch.load puts all of optimizer.pt into host memory, then it moves to the card. bitsandbytes copies it
             once more on the host (Optimizer8bit.load_state_dict: deepcopy), and moves to the card what a fresh run
             would have paged: `.to(param.device)` makes an ordinary tensor.
    """
    saved = saved_parameters(parameters)
    adapters = any(p.is_adapter for p in parameters)
    kept = STATES.get(optimizer)
    copies = 2 if kept is not None and kept.width_bytes is not None else 1
    return Resuming(
        host_bytes=copies * sum(s.nbytes for s in states),
        host_mapped_bytes=weights_bytes(saved),
        card_bytes=sum(rounded_bytes(p.elements * WIDTHS[p.dtype]) for p in saved) if adapters else 0,
        card_lasting_bytes=sum(rounded_bytes(s.nbytes) for s in states if s.paged),
    )


def state_card_bytes(states: Iterable[State]) -> int:
    """What the optimizer holds in torch's allocator; paged state is CUDA's managed memory."""
    return sum(rounded_bytes(s.nbytes) for s in states if not s.paged)


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
