"""TRL's CPOTrainer and ORPOTrainer on paper (trl/experimental/{cpo,orpo} of 1.16.0): pairs without a reference.

SimPO is CPO's trainer with `loss_type="simpo"`. Their models are called as models are, so that all logits are made, and
accelerate gives them back in float32; log-probabilities and, but for SimPO, the loss of the language model on the
chosen answers are taken of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.job.names import BITSANDBYTES
from tunecast.job.stacks import stack_of
from tunecast.records import replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapters import adapt
from tunecast.tape.build.dtypes import BFLOAT16, BOOL, FLOAT32, INT64
from tunecast.tape.build.log_probs import selective_log_softmax
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.reductions import reduce
from tunecast.tape.build.quantized import change_dtype
from tunecast.tape.build.stacks import Refusals, trainer, trl
from tunecast.tape.build.stacks.trainer import Batch, begin_pass, take_steps
from tunecast.tape.build.stacks.transformers import evaluation_loop, model, prepared, scheme
from tunecast.tape.build.tasks.preference import setup
from tunecast.tape.build.tasks.reference import FUSED, disable_dropout, head_of, mark_untraced
from tunecast.tape.build.tasks.scores import HEADS, logits_of
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in

__all__ = ["REFUSES", "defaults", "evaluate", "model", "scheme", "setup", "train"]

REFUSES: Refusals = trainer.REFUSES
ODDS_RATIO = "orpo"


def defaults(job: Job) -> dict[str, Any]:
    """`prepare_model_for_kbit_training` is called as PEFT's guide has it, and no adapter is cast afterwards."""
    plain = replace_unchecked(job, quantization=replace_unchecked(job.quantization, format=None))
    ways = trl.defaults(plain) if stack_of(job).runs_trl else {}
    if job.task != ODDS_RATIO:
        ways["preference.sft_weight"] = 1.0 if job.task == "cpo" else 0.0
    return {**ways, "preference.reference": "none"}


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    mark_untraced(job, machine)
    policy, parameters, optimizer = prepared(job, config, machine, adapting, in_trainer=True)
    take_steps(job, policy, parameters, optimizer, lengths, compute_loss, answers, counts_labels=False, begins=False)
    machine.end()


def evaluate(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    """`prediction_step`: the loss of training, without a graph."""
    policy, _, _ = prepared(job, config, machine, adapting, in_trainer=True)
    evaluation_loop(job, policy, lengths, lambda inputs: compute_loss(job, policy, tuple(inputs), None), answers)
    machine.end()


def adapting(job: Job, model: Any) -> None:
    adapt(job, model)
    if casts(job):
        for module in (model.input_embedding(), model.output_embedding()):
            if module.weight.dtype == FLOAT32:
                change_dtype(module.weight, BFLOAT16)
    disable_dropout(model)


def casts(job: Job) -> bool:
    """`_peft_has_been_casted_to_bf16`: the loss is then computed under autocast, too."""
    return job.quantization.format in BITSANDBYTES[:2] and job.autocast == "bfloat16"


# ------------------------------------------------------------------------------------------------------------ batches


def answers(job: Job, machine: Machine, length: int) -> Batch:
    """`DPODataCollatorWithPadding`: tokens, mask and labels of the chosen answers, of the rejected ones, and tokens and
    mask of their prompts, which nothing reads; images for each answer."""
    sides = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(6)]
    prompt = (job.micro_batch, min(max(1, job.preference.prompt_length), length))
    prompts = [machine.run("_to_copy", (), prompt, INT64) for _ in range(2)]
    return *sides, *prompts, *image_tensors(machine, 2 * job.micro_batch, length)


# ------------------------------------------------------------------------------------------------------------ the loss


def compute_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: None) -> Tensor:
    machine = model.machine
    if not casts(job):
        return loss_of(job, model, inputs)
    with machine.autocasting(BFLOAT16):
        return loss_of(job, model, inputs)


