"""TRL's SFTTrainer on paper: 1.16.0, whose head never makes all logits, and what older releases did instead.

From 1.15 on the head of tape/build/chunked.py. Before 1.1 the model's own loss, and for the metrics another copy of the
logits (`mean_token_accuracy`, from 0.15) and the entropy of 128 rows at a time (from 0.20). Between them the loss is
chunked another way, for which the newest stands in, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.records import replace_unchecked
from tunecast.tape.build import ops
from tunecast.tape.build.adapters import adapt
from tunecast.tape.build.chunked import fused_forward, summed
from tunecast.tape.build.eras import Era, era_of, numbers
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.quantized import change_dtype
from tunecast.tape.build.stacks import trainer
from tunecast.tape.build.stacks.trainer import Batch, models_loss, outputs_of, take_steps
from tunecast.tape.build.stacks.transformers import evaluation_loop, model, prepared
from tunecast.tape.build.tensor import BFLOAT16, BOOL, FLOAT32, INT32, INT64, Machine, Tensor

__all__ = ["REFUSES", "model", "train"]

REFUSES: Mapping[str, Callable[[Job], bool]] = {
    **{field: refused for field, refused in trainer.REFUSES.items() if field != "stack_version"},
    "loss": lambda job: job.loss is not None and (job.loss == "chunked") != chunks(job),
}
ENTROPY_ROWS = 128
ACCURACY, ENTROPY, OWN_CASTS, OWN_CHECKPOINTS, CHUNKED = (0, 15), (0, 20), (0, 26), (0, 28), (1, 1)
ZERO_3_DTYPE, FUSED = (1, 7), (1, 15)
"""The releases since which (tags of huggingface/trl, trl/trainer/sft_trainer.py and trl/models/utils.py)."""
SAMPLES_A_ROW = 2
"""Of a packed row: how many there are decides a few bytes."""
CAST = "lora.adapter_dtype: TRL keeps adapters over quantised weights in bfloat16, whatever it says"
TAKEN = "TRL is taken to be {}.{}, of the time of that transformers; stack_version says which"


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    release = release_of(job, machine.era)
    model, parameters, optimizer = set_up(job, config, machine, release)
    if job.checkpoint_reentrant is None:
        machine.reentrant = machine.era.reentrant and release < OWN_CHECKPOINTS
    if job.stack_version is None and machine.era.release < (5, 0):
        machine.guesses[TAKEN.format(*release)] = None
    if CHUNKED <= release < FUSED:
        machine.guesses["TRL chunked the loss in another way before 1.15; 1.15's is taken"] = None
    whole = has_whole_head(job, release)
    compute_loss = (metrics_loss if release >= ACCURACY else models_loss) if whole else fused_loss
    if packs(job) and machine.scheme.sequence is None:
        machine.packs = SAMPLES_A_ROW * job.micro_batch - 1
    take_steps(job, model, parameters, optimizer, lengths, compute_loss, one_row if machine.packs else None)
    machine.end()


def evaluate(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    """Trainer.evaluate, with the head of training. What the metrics make in it is left out."""
    release = release_of(job, machine.era)
    model, _, _ = set_up(job, config, machine, release)
    whole = has_whole_head(job, release)

    def loss_of(inputs: Sequence[Tensor]) -> Tensor:
        batch = inputs[0], inputs[1], inputs[2]
        if whole:
            return outputs_of(job, model, batch, None)[0]
        return machine.scheme.call(model, fused_forward, *batch).loss  # type: ignore[no-any-return]

    evaluation_loop(job, model, lengths, loss_of)
    machine.end()


def chunks(job: Job) -> bool:
    return release_of_job(job) >= CHUNKED


def set_up(
    job: Job, config: Mapping[str, Any], machine: Machine, release: tuple[int, int]
) -> tuple[Any, list[Tensor], Optimizer]:
    """Model, what is trained of it, and its optimizer, as SFTTrainer makes them."""

    def adapting(job: Job, model: Any) -> None:
        adapt(as_peft_makes_them(job), model)
        cast(job, model, release)

    return prepared(job, config, machine, adapting, in_trainer=True)


def has_whole_head(job: Job, release: tuple[int, int]) -> bool:
    """Whether the head makes all logits at once."""
    return release < CHUNKED or "foak" in job.kernels


def packs(job: Job) -> bool:
    """`SFTTrainer.padding_free`, by itself where samples are packed whole: a batch becomes one row. Only the newest
    release's is written down, and of flash-attn's kernels for such rows none: for those, a row is one sample."""
    whole = job.data.packing and job.data.packing_strategy in ("bfd", "bfd_split")
    newest = job.transformers_version is None and release_of_job(job) >= FUSED
    return job.stack == "trl" and whole and newest and not job.attention.startswith("flash")


def one_row(job: Job, machine: Machine, length: int) -> Batch:
    """`DataCollatorForLanguageModeling`: tokens, positions, labels, where samples end, which of them a token is of."""
    tokens = job.micro_batch * length
    ids, labels, position_ids = [machine.run("_to_copy", (), (1, tokens), INT64) for _ in range(3)]
    ends = [machine.run("_to_copy", (), (SAMPLES_A_ROW * job.micro_batch + 1,), INT32) for _ in range(2)]
    return ids, position_ids, labels, *ends, machine.run("_to_copy", (), (1, tokens), INT32)


def release_of_job(job: Job) -> tuple[int, int]:
    return release_of(job, era_of(job.transformers_version))


def release_of(job: Job, era: Era) -> tuple[int, int]:
    if job.stack_version is not None:
        return numbers(job.stack_version, "stack_version", "1.16")
    if era.release >= (5, 0):
        return (1, 16)
    return (0, 24) if era.release >= (4, 49) else (0, 13)


# ------------------------------------------------------------------------------------------------------------ casts


def is_cast(job: Job) -> bool:
    """gptq: `is_loaded_in_4bit` and `is_loaded_in_8bit` are bitsandbytes'."""
    return job.method != "full" and job.quantization.format not in (None, "gptq")


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


