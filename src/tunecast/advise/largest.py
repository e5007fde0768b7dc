"""The most of something that still fits: searched by doubling and bisection over a question with a yes or a no.

    longest_sequence(job, predict)       rows of how many tokens
    largest_batch(job, predict)          how many rows at a time
    largest_model(jobs, predict, ...)    which of several models

Each is searched twice: what fits by the prediction itself, and what fits for sure, at the high end of its range too.

Memory grows with the batch and with the length, so the yeses come first. They need not come strictly first (a
capacity that binds makes the allocator free and cut memory anew), so what is found is a boundary that was asked on
both sides: it fits, and the next step up does not. Of what fits for sure, the steps just below were asked too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from tunecast.errors import NotResolved, TunecastError, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.job import Job, all_knobs
from tunecast.job.optimizers import optimizer_of
from tunecast.prediction.on_card import context_of
from tunecast.prediction.outside.checkpoint import Parameter, optimizer_states, weights_bytes
from tunecast.prediction.prediction import Prediction
from tunecast.records import dataclass, replace

SEQUENCE_STEP = 64
"""Lengths are searched in steps of it: kernels work in tiles of at least that many tokens, trainers pad to 8 or 64."""
UNBROKEN = 8
"""Lengths in a row that have to fit for sure, so that rows a little shorter than the longest do too: PyTorch asks for
large blocks in whole 2 MiB, and lengths that need whole ones are cut up better (QLoRA of Llama 3.1 8B on 24 GB: rows of
6,144 tokens need 21.3 GiB, of 6,080 23.7)."""
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
A_WEIGHT = (4096, 4096)
"""A matrix of a layer, whose state stands for that of all."""
WEIGHT_BYTES: Mapping[str, float] = {"float32": 4, "bfloat16": 2, "float16": 2}
QUANTISED_BYTES: Mapping[str | None, float] = {
    "nf4": 0.5, "fp4": 0.5, "gptq": 0.5, "awq": 0.5, "int8": 1, "finegrained_fp8": 1, "torchao_int8": 1,
    "torchao_float8": 1,
}  # fmt: skip

Fits = Callable[[int], bool]
Predict = Callable[[Job], Prediction]
T = TypeVar("T")


@dataclass(frozen=True)
class Boundary:
    """`most` fits, and `beyond` does not."""

    most: int | None
    """None: not even the least fits."""
    beyond: int | None
    """The next step up; None where `most` is as far as was asked for."""
    asked: int
    """How many questions it took."""


def largest_fitting(fits: Fits, limit: int, step: int = 1) -> Boundary:
    """The largest multiple of `step` up to `limit` that fits; if not even one step does, the largest number below it.

    At most 2 log2(limit / step) + 2 questions, and 2 log2(step) more for the second case. The limit itself counts as
    a multiple, so that a model's own longest sequence can be the answer.
    """
    answers: dict[int, bool] = {}

    def asked(value: int) -> bool:
        if value not in answers:
            answers[value] = fits(value)
        return answers[value]

    most, beyond = _boundary(asked, limit, min(step, limit))
    if most is None and step > 1:
        most, beyond = _boundary(asked, min(step, limit), 1)
    return Boundary(most, beyond, len(answers))


def _boundary(asked: Fits, limit: int, step: int) -> tuple[int | None, int | None]:
    """In steps: `low` is the last known to fit, `high` the first known not to."""
    steps = -(-limit // step)

    def value(count: int) -> int:
        return min(count * step, limit)

    if not asked(value(1)):
        return None, value(1)
    low, high = 1, 2
    while high < steps and asked(value(high)):
        low, high = high, 2 * high
    if high >= steps:
        if low == steps or asked(value(steps)):
            return limit, None
        high = steps
    while high - low > 1:
        middle = (low + high) // 2
        if asked(value(middle)):
            low = middle
        else:
            high = middle
    return value(low), value(high)


@dataclass(frozen=True)
class Reach:
    """How far it goes: for sure, and by the prediction itself."""

    surely: int | None
    """None: not even the least fits for sure."""
    likely: Boundary
    jagged: bool = False
    """Some between the two fit for sure and some smaller ones do not: the allocator cuts some sizes up better."""


def reach(question: Callable[[int], Prediction], limit: int, step: int = 1, unbroken: int = 1) -> Reach:
    """What fits for sure is no more than what fits, and is searched there alone. `unbroken`: so many steps in a row
    have to, of which the largest counts."""
    likely = largest_fitting(lambda value: question(value).on_card.fits, limit, step)

    def surely(value: int) -> bool:
        return question(value).on_card.room.surely

    if likely.most is None:
        return Reach(None, likely)
    most = likely.most if surely(likely.most) else largest_fitting(surely, likely.most, step).most
    if most is None:
        return Reach(None, likely)
    whole = _unbroken(surely, most, step, unbroken)
    return Reach(whole, likely, jagged=whole != most)


def _unbroken(asked: Fits, most: int, step: int, count: int) -> int | None:
    """The largest from `most` down that begins a run of so many, or of all there are, for which the answer is yes."""
    first: int | None = None
    value, run = most, 0
    while value > 0 and run < count:
        is_so = asked(value)
        first, run = (value if run == 0 else first, run + 1) if is_so else (None, 0)
        value = (value - 1) // step * step
    return first


@dataclass(frozen=True)
class SizedItem(Generic[T]):
    """Something of a size, and the least it can need."""

    item: T
    size: int
    least_bytes: int


@dataclass(frozen=True)
class LargestItem(Generic[T]):
    item: T | None
    """None: none fits."""
    beyond: T | None
    """The next larger one that was asked and does not fit."""
    unanswered: tuple[tuple[T, str], ...] = ()
    """Larger ones the engine has no answer for, and why."""
    asked: int = 0


def largest_item(candidates: Iterable[SizedItem[T]], fits: Callable[[T], bool], capacity_bytes: int) -> LargestItem[T]:
    """The largest candidate that fits, asked from the largest down: need does not follow size strictly.

    A mixture of experts needs other activations than a dense model of its size, so nothing is skipped but what cannot
    fit into `capacity_bytes` by the least it holds.
    """
    beyond: T | None = None
    unanswered: list[tuple[T, str]] = []
    asked = 0
    for candidate in sorted(candidates, key=lambda each: -each.size):
        if candidate.least_bytes > capacity_bytes:
            continue
        asked += 1
        try:
            if fits(candidate.item):
                return LargestItem(candidate.item, beyond, tuple(unanswered), asked)
        except (UsageError, NotResolved) as error:
            unanswered.append((candidate.item, error.message))
            continue
        beyond = candidate.item
    return LargestItem(None, beyond, tuple(unanswered), asked)


def longest_sequence(job: Job, predict: Predict, positions: int | None = None) -> Reach:
    """Rows of how many tokens, at the job's micro-batch. `positions`: what the model knows positions for."""
    most = int(all_knobs()["seq_len"].high)
    limit = min(most, positions or most)
    return reach(lambda length: predict(with_rows_of(job, length)), limit, SEQUENCE_STEP, UNBROKEN)


