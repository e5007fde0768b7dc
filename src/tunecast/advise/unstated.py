"""What a job does not say and was taken for it, and what another common value would change.

    job ──► `taken(job)` ──► each with another value ──► predict ──► `Effect`

Only fields that decide memory, time or cost are told, in the order in which they usually do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tunecast.advise.changes import with_fields
from tunecast.advise.ladder import Overrides
from tunecast.errors import NotResolved, Unsupported, UsageError
from tunecast.job.job import Job, all_knobs
from tunecast.job.kernels import TAKEN
from tunecast.job.names import ROLLOUTS
from tunecast.job.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from tunecast.job.stacks import SFT_STACK, stack_of
from tunecast.prediction.data.batches import has_full_rows
from tunecast.prediction.memory.vllm import could_use_vllm
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.verdict import Verdict
from tunecast.records import NamedTuple
from tunecast.tape.build.fill_in import has_own_dtype

Predict = Callable[[Job], Prediction]


class Taken(NamedTuple):
    """A field nobody gave, and a value others would take."""

    field: str
    value: Any
    whose: str
    """`TRL's default`, `the checkpoint's`; '' where it is ours."""
    instead: Overrides
    """Another value, by dotted name; empty where there is none to try."""


class Spent(NamedTuple):
    """On a whole job; None where that is not known."""

    total_s: float | None
    usd: float | None


def without_price(done: Prediction) -> Spent:
    return Spent(_time(done, "total_s"), None)


class Effect(NamedTuple):
    """What the other value would change."""

    taken: Taken
    more_bytes: int
    """Of what the fullest card needs, at least; negative: less."""
    verdict: Verdict
    time_ratio: float | None
    """Of the time for the same number of tokens, or of the whole job where it is known."""
    total_s: float | None
    usd: float | None
    """Of the whole job."""


def taken(job: Job, model_type: str = "") -> list[Taken]:
    """`job` with what follows from its model filled in."""
    values = job.flat()
    return [
        Taken(field, values[field], _whose(field, job), dict(instead))
        for field, instead in (*_decisive(job), *_kernels(job, model_type))
        if not job.is_given(field)
    ]


def _whose(field: str, job: Job) -> str:
    if field == "weights_dtype":
        states = ", gradients and optimizer states too" if job.method == "full" else ""
        own = f"{job.stack}'s own" if has_own_dtype(job) else "the checkpoint's"
        return f"{own}{states}"
    if field == "lora.targets":
        return f"{job.stack}'s own" if stack_of(job).targets is not None else "PEFT's choice"
    if field == "seq_len" and job.task in ROLLOUTS:
        return f"{job.seq_len - job.rl.completion_length:,} of prompt, {job.rl.completion_length:,} generated"
    if field == "stack":
        return "--stack names another"
    if field == "data.lengths":
        return "--data-lengths says how long yours are"
    if field == "kernels":
        return "--kernels says what is installed"
    package = all_knobs()[field].origin.package
    return "" if package == "tunecast" else f"{package}' default" if package.endswith("s") else f"{package}'s default"


def _decisive(job: Job) -> Iterator[tuple[str, Overrides]]:
    yield "hardware.gpu", {}
    if job.task == "sft":
        yield "stack", {"stack": SFT_STACK}
    if could_use_vllm(job):
        yield "rl.engine", {"rl.engine": "vllm"}
    yield "method", {"method": "lora"} if job.method == "full" else {}
    if job.micro_batch > 1:  # the batch of a step stays what it is
        yield "micro_batch", {"micro_batch": 1, "grad_accum": job.micro_batch * job.grad_accum}
    if job.lengths is None:
        yield "seq_len", {"seq_len": 2 * job.seq_len}
    if has_full_rows(job):
        yield "data.lengths", {}
    if job.quantization.format is None:
        yield "weights_dtype", {"weights_dtype": "bfloat16" if job.weights_dtype == "float32" else "float32"}
    if job.method != "full":
        yield "lora.targets", {} if job.lora.targets == "all-linear" else {"lora.targets": "all-linear"}
        yield "lora.rank", {"lora.rank": 4 * job.lora.rank}
    else:
        yield "optimizer", {"optimizer": OPTIMIZERS[DEFAULT_OPTIMIZER].paged_eight_bit}
    yield "gradient_checkpointing", {"gradient_checkpointing": not job.gradient_checkpointing}
    if has_data(job) and job.run.max_steps is None:
        yield "data.epochs", {"data.epochs": 1.0}
    if has_data(job) and job.run.save_strategy == "steps" and job.run.saves_per_epoch is None:
        yield "run.save_steps", {"run.save_strategy": "epoch"}


def _kernels(job: Job, model_type: str) -> Iterator[tuple[str, Overrides]]:
    """Packages that models without attention in all layers are hardly ever trained without."""
    if model_type in TAKEN and "kernels" in stack_of(job).search:
        yield "kernels", {"kernels": list(TAKEN[model_type])}


def has_data(job: Job) -> bool:
    return job.data.has_lengths or (job.data.samples or job.data.tokens) is not None


def effects(
    done: Prediction, every: Iterable[Taken], predict: Predict, spent: Callable[[Prediction], Spent] = without_price
) -> list[Effect]:
    """Of each that has another value and could be predicted with it."""
    found = []
    for each in every:
        if not each.instead:
            continue
        try:
            other = predict(with_fields(done.job, each.instead))
        except (UsageError, NotResolved, Unsupported):
            continue
        found.append(_effect(each, done, other, spent(other)))
    return found


def _effect(each: Taken, done: Prediction, other: Prediction, spent: Spent) -> Effect:
    more_bytes = other.on_card.smallest_capacity_bytes - done.on_card.smallest_capacity_bytes
    return Effect(each, more_bytes, other.on_card.room.verdict, _time_ratio(done, other), *spent)


def _time_ratio(done: Prediction, other: Prediction) -> float | None:
    for name, upside_down in (("total_s", False), ("tokens_per_s", True)):
        before, after = _time(done, name), _time(other, name)
        if before and after:
            return before / after if upside_down else after / before
    return None


def _time(of: Prediction, name: str) -> float | None:
    return None if of.time is None else getattr(of.time, name)


def worth_telling(found: Sequence[Effect], done: Prediction) -> list[Effect]:
    """Those that move memory or time by a hundredth, or the verdict."""
    whole = done.on_card.smallest_capacity_bytes
    return [
        each
        for each in found
        if abs(each.more_bytes) >= whole / 100
        or each.verdict != done.on_card.room.verdict
        or (each.verdict != "does not fit" and each.time_ratio is not None and abs(each.time_ratio - 1) >= 0.01)
    ]
