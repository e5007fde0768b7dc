"""TRL's KTOTrainer on paper (trl/trainer/kto_trainer.py of 1.16.0): single answers that are good or bad.

Besides its rows a batch has as many whose answers belong to other prompts: how far the policy has moved from the
reference is estimated on them, without a graph, before the rows that are trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.tape.build.chunked import LOG_PROBS, where
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.sharding.scheme import rows_per_step
from tunecast.tape.build.stacks.trainer import Batch, begin_pass, take_steps
from tunecast.tape.build.stacks.transformers import evaluation_loop
from tunecast.tape.build.tasks import whole_logits
from tunecast.tape.build.tasks.preference import REFUSES, defaults, model, scheme, setup
from tunecast.tape.build.tasks.reference import (
    FUSED,
    Reference,
    call,
    head_of,
    index_select,
    label_of,
    labelled,
    labels_of,
    places,
    set_up,
    unpaired_losses,
)
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in
from tunecast.tape.op import PASS

__all__ = ["REFUSES", "defaults", "evaluate", "model", "scheme", "setup", "train"]

OF_KTO = (LOG_PROBS, "entropy", "mean_logits")
"""What `KTOTrainer.__init__` asks its policy's head for."""
ONE = (
    "got 1, which TRL's KTOTrainer refuses: answers of a batch are taken to other prompts of it; allowed: 2 or more. "
    "To fix: micro_batch 2"
)
HALF = "half of the answers of a batch are taken as good ones"


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    if (rows_per_step(job) if stack_of(job).mixes_steps else job.micro_batch) < 2:
        raise Unsupported.at("micro_batch", ONE)
    machine.assumptions[HALF] = None
    reference = Reference(job, config, machine, OF_KTO, answers, lengths)
    policy, parameters, optimizer = set_up(job, config, machine, reference)

    def compute_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: None) -> Tensor:
        return loss_of(job, model, reference, inputs)

    take_steps(job, policy, parameters, optimizer, lengths, compute_loss, answers, counts_labels=False, begins=False)
    machine.end()


def evaluate(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    """`prediction_step`: the loss of training, without a graph."""
    reference = Reference(job, config, machine, OF_KTO, answers, lengths)
    policy, _, _ = set_up(job, config, machine, reference)
    evaluation_loop(job, policy, lengths, lambda inputs: loss_of(job, policy, reference, tuple(inputs)), answers)
    machine.end()


def answers(job: Job, machine: Machine, length: int) -> Batch:
    """`DataCollatorForUnpairedPreference`: tokens, mask and which of them are completions, of rows and of those for the
    divergence; numbers of a reference that was asked before; which are good; and images, the same for both rows of a
    prompt."""
    rows = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(6)]
    asked = 2 if job.preference.reference == "precomputed" else 0
    logps = [machine.run("_to_copy", (), (job.micro_batch,), FLOAT32) for _ in range(asked)]
    label = machine.run("_to_copy", (), (job.micro_batch,), BOOL)
    return *rows, *logps, label, *image_tensors(machine, job.micro_batch, length)


def kl_logps(job: Job, model: Any, batch: Batch, asked: Sequence[str]) -> Tensor:
    """`_compute_kl_logps`."""
    labels = labels_of(batch[3], batch[5])
    model.machine.of_host(PASS)
    count = labelled(job, *labels.shape)
    with model.machine.no_grad():
        logps = call(model, batch[3:5], labels, asked, count, **images_in(model.machine, batch)).log_probs
    return narrow(logps, 1, 0, labels.shape[1] - 1).sum(-1)


def loss_of(job: Job, model: Any, reference: Reference, batch: Batch) -> Tensor:
    if head_of(job) == FUSED:
        return kto_loss(job, model, reference, batch)
    return whole_logits.kto_loss(job, model, reference, batch, head_of(job))


def kto_loss(job: Job, model: Any, reference: Reference, batch: Batch) -> Tensor:
    """`_compute_loss` with loss_type kto."""
    machine, label = model.machine, label_of(job, batch)
    num_chosen = label.sum(0)
    num_rejected = machine.run("rsub", (num_chosen,), (), INT64)
    KL_logps = kl_logps(job, model, batch, OF_KTO)
    completion_labels = labels_of(batch[0], batch[2])
    begin_pass(machine)
    rows, length = completion_labels.shape
    count, seq_len = labelled(job, rows, length), length - 1
    images = images_in(machine, batch)
    outputs = call(model, batch[:2], completion_labels, OF_KTO, count, **images)
    per_token_logps = narrow(outputs.log_probs, 1, 0, seq_len)
    completion_logps = per_token_logps.sum(-1)
    good = rows // 2
    chosen_idx, rejected_idx = places(label, good), places(~label, rows - good)
    chosen_logps = index_select(completion_logps, chosen_idx)
    rejected_logps = index_select(completion_logps, rejected_idx)
    if reference.kind == "precomputed":
        ref_completion_logps, ref_KL_logps = batch[6:8]
        ref_chosen_logps = index_select(ref_completion_logps, chosen_idx)
        ref_rejected_logps = index_select(ref_completion_logps, rejected_idx)
    else:
        with reference.running(model) as (ref_model, asked):
            ref_KL_logps = kl_logps(job, ref_model, batch, asked)
            machine.of_host(PASS)
            ref_outputs = call(ref_model, batch[:2], completion_labels, asked, count, **images)
        ref_per_token_logps = narrow(ref_outputs.log_probs, 1, 0, seq_len)
        ref_completion_logps = ref_per_token_logps.sum(-1)
        ref_chosen_logps = index_select(ref_completion_logps, chosen_idx)
        ref_rejected_logps = index_select(ref_completion_logps, rejected_idx)
    refs = ref_chosen_logps, ref_rejected_logps
    losses = unpaired_losses(job, (chosen_logps, rejected_logps), refs, KL_logps, ref_KL_logps)
    per_token_entropy = narrow(outputs.entropy, 1, 0, seq_len).detach()
    mask = batch[2][:, 1:length]
    entropy_sum = (per_token_entropy * mask).sum(range(2))
    total_tokens = mask.sum(range(2))
    entropy_sum, total_tokens = entropy_sum.sum(()), total_tokens.sum(())
    machine.run("gt", (total_tokens,), (), BOOL)
    entropy_sum / total_tokens
    batch[1].sum(range(2)).sum(())
    shift_completion_mask = batch[2][:, 1:length]
    mean_logits = narrow(outputs.mean_logits, 1, 0, seq_len)
    chosen_mean_logits = index_select(mean_logits, chosen_idx)
    rejected_mean_logits = index_select(mean_logits, rejected_idx)
    chosen_mask = index_select(shift_completion_mask, chosen_idx)
    rejected_mask = index_select(shift_completion_mask, rejected_idx)
    total_chosen_logits = where(chosen_mean_logits, chosen_mask.to(BOOL), labelled(job, good, length)).sum(0)
    total_chosen_tokens = chosen_mask.sum(range(2))
    of_rejected = labelled(job, rows - good, length)
    total_rejected_logits = where(rejected_mean_logits, rejected_mask.to(BOOL), of_rejected).sum(0)
    total_rejected_tokens = rejected_mask.sum(range(2))
    totals = (total_chosen_logits, total_chosen_tokens, total_rejected_logits, total_rejected_tokens)
    for total in (*totals, num_chosen, num_rejected):
        total.sum(())
    for each in (chosen_logps.detach(), rejected_logps.detach()) * 2:  # and of rewards, which are as many
        machine.run("nansum", (machine.run("nansum", (each,), (), FLOAT32),), (), FLOAT32)
    return losses.mean(0)
