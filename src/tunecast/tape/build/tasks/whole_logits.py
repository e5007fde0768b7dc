"""DPO and KTO where all logits are made: TRL before 1.15 (trl/trainer/{dpo,kto}_trainer.py of 1.9.0), and stacks with
losses of their own.

accelerate gives logits back in float32. TRL takes log-probabilities row by row and keeps the logits of the reference
until the loss is there, while its metrics copy the policy's (`entropy_from_logits`) and those of the completions.
LLaMA-Factory takes them of one log_softmax (llamafactory/train/trainer_utils.py, `get_batch_logps`), and lets the
reference's go at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.chunked import where
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.ops.reductions import reduce
from tunecast.tape.build.stacks.trainer import Batch, begin_pass
from tunecast.tape.build.stacks.trl import entropy_from_logits
from tunecast.tape.build.tasks.reference import (
    Reference,
    index_select,
    label_of,
    labelled,
    note_rewards,
    places,
    unpaired_losses,
)
from tunecast.tape.build.tasks.scores import log_probs_of, logits_of
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import images_in


def entropies(shift_logits: Tensor, mask: Tensor) -> Tensor:
    """Of each token, which the caller holds; of a copy of the logits."""
    machine = shift_logits.machine
    *rows, words = shift_logits.shape
    flat_logits = shift_logits.reshape(-1, words)
    per_token_entropy = entropy_from_logits(flat_logits).view(*rows)
    del flat_logits
    entropy_sum, total_tokens = (per_token_entropy * mask).sum(range(2)), mask.sum(range(2))
    entropy_sum, total_tokens = entropy_sum.sum(()), total_tokens.sum(())
    machine.run("gt", (total_tokens,), (), BOOL)
    entropy_sum / total_tokens
    return per_token_entropy


def mean_logits(sides: Sequence[tuple[Tensor, Tensor, int]]) -> None:
    """Of the completions of each of two sides: a copy of theirs at a time."""
    for logits, mask, count in sides:
        logits.machine.run("sum", (reduce("mean", where(logits, mask.to(BOOL), count), -1),), (), FLOAT32)
        mask.sum(range(2)).sum(())


def dpo_loss(job: Job, model: Any, reference: Reference, inputs: Batch, head: str) -> Tensor:
    """`_compute_loss` of 1.9.0."""
    machine, is_trl = model.machine, head == "rows"
    begin_pass(machine)
    images = images_in(machine, inputs)
    logits = logits_of(model, inputs[0], inputs[1], **images)
    ids, completion_mask = inputs[0], inputs[2]
    length, halves = ids.shape[1], [job.micro_batch] * 2
    shift_logits = logits[..., : length - 1, :]
    shift_completion_mask = completion_mask[..., 1:length]
    per_token_logps = log_probs_of(head, logits, ids, completion_mask)
    logps = per_token_logps.sum(1)
    chosen_logps, rejected_logps = logps.split(halves, 0)
    if reference.kind == "precomputed":
        ref_chosen_logps, ref_rejected_logps = inputs[3:5]
    else:
        with reference.running(model) as (ref_model, _):
            ref_logits = logits_of(ref_model, inputs[0], inputs[1], **images)
        ref_per_token_logps = log_probs_of(head, ref_logits, ids, completion_mask)
        ref_logps = ref_per_token_logps.sum(1)
        ref_chosen_logps, ref_rejected_logps = ref_logps.split(halves, 0)
        if not is_trl:
            del ref_logits, ref_per_token_logps
    chosen_logratios = chosen_logps - ref_chosen_logps
    rejected_logratios = rejected_logps - ref_rejected_logps
    per_sequence_loss = -F.logsigmoid((chosen_logratios - rejected_logratios) * job.preference.beta)
    loss = per_sequence_loss.mean(0) * 1.0
    if is_trl:
        _held = entropies(shift_logits.detach(), shift_completion_mask)
        chosen_logits, rejected_logits = shift_logits.detach().split(halves, 0)
        chosen_mask, rejected_mask = shift_completion_mask.split(halves, 0)
        half = labelled(job, job.micro_batch, length)
        mean_logits(((chosen_logits, chosen_mask, half), (rejected_logits, rejected_mask, half)))
        args = (chosen_logits, -1)
        predictions = machine.run("argmax", (chosen_logits,), chosen_mask.shape, INT64, args=args)
        flags = chosen_mask.to(BOOL)
        correct_predictions = predictions.eq(ids[: job.micro_batch, 1:length]) & flags
        flags.sum(range(2)), correct_predictions.sum(range(2))
    note_rewards(job, chosen_logratios.detach(), rejected_logratios.detach(), chosen_logps, rejected_logps)
    return loss


def kto_loss(job: Job, model: Any, reference: Reference, batch: Batch, head: str) -> Tensor:
    """`_compute_loss` of 1.9.0."""
    machine, is_trl, label = model.machine, head == "rows", label_of(job, batch)
    KL_logps = kl_logps(model, batch, head)
    begin_pass(machine)
    images = images_in(machine, batch)
    logits = logits_of(model, batch[0], batch[1], **images)
    rows, length = batch[0].shape
    shift_logits = logits[:, : length - 1, :]
    per_token_logps = log_probs_of(head, logits, batch[0], batch[2])
    completion_logps = per_token_logps.sum(-1)
    good = rows // 2
    chosen_idx, rejected_idx = places(label, good), places(~label, rows - good)
    chosen_logps, rejected_logps = (index_select(completion_logps, idx) for idx in (chosen_idx, rejected_idx))
    if reference.kind == "precomputed":
        ref_completion_logps, ref_KL_logps = batch[6:8]
    else:
        with reference.running(model) as (ref_model, _):
            ref_KL_logps = kl_logps(ref_model, batch, head)
            ref_logits = logits_of(ref_model, batch[0], batch[1], **images)
        ref_per_token_logps = log_probs_of(head, ref_logits, batch[0], batch[2])
        ref_completion_logps = ref_per_token_logps.sum(-1)
        if not is_trl:
            del ref_logits, ref_per_token_logps
    refs = [index_select(ref_completion_logps, idx) for idx in (chosen_idx, rejected_idx)]
    losses = unpaired_losses(job, (chosen_logps, rejected_logps), refs, KL_logps, ref_KL_logps)
    if is_trl:
        mask = batch[2][:, 1:length]
        _held = entropies(shift_logits.detach(), mask)
        chosen_logits, rejected_logits = (index_select(shift_logits.detach(), i) for i in (chosen_idx, rejected_idx))
        chosen_mask, rejected_mask = (index_select(mask, idx) for idx in (chosen_idx, rejected_idx))
        counts = labelled(job, good, length), labelled(job, rows - good, length)
        mean_logits(((chosen_logits, chosen_mask, counts[0]), (rejected_logits, rejected_mask, counts[1])))
    return losses.mean(0)


def kl_logps(model: Any, batch: Batch, head: str) -> Tensor:
    """`_compute_kl_logps`."""
    with model.machine.no_grad():
        logits = logits_of(model, batch[3], batch[4], **images_in(model.machine, batch))
        return log_probs_of(head, logits, batch[3], batch[5]).sum(-1)
