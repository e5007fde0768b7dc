"""TRL's SFTTrainer on paper: 1.16.0, whose head never makes all logits, and what older releases did instead.

From 1.15 on the head of tape/build/chunked.py. Before 1.1 the model's own loss, and for the metrics another copy of the
logits (`mean_token_accuracy`, from 0.15) and the entropy of 128 rows at a time (from 0.20). Between them the loss is
chunked another way, for which the newest stands in, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tunecast.job.job import Job
from tunecast.job.kernels import CUT_HEAD, is_flash
from tunecast.job.names import BITSANDBYTES
from tunecast.job.releases import minor
from tunecast.job.shardings import sharding_of
from tunecast.records import replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapters import adapt
from tunecast.tape.build.chunked import fused_forward
from tunecast.tape.build.dtypes import BFLOAT16, BOOL, FLOAT32, INT32, INT64
from tunecast.tape.build.eras import Era, era_of
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.quantized import change_dtype
from tunecast.tape.build.sharding.scheme import splits_rows
from tunecast.tape.build.stacks import Refusals, trainer
from tunecast.tape.build.stacks.trainer import NUM_PROCESSES, Batch, models_loss, outputs_of, take_steps
from tunecast.tape.build.stacks.transformers import evaluation_loop, model, prepared, scheme
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import images_in

__all__ = ["REFUSES", "evaluate", "model", "scheme", "setup", "train"]

REFUSES: Refusals = {
    **trainer.REFUSES,
    "loss": lambda job: job.loss is not None and (job.loss == "chunked") != chunks(job),
    "kernels": lambda job: CUT_HEAD in job.kernels,  # its own head takes that one's place, or needs the logits
}
ENTROPY_ROWS = 128
ACCURACY, ENTROPY, OWN_CASTS, OWN_CHECKPOINTS, CHUNKED = (0, 15), (0, 20), (0, 26), (0, 28), (1, 1)
ZERO_3_DTYPE, FUSED = (1, 7), (1, 15)
"""The releases since which (tags of huggingface/trl, trl/trainer/sft_trainer.py and trl/models/utils.py)."""
SAMPLES_A_ROW = 2
"""Of a packed row: how many there are decides a few bytes."""
CAST = "lora.adapter_dtype: TRL keeps adapters over quantised weights in bfloat16, whatever it says"
TAKEN = "TRL is taken to be {}.{}, of the time of that transformers; trl_version says which"


def setup(job: Job, given: Setup) -> Setup:
    """What of the machine is the stack's own: the kind of checkpointing, and rows of several samples."""
    own = job.checkpoint_reentrant
    reentrant = given.era.reentrant and release_of(job, given.era) < OWN_CHECKPOINTS if own is None else own
    is_one_row = packs(job) and not given.evaluates and not splits_rows(job)
    return given._replace(reentrant=reentrant, packs=SAMPLES_A_ROW * job.micro_batch - 1 if is_one_row else 0)


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    release = release_of(job, machine.era)
    model, parameters, optimizer = set_up(job, config, machine, release)
    if job.trl_version is None and machine.era.release < (5, 0):
        machine.guesses[TAKEN.format(*release)] = None
    if CHUNKED <= release < FUSED:
        machine.guesses["TRL chunked the loss in another way before 1.15; 1.15's is taken"] = None
    whole = has_whole_head(job, release)
    compute_loss = (metrics_loss if release >= ACCURACY else models_loss) if whole else fused_loss
    take_steps(job, model, parameters, optimizer, lengths, compute_loss, one_row if machine.packs else None)
    machine.end()


def defaults(job: Job) -> dict[str, Any]:
    """`SFTTrainer.__init__`, from the tags of its repository: until 0.25 it prepares quantised models as PEFT's guide
    does; since 0.26 not, and adapters over them become bfloat16. With ZeRO-3, adapters keep the weights' dtype since
    1.7, and checkpointing is reentrant since 0.28."""
    if job.method == "full":
        return {}
    release, sharding = release_of_job(job), sharding_of(job)
    ways: dict[str, Any] = {}
    if job.quantization.format in BITSANDBYTES and release >= OWN_CASTS:
        ways |= {"quantization.prepare_kbit": False, "lora.adapter_dtype": "bfloat16"}
    if sharding.is_zero and sharding.cuts_weights:
        if job.quantization.format is None and release >= ZERO_3_DTYPE:
            ways["lora.adapter_dtype"] = job.weights_dtype
        if job.gradient_checkpointing and release >= OWN_CHECKPOINTS:
            ways["checkpoint_reentrant"] = True
    return ways


