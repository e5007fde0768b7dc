"""What is said of a job's time, utilisation and energy: the parts of a prediction beside memory.

    lengths ──► padded micro-batches ──► a few steps priced ──► the mean step ──► the whole job ──► energy

MFU  model FLOPs a second over what the card could do at most in the dtype its matrix products run in. Model FLOPs are
     those of the forward and backward pass once, as the tape has them: attention and adapters included, frozen weights'
     gradients not, which nobody computes. The 6 N of a token of the usual rule is this for full training but for
     attention. HFU counts what the card really does: recomputation too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from tunecast.hardware.cluster import Cluster, cluster_of
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Data, Job
from tunecast.job.lengths import QUANTILES, Lengths, sample_lengths
from tunecast.job.model import ModelConfig
from tunecast.job.shardings import sharding_of
from tunecast.prediction.data.batches import evaluates, has_full_rows
from tunecast.prediction.data.lengths import Epoch, cut_rows, epoch_of, eval_batches
from tunecast.prediction.memory.vllm import generates_by_vllm
from tunecast.prediction.modelled import card_of
from tunecast.prediction.outside.needs import Outside
from tunecast.prediction.price.host import Host, host_of, loop_s
from tunecast.prediction.time.by_length import mean_step, priced_lengths
from tunecast.prediction.time.ranges import ranged
from tunecast.prediction.time.reasons import host_needs, reasons, whole_reasons
from tunecast.prediction.time.runtime import StepTime, step_time
from tunecast.prediction.time.whole import START_S, WholeTime, fixed_phases, planning_of, whole_job
from tunecast.prediction.values import Energy, Time, Timing, Utilization
from tunecast.records import NamedTuple, replace
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.tape.build.stacks.transformers import with_room
from tunecast.tape.fold import Folded
from tunecast.tape.step import Step
from tunecast.tape.timed import evaluation_step, steps_of_fold, timed_steps

if TYPE_CHECKING:
    from tunecast.prediction.lessons.correction import Correction, Learned
    from tunecast.prediction.time.calibration import Calibration

PEAKS: Mapping[str, str] = {
    **{"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    **{"float8": "fp8", "float4": "fp4"},
}
Played = Folded | Mapping[int, Step] | None
"""A run that was played for memory, with its operations, or its steps by length; None where there is none."""


class StepTimes(NamedTuple):
    by_length: Mapping[int, StepTime]
    planned_width: int
    """Of attention's heads where it is cuDNN's, which plans anew for every length; 0 where it is another's."""
    correction: Correction | None = None
    """What the user's own runs changed of the longest; None where they say nothing of such steps."""


class RunTime(NamedTuple):
    mean: StepTime
    whole: WholeTime | None
    """None where the job does not say how long it is."""


