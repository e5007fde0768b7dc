"""Saving a checkpoint, how many of them lie on the disk, and going on from one.

Source   transformers 5.17.0 (trainer.py, modeling_utils.py), PEFT 0.21.0, safetensors 0.8.0, bitsandbytes 0.50.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import ClassVar

from tunecast.job.job import Job
from tunecast.job.lengths import sample_lengths
from tunecast.prediction.data.batches import steps_between_saves
from tunecast.prediction.data.lengths import epoch_of, times_done, total_steps
from tunecast.prediction.memory.allocator import rounded_bytes
from tunecast.prediction.outside.checkpoint import (
    CODE_BOOK_BYTES,
    FOUR_BIT,
    SMALL_FILES_BYTES,
    WIDTHS,
    Parameter,
    code_book_bytes,
    largest_shard_bytes,
    saved_parameters,
    weights_bytes,
)
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result
from tunecast.tape.build.optimizers import State, package_of

SAVE_STEPS = 500
"""TrainingArguments.save_steps."""


@dataclass(frozen=True)
class Saving:
    host_bytes: int
    card_bytes: int
    """Allocated on top of what is held while saving."""


@dataclass(frozen=True)
class Disk(Result):
    KEYS: ClassVar[tuple[str, ...]] = (
        *("weights_bytes", "optimizer_bytes", "small_bytes", "saves", "kept", "most", "writers"),
        *("checkpoint_bytes", "peak_bytes"),
    )

    weights_bytes: int
    optimizer_bytes: int
    small_bytes: int
    saves: int | None
    """How often the run saves; None: its length is not known."""
    kept: int | None
    """Checkpoints that stay."""
    most: int | None
    """Checkpoints there at once: the new one is written before the oldest goes."""
    writers: int = 1
    """Processes that write a checkpoint beside each other, each its part."""

    @property
    def checkpoint_bytes(self) -> int:
        return self.weights_bytes + self.optimizer_bytes + self.small_bytes

    @property
    def peak_bytes(self) -> int | None:
        return None if self.most is None else self.most * self.checkpoint_bytes


@dataclass(frozen=True)
class Resuming:
    host_bytes: int
    host_mapped_bytes: int
    card_bytes: int
    """On top of model and state while the checkpoint is read."""
    card_lasting_bytes: int
    """What a resumed run holds on the card and a fresh one does not: the state of a paged optimizer, code books."""


class Files(NamedTuple):
    """What follows from the tensors alone, whatever is done with them."""

    states: tuple[State, ...]
    loading_bytes: int
    """Of the host."""
    saving: Saving
    resuming: Resuming
    weights_bytes: int
    optimizer_bytes: int
    others_loading_bytes: int | None = None
    """Of the host, for each rank but the first; None: the same."""
    writers: int = 1


def saving(
    parameters: Sequence[Parameter],
    states: Sequence[State],
    *,
    merged_experts: bool = True,
    double_quant: bool = False,
) -> Saving:
    """Trainer._save_checkpoint: the weights, then the optimizer.

    Host     safetensors brings every tensor of a file to the host and keeps them until it is written
             (_flatten_as_ptr): a whole file, of up to 50 GB. torch.save brings the optimizer's tensors one by one.
    Card     nothing, but for merged experts: reverting the merge makes contiguous copies of each gate and up
             projection (Chunk.convert) and holds all of them before the first byte is written; and for the code
             book of every double-quantised weight (`_state_dict_bytes`).
    Ignored  that glibc keeps freed tensors under 32 MiB: after a save up to that much stays with the process (671 MB of
             a 4.9 GB file, 67 MB of one of 2.5 GB), and the next save uses it again.
    """
    saved = saved_parameters(parameters)
    pairs = [p for p in saved if p.is_expert_pair] if merged_experts else []
    return Saving(
        host_bytes=max(largest_shard_bytes(saved), max((s.nbytes for s in states if not s.on_host), default=0)),
        card_bytes=weights_bytes(pairs) + _state_dict_bytes(parameters, double_quant),
    )


def _state_dict_bytes(parameters: Iterable[Parameter], double_quant: bool) -> int:
    """state_dict() of a double-quantised model: QuantState.as_dict clones each weight's code book (bitsandbytes)."""
    return CODE_BOOK_BYTES * sum(p.dtype in FOUR_BIT for p in parameters) if double_quant else 0


def disk_of(
    weights_bytes: int,
    optimizer_bytes: int,
    *,
    steps: int | None = None,
    saves: int | None = None,
    save_steps: int = SAVE_STEPS,
    save_total_limit: int | None = None,
    keeps_best: bool = False,
    small_bytes: int = SMALL_FILES_BYTES,
    writers: int = 1,
) -> Disk:
    """Size and number of checkpoints.

    A run saves every `save_steps` and at its end (DefaultFlowCallback.on_step_end). `save_total_limit` N deletes the
    oldest after the new one is written (rotate_checkpoints): N + 1 at once. The newest and the best are never deleted,
    so with load_best_model_at_end (`keeps_best`) a limit of 1 keeps 2.
    """
    if saves is None and steps is not None:
        saves = ceil(steps / save_steps)
    if save_total_limit is None or save_total_limit <= 0:
        kept = most = saves
    else:
        kept = max(save_total_limit, 2) if keeps_best else save_total_limit
        most = kept + 1
        if saves is not None:
            kept, most = min(kept, saves), min(most, saves)
    return Disk(
        weights_bytes=weights_bytes,
        optimizer_bytes=optimizer_bytes,
        small_bytes=small_bytes,
        saves=saves,
        kept=kept,
        most=most,
        writers=writers,
    )


def optimizer_steps(job: Job) -> int | None:
    """Steps of the whole run, where the job says how much data there is."""
    return total_steps(job, epoch_of(job, sample_lengths(job.data)))


def saves_of(job: Job) -> int | None:
    """How often the whole run saves a checkpoint."""
    epoch = epoch_of(job, sample_lengths(job.data))
    steps = total_steps(job, epoch)
    if steps is None:
        return None
    return times_done(job.run.save_strategy, steps_between_saves(job, steps), steps, epoch)


def resuming(
    optimizer: str | None, parameters: Sequence[Parameter], states: Sequence[State], *, double_quant: bool = False
) -> Resuming:
    """Trainer.train(resume_from_checkpoint=...), on one card. Without an optimizer none was saved (`save_only_model`).

    Weights  A full model's file is mapped and copied into the model in place; adapters are read to the card first
             (load_peft_weights: infer_device) and then copied, beside the model's state_dict (`_state_dict_bytes`).
    State    torch.load puts all of optimizer.pt into host memory, then it moves to the card. bitsandbytes copies it
             once more on the host (Optimizer8bit.load_state_dict: deepcopy), and moves to the card what a fresh run
             would have paged: `.to(param.device)` makes an ordinary tensor, and of the code books one a parameter.
    """
    saved = saved_parameters(parameters)
    adapters = any(p.is_adapter for p in parameters)
    copies = 2 if optimizer is not None and package_of(optimizer) == "bitsandbytes" else 1
    books = 0 if optimizer is None else code_book_bytes(optimizer, parameters)
    read = sum(rounded_bytes(p.elements * WIDTHS[p.dtype]) for p in saved)
    return Resuming(
        host_bytes=copies * (sum(s.nbytes for s in states) + books),
        host_mapped_bytes=weights_bytes(saved),
        card_bytes=read + _state_dict_bytes(parameters, double_quant) if adapters else 0,
        card_lasting_bytes=sum(rounded_bytes(s.nbytes) for s in states if s.paged) + books,
    )