def evaluate(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    """Trainer.evaluate, with the head of training. What the metrics make in it is left out."""
    release = release_of(job, machine.era)
    model, _, _ = set_up(job, config, machine, release)
    whole = has_whole_head(job, release)

    def loss_of(inputs: Sequence[Tensor]) -> Tensor:
        if whole:
            return outputs_of(job, model, tuple(inputs), None)[0]
        return fused_outputs(model, tuple(inputs)).loss

    evaluation_loop(job, model, lengths, loss_of)
    machine.end()


def chunks(job: Job) -> bool:
    return release_of_job(job) >= CHUNKED


def set_up(
    job: Job, config: Mapping[str, Any], machine: Machine, release: tuple[int, int],
    before_training: Callable[[Any], None] | None = None,
) -> tuple[Any, list[Tensor], Optimizer]:  # fmt: skip
    """Model, what is trained of it, and its optimizer, as TRL's trainers make them; `before_training` is what else
    their `__init__` does with the model."""

    def adapting(job: Job, model: Any) -> None:
        adapt(as_peft_makes_them(job), model)
        cast(job, model, release)
        if before_training is not None:
            before_training(model)

    return prepared(job, config, machine, adapting, in_trainer=True)


def has_whole_head(job: Job, release: tuple[int, int]) -> bool:
    """Whether the head makes all logits at once."""
    return release < CHUNKED or "foak" in job.kernels


def packs(job: Job) -> bool:
    """`SFTTrainer.padding_free`, by itself where samples are packed whole: a batch becomes one row. Only the newest
    release's is written down, and of flash-attn's kernels for such rows none: for those, a row is one sample."""
    whole = job.data.packing and job.data.packing_strategy in ("bfd", "bfd_split")
    newest = era_of(job).release >= (5, 17) and release_of_job(job) >= FUSED
    return whole and newest and not is_flash(job.attention)


def one_row(job: Job, machine: Machine, length: int) -> Batch:
    """`DataCollatorForLanguageModeling`: tokens, positions, labels, where samples end, which of them a token is of."""
    tokens = job.micro_batch * length
    ids, labels, position_ids = [machine.run("_to_copy", (), (1, tokens), INT64) for _ in range(3)]
    ends = [machine.run("_to_copy", (), (SAMPLES_A_ROW * job.micro_batch + 1,), INT32) for _ in range(2)]
    return ids, position_ids, labels, *ends, machine.run("_to_copy", (), (1, tokens), INT32)


def release_of_job(job: Job) -> tuple[int, int]:
    return release_of(job, era_of(job))


def release_of(job: Job, era: Era) -> tuple[int, int]:
    if job.trl_version is not None:
        return minor(job.trl_version)
    if era.release >= (5, 0):
        return (1, 16)
    return (0, 24) if era.release >= (4, 49) else (0, 13)


# ------------------------------------------------------------------------------------------------------------ casts


def is_cast(job: Job) -> bool:
    """`is_loaded_in_4bit` and `is_loaded_in_8bit` are bitsandbytes'."""
    return job.method != "full" and job.quantization.format in BITSANDBYTES


def as_peft_makes_them(job: Job) -> Job:
    """`get_peft_model` makes adapters over quantised weights fp32 first, since TRL does not tell it otherwise."""
    return replace_unchecked(job, lora=replace_unchecked(job.lora, adapter_dtype="float32")) if is_cast(job) else job


def cast(job: Job, model: Any, release: tuple[int, int]) -> None:
    """Of adapters over quantised weights: to bf16 by today's `SFTTrainer.__init__`, but for DoRA's magnitudes; until
    0.25 `peft_module_casting_to_bf16`, which takes embedding and head, that PEFT made fp32, back."""
    if not is_cast(job):
        return
    if release >= OWN_CASTS and job.lora.adapter_dtype != "bfloat16":
        model.machine.assumptions[CAST] = None
    if release >= OWN_CASTS:
        for module in model.modules():
            for parameter in module.own.values():
                if parameter.requires_grad and parameter.dim() == 2 and parameter.dtype != BFLOAT16:
                    change_dtype(parameter, BFLOAT16)
    elif job.quantization.prepare_kbit and job.autocast == "bfloat16":
        for module in (model.input_embedding(), model.output_embedding()):
            if module.weight.dtype == FLOAT32:
                change_dtype(module.weight, BFLOAT16)


# ------------------------------------------------------------------------------------------ before the fused head


def metrics_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor | None) -> Tensor:
    """`compute_loss` of 0.15 to 1.0."""
    loss, logits = outputs_of(job, model, inputs, num_items_in_batch)
    loss = loss if num_items_in_batch is None else loss.mul_(NUM_PROCESSES)
    if logits is None:  # kernels that make none
        return loss
    machine = model.machine
    with machine.no_grad():
        logits = logits.detach()
        if release_of(job, machine.era) >= ENTROPY:
            per_token_entropy = entropy_from_logits(logits)
            weighed = (per_token_entropy * inputs[1]).sum(range(2))
            weighed = weighed / inputs[1].sum(range(2), dtype=INT64)
            machine.run("mean", (weighed,), (), FLOAT32)
            del weighed
        machine.run("sum", (inputs[1].sum(range(2), dtype=INT64),), (), INT64)
        shift_logits = logits[..., : logits.shape[1] - 1, :].contiguous()
        shift_labels = inputs[2][..., 1 : logits.shape[1]].contiguous()
        predictions = machine.run("argmax", (shift_logits,), shift_labels.shape, INT64, args=(shift_logits, -1))
        mask = shift_labels.ne(0)
        correct_predictions = pointwise("bitwise_and", predictions.eq(0), BOOL)
        total_tokens = mask.sum(range(2))
        correct_tokens = correct_predictions.sum(range(2), dtype=INT64)
        total_sum = total_tokens.sum((), dtype=INT64)
        machine.run("gt", (total_sum,), (), BOOL)
        machine.run("div", (correct_tokens.sum((), dtype=INT64), total_sum), (), FLOAT32)
    return loss


