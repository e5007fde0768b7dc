"""Evaluation between two steps: the forward pass without saved activations, and the logits three times over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunecast.job.job import Job
from tunecast.predict.allocator import MIN_LARGE_BYTES, rounded_bytes, segment_bytes
from tunecast.predict.checkpoint import WIDTHS, Parameter, State
from tunecast.predict.prediction import Memory
from tunecast.records import dataclass
from tunecast.tape.program import SMALL_BYTES
from tunecast.units import KIB, MIB

EVAL_BATCH = 8
"""TrainingArguments.per_device_eval_batch_size, whatever the training batch is."""
HEADS = ("lm_head.weight", "embed_out.weight")


def workspaces_bytes(capability: tuple[int, int] = (9, 0)) -> int:
    """cuBLAS's, of the two threads that ran the forward and the backward pass (CUDABlas.cpp, parseChosenWorkspaceSize);
    that of another thread, where evaluation runs on one, would be a third."""
    return 2 * (32 * MIB if capability == (9, 0) else 8 * MIB + 128 * KIB)


@dataclass(frozen=True)
class Evaluation:
    batch: int
    seq_len: int
    transient_bytes: int
    """What the forward pass and the loss hold on top of weights and optimizer state."""
    card_allocated_bytes: int
    cache_growth_bytes: int
    """What reserved memory grows by: none of training's cached blocks holds logits larger than its own."""
    card_reserved_bytes: int | None
    above_training_bytes: int | None
    """Peak allocated less that of the training step; negative: evaluation needs less. None: no prediction was given."""


def evaluation(
    job: Job,
    parameters: Sequence[Parameter],
    states: Sequence[State],
    memory: Memory | None = None,
    *,
    model_bytes: int,
    batch: int = EVAL_BATCH,
    seq_len: int | None = None,
    expandable: bool = False,
    capability: tuple[int, int] = (9, 0),
) -> Evaluation:
    """Trainer.evaluate between two steps, without compute_metrics: gradients are gone, state stays, logits are dropped.

    At the loss, t tokens over a vocabulary of v: the logits as the head gives them, their float32 copy where they are
    not float32 (ForCausalLMLoss), and the float32 log-probabilities: 10 t v bytes of bfloat16, 8 t v of float32.
    In a layer, three tensors of the widest projection and two of the hidden size, which rarely is more.
    Under autocast every trainable float32 matrix leaves a 16-bit copy in autocast's cache until the forward pass ends,
    gradients or not (autocast_mode.cpp, cached_cast); a frozen one is cast anew and dropped.
    Liger's loss makes no logits (Trainer.prediction_step passes skip_logits): then the layers decide.
    Reserved: training's segments stay, and logits larger than training's need new ones, one each.
    Checked  on an H200, Llama 3.2 1B and 3B, 8 x 1024 tokens after steps of 1 x 1024, five runs: allocated to 5 KiB of
             13 to 18 GB, growth of reserved memory to the byte (benchmarks/data/outside_runs.jsonl).
    Ignored  compute_metrics, which keeps float32 logits of every batch on the card (`kept_logits_bytes`); eager
             attention's scores; SFTTrainer's own metrics.
    """
    length = seq_len or job.seq_len
    tokens = batch * length
    head = next((p for p in parameters if p.name.endswith(HEADS)), None)
    head = head or next(p for p in parameters if p.is_embedding)
    vocabulary, hidden = head.shape
    low = WIDTHS[job.autocast or head.dtype]
    copies = cast = 0
    if job.autocast is not None:
        whole = [p for p in parameters if p.dtype == "float32" and len(p.shape) > 1]
        matrices = [p for p in whole if p is head or not p.is_embedding]
        copies = sum(block_bytes(p.elements * low, expandable) for p in matrices if p.trainable)
        cast = max((p.elements * low for p in matrices if not p.trainable), default=0)
    logits = [tokens * vocabulary * width for width in ((low, 4, 4) if low < 4 else (4, 4))]
    at_loss = sum(block_bytes(nbytes, expandable) for nbytes in logits) + tokens * hidden * WIDTHS[head.dtype]
    layers = [p for p in parameters if len(p.shape) == 2 and p is not head and not p.is_embedding]
    widest = max((max(p.shape) for p in layers), default=0)
    in_layer = tokens * (3 * widest * low + 2 * hidden * WIDTHS[head.dtype]) + cast
    ids = 4 * 8 * tokens  # input_ids, attention_mask, labels and the labels shifted, int64
    fused = "liger" in job.kernels
    transient = workspaces_bytes(capability) + copies + ids + (in_layer if fused else max(at_loss, in_layer))
    allocated = model_bytes + state_card_bytes(states, expandable) + transient
    larger = tokens > job.micro_batch * max(job.lengths or (job.seq_len,))
    growth = sum(segment_bytes(rounded_bytes(nbytes)) for nbytes in logits) if larger and not fused else 0
    return Evaluation(
        batch=batch,
        seq_len=length,
        transient_bytes=transient,
        card_allocated_bytes=allocated,
        cache_growth_bytes=growth,
        card_reserved_bytes=None if memory is None else max(allocated, memory.reserved_bytes + growth),
        above_training_bytes=None if memory is None else allocated - memory.allocated_bytes,
    )


def kept_logits_bytes(tokens: int, vocabulary: int, batches: int) -> int:
    """Card memory for the logits that evaluation with compute_metrics keeps: float32, and joined to the others anew
    for every batch, so that old and new lie side by side (EvalLoopContainer.add). eval_accumulation_steps bounds it."""
    return 2 * batches * tokens * vocabulary * 4 if batches > 1 else tokens * vocabulary * 4


def state_card_bytes(states: Iterable[State], expandable: bool = False) -> int:
    """What the optimizer holds in torch's allocator; paged state is CUDA's managed memory."""
    return sum(block_bytes(s.nbytes, expandable) for s in states if not s.paged)


def block_bytes(nbytes: int, expandable: bool = False) -> int:
    """What a tensor in a segment of its own counts for: up to 1 MiB left of the last 2 MiB is not split off.

    Source   CUDACachingAllocator.cpp, should_split; expandable segments split whatever is left.
    """
    block = rounded_bytes(nbytes)
    left = segment_bytes(block) - block
    return block + left if block >= MIN_LARGE_BYTES and left <= SMALL_BYTES and not expandable else block