class RunClock:
    """A job on a card, priced in three steps: which runs, their steps, the whole job. A prediction asks for one job, a
    planner for many that share steps (`planning/estimate.py`). Raises what the closed form raises."""

    def __init__(
        self,
        job: Job,
        model: ModelConfig,
        gpu: Gpu,
        lengths: Lengths | None,
        epoch: Epoch | None,
        calibration: Calibration | None = None,
        learned: Learned | None = None,
    ) -> None:
        self.job, self.model, self.gpu, self.host = job, model, gpu, host_of(job)
        self.lengths, self.epoch, self.calibration, self.learned = lengths, epoch, calibration, learned
        self.typical = epoch or typical_epoch(job, lengths)
        self.cluster = cluster_of(job, gpu) if job.hardware.cards > 1 else None
        if calibration is not None:
            from tunecast.prediction.time.calibration import calibrated_gpu, calibrated_host

            self.gpu = calibrated_gpu(gpu, calibration)
            self.host = self.host if job.hardware.launch_us is not None else calibrated_host(self.host, calibration)

    def run_time(self, steps: StepTimes, evaluation_s: float | None, outside: Outside | None) -> RunTime:
        """The mean step and the whole job."""
        job, calibration = self.job, self.calibration
        start, planning = START_S, planning_of(steps.planned_width, self.host)
        if calibration is not None:
            start = calibration.start_s or start
            planning = (calibration.planning or planning) if steps.planned_width else planning
        elif self.learned is not None:
            start = self.learned.starts.get(self.gpu.name, start)
        if generates_by_vllm(job):
            from tunecast.prediction.time.vllm import with_engine  # few jobs do

            start = with_engine(start)
        waits = sharding_of(job).cuts_weights
        mean = mean_step(self.typical, steps.by_length, job.grad_accum, ranks_of(job), each_waits=waits)
        fixed = fixed_phases(job, self.epoch, typical=self.typical, outside=outside, planning=planning, start=start)
        if fixed is None:
            return RunTime(mean, None)
        around_s = loop_s(job, self.model.layers, self.host)
        if evaluation_s is not None and steps.correction is not None:
            evaluation_s *= steps.correction.ratio
        return RunTime(mean, whole_job(job, fixed, steps.by_length, evaluation_s=evaluation_s, loop_s=around_s))

    def runs(self) -> list[Job]:
        """Each length as a run of its own, where a run of several has the same steps: runs of one length are alike, and
        the one that was played for memory has most of an epoch's rows.

        They are not the same where shapes are compiled for several lengths, or where tables of positions grow with the
        longest; a pipeline's stages are priced together.
        """
        job, config = self.job, self.model.raw
        wanted, lengths = replace(plain(job), lengths=None), lengths_to_price(job, self.typical)
        together = job.compile or job.parallel.pipeline > 1
        if len(lengths) > 1 and (together or with_room(config, max(job.seq_len, *lengths)) != config):
            # A run's first step is not like the others, and is not priced: its length comes once more.
            return [replace(wanted, seq_len=max(job.seq_len, *lengths), lengths=(lengths[0], *lengths))]
        return [replace(wanted, seq_len=length) for length in lengths]

    def step_times(self, runs: Sequence[Job], played: Sequence[Played]) -> StepTimes:
        """Of `runs()`, each with the run that was played for memory where that is the same: it is not built again."""
        config = self.model.raw
        each = [
            times_by_length(run, config, self.gpu, self.host, self.cluster, known)
            for run, known in zip(runs, played, strict=True)
        ]
        by_length = {length: time for times in each for length, time in times.by_length.items()}
        if generates_by_vllm(self.job):
            from tunecast.prediction.time.vllm import generation_s, with_generation  # few jobs do

            generated = generation_s(self.job, self.model, self.gpu)
            by_length = {length: with_generation(time, generated, self.job) for length, time in by_length.items()}
        times = StepTimes(by_length, each[0].planned_width)
        if self.learned is None:
            return times
        from tunecast.prediction.lessons.correction import (  # whoever has no runs needs none of it
            corrected,
            correction_of,
        )

        found = {
            length: correction_of(self.learned, time, self.job, self.gpu.name) for length, time in by_length.items()
        }
        if not any(each.runs for each in found.values()):
            return times
        made = {length: corrected(time, found[length]) for length, time in by_length.items()}
        longest = found[max(made)]
        return StepTimes(made, times.planned_width, longest if longest.runs else None)

    def evaluation_s(self) -> float | None:
        """Every batch once, all as long as they are on average.

        Ignored  compute_metrics, and SFTTrainer's own metrics.
        """
        job = self.job
        if not evaluates(job):
            return None
        batches, length = eval_batches(job, self.lengths)
        step = evaluation_step(plain(job), self.model.raw, card_of(self.gpu), job.run.eval_batch, length)
        return batches * step_time(step, self.gpu, self.host, self.cluster).step_s


def timing(
    job: Job,
    model: ModelConfig,
    gpu: Gpu,
    outside: Outside | None = None,
    played: Played = None,
    calibration: Calibration | None = None,
    learned: Learned | None = None,
) -> Timing:
    """Everything about a job's time on a card. Raises what the closed form raises."""
    lengths = sample_lengths(job.data)
    clock = RunClock(job, model, gpu, lengths, epoch_of(job, lengths), calibration, learned)
    runs = clock.runs()
    steps = clock.step_times(runs, [played if run == plain(job) else None for run in runs])
    mean, whole = clock.run_time(steps, clock.evaluation_s(), outside)
    why = reasons(job, mean, model.layers, clock.typical.padding_fraction)
    why += [] if whole is None else whole_reasons(job, whole.phases_s)
    why += [] if lengths is None else cut_rows(job, lengths)
    return Timing(
        time=_time(job, mean, clock.typical, whole, why),
        utilization=_utilization(job, clock.gpu, mean, outside),
        energy=None if whole is None else _energy(job, clock.gpu, whole, mean),
        assumptions=(
            *_calibrated(calibration),
            *(() if steps.correction is None else (f"time: {steps.correction.words}",)),
            *_full_rows(job),
            *_generated(job, model, clock.gpu),
            *(() if whole is None else whole.assumptions),
            *(() if outside is None else outside.assumptions),
        ),
        warnings=(*_not_learned(learned), *(() if clock.cluster is None else clock.cluster.warnings)),
        learned=steps.correction,
    )


def _calibrated(calibration: Calibration | None) -> tuple[str, ...]:
    if calibration is None:
        return ()
    return (f"time: prices of this machine's own {calibration.device}, measured {calibration.measured}",)


def _not_learned(learned: Learned | None) -> tuple[str, ...]:
    return (f"nothing is learned from your runs: {learned.problem}",) if learned is not None and learned.problem else ()


def _generated(job: Job, model: ModelConfig, gpu: Gpu) -> tuple[str, ...]:
    if not generates_by_vllm(job):
        return ()
    from tunecast.prediction.time.vllm import generation_told  # few jobs do

    return (generation_told(job, model, gpu),)


