"""What is said of a job's time, utilisation and energy: the parts of a prediction beside memory.

    lengths ──► padded micro-batches ──► a few steps priced ──► the mean step ──► the whole job ──► energy

MFU  model FLOPs a second over what the card could do at most in the dtype its matrix products run in. Model FLOPs are
     those of the forward and backward pass once, as the tape has them: attention and adapters included, frozen weights'
     gradients not, which nobody computes. The 6 N of a token of the usual rule is this for full training but for
     attention. HFU counts what the card really does: recomputation too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tunecast.errors import NotResolved, Unsupported, UsageError
from tunecast.hardware.cluster import Cluster, cluster_of
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Data, Job
from tunecast.job.lengths import QUANTILES, Lengths, sample_lengths
from tunecast.job.model import ModelConfig
from tunecast.predict.batches import has_full_rows
from tunecast.predict.by_length import mean_step, priced_lengths
from tunecast.predict.energy import Energy, energy
from tunecast.predict.host import Host, host_of, loop_s
from tunecast.predict.lengths import Epoch, cut_rows, epoch_of, eval_batches
from tunecast.predict.modelled import card_of
from tunecast.predict.outside import Outside, outside_of
from tunecast.predict.prediction import Prediction, without_time
from tunecast.predict.reasons import host_needs, reasons, whole_reasons
from tunecast.predict.runtime import StepTime, step_time
from tunecast.predict.spreading import CUT
from tunecast.predict.time_ranges import ranged
from tunecast.predict.whole import START_S, WholeTime, planning_of, whole_job
from tunecast.records import replace
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.tape.build.stacks.transformers import with_room
from tunecast.tape.fold import Folded
from tunecast.tape.op import Phase
from tunecast.tape.timed import Step, steps_of_fold, timed_steps

if TYPE_CHECKING:
    from tunecast.predict.calibration import Calibration

PEAKS: Mapping[str, str] = {
    **{"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    **{"float8": "fp8", "float4": "fp4"},
}


class Timing(NamedTuple):
    """As the contract has them; None is what was not computed."""

    time: dict[str, Any]
    utilization: dict[str, Any]
    energy: dict[str, Any] | None
    assumptions: tuple[str, ...] = ()


def timing(
    job: Job,
    model: ModelConfig,
    gpu: Gpu,
    cluster: Cluster | None = None,
    outside: Outside | None = None,
    folded: Folded | Mapping[int, Step] | None = None,
    calibration: Calibration | None = None,
) -> Timing:
    """Everything about a job's time on a card. Raises what the closed form raises.

    `folded` is the run that was played for memory, with its operations, or its steps by length: where it has the
    lengths that are to be priced, none is played again.
    """
    lengths = sample_lengths(job.data)
    epoch = epoch_of(job, lengths)
    typical = epoch or typical_epoch(job, lengths)
    host = host_of(job)
    if calibration is not None:
        from tunecast.predict.calibration import calibrated_gpu, calibrated_host

        gpu = calibrated_gpu(gpu, calibration)
        host = host if job.hardware.launch_us is not None else calibrated_host(host, calibration)
    wanted = _of_lengths(job, typical)
    priced = _priced(wanted, plain(job), model.raw, gpu, host, cluster, folded)
    evaluation_s = evaluation_seconds(job, model, gpu, cluster, lengths, host)
    mean, whole = run_time(job, model, epoch, typical, priced, host, outside, evaluation_s, calibration)
    spent = None if whole is None else _energy(job, gpu, whole, mean)
    why = reasons(job, mean, model.layers, typical.padding_fraction)
    why += [] if whole is None else whole_reasons(job, whole.phases_s)
    why += [] if lengths is None else cut_rows(job, lengths)
    return Timing(
        time=_time(job, mean, typical, whole, why),
        utilization=_utilization(job, gpu, mean) | {"host": host_needs(job, outside).to_dict()},
        energy=None if spent is None else spent.to_dict(),
        assumptions=(
            *_calibrated(calibration),
            *_full_rows(job),
            *(() if whole is None else whole.assumptions),
            *(() if outside is None else outside.assumptions),
        ),
    )


class RunTime(NamedTuple):
    mean: StepTime
    whole: WholeTime | None
    """None where the job does not say how long it is."""


def run_time(
    job: Job,
    model: ModelConfig,
    epoch: Epoch | None,
    typical: Epoch,
    priced: StepTimes,
    host: Host,
    outside: Outside | None,
    evaluation_s: float | None,
    calibration: Calibration | None = None,
) -> RunTime:
    """Of steps that were priced, the mean one and the whole job."""
    waits = job.parallel.data in CUT
    start, planning = START_S, planning_of(priced.planned_width, host)
    if calibration is not None:
        start = calibration.start_s or start
        planning = (calibration.planning or planning) if priced.planned_width else planning
    return RunTime(
        mean_step(typical, priced.by_length, job.grad_accum, ranks_of(job), each_waits=waits),
        whole_job(
            job,
            epoch,
            priced.by_length,
            typical=typical,
            outside=outside,
            evaluation_s=evaluation_s,
            planning=planning,
            start=start,
            loop_s=loop_s(job, model.layers, host),
        ),
    )


def _calibrated(calibration: Calibration | None) -> tuple[str, ...]:
    if calibration is None:
        return ()
    return (f"time: prices of this machine's own {calibration.device}, measured {calibration.measured}",)


def _full_rows(job: Job) -> tuple[str, ...]:
    if not has_full_rows(job):
        return ()
    return (f"every row is taken as full, {job.seq_len:,} tokens (data.lengths says how long samples are)",)


def with_time(
    said: Prediction, job: Job, model: ModelConfig, gpu: Gpu, folded: Folded | Mapping[int, Step] | None = None,
    calibration: Calibration | None = None,
) -> Prediction:  # fmt: skip
    """A prediction of memory with what is said of time. What cannot be priced must not take the memory with it: then
    it is a warning. A wrong country or file of lengths is told as any wrong field."""
    cards = job.hardware.gpus * job.hardware.nodes
    try:
        cluster = cluster_of(job, gpu) if cards > 1 else None
        if cluster is not None:
            said = replace(said, warnings=(*said.warnings, *cluster.warnings))
        told = timing(job, model, gpu, cluster, _outside(job, model), folded, calibration)
    except (UsageError, NotResolved):
        raise
    except Exception as error:
        return without_time(said, error)
    return replace(
        said,
        time=told.time,
        utilization=told.utilization,
        energy=told.energy,
        assumptions=(*said.assumptions, *told.assumptions),
    )


def _outside(job: Job, model: ModelConfig) -> Outside | None:
    try:
        return outside_of(job, model)
    except Unsupported:
        return None


def _energy(job: Job, gpu: Gpu, whole: WholeTime, mean: StepTime) -> Energy | None:
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


def _of_lengths(job: Job, epoch: Epoch) -> Job:
    """The job with the lengths that are to be priced; those of its samples have done their work."""
    one, priced = replace(plain(job), lengths=None), lengths_to_price(job, epoch)
    if len(priced) == 1:
        return replace(one, seq_len=priced[0])
    # A run's first step is not like the others, and is not priced: its length comes once more.
    return replace(one, seq_len=max(job.seq_len, *priced), lengths=(priced[0], *priced))


def lengths_to_price(job: Job, epoch: Epoch) -> tuple[int, ...]:
    """Packed rows are as full as they are on average."""
    return (max(1, round(epoch.mean_length)),) if job.data.packing else priced_lengths(epoch.lengths)


def plain(job: Job) -> Job:
    """What of its data is not in its steps is left out."""
    return replace(job, id=None, data=Data(packing=job.data.packing))


class StepTimes(NamedTuple):
    by_length: Mapping[int, StepTime]
    planned_width: int
    """Of attention's heads where it is cuDNN's, which plans anew for every length; 0 where it is another's."""


