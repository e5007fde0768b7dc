"""Losses of PPO on paper, from logits on, and advantages before them (trl/experimental/ppo/ppo_trainer.py of 1.12.0,
`PPOTrainer.train`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32
from tunecast.tape.build.log_probs import by_rows, by_softmax, log_sum_exp, stacked, unbound
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import LOOP, LOOP_END, Op


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """trl/trainer/utils.py of 1.12.0: row by row; of narrow logits a log_softmax of each."""
    if logits.dtype == FLOAT32:
        return by_rows(logits, index)
    return stacked([by_softmax(row, labels) for row, labels in zip(unbound(logits), unbound(index), strict=True)])


def logits_of_responses(logits: Tensor, responses: int) -> Tensor:
    """`logits[:, context_length - 1 : -1]`, divided by the temperature in place: a part is changed, so that the
    gradient of all is copied, and of the copy the part (torch/csrc/autograd/functions/tensor.cpp, `CopySlices`)."""
    machine, shape, dtype, length = logits.machine, logits.shape, logits.dtype, logits.shape[1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        result = machine.run("new_empty_strided", gradients, shape, dtype)
        part = machine.run("clone", (result,), (shape[0], responses, shape[2]), dtype)
        divided = machine.run("div", (part,), part.shape, dtype)
        machine.launch("copy_", (divided,), dtype, divided.nbytes)
        return (result,)

    node = start(machine, (logits,), back)
    machine.launch("div_", (), dtype, logits.nbytes * responses // length)
    return narrow(finish(node, logits.detach()), 1, length - responses - 1, length - 1)


def ppo_loss(inputs: Mapping[str, Tensor], new_logprobs: Tensor, vpred: Tensor) -> Tensor:
    """Of the policy, clipped, and of values, clipped. No token is padding."""
    padding_mask = inputs["responses"].eq(0)
    new_logprobs = new_logprobs.masked_fill(padding_mask, 1.0)
    vpred = vpred.masked_fill(padding_mask, 0)
    vpredclipped = vpred.clamp(-0.2, 0.2)
    vf_losses1 = (vpred - inputs["returns"]).pow(2)
    vf_losses2 = (vpredclipped - inputs["returns"]).pow(2)
    vf_loss_max = F.minimum(vf_losses1, vf_losses2)
    vf_loss = masked_mean(vf_loss_max, padding_mask) * 0.5
    logprobs_diff = new_logprobs - inputs["logprobs"]
    ratio = logprobs_diff.exp()
    pg_losses = ratio * -inputs["advantages"]
    pg_losses2 = ratio.clamp(0.8, 1.2) * -inputs["advantages"]
    pg_loss_max = F.minimum(pg_losses, pg_losses2)
    pg_loss = masked_mean(pg_loss_max, padding_mask)
    return pg_loss + vf_loss * 0.1


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum(range(2))


def note_entropy(logits: Tensor) -> Tensor:
    """What the trainer notes after a step, of all logits; the probabilities, which a name holds on to."""
    prob_dist = F.softmax(logits)
    entropy = log_sum_exp(logits) - (prob_dist * logits).sum(-1)
    entropy.mean(0)
    return prob_dist


def advantages_of(logprobs: Tensor, ref_logprobs: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Steps 3 to 6 of `train`: rewards less the distance to the reference, advantages token by token from the last,
    and what values should have been."""
    machine, (rows, length) = logprobs.machine, logprobs.shape
    padding_mask = machine.run("gt", (), (rows, length), BOOL)
    logprobs = logprobs.masked_fill(padding_mask, 1.0)
    ref_logprobs = ref_logprobs.masked_fill(padding_mask, 1.0)
    values = values.masked_fill(padding_mask, 0)
    kl = -(ref_logprobs - logprobs)
    rewards = kl * -0.05
    machine.mark(Op(LOOP, kernels=0))
    reward, value = [machine.run("add", (), (rows,), FLOAT32) for _ in range(2)]
    delta = reward + value - value
    lastgaelam = delta + reward * 0.95
    del reward, value, delta
    machine.mark(Op(LOOP_END, kernels=0, shapes=((length,),)))
    advantages = machine.run("stack", (rewards, lastgaelam), (rows, length), FLOAT32)
    returns = advantages + values
    masked_mean(advantages, padding_mask)
    advantages = (advantages - 0.0) * 1.0
    return advantages.masked_fill(padding_mask, 0), returns