def _full_rows(job: Job) -> tuple[str, ...]:
    if not has_full_rows(job):
        return ()
    return (f"every row is taken as full, {job.seq_len:,} tokens (data.lengths says how long samples are)",)


def _energy(job: Job, gpu: Gpu, whole: WholeTime, mean: StepTime) -> Energy | None:
    from tunecast.prediction.time.energy import energy  # of jobs that say how much data they have

    before = whole.phases_s["provisioning"]
    return energy(
        job, gpu, whole.phases_s, mean.gpu_busy_s / mean.step_s, (whole.low_s - before, whole.high_s - before)
    )


def typical_epoch(job: Job, lengths: Lengths | None) -> Epoch:
    """Of a job that does not say how much data there is: its micro-batches all the same."""
    samples = max(QUANTILES, job.micro_batch * ranks_of(job) * job.grad_accum)
    made = replace(job, data=replace(job.data, tokens=None, samples=samples))
    found = epoch_of(made, None if lengths is None else lengths._replace(samples=samples))
    assert found is not None
    return found


NARROW_STEP = 128
"""Tokens that products in float4 and float8 take at a time, the larger of both (tape/build/float4.py, float8.py)."""


def lengths_to_price(job: Job, epoch: Epoch) -> tuple[int, ...]:
    """Packed rows are as full as they are on average, and as narrow products take them."""
    if not job.data.packing:
        return priced_lengths(epoch.lengths)
    step = 1 if job.matmul_dtype is None else NARROW_STEP
    return (step * ceil(max(1, round(epoch.mean_length)) / step),)


def plain(job: Job) -> Job:
    """What of its data is not in its steps is left out."""
    return replace(job, id=None, data=Data(packing=job.data.packing))


def times_by_length(
    job: Job,
    config: Mapping[str, Any],
    gpu: Gpu,
    host: Host,
    cluster: Cluster | None,
    played: Played = None,
) -> StepTimes:
    """One optimizer step, by padded length; of the run that was played, where it was."""
    if job.parallel.pipeline > 1 and cluster is not None:
        from tunecast.prediction.time.stages import pipelined_steps

        times = pipelined_steps(job, config, card_of(gpu), gpu, host, cluster)
        return StepTimes(ranged(times, job, gpu.name, several=True), planned_width=0)
    if job.parallel.layers > 1:  # one card works at a time: together they take what one with all layers would
        alone = replace(job.hardware, gpus=1)
        job, played = replace(job, parallel=replace(job.parallel, layers=1), hardware=alone), None
    if isinstance(played, Mapping):
        steps = played
    elif played is not None and played.operations is not None:
        steps = steps_of_fold(played, job.grad_accum)
    else:
        steps = timed_steps(job, config, card_of(gpu))
    distinct = next(iter(steps.values())).table.distinct
    width = next((op.shapes[0][-1] for op in distinct if "cudnn" in op.name), 0)
    times = {length: step_time(step, gpu, host, cluster) for length, step in steps.items()}
    return StepTimes(ranged(times, job, gpu.name, several=cluster is not None), width)


def _time(job: Job, mean: StepTime, epoch: Epoch, whole: WholeTime | None, why: list[str]) -> Time:
    tokens_per_s = epoch.real_tokens / epoch.micro_batches * job.grad_accum / mean.step_s
    step = Time(
        step_s=mean.step_s,
        low_s=mean.low_s,
        high_s=mean.high_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / job.hardware.cards,
        total_s=None,
        bound_by=mean.bound_by,
        breakdown_s=dict(mean.breakdown_s),
        padding_fraction=epoch.padding_fraction,
        why=tuple(why),
        task_s=dict(mean.task_s) or None,
    )
    if whole is None:
        return step
    return replace(
        step,
        total_s=whole.total_s,
        total_range_s=(whole.low_s, whole.high_s),
        phases_s=dict(whole.phases_s),
        steps=whole.steps,
        real_tokens=round(whole.real_tokens),
        padded_tokens=round(whole.padded_tokens),
        evaluations=whole.evaluations,
        checkpoints=whole.checkpoints,
        missing=whole.missing,
    )


def _utilization(job: Job, gpu: Gpu, mean: StepTime, outside: Outside | None) -> Utilization:
    peak = gpu.dense_flop_per_s.get(PEAKS[job.matmul_dtype or job.autocast or job.weights_dtype])
    bandwidth = gpu.memory_bytes_per_s
    return Utilization(
        mfu=None if peak is None else mean.model_flops / mean.step_s / peak,
        hfu=None if peak is None else mean.flops / mean.step_s / peak,
        achieved_flop_per_s=mean.model_flops / mean.step_s,
        gpu_busy_fraction=mean.gpu_busy_s / mean.step_s,
        memory_fraction=None if bandwidth is None else mean.moved_bytes / mean.step_s / bandwidth,
        communication_fraction=mean.communication_s / mean.step_s,
        host=host_needs(job, outside),
    )
