"""Changes to a job that need less memory, each tried: what it would save, and whether the job fits then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tunecast.errors import NotResolved, UsageError
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict, with_overrides
from tunecast.predict.prediction import Predicted

Predict = Callable[[Job], Predicted]
Overrides = Mapping[str, object]


@dataclass(frozen=True)
class Change:
    """Fields set to other values, and what came of it."""

    overrides: Overrides
    """By dotted name."""
    job: Job
    saves_bytes: int
    """Of what was measured: the least capacity the job completes with, unless asked otherwise; negative where it
    needs more."""
    fits: bool


def with_fields(job: Job, overrides: Overrides) -> Job:
    """The job with other values; what only another method has goes with it. Raises `UsageError`."""
    fields = job.to_dict()
    if overrides.get("method") == "qlora" and job.method != "qlora":
        del fields["quantization"]  # it says that nothing is quantised
    return job_from_dict(with_overrides(fields, overrides))


def least_capacity(of: Predicted) -> int:
    return of.held.smallest_capacity_bytes


def reserved(of: Predicted) -> int:
    """What PyTorch holds of the card. Needs no search for the least capacity, which takes most of a prediction."""
    return of.held.shown.reserved_bytes


def changes_tried(
    job: Job, before: Predicted, predict: Predict, measure: Callable[[Predicted], int] = least_capacity
) -> list[Change]:
    """Every change that applies to this job and helps, those that make it fit first, then the largest saving.

    What cannot be predicted (an architecture a fused kernel does not know) is left out.
    """
    need = measure(before)
    found = []
    for overrides in _candidates(job):
        try:
            other = with_fields(job, overrides)
            after = predict(other)
            saves = need - measure(after)
        except (UsageError, NotResolved):
            continue
        fits = after.held.fits
        if saves > 0 or (fits and not before.held.fits):
            found.append(Change(overrides, other, saves, fits))
    return sorted(found, key=lambda change: (not change.fits, -change.saves_bytes))


def _candidates(job: Job) -> Iterator[Overrides]:
    """What people change, from what costs training nothing to what does."""
    if job.allocator == "native":
        yield {"allocator": "expandable_segments"}
    if not job.gradient_checkpointing:
        yield {"gradient_checkpointing": True}
    if "liger" not in job.kernels:
        yield {"kernels": [*job.kernels, "liger"]}
    if job.attention == "eager":
        yield {"attention": "sdpa"}
    if job.micro_batch > 1:
        half = job.micro_batch // 2
        yield {"micro_batch": half, "grad_accum": job.grad_accum * -(-job.micro_batch // half)}
    if job.optimizer == "adamw_torch":
        yield {"optimizer": "adamw_torch_fused"}
    if job.optimizer.startswith("adamw_torch"):
        yield {"optimizer": "adamw_8bit"}
        yield {"optimizer": "paged_adamw_8bit"}
    if job.weights_dtype == "float32" and job.autocast == "bfloat16":
        yield {"weights_dtype": "bfloat16"}
    if job.quantization.format is not None and job.quantization.prepare_kbit:
        yield {"quantization.prepare_kbit": False}
    if job.method == "full":
        yield {"method": "lora"}
    if job.method in ("full", "lora"):
        yield {"method": "qlora"}
    if job.seq_len > 1 and job.lengths is None:
        yield {"seq_len": job.seq_len // 2}
