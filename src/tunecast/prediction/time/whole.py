"""A whole job in seconds, phase by phase: from an empty machine to the saved model.

    provisioning ► image ► download ► start ► load ► preparation ► first step ► training | evaluation | checkpoints
                                                                                new lengths           ► final save

Training is the sum of its steps, each as long as its micro-batches are padded to (`lengths.py`, `by_length.py`).
What is not known of a job is left out and named in `WholeTime.missing`.

The constants are of the H200 runs in benchmarks/data (outside_runs.jsonl, h200_runs.jsonl): one machine, torch 2.11,
the checkpoint in the page cache; where a range is given it holds what else was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt
from typing import TYPE_CHECKING

from tunecast.job.job import Job
from tunecast.job.kernels import liger_parts
from tunecast.job.lengths import sample_lengths
from tunecast.job.names import rows_a_sample
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.prediction.data.batches import evaluates, steps_between_evaluations, steps_between_saves
from tunecast.prediction.data.lengths import Epoch, eval_lengths, new_lengths, times_done, total_steps
from tunecast.prediction.data.preparation import TOKENS_PER_S, preparation_s
from tunecast.prediction.outside.sharded_files import writes_parts
from tunecast.prediction.price.host import DEFAULT_HOST, Host
from tunecast.prediction.time.by_length import ByLength, mean_step_s
from tunecast.records import NamedTuple, dataclass, field, replace
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.units import GB, MB

if TYPE_CHECKING:
    from tunecast.prediction.outside.needs import Outside
    from tunecast.prediction.time.runtime import StepTime

START_S = (16.7, 5.0, 30.0)
"""Python begins, torch, transformers and its Trainer are imported, a CUDA context is made, and the process ends: 9.7 to
20.4 s, 15.1 in the median, and 1.6 s at both ends in twenty whole programs on four machines
(benchmarks/data/whole_runs.jsonl); 14.8 and 16.8 s on a fifth, of TRL and of the Trainer, and 5.5 without them
(launcher_start.jsonl, context); TRL's own imports are 2 % of the Trainer's. 17 to 25 s in four launches on two others
(launched_runs.jsonl: to_first_step_s less what train() took to it, loading and preparation): `tunecast calibrate`
measures it. (likely, low, high), here and below; from a network disk it takes longer."""
LOAD_START_S = 0.2
LOAD_BYTES_PER_S = 7.2 * GB
"""from_pretrained of a file in the page cache, onto the card: 2.47 GB in 0.46 to 0.55 s, 6.43 GB in 1.04 to 1.12 s."""
CAST_BYTES_PER_S = 6.6 * GB
"""What a cast on the host adds, of the bytes it makes: 6.43 GB loaded as 12.85 GB of float32 in 3.05 s."""
BITSANDBYTES_S = 3.5
"""To import it and load its kernels: nf4 takes 4.4 to 5.0 s the first time, 1.2 to 1.5 s when they are there."""
INT8_BYTES_PER_S = 1.1 * GB
"""LLM.int8 takes every weight over the host: 10.5 s for 6.43 GB."""
COLD_BYTES_PER_S = 0.5 * GB
"""A file that is not in memory, on a slow network disk: the far end of the range."""
SAVE_START_S = 0.2
SAVE_BYTES_PER_S = (1.0 * GB, 0.73 * GB, 1.1 * GB)
"""Trainer._save_checkpoint: 7.4 GB in 7.1 s, 6.6 in 7.5, 4.9 in 6.7, 0.29 in 0.41, 0.15 in 0.32; save_pretrained:
2.5 GB in 3.4 s, 6.4 in 8.0."""
DOWNLOAD_SPREAD = (1 / 3, 2.3)
"""Of the likely rate, 300 MB/s: huggingface_hub#4893 holds 300 MB/s on a 25 Gbit/s link, 1 GB comes at 260 and 5 GB at
680 MB/s on 100 Gbit/s (hf-xet 1.4.2, H-M-T's benchmark of buckets), and smaller machines have 1 Gbit/s."""
FIRST_STEP_S = (0.65, 0.5, 3.3)
"""By how much a first step is longer than the rest, kernels being loaded and blocks asked for: the median of 69 eager
runs is 0.645 s, a tenth each below 0.52 and above 1.76; of 14 others it was 0.5 to 3.5 s, 1.1 in the median."""
TRAIN_START_S = (0.34, 0.2, 1.0)
"""What transformers' Trainer does between train() and its first step: 0.34 s twice, in a process where all else was
loaded (data/host_kinds.jsonl)."""
LIGER_S = (4.3, 1.0, 6.0)
"""With Triton's kernels to compile (one run; none where Triton's cache has them)."""
COMPILE_S = (37.6, 15.0, 120.0)
"""With torch.compile (one run, 16 layers)."""
NEW_LENGTH_S = (0.14, 0.05, 0.31)
"""What the first micro-batch of a length takes more than later ones, where attention is cuDNN's, which plans for each
shape on the host: nothing without it (benchmarks/data/new_lengths.jsonl). 0.14 to 0.18 s there, with the card idle
before and after; 0.156 in the median of 177 in runs of 24 steps (varying_lengths.jsonl); -0.10 to 0.31 by run on 13
others, whose sums err by 20 % with it. In whole programs of the Trainer with over 200 lengths, kernels taken off, 0.10
and 0.12 on one day's host and 0.14 and 0.17 on another's, which also took a third longer to start
(whole_runs.jsonl): it goes as the host's speed, which `tunecast calibrate` measures.
Ignored  that planning backward runs beside what the card still has to do of the forward pass: 0.12 to 0.15 s of 0.16 in
         steps that the card bounds."""
NEW_KERNEL_S, NEW_WIDE_KERNEL_S = (1.9, 0.0, 2.5), (2.5, 0.0, 3.4)
"""Of the first length that is a multiple of 128, of 64, of 8, of 4, of 2, or odd: cuDNN compiles a kernel for heads of
up to `WIDE` elements, or wider ones, on a machine that was just rented: eight of 64 elements took 1.5 to 2.5 s, eight
of 128 2.2 to 2.9 (job_runs_fresh.jsonl), four of 256 2.4 to 2.8 (job_runs_dev.jsonl). Nothing where an earlier run left
it in the driver's cache on disk."""
WIDE = 96
ALIGNED = (128, 64, 8, 4, 2, 1)
EVALUATION_NEW_LENGTH_S = (0.05, 0.0, 0.15)
"""Without gradients, which is another plan: 0.045 to 0.071 s in the median of three models."""
EVALUATION_KERNEL_S = (0.8, 0.0, 1.4)
OTHER_NEW_LENGTH_S = (0.015, 0.0, 0.05)
"""The same of another kernel: one run of MPT 7B, five first visits."""
Likely = tuple[float, float, float]
"""(likely, low, high)."""
NOTHING: Likely = (0.0, 0.0, 0.0)


class Planning(NamedTuple):
    """What lengths take that attention has not seen before, once in a run."""

    length_s: Likely
    kernel_s: Likely = NOTHING
    evaluation_length_s: Likely = NOTHING
    evaluation_kernel_s: Likely = NOTHING


CUDNN_PLANNING = Planning(NEW_LENGTH_S, NEW_KERNEL_S, EVALUATION_NEW_LENGTH_S, EVALUATION_KERNEL_S)
CUDNN_WIDE_PLANNING = CUDNN_PLANNING._replace(kernel_s=NEW_WIDE_KERNEL_S)
OTHER_PLANNING = Planning(OTHER_NEW_LENGTH_S)


def planning_of(planned_width: int, host: Host = DEFAULT_HOST) -> Planning:
    """Of which width heads are for which cuDNN plans anew by shape, 0 where attention is not cuDNN's: one thread's
    work, as launching is. Four hosts planned for 0.127, 0.115, 0.139 and 0.162 s where the calibration's operations
    took 46, 47, 50 and 65 us."""
    if not planned_width:
        return OTHER_PLANNING
    found = CUDNN_WIDE_PLANNING if planned_width > WIDE else CUDNN_PLANNING
    if host.launch_s == DEFAULT_HOST.launch_s:
        return found
    slower = host.launch_s / DEFAULT_HOST.launch_s
    return Planning(*((likely * slower, low * slower, high * slower) for likely, low, high in found))


PHASES = (
    *("provisioning", "image", "download", "start", "load", "preparation", "first_step", "new_lengths", "training"),
    *("evaluation", "checkpoints", "final_save"),
)


class SecondsRange(NamedTuple):
    """Seconds, and an 80 % range."""

    likely_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class WholeTime:
    """`phases_s` sums to `total_s`."""

    total_s: float
    low_s: float
    high_s: float
    phases_s: Mapping[str, float]
    steps: int
    step_s: float
    """Mean over the run's lengths."""
    real_tokens: float
    padded_tokens: float
    evaluations: int
    checkpoints: int
    missing: tuple[str, ...] = ()
    """Phases that are not in the total, and what would have to be said for them."""
    assumptions: tuple[str, ...] = ()
    epoch: Epoch | None = field(default=None, compare=False)

    @property
    def tokens_per_s(self) -> float:
        """Real tokens, all ranks, while it trains."""
        return self.real_tokens / self.phases_s["training"] if self.phases_s["training"] else 0.0


class FixedPhases(NamedTuple):
    """A whole job but for what its steps take: all that is known before one is priced."""

    steps: int
    epoch: Epoch
    """Of a job that does not say how much data there is: its micro-batches all the same."""
    spans: Mapping[str, SecondsRange]
    planning: Planning
    evaluations: int
    checkpoints: int
    missing: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def real_tokens(self) -> float:
        return self.epoch.real_tokens * (self.steps / self.epoch.steps)

    def seconds(self, **priced: float) -> dict[str, float]:
        """By phase, with those that were priced."""
        likely = {name: span.likely_s for name, span in self.spans.items()} | priced
        return {name: likely.get(name, 0.0) for name in PHASES}


def fixed_phases(
    job: Job,
    epoch: Epoch | None,
    *,
    typical: Epoch | None = None,
    outside: Outside | None = None,
    planning: Planning = OTHER_PLANNING,
    start: Likely = START_S,
) -> FixedPhases | None:
    """None where the job's length is not known.

    `typical` has the micro-batches of a job that says how many steps it makes but not how much data there is;
    `planning` is of its attention: `planning_of`.
    """
    count = total_steps(job, epoch)
    if count is None:
        return None
    run, hardware = job.run, job.hardware
    checkpoints = times_done(run.save_strategy, steps_between_saves(job, count), count, epoch)
    evaluations = times_done(run.eval_strategy, steps_between_evaluations(job, count), count, epoch)
    prepared = SecondsRange(*preparation_s(job, epoch))
    known = epoch or typical or _full_rows(job)
    spans = {
        "start": SecondsRange(*start),
        "preparation": prepared,
        "provisioning": SecondsRange(*[hardware.provisioning_s] * 3),
        "first_step": _first_step(job),
        "new_lengths": _new_lengths(job, known, count, planning),
        **({"image": _download(hardware.image_bytes, job)} if hardware.image_bytes else {}),
        **({} if outside is None else _files(job, outside, checkpoints)),
    }
    missing = [] if outside is not None else ["download, loading and saving (the files of this job are not known)"]
    if evaluations and not evaluates(job):
        missing.append("evaluation (data.eval_samples is not given)")
    assumed = tuple(_assumed(job, outside, prepared))
    return FixedPhases(count, known, spans, planning, evaluations, checkpoints, tuple(missing), assumed)


def whole_job(
    job: Job,
    fixed: FixedPhases,
    steps: Mapping[int, StepTime],
    *,
    evaluation_s: float | None = None,
    loop_s: float = 0.0,
) -> WholeTime:
    """The whole job from the times of a few of its steps, by padded length.

    `evaluation_s` is what evaluating once takes: the forward pass of every batch (`eval_batches`); `loop_s` is what the
    Trainer takes around a step.
    """
    count, epoch, missing = fixed.steps, fixed.epoch, fixed.missing
    mean = _steps_s(job, epoch, {length: step.step_s for length, step in steps.items()})
    low = _steps_s(job, epoch, {length: step.low_s for length, step in steps.items()})
    high = _steps_s(job, epoch, {length: step.high_s for length, step in steps.items()})
    priced = {"training": SecondsRange(*(count * (each + loop_s) for each in (mean, low, high)))}
    if fixed.evaluations and evaluates(job):
        if evaluation_s is None:
            missing = (*missing, "evaluation (its forward pass was not priced)")
        else:
            spent, first = fixed.evaluations * evaluation_s, _first_evaluation(job, fixed.planning)
            ends = (spent * low / mean + first.low_s, spent * high / mean + first.high_s)
            priced["evaluation"] = SecondsRange(spent + first.likely_s, *ends)
    phases = fixed.seconds(**{name: span.likely_s for name, span in priced.items()})
    # Phases err independently: their errors add as squares.
    training, *others = priced.values()
    spans = (training, *fixed.spans.values(), *others)
    total = sum(phases.values())
    return WholeTime(
        total_s=total,
        low_s=total - sqrt(sum((span.likely_s - span.low_s) ** 2 for span in spans)),
        high_s=total + sqrt(sum((span.high_s - span.likely_s) ** 2 for span in spans)),
        phases_s=phases,
        steps=count,
        step_s=mean,
        real_tokens=fixed.real_tokens,
        padded_tokens=epoch.padded_tokens * (count / epoch.steps),
        evaluations=fixed.evaluations,
        checkpoints=fixed.checkpoints,
        missing=missing,
        assumptions=fixed.assumptions,
        epoch=epoch,
    )


def _files(job: Job, outside: Outside, checkpoints: int) -> dict[str, SecondsRange]:
    """What is read and written."""
    spans = {}
    if job.hardware.download_bytes_per_s is not None:
        spans["download"] = _download(outside.downloaded_bytes, job)
    spans["load"] = _load(job, outside)
    spans["checkpoints"] = _saved(outside.disk.checkpoint_bytes, job, checkpoints, outside.disk.writers)
    if not writes_parts(job):  # else save_model writes nothing, and the last checkpoint is the result
        spans["final_save"] = _saved(outside.disk.weights_bytes, job, 1)
    return spans


def _new_lengths(job: Job, epoch: Epoch, count: int, planning: Planning) -> SecondsRange:
    fresh = max(0.0, new_lengths(epoch, count * job.grad_accum, ranks_of(job)) - 1)
    compiled = kinds_of_lengths(epoch.lengths, count * job.grad_accum)
    length_s = new_length_s(planning, recomputes=job.gradient_checkpointing)
    return planned_s(fresh, length_s, compiled, planning.kernel_s)


def with_preparation(whole: WholeTime, was: Likely, now: Likely) -> WholeTime:
    """The same run where preparing the data takes other seconds (likely, low, high)."""
    faster = was[0] - now[0]
    below = (whole.total_s - whole.low_s) ** 2 - (was[0] - was[1]) ** 2 + (now[0] - now[1]) ** 2
    above = (whole.high_s - whole.total_s) ** 2 - (was[2] - was[0]) ** 2 + (now[2] - now[0]) ** 2
    total = whole.total_s - faster
    return replace(
        whole,
        total_s=total,
        low_s=total - sqrt(max(0.0, below)),
        high_s=total + sqrt(max(0.0, above)),
        phases_s={**whole.phases_s, "preparation": whole.phases_s["preparation"] - faster},
    )


def _full_rows(job: Job) -> Epoch:
    """One step of rows of seq_len."""
    rows = job.micro_batch * rows_a_sample(job.task)
    tokens = float(rows * ranks_of(job) * job.grad_accum * job.seq_len)
    return Epoch(0, 0, job.grad_accum, 1, tokens, tokens, {float(job.seq_len): 1.0})


def _steps_s(job: Job, epoch: Epoch, known: Mapping[int, float]) -> float:
    """The mean step of an epoch, its last one included, which may have fewer micro-batches."""
    waits = sharding_of(job).cuts_weights
    whole = mean_step_s(epoch, ByLength(known), job.grad_accum, ranks_of(job), each_waits=waits)
    rest = epoch.micro_batches % job.grad_accum
    if not rest:
        return whole
    # The optimizer runs all the same, but is a small part wherever gradients are accumulated.
    return whole * (epoch.steps - 1 + rest / job.grad_accum) / epoch.steps


def kinds_of_lengths(lengths: Mapping[float, float], batches: float) -> int:
    """How many of `ALIGNED` so many micro-batches are likely to bring, by the share that has each length."""
    shares = dict.fromkeys(ALIGNED, 0.0)
    for length, share in lengths.items():
        shares[next(multiple for multiple in ALIGNED if ceil(length) % multiple == 0)] += share
    return sum(share * batches >= 0.5 for share in shares.values())


def new_length_s(planning: Planning, *, recomputes: bool) -> Likely:
    """Plans are kept by thread (ATen/native/cudnn/MHA.cpp), and checkpointing computes a layer again in the engine's:
    there the forward pass is planned once more. 0.23 s in the median of a model with it, 0.16 of two without
    (benchmarks/data/new_lengths.jsonl)."""
    if not recomputes:
        return planning.length_s
    likely, low, high = (a + b for a, b in zip(planning.length_s, planning.evaluation_length_s, strict=True))
    return likely, low, high


def planned_s(lengths: float, length_s: Likely, kernels: int, kernel_s: Likely) -> SecondsRange:
    return SecondsRange(*(lengths * each + kernels * kernel for each, kernel in zip(length_s, kernel_s, strict=True)))


def _first_evaluation(job: Job, planning: Planning) -> SecondsRange:
    """What lengths that are new to an evaluation take, once in a run."""
    lengths = eval_lengths(job, sample_lengths(job.data))
    batches = sum(lengths.values())
    shares = {length: count / batches for length, count in lengths.items()} if batches else {}
    fresh = sum(1 - (1 - share) ** batches for share in shares.values())
    compiled = kinds_of_lengths(shares, batches)
    return planned_s(fresh, planning.evaluation_length_s, compiled, planning.evaluation_kernel_s)


def _first_step(job: Job) -> SecondsRange:
    loaded = COMPILE_S if job.compile else LIGER_S if liger_parts(job) else FIRST_STEP_S
    begun = TRAIN_START_S if stack_of(job).uses_trainer else NOTHING
    return SecondsRange(*map(sum, zip(loaded, begun, strict=True)))


def _download(nbytes: int, job: Job) -> SecondsRange:
    return downloaded_s(nbytes, job.hardware.download_bytes_per_s or 1)


def downloaded_s(nbytes: int, bytes_per_s: float) -> SecondsRange:
    likely = nbytes / bytes_per_s
    slow, fast = DOWNLOAD_SPREAD
    return SecondsRange(likely, likely / fast, likely / slow)


def _load(job: Job, outside: Outside) -> SecondsRange:
    """Reading, casting on the host where dtypes differ, quantising; each card's process does so beside the others."""
    read = outside.loading.host_mapped_bytes
    further = outside.further.read_bytes(read)
    disk = job.hardware.disk_bytes_per_s
    seconds = LOAD_START_S + (read + further) / min(LOAD_BYTES_PER_S, disk or LOAD_BYTES_PER_S)
    quantised = job.quantization.format
    if quantised in ("nf4", "fp4", "int8"):
        seconds += BITSANDBYTES_S + (read / INT8_BYTES_PER_S if quantised == "int8" else 0.0)
    elif outside.loading.host_bytes:
        seconds += outside.loading.model_bytes / CAST_BYTES_PER_S
    cold = 0.0 if disk is not None else outside.downloaded_bytes / COLD_BYTES_PER_S
    return _around_load(seconds, cold)


def read_s(nbytes: int) -> SecondsRange:
    """Of files that are read as they are, neither cast nor quantised, from the page cache or a slow disk."""
    return _around_load(LOAD_START_S + nbytes / LOAD_BYTES_PER_S, nbytes / COLD_BYTES_PER_S)


def _around_load(seconds: float, cold_s: float) -> SecondsRange:
    return SecondsRange(seconds, 0.7 * seconds, max(1.5 * seconds, cold_s))


def _saved(nbytes: int, job: Job, times: int, writers: int = 1) -> SecondsRange:
    """Each writer as fast as one alone, as long as its machine's disk is."""
    machines = min(writers, job.hardware.nodes)
    disk = None if job.hardware.disk_bytes_per_s is None else machines * job.hardware.disk_bytes_per_s
    return saved_s(nbytes, times, writers, disk)


def saved_s(nbytes: int, times: int = 1, writers: int = 1, disk_bytes_per_s: float | None = None) -> SecondsRange:
    rates = [writers * rate for rate in SAVE_BYTES_PER_S]
    likely, slow, fast = (times * (SAVE_START_S + nbytes / min(rate, disk_bytes_per_s or rate)) for rate in rates)
    return SecondsRange(likely, min(likely, fast), max(likely, slow))


def _assumed(job: Job, outside: Outside | None, prepared: SecondsRange) -> list[str]:
    told = []
    if not job.hardware.provisioning_s:
        told.append("provisioning time not included (hardware.provisioning_s)")
    if outside is not None and job.hardware.download_bytes_per_s is not None:
        rate = job.hardware.download_bytes_per_s / MB
        told.append(f"model download at {rate:.0f} MB/s (hardware.download_bytes_per_s; null if already on disk)")
    if prepared.likely_s:
        rate, many = TOKENS_PER_S[0], job.data.num_proc
        by = "one process" if many == 1 else f"each of {many} processes"
        told.append(
            f"tokenization before training at {rate:,.0f} tokens/s by {by} (data.num_proc; data.prepared skips it)"
        )
    if evaluates(job) and job.data.eval_samples is None:
        told.append(f"each evaluation is of {job.run.eval_max_batches:,} batches a card (data.eval_samples not given)")
    if job.hardware.disk_bytes_per_s is None:
        told.append("model and checkpoints go through the page cache (hardware.disk_bytes_per_s for a slower disk)")
    return told