def _priced(
    wanted: Job, played: Job, config: Mapping[str, Any], gpu: Gpu, host: Host, cluster: Cluster | None,
    folded: Folded | Mapping[int, Step] | None,
) -> StepTimes:  # fmt: skip
    """Each length as a run of its own, where a run of several has the same steps: runs of one length are alike, and the
    one that was `played` for memory has most of an epoch's rows.

    They are not the same where shapes are compiled for several lengths, or where tables of positions grow with the
    longest; a pipeline's stages are priced together.
    """
    longest = wanted.seq_len
    alone = wanted.lengths is None or wanted.compile or wanted.parallel.pipeline > 1
    if alone or with_room(config, longest) != config:
        return times_by_length(wanted, config, gpu, host, cluster, folded if wanted == played else None)
    found: dict[int, StepTime] = {}
    width = 0
    for length in dict.fromkeys(wanted.lengths or ()):
        one = replace(wanted, seq_len=length, lengths=None)
        each = times_by_length(one, config, gpu, host, cluster, folded if one == played else None)
        width = width if found else each.planned_width
        found |= each.by_length
    return StepTimes(found, width)


def times_by_length(
    job: Job,
    config: Mapping[str, Any],
    gpu: Gpu,
    host: Host,
    cluster: Cluster | None,
    folded: Folded | Mapping[int, Step] | None = None,
) -> StepTimes:
    """One optimizer step, by padded length; of the run that was `folded`, where it was."""
    if job.parallel.pipeline > 1 and cluster is not None:
        from tunecast.predict.stages import pipelined_steps

        times = pipelined_steps(job, config, card_of(gpu), gpu, host, cluster)
        return StepTimes(ranged(times, job, gpu.name, several=True), planned_width=0)
    if job.parallel.layers > 1:  # one card works at a time: together they take what one with all layers would
        alone = replace(job.hardware, gpus=1)
        job, folded = replace(job, parallel=replace(job.parallel, layers=1), hardware=alone), None
    if isinstance(folded, Mapping):
        steps = folded
    elif folded is not None and folded.short is not None:
        steps = steps_of_fold(folded, job.grad_accum)
    else:
        steps = timed_steps(job, config, card_of(gpu))
    distinct = next(iter(steps.values())).table.distinct
    width = next((op.shapes[0][-1] for op in distinct if "cudnn" in op.name), 0)
    times = {length: step_time(step, gpu, host, cluster) for length, step in steps.items()}
    return StepTimes(ranged(times, job, gpu.name, several=cluster is not None), width)