def metrics_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor) -> Tensor:
    """`compute_loss` of 0.15 to 1.0."""
    loss, logits = outputs_of(job, model, inputs, num_items_in_batch)
    loss = ops.scale_in_place(loss)
    if logits is None:  # kernels that make none
        return loss
    machine = model.machine
    with machine.no_grad():
        logits = logits.detached()
        if release_of(job, machine.era) >= ENTROPY:
            per_token_entropy = entropy_from_logits(logits)
            weighed = ops.total(ops.multiply(per_token_entropy, inputs[1]), range(2))
            weighed = ops.divide(weighed, ops.total(inputs[1], range(2), dtype=INT64))
            machine.run("mean", (weighed,), (), FLOAT32)
            del weighed
        machine.run("sum", (ops.total(inputs[1], range(2), dtype=INT64),), (), INT64)
        shift_logits = ops.contiguous(ops.slice_(logits, -2, 0, logits.shape[1] - 1))
        shift_labels = ops.contiguous(ops.slice_(inputs[2], -1, 1, logits.shape[1]))
        predictions = machine.run("argmax", (shift_logits,), shift_labels.shape, INT64, args=(shift_logits, -1))
        mask = ops.map_("ne", shift_labels, BOOL)
        correct_predictions = ops.map_("bitwise_and", ops.map_("eq", predictions, BOOL), BOOL)
        total_tokens = ops.total(mask, range(2), dtype=INT64)
        correct_tokens = ops.total(correct_predictions, range(2), dtype=INT64)
        total_sum = ops.total(total_tokens, (), dtype=INT64)
        machine.run("gt", (total_sum,), (), BOOL)
        machine.run("div", (ops.total(correct_tokens, (), dtype=INT64), total_sum), (), FLOAT32)
    return loss


def entropy_from_logits(logits: Tensor) -> Tensor:
    machine = logits.machine
    *shape, words = logits.shape
    rows, entropies = logits.numel() // words, []
    for first in range(0, rows, ENTROPY_ROWS):
        logps = machine.run("_log_softmax", (), (min(ENTROPY_ROWS, rows - first), words), logits.dtype)
        entropies.append(ops.map_("neg", ops.total(ops.multiply(ops.map_("exp", logps), logps), (-1,))))
    return ops.view(ops.cat(entropies, 0), *shape)


# ------------------------------------------------------------------------------------------------------- the fused head


def fused_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor) -> Tensor:
    machine = model.machine
    outputs = machine.scheme.call(model, fused_forward, *inputs[:3])
    if machine.scheme.sequence is None:
        per_token_loss = ops.negative(outputs.log_probs)
        loss = ops.divide(summed(per_token_loss), machine.run("clamp", (num_items_in_batch,), (), INT64))
        loss = ops.scale(loss)
    else:
        loss = outputs.loss
    num_valid = counted(outputs.label_mask)
    entropy_sum = counted(outputs.entropy)
    num_correct = counted(outputs.is_top1)
    for _ in (entropy_sum, num_correct):
        machine.run("gt", (num_valid,), (), BOOL)
        machine.run("div", (num_valid,), (), FLOAT32)
    local = machine.run("_to_copy", (), (), INT64) if machine.packs else ops.total(inputs[1], range(2), dtype=INT64)
    machine.run("sum", (local,), (), INT64)
    return loss


def counted(measured: Tensor) -> Tensor:
    """`gather_for_metrics(x.sum()).sum()`."""
    dtype = FLOAT32 if measured.dtype.floating else INT64
    return measured.machine.run("sum", (ops.total(measured.detached(), range(2), dtype=dtype),), (), dtype)