def loss_of(job: Job, model: Any, batch: Batch) -> Tensor:
    """`get_batch_loss_metrics`."""
    machine, beta = model.machine, job.preference.beta
    odds = job.task == ODDS_RATIO
    chosen_logps, rejected_logps, chosen_logits, rejected_logits, nll_loss = concatenated_forward(job, model, batch)
    logits = chosen_logps - rejected_logps
    if odds:
        logits = logits - (log1mexp(chosen_logps) - log1mexp(rejected_logps))
        losses = F.logsigmoid(logits) * beta
    else:
        losses = -F.logsigmoid(logits * beta) * 1.0 - F.logsigmoid(logits * -beta) * 0.0
    chosen_rewards = chosen_logps.detach() * beta
    rejected_rewards = rejected_logps.detach() * beta
    loss = nll_loss - losses.mean(0) if odds else losses.mean(0) + nll_loss * 1.0
    reward_accuracies = chosen_rewards.gt(rejected_rewards).to(FLOAT32)
    margins = chosen_rewards - rejected_rewards
    for rewards in (chosen_rewards, rejected_rewards, reward_accuracies, margins):
        rewards.mean(0)
    for logps in (rejected_logps, chosen_logps):
        logps.detach().mean(0)
    for each in (rejected_logits, chosen_logits):
        machine.run("mean", (reduce("mean", each.detach(), None),), (), FLOAT32)
    machine.run("mean", (nll_loss,), (), FLOAT32)
    return loss


def log1mexp(x: Tensor) -> Tensor:
    machine = x.machine
    below = machine.run("lt", (x,), x.shape, BOOL)
    return F.where(below, (1 - x.exp()).log(), (1 - x.exp()).log())


def concatenated_forward(job: Job, model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities and logits of the chosen and the rejected, and the loss of the language model on the chosen."""
    machine, odds = model.machine, job.task == ODDS_RATIO
    len_chosen, length = batch[0].shape
    input_ids, attention_mask, concatenated_labels = [
        machine.run("cat", (one, other), (2 * len_chosen, length), INT64)
        for one, other in zip(batch[:3], batch[3:6], strict=True)
    ]
    begin_pass(machine)
    all_logits = logits_of(model, input_ids, attention_mask, **images_in(machine, batch))
    if odds:
        labels = input_ids.clone()
        labels = F.where(attention_mask.eq(1), labels, labels)
    else:
        labels = concatenated_labels.clone()
    if (odds or job.preference.sft_weight) and head_of(job) != "softmax":  # which takes it of the log-probabilities
        nll_loss = cross_entropy_loss(all_logits[:len_chosen], labels[:len_chosen])
    else:
        nll_loss = machine.run("_to_copy", (), (), FLOAT32)
    all_logps = get_batch_logps(job, all_logits, concatenated_labels)
    last = length - 1 if odds else length
    chosen_logits, rejected_logits = all_logits[:len_chosen, :last], all_logits[len_chosen : 2 * len_chosen, :last]
    return all_logps[:len_chosen], all_logps[len_chosen : 2 * len_chosen], chosen_logits, rejected_logits, nll_loss


def cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    length = labels.shape[1]
    logits = logits[..., : length - 1, :].contiguous()
    labels = labels[..., 1:length].contiguous()
    logits = logits.view(-1, logits.shape[-1])
    labels = labels.view(-1)
    return F.cross_entropy(logits, labels)


def get_batch_logps(job: Job, logits: Tensor, labels: Tensor) -> Tensor:
    length = labels.shape[1]
    labels = labels[:, 1:length].clone()
    logits = logits[:, : length - 1, :]
    loss_mask = labels.ne(-100)
    if job.task == ODDS_RATIO:
        labels = F.where(labels.eq(-100), labels, labels)
    else:
        labels.eq(-100)
    head = head_of(job)
    per_token_logps = (selective_log_softmax if head == FUSED else HEADS[head])(logits, labels)
    if job.task == "cpo":
        return (per_token_logps * loss_mask).sum(-1)
    return (per_token_logps * loss_mask).sum(-1) / loss_mask.sum(-1)