def with_rows_of(job: Job, length: int) -> Job:
    """Every row as long as that, whatever its own samples are."""
    return replace(job, seq_len=length, lengths=None, data=replace(job.data, lengths=None))


def largest_batch(job: Job, predict: Predict) -> Reach:
    """How many rows at a time, of the job's length."""
    return reach(lambda rows: predict(with_rows(job, rows)), int(all_knobs()["micro_batch"].high))


def with_rows(job: Job, rows: int) -> Job:
    """So many at a time, each as long as the job says rows are."""
    return replace(job, micro_batch=rows, data=replace(job.data, lengths=None))


def largest_model(
    jobs: Iterable[SizedItem[Job]], predict: Predict, capacity_bytes: int
) -> tuple[Job | None, LargestItem[Job]]:
    """Of jobs that differ in their model: what fits for sure, and what fits by the prediction itself."""
    candidates = list(jobs)
    likely = largest_item(candidates, lambda job: predict(job).on_card.fits, capacity_bytes)
    if likely.item is None or predict(likely.item).on_card.room.surely:
        return likely.item, likely
    size = next(each.size for each in candidates if each.item == likely.item)
    smaller = [each for each in candidates if each.size < size]
    return largest_item(smaller, lambda job: predict(job).on_card.room.surely, capacity_bytes).item, likely


def of_model(job: Job, parameters: int, *, all_used: bool) -> SizedItem[Job]:
    """The job as a candidate, by its model's parameters.

    The least it holds whatever its activations: its weights; and in full tuning with AdamW, or another optimizer that
    keeps moments in the weights' dtype, their gradients and those. Not so (`all_used`) where a part may see no token
    and get no gradient: a tower, an expert.
    """
    if job.method == "qlora":
        return SizedItem(job, parameters, int(parameters * QUANTISED_BYTES.get(job.quantization.format, 0.5)))
    weights = int(parameters * WEIGHT_BYTES.get(job.weights_dtype, 2))
    trains_all = job.method == "full" and job.trained is None
    moments = _moments(job) if trains_all and all_used else 0
    return SizedItem(job, parameters, weights * (2 + moments if moments else 1))


def _moments(job: Job) -> int:
    """Tensors of the optimizer's state on the card that are as large as their weight."""
    weight = Parameter("weight", A_WEIGHT, job.weights_dtype if job.weights_dtype in WEIGHT_BYTES else "bfloat16", True)
    try:
        states = optimizer_states(job.optimizer, [weight])
    except TunecastError:  # the closed form does not know it
        return 0
    as_large = [state for state in states if state.nbytes == weights_bytes([weight]) and not state.on_host]
    kind = optimizer_of(job)
    return 0 if kind.in_backward or kind.projection else len(as_large)


def capacity_of(job: Job) -> int:
    """What the allocator may hold on the job's card."""
    gpu = gpu_named(job.hardware.gpu)
    if job.hardware.capacity_bytes is not None:
        return job.hardware.capacity_bytes
    return gpu.memory_bytes - context_of(gpu).nbytes - job.hardware.reserve_bytes


def positions_of(raw: Mapping[str, Any]) -> int | None:
    """The longest sequence a config.json says the model has positions for."""
    parts = [raw, *(raw[name] for name in ("text_config", "llm_config", "language_config") if name in raw)]
    found = (part.get(name) for part in reversed(parts) if isinstance(part, Mapping) for name in POSITIONS)
    return next(
        (value for value in found if isinstance(value, int) and not isinstance(value, bool) and value > 0), None
    )
