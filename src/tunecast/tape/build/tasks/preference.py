"""TRL's DPOTrainer on paper (trl/trainer/dpo_trainer.py of 1.16.0, `_compute_loss`).

Rows are pairs: the chosen answers of a batch, then the rejected ones. The policy's forward pass keeps its graph while
the reference, which is the same model without its adapters or a second one, gives its log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.records import replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.chunked import LOG_PROBS, where
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.stacks import Refusals, trainer, trl
from tunecast.tape.build.stacks.trainer import Batch, begin_pass, take_steps
from tunecast.tape.build.stacks.transformers import evaluation_loop
from tunecast.tape.build.stacks.trl import model, scheme
from tunecast.tape.build.tasks import whole_logits
from tunecast.tape.build.tasks.reference import (
    FUSED,
    Reference,
    call,
    head_of,
    labelled,
    labels_of,
    note_rewards,
    set_up,
)
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in
from tunecast.tape.op import PASS

__all__ = ["REFUSES", "defaults", "evaluate", "model", "scheme", "setup", "train"]

REFUSES: Refusals = trl.REFUSES
OF_DPO = (LOG_PROBS, "entropy", "mean_logits", "is_top1")
"""What `DPOTrainer.__init__` asks its policy's head for; the reference's is asked for log-probabilities alone."""


def setup(job: Job, given: Setup) -> Setup:
    """As the stack's, whose rows may be packed; these are not."""
    of_stack = trl if stack_of(job).runs_trl else trainer
    return of_stack.setup(replace_unchecked(job, data=replace_unchecked(job.data, packing=False)), given)


def defaults(job: Job) -> dict[str, Any]:
    """TRL's own ways, and where log-probabilities of the reference come from."""
    usual = "model" if job.method == "full" else "adapters_off"
    ways = trl.defaults(job) if stack_of(job).runs_trl else {}
    return {**ways, "preference.reference": usual}


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    reference = Reference(job, config, machine, OF_DPO, pairs, lengths)
    policy, parameters, optimizer = set_up(job, config, machine, reference)

    def compute_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: None) -> Tensor:
        return loss_of(job, model, reference, inputs)

    take_steps(job, policy, parameters, optimizer, lengths, compute_loss, pairs, counts_labels=False, begins=False)
    machine.end()


def evaluate(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    """`prediction_step`: the loss of training, without a graph."""
    reference = Reference(job, config, machine, OF_DPO, pairs, lengths)
    policy, _, _ = set_up(job, config, machine, reference)
    evaluation_loop(job, policy, lengths, lambda inputs: loss_of(job, policy, reference, tuple(inputs)), pairs)
    machine.end()


# ------------------------------------------------------------------------------------------------------------ batches


def pairs(job: Job, machine: Machine, length: int) -> Batch:
    """`DataCollatorForPreference`: tokens, mask, and which of them are completions, of the chosen and the rejected; and
    two numbers a pair where the reference was asked before. Images of a prompt are there for each of its answers
    (`DataCollatorForVisionPreference`)."""
    shape = (2 * job.micro_batch, length)
    ids, mask, completion_mask = [machine.run("_to_copy", (), shape, INT64) for _ in range(3)]
    if job.preference.reference != "precomputed":
        return ids, mask, completion_mask, *image_tensors(machine, *shape)
    logps = [machine.run("_to_copy", (), (job.micro_batch,), FLOAT32) for _ in range(2)]
    return ids, mask, completion_mask, *logps, *image_tensors(machine, *shape)


# ------------------------------------------------------------------------------------------------------------ the loss


def loss_of(job: Job, model: Any, reference: Reference, inputs: Batch) -> Tensor:
    if head_of(job) == FUSED:
        return dpo_loss(job, model, reference, inputs)
    return whole_logits.dpo_loss(job, model, reference, inputs, head_of(job))


def dpo_loss(job: Job, model: Any, reference: Reference, inputs: Batch) -> Tensor:
    """`_compute_loss` with loss_type sigmoid."""
    machine = model.machine
    completion_mask = inputs[2]
    length = completion_mask.shape[1]
    halves, seq_len = [job.micro_batch] * 2, length - 1
    of_chosen, of_rejected = machine.answers or [labelled(job, half, length) for half in halves]
    count = of_chosen + of_rejected
    shift_completion_mask = completion_mask[..., 1:length]
    labels = labels_of(inputs[0], completion_mask)
    begin_pass(machine)
    images = images_in(machine, inputs)
    outputs = call(model, inputs, labels, OF_DPO, count, **images)
    per_token_logps = narrow(outputs.log_probs, 1, 0, seq_len)
    logps = per_token_logps.sum(1)
    chosen_logps, rejected_logps = logps.split(halves, 0)
    if reference.kind == "precomputed":
        ref_chosen_logps, ref_rejected_logps = inputs[3:5]
    else:
        with reference.running(model) as (ref_model, asked):
            machine.of_host(PASS)
            ref_outputs = call(ref_model, inputs, labels, asked, count, **images)
        ref_per_token_logps = narrow(ref_outputs.log_probs, 1, 0, seq_len)
        ref_logps = ref_per_token_logps.sum(1)
        ref_chosen_logps, ref_rejected_logps = ref_logps.split(halves, 0)
    chosen_logratios = chosen_logps - ref_chosen_logps
    rejected_logratios = rejected_logps - ref_rejected_logps
    delta_score = chosen_logratios - rejected_logratios
    per_sequence_loss = -F.logsigmoid(delta_score * job.preference.beta)
    loss = per_sequence_loss.mean(0) * 1.0
    mask = shift_completion_mask
    per_token_entropy = narrow(outputs.entropy, 1, 0, seq_len).detach()
    entropy_sum = (per_token_entropy * mask).sum(range(2))
    total_tokens = mask.sum(range(2))
    entropy_sum, total_tokens = entropy_sum.sum(()), total_tokens.sum(())
    machine.run("gt", (total_tokens,), (), BOOL)
    entropy_sum / total_tokens
    inputs[1].sum(range(2)).sum(())
    chosen_mean_logits, rejected_mean_logits = narrow(outputs.mean_logits, 1, 0, seq_len).split(halves, 0)
    chosen_mask, rejected_mask = shift_completion_mask.split(halves, 0)
    total_chosen_logits = where(chosen_mean_logits, chosen_mask.to(BOOL), of_chosen).sum(0)
    total_chosen_tokens = chosen_mask.sum(range(2))
    total_rejected_logits = where(rejected_mean_logits, rejected_mask.to(BOOL), of_rejected).sum(0)
    total_rejected_tokens = rejected_mask.sum(range(2))
    for total in (total_chosen_logits, total_chosen_tokens, total_rejected_logits, total_rejected_tokens):
        total.sum(())
    chosen_is_top1, _ = narrow(outputs.is_top1, 1, 0, seq_len).split(halves, 0)
    correct_predictions = chosen_is_top1 & chosen_mask.to(BOOL)
    total_tokens = chosen_mask.sum(range(2))
    correct_tokens = correct_predictions.sum(range(2))
    total_sum = total_tokens.sum(())
    machine.run("gt", (total_sum,), (), BOOL)
    correct_tokens.sum(()) / total_sum
    note_rewards(job, chosen_logratios.detach(), rejected_logratios.detach(), chosen_logps, rejected_logps)
    return loss
