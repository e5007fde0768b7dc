"""The time of a step whose layers are spread over pipeline stages, or over cards that work one after another.

A pipeline's stages run the same layers as one card would, each its own: the tape of one micro-batch on one stage is cut
into stages, each stage's passes are priced, and the schedule is simulated (`pipeline.py`). What a rank does once a
step, its optimizer and the ranks that share the data, is read off the rank's own tape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm
from typing import Any

from tunecast.hardware.cluster import Cluster
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.parallel import Parallel
from tunecast.prediction.price.collectives import collective_seconds
from tunecast.prediction.price.host import Host
from tunecast.prediction.time.pipeline import INTERLEAVED, ONE_F_ONE_B, pipeline_time
from tunecast.prediction.time.runtime import StepTime, step_time
from tunecast.records import NamedTuple, replace
from tunecast.tape.build.sharding.layers import layer_count
from tunecast.tape.build.standing import layer_number
from tunecast.tape.card import Card
from tunecast.tape.op import Op, Phase
from tunecast.tape.step import Step, StepSection, micro_batches
from tunecast.tape.timed import MICRO_BATCHES, timed_steps

BUBBLE = "pipeline_bubble"
DATA_GROUPS = ("data", "shard", "replicate")
PASSES = (Phase.FORWARD, Phase.BACKWARD)


class StagePass(NamedTuple):
    """One pass through the whole model: what comes before its layers, one of them, what comes after."""

    before: Sequence[Op]
    layer: Sequence[Op]
    period: int
    """Layers `layer` stands for: a pattern of several is priced together."""
    after: Sequence[Op]


def stage_cards(parts: Parallel) -> int:
    """As few cards as hold one stage once: layers are split one way, experts another."""
    return lcm(parts.tensor * parts.context, parts.expert * parts.cards_of_one_expert)


def pipelined_steps(
    job: Job, config: Mapping[str, Any], card: Card, gpu: Gpu, host: Host, cluster: Cluster
) -> dict[int, StepTime]:
    parts = job.parallel
    stages = parts.pipeline * parts.virtual_stages
    plain = replace(parts, virtual_stages=1)
    nobody = replace(job.hardware, gpus=stage_cards(parts), nodes=1)
    alone = replace(job, grad_accum=MICRO_BATCHES, parallel=replace(plain, pipeline=1), hardware=nobody)
    whole = {length: between(step) for length, step in timed_steps(alone, config, card).items()}
    own = timed_steps(replace(job, grad_accum=1, parallel=plain), config, card)
    unshared = {length: without_data_exchange(step) for length, step in own.items()}
    layers = layer_count(config)
    return {
        length: _pipelined(job, step, own[length], unshared[length], layers, stages, gpu, host, cluster)
        for length, step in whole.items()
    }


def between(step: Step) -> Step:
    """A micro-batch that neither begins nor ends a step: what every one costs, without what cards exchange once."""
    return Step(tuple(micro_batches(step.sections)[1]))


def without_data_exchange(step: Step) -> Step:
    """What a rank does where those that see other data wait for nothing."""
    return Step(
        tuple(
            [
                section._replace(ops=tuple([op for op in section.ops if op.group not in DATA_GROUPS]))
                for section in step.sections
            ]
        )
    )


def shares(layers: int, stages: int) -> list[int]:
    """As even as they go, the first stages taking what is left over; of interleaved ones some may be empty."""
    return [layers // stages + (stage < layers % stages) for stage in range(stages)]


def _pipelined(
    job: Job, whole: Step, own: Step, unshared: Step, layers: int, stages: int, gpu: Gpu, host: Host, cluster: Cluster
) -> StepTime:
    passes = {phase: passed(whole.sections, phase) for phase in PASSES}
    forward, backward = passes[Phase.FORWARD], passes[Phase.BACKWARD]
    counts = shares(layers, stages)
    made: dict[Phase, list[StepTime]] = {phase: [] for phase in PASSES}
    for stage, count in enumerate(counts):
        first, last = stage == 0, stage == stages - 1
        for phase, through in passes.items():
            starts, ends = (first, last) if phase is Phase.FORWARD else (last, first)
            sections = [
                *([StepSection(phase, 1, through.before)] if starts and through.before else []),
                *([StepSection(phase, max(1, count // through.period), through.layer)] if count else []),
                *([StepSection(phase, 1, through.after)] if ends and through.after else []),
            ]
            made[phase].append(step_time(Step(tuple(sections)), gpu, host, cluster))
    schedule = INTERLEAVED if job.parallel.virtual_stages > 1 else ONE_F_ONE_B
    run = pipeline_time(
        schedule, job.parallel.pipeline, job.grad_accum, [t.step_s for t in made[Phase.FORWARD]],
        [t.step_s for t in made[Phase.BACKWARD]], hop_seconds(forward, backward, cluster),
    )  # fmt: skip
    rest = step_time(Step(tuple(s for s in unshared.sections if s.phase not in PASSES)), gpu, host, cluster)
    exchanged_s = step_time(own, gpu, host, cluster).step_s - step_time(unshared, gpu, host, cluster).step_s
    return _summed(made, run.step_s, rest, max(0.0, exchanged_s), job.grad_accum, job.parallel.pipeline)


def _summed(
    made: Mapping[Phase, Sequence[StepTime]], passes_s: float, rest: StepTime, exchanged_s: float, micro_batches: int,
    ranks: int,
) -> StepTime:  # fmt: skip
    """A rank's mean share of the work, and what it waits for the others. `exchanged_s` is what the exchange with ranks
    that see other data adds to a step, beyond what its last micro-batch hides."""
    works = [time for times in made.values() for time in times]
    share = micro_batches / ranks
    breakdown: dict[str, float] = {}
    for time, weight in (*((work, share) for work in works), (rest, 1.0)):
        for name, spent in time.breakdown_s.items():
            breakdown[name] = breakdown.get(name, 0.0) + spent * weight
    step_s = passes_s + rest.step_s + exchanged_s
    breakdown["communication"] = breakdown.get("communication", 0.0) + exchanged_s
    breakdown[BUBBLE] = step_s - sum(breakdown.values())
    bound = rest.bound_by if not works else max(works, key=lambda work: work.step_s).bound_by

    def total(read: str) -> float:
        return sum(float(getattr(work, read)) for work in works) * share + float(getattr(rest, read))

    return StepTime(
        step_s=step_s, low_s=step_s, high_s=step_s, breakdown_s=breakdown, bound_by=bound,
        gpu_busy_s=total("gpu_busy_s"), cpu_s=total("cpu_s"), flops=round(total("flops")),
        moved_bytes=round(total("moved_bytes")), communication_s=total("communication_s"),
        model_flops=round(total("model_flops")), kernels=round(total("kernels")),
    )  # fmt: skip


def passed(sections: Sequence[StepSection], phase: Phase) -> StagePass:
    """One pass cut at its layers. The layers that stand for the others are the section that repeats most."""
    mine = [section for section in sections if section.phase is phase]
    repeats = max(mine, key=lambda section: section.times, default=None)
    if repeats is None or repeats.times == 1:
        return _cut([op for section in mine for op in section.ops])
    at = mine.index(repeats)
    before = tuple(op for section in mine[:at] for op in section.ops if layer_number(op.module) < 0)
    after = tuple(op for section in mine[at + 1 :] for op in section.ops if layer_number(op.module) < 0)
    period = len({layer_number(op.module) for op in repeats.ops if layer_number(op.module) >= 0})
    return StagePass(before, repeats.ops, max(1, period), after)


def _cut(ops: Sequence[Op]) -> StagePass:
    """Of a model that was not folded: the layer in its middle stands for all."""
    numbers = [layer_number(op.module) for op in ops]
    inside = [place for place, number in enumerate(numbers) if number >= 0]
    if not inside:
        return StagePass(tuple(ops), (), 1, ())
    first, last = inside[0], inside[-1]
    middle = sorted({numbers[place] for place in inside})[len({numbers[place] for place in inside}) // 2]
    layer = tuple(ops[place] for place in inside if numbers[place] == middle)
    return StagePass(tuple(ops[:first]), layer, 1, tuple(ops[last + 1 :]))


def hop_seconds(forward: StagePass, backward: StagePass, cluster: Cluster) -> float:
    """What goes from stage to stage is a layer's input: the first thing its forward pass reads."""
    read = next((op for op in forward.layer if op.read_bytes and op.shapes and op.kernels), None)
    if read is None:
        return 0.0
    elements = 1
    for size in read.shapes[0]:
        elements *= size
    nbytes = elements * (4 if read.dtype == "float32" else 2)
    sent = Op("send", "", 0, nbytes, nbytes, 1, read.dtype, ((elements,), (2,)), "", 0, "pipeline")
    return collective_seconds(sent, cluster)
