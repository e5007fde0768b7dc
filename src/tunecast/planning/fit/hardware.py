"""Other hardware on which a job fits without other training: more cards of its kind in one machine, or a larger card.

More cards keep the global batch: each takes its share of the rows. Whole copies (ddp) come before weights that are cut
(ZeRO, FSDP), which send more. What is told fits for sure, and was predicted in full, memory and time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from tunecast.advise.changes import with_fields
from tunecast.advise.ladder import Overrides, smaller_micro_batches
from tunecast.errors import NotResolved, UsageError
from tunecast.hardware.catalog import gpu, gpus
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.shardings import REPLICATED, sharding_of
from tunecast.job.stacks import stack_of
from tunecast.planning.fit.bounds import is_out_of_reach
from tunecast.planning.fit.fit import Predict, harmless_rungs
from tunecast.planning.fit.search import Trials, most_frugal, overrides_of, strongest
from tunecast.planning.fit.solution import Fit, OtherHardware, other_hardware_of
from tunecast.planning.price import rent_of
from tunecast.prediction.spreading import DIMENSIONS
from tunecast.records import replace
from tunecast.tape.build.sharding.scheme import rows_per_step

SEVERAL = (2, 4, 8)
"""Cards of one machine, as they are sold."""
MOST_LARGER = 4
"""Cards that are tried before one that fits but nobody rents out is told alone."""


def other_hardware(found: Fit, quick: Predict, full: Predict, today: date) -> tuple[OtherHardware, ...]:
    """`quick` is asked for memory only, `full` for time too."""
    job = found.before.job
    several = list(_several(job, quick))
    if not several and found.would_do is not None:
        several = list(_several_and_frugal(job, quick))[:1]
    larger = list(_larger(found, quick, full, today))
    return (*(_elsewhere(job, overrides, full, today) for overrides in several), *larger)


def _elsewhere(job: Job, overrides: Overrides, full: Predict, today: date) -> OtherHardware:
    done = full(with_fields(job, overrides))
    return other_hardware_of(done, overrides, rent_of(done, today))


def _several(job: Job, quick: Predict) -> Iterator[Overrides]:
    """For each number of cards the first way to share the work that fits for sure."""
    for count in _counts(job):
        tried = (overrides for data in _shared(job) for overrides in _splits(job, count, data))
        found = next((overrides for overrides in tried if _fits_surely(job, overrides, quick)), None)
        if found is not None:
            yield found


def _several_and_frugal(job: Job, quick: Predict) -> Iterator[Overrides]:
    """The same with what else is harmless, for jobs that more cards alone do not hold."""
    for count in _counts(job):
        for data in (each for each in _shared(job) if each != REPLICATED):
            overrides = next(_splits(job, count, data))
            try:
                trials = Trials(with_fields(job, overrides), quick)
                options = tuple(strongest(trials.job, harmless_rungs()))
                if is_out_of_reach(trials.job, options):
                    continue
                options = most_frugal(trials, options, trials.fits_surely)
            except (UsageError, NotResolved):
                continue
            if trials.fits_surely(options):
                yield {**overrides, **overrides_of(options)}


def _counts(job: Job) -> list[int]:
    """None where the job is spread in a way of its own, or several cards are not known of its stack."""
    is_plain = all(getattr(job.parallel, name) == 1 for name in DIMENSIONS) and job.hardware.nodes == 1
    return [count for count in SEVERAL if count > job.hardware.gpus] if is_plain and stack_of(job).shardings else []


def _shared(job: Job) -> list[str]:
    """How ranks share the work: as the job does, else copies, else cut. Who runs DeepSpeed stays with it."""
    own = sharding_of(job)
    wanted = (REPLICATED, own.name, own.most_cut)
    return [data for data in dict.fromkeys(wanted) if data in stack_of(job).shardings]


def _splits(job: Job, count: int, data: str) -> Iterator[Overrides]:
    """Of the global batch over so many cards: micro-batches as large as they are, then ever smaller ones. Fewer rows
    than cards make a larger batch, as the report says."""
    each = max(1, rows_per_step(job) // count)
    largest = next(size for size in range(min(job.micro_batch, each), 0, -1) if each % size == 0)
    smaller = smaller_micro_batches(replace(job, micro_batch=largest, grad_accum=each // largest))
    for micro_batch in (largest, *(int(str(overrides["micro_batch"])) for overrides in smaller)):
        wanted = {"parallel.data": data, "micro_batch": micro_batch, "grad_accum": each // micro_batch}
        known = {"parallel.data": job.parallel.data, "micro_batch": job.micro_batch, "grad_accum": job.grad_accum}
        changed = {name: value for name, value in wanted.items() if value != known[name]}
        yield {"hardware.gpus": count, **changed}


def _fits_surely(job: Job, overrides: Overrides, quick: Predict) -> bool:
    try:
        return quick(with_fields(job, overrides)).on_card.room.surely
    except (UsageError, NotResolved):
        return False


def _larger(found: Fit, quick: Predict, full: Predict, today: date) -> Iterator[OtherHardware]:
    """The smallest card that holds the job as it is; and where nobody rents that out, the smallest that somebody does.

    A capacity the job pretends is no card's.
    """
    job = found.before.job
    if job.hardware.capacity_bytes is not None:
        return
    own, tried = gpu(job.hardware.gpu), 0
    for card in sorted(gpus().values(), key=lambda card: card.memory_bytes):
        overrides: Overrides = {"hardware.gpu": card.name}
        if not _may_do(card, own, found.before.needs_bytes) or not _fits_surely(job, overrides, quick):
            continue
        each = _elsewhere(job, overrides, full, today)
        if tried == 0 or each.cost is not None:
            yield each
        tried += 1
        if each.cost is not None or tried == MOST_LARGER:
            return


def _may_do(card: Gpu, own: Gpu, needs_bytes: int) -> bool:
    is_larger = card.memory_bytes > max(own.memory_bytes, needs_bytes)
    return is_larger and card.vendor == own.vendor and card.compute_capability >= own.compute_capability