def entropy_from_logits(logits: Tensor) -> Tensor:
    machine = logits.machine
    *shape, words = logits.shape
    rows, entropies = logits.numel() // words, []
    for first in range(0, rows, ENTROPY_ROWS):
        logps = machine.run("_log_softmax", (), (min(ENTROPY_ROWS, rows - first), words), logits.dtype)
        entropies.append(-(logps.exp() * logps).sum(-1))
    return F.cat(entropies, 0).view(*shape)


# ------------------------------------------------------------------------------------------------------- the fused head


def fused_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor | None) -> Tensor:
    machine = model.machine
    outputs = fused_outputs(model, inputs)
    if machine.scheme.sequence is None:
        per_token_loss = -outputs.log_probs
        num_tokens = outputs.label_mask.sum(range(2)) if num_items_in_batch is None else num_items_in_batch
        loss = per_token_loss.sum() / machine.run("clamp", (num_tokens,), (), INT64)
        if num_items_in_batch is not None:
            loss = loss * NUM_PROCESSES
    else:
        loss = outputs.loss
    num_valid = counted(outputs.label_mask)
    entropy_sum = counted(outputs.entropy)
    num_correct = counted(outputs.is_top1)
    for _ in (entropy_sum, num_correct):
        machine.run("gt", (num_valid,), (), BOOL)
        machine.run("div", (num_valid,), (), FLOAT32)
    local = machine.run("_to_copy", (), (), INT64) if machine.packs else inputs[1].sum(range(2), dtype=INT64)
    machine.run("sum", (local,), (), INT64)
    return loss


def fused_outputs(model: Any, inputs: Batch) -> Any:
    machine = model.machine
    forward = partial(fused_forward, **images_in(machine, inputs[3:])) if machine.pictures else fused_forward
    return machine.scheme.call(model, forward, *inputs[:3])


def counted(measured: Tensor) -> Tensor:
    """`gather_for_metrics(x.sum()).sum()`."""
    dtype = FLOAT32 if measured.dtype.floating else INT64
    return measured.machine.run("sum", (measured.detach().sum(range(2), dtype=dtype),), (), dtype)