def evaluation_seconds(
    job: Job, model: ModelConfig, gpu: Gpu, cluster: Cluster | None, lengths: Lengths | None, host: Host
) -> float | None:
    """The forward pass of every batch, once. Evaluation keeps nothing of it, which takes no time either.

    Ignored  compute_metrics, and SFTTrainer's own metrics.
    """
    if job.run.eval_strategy == "no" or job.data.eval_samples is None:
        return None
    batches, length = eval_batches(job, lengths)
    one = replace(plain(job), lengths=None, seq_len=length, micro_batch=job.run.eval_batch, grad_accum=1)
    steps = timed_steps(one, model.raw, card_of(gpu))
    sections = next(iter(steps.values())).sections
    forward = Step(tuple(section for section in sections if section.phase is Phase.FORWARD))
    return batches * step_time(forward, gpu, host, cluster).step_s


def _time(job: Job, mean: StepTime, epoch: Epoch, whole: WholeTime | None, why: list[str]) -> dict[str, Any]:
    cards = job.hardware.gpus * job.hardware.nodes
    tokens_per_s = epoch.real_tokens / epoch.micro_batches * job.grad_accum / mean.step_s
    return {
        "step_s": mean.step_s,
        "low_s": mean.low_s,
        "high_s": mean.high_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s / cards,
        "total_s": None if whole is None else whole.total_s,
        "bound_by": mean.bound_by,
        "breakdown_s": dict(mean.breakdown_s),
        "padding_fraction": epoch.padding_fraction,
        "why": why,
        **({} if whole is None else _whole(whole)),
    }


def _whole(whole: WholeTime) -> dict[str, Any]:
    return {
        "total_range_s": [whole.low_s, whole.high_s],
        "phases_s": dict(whole.phases_s),
        "steps": whole.steps,
        "real_tokens": round(whole.real_tokens),
        "padded_tokens": round(whole.padded_tokens),
        "evaluations": whole.evaluations,
        "checkpoints": whole.checkpoints,
        "missing": list(whole.missing),
    }


def _utilization(job: Job, gpu: Gpu, mean: StepTime) -> dict[str, Any]:
    peak = gpu.dense_flop_per_s.get(PEAKS[job.matmul_dtype or job.autocast or job.weights_dtype])
    bandwidth = gpu.memory_bytes_per_s
    return {
        "mfu": None if peak is None else mean.model_flops / mean.step_s / peak,
        "hfu": None if peak is None else mean.flops / mean.step_s / peak,
        "achieved_flop_per_s": mean.model_flops / mean.step_s,
        "gpu_busy_fraction": mean.gpu_busy_s / mean.step_s,
        "memory_fraction": None if bandwidth is None else mean.moved_bytes / mean.step_s / bandwidth,
        "communication_fraction": mean.communication_s / mean.step_s,
    }
