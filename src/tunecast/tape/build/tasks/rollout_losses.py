"""Losses of GRPO and RLOO on paper, from log-probabilities on (trl/trainer/grpo_trainer.py and rloo_trainer.py of
1.16.0, `_compute_loss`), and the metrics that their trainers read after each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

Inputs = Mapping[str, Tensor]
"""What is known of the completions of a micro-batch."""


def grpo_loss(job: Job, inputs: Inputs, per_token_logps: Tensor, entropies: Any) -> Tensor:
    """`_compute_loss` with loss_type dapo: from the log-probabilities on."""
    mask, advantages = inputs["completion_mask"], inputs["advantages"].unsqueeze(1)
    old_per_token_logps = inputs.get("old_per_token_logps")
    old_per_token_logps = per_token_logps.detach() if old_per_token_logps is None else old_per_token_logps
    log_ratio = per_token_logps - old_per_token_logps
    log_importance_weights = log_ratio
    coef_1 = log_importance_weights.exp()
    if job.rl.beta:
        ref_per_token_logps = inputs["ref_per_token_logps"]
        per_token_kl = (
            (ref_per_token_logps - per_token_logps).exp() - (ref_per_token_logps - per_token_logps) - 1
        )  # fmt: skip
        per_token_kl = per_token_kl * coef_1
    coef_2 = coef_1.clamp(0.8, 1.2)
    per_token_loss1 = coef_1 * advantages
    per_token_loss2 = coef_2 * advantages
    per_token_loss = -F.minimum(per_token_loss1, per_token_loss2)
    if "importance_sampling_ratio" in inputs:
        per_token_loss = per_token_loss * inputs["importance_sampling_ratio"]
    if job.rl.beta:
        per_token_loss = per_token_loss + job.rl.beta * per_token_kl
    normalizer = inputs["num_items_in_batch"].float()
    loss = (per_token_loss * mask).sum() / normalizer
    if job.rl.beta:
        global_masked_mean(per_token_kl, mask)
    global_masked_mean(entropies, mask)
    is_low_clipped = coef_1.lt(0.8) & advantages.lt(0)
    is_high_clipped = coef_1.gt(1.2) & advantages.gt(0)
    is_region_clipped = is_low_clipped | is_high_clipped
    global_masked_mean(is_low_clipped.float(), mask)
    global_masked_mean(is_high_clipped.float(), mask)
    global_masked_mean(is_region_clipped.float(), mask)
    gathered_low_clip = masked_seq_mean(is_low_clipped.float(), mask)
    read_extremum(gathered_low_clip)
    gathered_high_clip = masked_seq_mean(is_high_clipped.float(), mask)
    read_extremum(gathered_high_clip)
    return loss


def rloo_loss(inputs: Inputs, per_token_logps: Tensor, entropies: Any) -> Tensor:
    completion_mask = inputs["completion_mask"]
    logps = (per_token_logps * completion_mask).sum(1)
    log_ratio = logps - inputs["old_logps"]
    advantages = inputs["advantages"]
    coef_1 = log_ratio.exp()
    coef_2 = coef_1.clamp(0.8, 1.2)
    per_sequence_loss1 = coef_1 * advantages
    per_sequence_loss2 = coef_2 * advantages
    per_sequence_loss = -F.minimum(per_sequence_loss1, per_sequence_loss2)
    loss = per_sequence_loss.mean(0)
    global_masked_mean(entropies, completion_mask)
    return loss


def global_masked_mean(x: Tensor, mask: Tensor) -> None:
    """A metric that the host reads."""
    (x * mask).sum(range(2))
    mask.sum(range(2))
    x.machine.synchronize()


def masked_seq_mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum(-1) / mask.sum(-1)


def read_extremum(x: Tensor) -> None:
    """`nanmin` and `nanmax`, which the host reads."""
    x.machine.run("isnan", (x,), x.shape, BOOL).all()
    x.machine.run("min", (x,), (), x.dtype, args=(x,))
    x.machine.synchronize()


def sequence_ratio(
    old_per_token_logps: Tensor, sampling_per_token_logps: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """With `vllm_importance_sampling_mode` sequence_mask: one a row; and the differences, which a name holds on to."""
    per_token_logps_diff = (old_per_token_logps - sampling_per_token_logps) * mask
    per_token_logps_diff = pointwise("nan_to_num", per_token_logps_diff)
    logps_diff = per_token_logps_diff.sum(-1, keepdim=True)
    ratio = logps_diff.exp()
    return ratio.masked_fill(ratio.lt(0) | ratio.gt(3), 0.0), per_token_logps_diff


def tell_difference(
    old_per_token_logps: Tensor, sampling_per_token_logps: Tensor, completion_mask: Tensor
) -> list[Tensor]:  # fmt: skip
    """How far vLLM's log-probabilities are off, which the host reads, with what names hold on to."""
    machine, count = completion_mask.machine, completion_mask.numel()
    delta = pointwise("abs", old_per_token_logps - sampling_per_token_logps)
    mask = completion_mask.to(BOOL)
    isnan = machine.run("isnan", (delta,), delta.shape, BOOL)
    places = machine.run("nonzero", (mask & ~isnan,), (count, 2), INT64)
    delta = machine.run("index", (delta, places), (count,), FLOAT32)
    del places
    mean_delta, max_delta = [machine.run(name, (delta,), (), FLOAT32) for name in ("mean", "max")]
    machine.synchronize()
    return [delta, mask, mean_delta, max_delta]
