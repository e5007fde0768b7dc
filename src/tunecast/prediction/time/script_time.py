"""How long a traced script takes: its own operations, priced as those of a job are; by step, epoch, whole run, line.

    tape ──► steps, and what they do without training, each lowered once ──► priced on any number of cards ──► Timing

How many steps the whole run takes is the script's own to say (`StepCount`). Files of weights take what those of a job
do; what else happens around the steps and is on no tape (data on the CPU) is named in `Time.missing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING

from tunecast.hardware.spec import Gpu
from tunecast.job.sections import DOWNLOAD_BYTES_PER_S
from tunecast.prediction.price import op_seconds
from tunecast.prediction.price.attention import is_attention
from tunecast.prediction.price.host import DEFAULT_HOST
from tunecast.prediction.time.ranges import band_of, kind_of, within
from tunecast.prediction.time.reasons import parts_told
from tunecast.prediction.time.runtime import StepTime, step_time
from tunecast.prediction.time.timing import PEAKS
from tunecast.prediction.time.whole import (
    FIRST_STEP_S,
    PHASES,
    START_S,
    SecondsRange,
    downloaded_s,
    kinds_of_lengths,
    new_length_s,
    planned_s,
    planning_of,
    read_s,
    saved_s,
)
from tunecast.prediction.values import CodeLine, HostNeeds, Time, Timing, Utilization
from tunecast.records import NamedTuple, replace
from tunecast.tape.op import RECOMPUTE, Begin, Event, Op, Phase, Tape, Unit
from tunecast.tape.step import Step, traced_step
from tunecast.tape.trace.facts import WeightsFile
from tunecast.tape.units import CALL
from tunecast.tape.untrained import Untrained, UntrainedPart, untrained_parts, without
from tunecast.units import GB, MB

if TYPE_CHECKING:
    from tunecast.hardware.cluster import Cluster

A_SCRIPT = "a script"
"""A stack that nobody timed."""
OF_A_SCRIPT = (
    "time: of the traced operations and the Python around them, on a host like the measured H200's; what a Trainer "
    "does between steps is not counted"
)
ON_THE_CPU = "data loading and what the script computes on the CPU"
DATA_FILES = "downloading data"
DATA_FILES_AND_EVALUATION = "downloading data, and evaluation outside the traced steps"
"""What a whole run of a script takes besides."""
MOST_GENERATIONS = 8
"""Priced one by one; more are like these."""
MOST_LINES = 12
BACKWARD = " (backward)"

REPLAYED = "time: a replayed step takes as long as the traced one with the nearest batch"


class StepCount(NamedTuple):
    """Optimizer steps of a script's whole run and of an epoch; None is what nobody says."""

    total: int | None = None
    total_from: str = ""
    """Who says so."""
    epoch: int | None = None


class LoweredPart(NamedTuple):
    """Something beside training, and how often the run does it."""

    kind: Untrained
    step: Step
    times: float


class ScriptClock:
    """The steps of one tape, lowered once and priced on any number of cards."""

    def __init__(
        self, tape: Tape, count: StepCount | None = None, processes: int = 1,
        stands_for: Mapping[int, int] | None = None, saved_bytes: Sequence[int] = (),
        read_files: Sequence[WeightsFile] = (),
    ) -> None:  # fmt: skip
        """`stands_for`: of the steps that were traced, for how many of the run each stands; None: each for itself.
        `saved_bytes`: of tensors, of each file that is written."""
        self._tape, self.count, self.processes, self.stands_for = tape, count or StepCount(), processes, stands_for
        self.saved_bytes, self.read_files = tuple(saved_bytes), tuple(read_files)

    @cached_property
    def _untrained(self) -> tuple[UntrainedPart, ...]:
        return untrained_parts(self._tape)

    @cached_property
    def _trained(self) -> Tape:
        return self._tape.with_events(without(self._tape.events, self._untrained))

    @cached_property
    def _apart(self) -> list[LoweredPart]:
        generated = [part for part in self._untrained if part.kind is Untrained.GENERATE]
        every = max(1, -(-len(generated) // MOST_GENERATIONS))
        scale = len(generated) / max(1, len(generated[::every]))
        calls = [(part, part.times) for part in self._untrained if part.kind is not Untrained.GENERATE and part.times]
        events = self._tape.events
        return [
            LoweredPart(part.kind, traced_step(events[part.start : part.end]), times)
            for part, times in [*((part, scale) for part in generated[::every]), *calls]
        ]

    @cached_property
    def _run_steps(self) -> int:
        """Those that were followed, each or by another."""
        steps = whole_steps(self._trained, first=True)
        return len(steps) if self.stands_for is None else sum(self.stands_for.values())

    @cached_property
    def _weights(self) -> Mapping[int, int]:
        """By the number of the step; those of which parts were skipped stand for none."""
        steps = whole_steps(self._trained)
        if self.stands_for is None:
            return dict.fromkeys(steps, 1)
        return {number: weight for number in steps if (weight := self.stands_for.get(number, 0))}

    @cached_property
    def _events(self) -> Sequence[Sequence[Event]]:
        steps = whole_steps(self._trained)
        return [steps[number] for number in self._weights]

    @cached_property
    def _steps(self) -> list[Step]:
        return [traced_step(events) for events in self._events]

    def timing(self, gpu: Gpu, cluster: Cluster | None = None) -> Timing:
        """The mean of the script's steps. A script may run any operation: what cannot be priced is a warning, and must
        not take the memory with it."""
        if not self._events:
            return Timing()
        try:
            times = [step_time(step, gpu, DEFAULT_HOST, cluster) for step in self._steps]
            apart = [(part, step_time(part.step, gpu, DEFAULT_HOST, cluster)) for part in self._apart]
            lines = code_lines(self._events, list(self._weights.values()), gpu)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            return Timing(
                warnings=(f"time was not computed: {type(error).__name__} while pricing the script's operations",)
            )
        several = cluster is not None
        times = [_with_range(each, gpu, several=several) for each in times]
        beside = [(part, _with_range(each, gpu, several=several)) for part, each in apart]
        in_steps = [(each, part.times) for part, each in beside if part.kind is not Untrained.EVALUATION]
        evaluation = _sum([(each, part.times) for part, each in beside if part.kind is Untrained.EVALUATION])
        weights = list(self._weights.values())
        share = sum(weights) / max(1, self._run_steps)  # the first step is not among those that are priced
        parts = [*zip(times, weights, strict=True), *((each, share * number) for each, number in in_steps)]
        time = _mean_time(parts, sum(weights))
        time = replace(time, task_s=self._task_s(time, beside))
        saved = [saved_s(nbytes) for nbytes in self.saved_bytes]
        checkpoints = SecondsRange(*map(sum, zip(*saved, strict=True))) if saved else SecondsRange(0.0, 0.0, 0.0)
        around = {"evaluation": evaluation, "checkpoints": checkpoints}
        once = {"new_lengths": new_lengths_of(self._tape), **self._files_s()}
        time = with_whole_run(time, self.count, around, once, self._run_steps, to_its_end=bool(self._tape.units))
        assumptions = [OF_A_SCRIPT, *([] if self.stands_for is None else [REPLAYED]), *_length_told(self.count)]
        if time.total_s is not None and self.downloaded_bytes:
            size, rate = f"{self.downloaded_bytes / GB:,.1f} GB", f"{DOWNLOAD_BYTES_PER_S / MB:.0f} MB/s"
            assumptions.append(f"time: {size} of weights that the script loads from a hub are downloaded at {rate}")
        return Timing(replace(time, lines=lines), _utilization(parts, gpu, self.processes), None, tuple(assumptions))

    @property
    def downloaded_bytes(self) -> int:
        return sum(file.nbytes for file in self.read_files if file.from_hub)

    def _files_s(self) -> Mapping[str, SecondsRange]:
        """Of weights that are read.

        Ignored  that they are cast or quantised on the way, and read again for a second model.
        """
        if not self.read_files:
            return {}
        nbytes = sum(file.nbytes for file in self.read_files)
        return {"download": downloaded_s(self.downloaded_bytes, DOWNLOAD_BYTES_PER_S), "load": read_s(nbytes)}

    def _task_s(self, time: Time, beside: Sequence[tuple[LoweredPart, StepTime]]) -> Mapping[str, float] | None:
        """Of a script that generates: what a step spends on that, on scores, and on training."""
        kinds = (Untrained.GENERATE, Untrained.SCORE)
        found = {kind.value: _sum([(each, part.times) for part, each in beside if part.kind is kind]) for kind in kinds}
        if not found[Untrained.GENERATE.value].likely_s:
            return None
        each_s = {kind: span.likely_s / self._run_steps for kind, span in found.items()}
        return {**each_s, "train": max(0.0, time.step_s - sum(each_s.values()))}


def whole_steps(tape: Tape, *, first: bool = False) -> Mapping[int, Sequence[Event]]:
    """By number, the events of every step with an optimizer's, but the first, which also makes the optimizer's state;
    that alone where there is no other. `first`: with the first. Optimizers that step in the backward pass have no phase
    of their own."""
    inside = all(not (isinstance(e, Begin) and e.phase is Phase.OPTIMIZER) for e in tape.events)
    ends = Phase.BACKWARD if inside else Phase.OPTIMIZER
    whole = {
        number: events
        for number, events in tape.steps().items()
        if number >= 0 and any(isinstance(e, Begin) and e.phase is ends for e in events)
    }
    return {number: events for number, events in whole.items() if first or number != min(whole)} or whole


def new_lengths_of(tape: Tape) -> SecondsRange:
    """What the lengths of the run take that cuDNN's attention has not seen before; the first is the first step's.

    Ignored  that a batch of fewer rows is another shape.
    """
    attentions = [op for op in tape.ops() if is_planned(op)]
    planning = planning_of(attentions[0].shapes[0][-1] if attentions else 0)
    lengths = planned_lengths(tape, with_history=True) or {op.shapes[0][-2] for op in attentions}
    generates = any(isinstance(event, Begin) and event.phase is Phase.GENERATE for event in tape.events)
    evaluated = set() if generates else planned_lengths(tape, with_history=False)
    recomputes = any(op.name == RECOMPUTE for op in tape.ops())
    kinds = kinds_of_lengths(dict.fromkeys(map(float, lengths), 1.0), 1.0) if attentions else 0
    spans = (
        planned_s(max(0, len(lengths) - 1), new_length_s(planning, recomputes=recomputes), kinds, planning.kernel_s),
        planned_s(len(evaluated), planning.evaluation_length_s, 0, planning.evaluation_kernel_s),
    )
    return SecondsRange(*map(sum, zip(*spans, strict=True)))


def is_planned(op: Op) -> bool:
    """Attention, not cuDNN's recurrent layers and convolutions."""
    return is_attention(op.name) and "cudnn" in op.name and "backward" not in op.name


def planned_lengths(tape: Tape, *, with_history: bool) -> set[int]:
    """Of attention in the calls of a run whose calls were skipped, by the sizes that each came with: a place where
    those of every traced call say its length does so in the others."""
    found: set[int] = set()
    calls: dict[int, list[Unit]] = {}
    for unit in tape.units:
        if unit.name == CALL and unit.keeps_graph is with_history:
            calls.setdefault(unit.detail, []).append(unit)
    for units in calls.values():
        seen = [
            (unit.sizes, op.shapes[0][-2])
            for unit in units
            if unit.traced
            for op in tape.events[unit.start : unit.end]
            if isinstance(op, Op) and is_planned(op)
        ]
        width = min((len(sizes) for sizes, _ in seen), default=0)
        places = (place for place in range(width) if all(sizes[place] == length for sizes, length in seen))
        place = next(places, None)
        found |= {length for _, length in seen}
        found |= set() if place is None else {unit.sizes[place] for unit in units if len(unit.sizes) > place}
    return found


def with_whole_run(
    time: Time, count: StepCount, around: Mapping[str, SecondsRange], once: Mapping[str, SecondsRange], followed: int,
    *, to_its_end: bool,
) -> Time:  # fmt: skip
    """With what the whole run takes, where its length is known, and an epoch. `around`: by phase, what the steps that
    were followed take besides; `once`: what a longer run takes no more of."""
    if count.epoch is not None:
        time = replace(time, epoch_steps=count.epoch, epoch_s=count.epoch * time.step_s)
    if count.total is None:
        return time
    training = SecondsRange(*(count.total * each for each in (time.step_s, time.low_s, time.high_s)))
    more = count.total / max(1, followed)
    spans = {
        "start": SecondsRange(*START_S), "first_step": SecondsRange(*FIRST_STEP_S), "training": training,
        **{phase: SecondsRange(*(each * more for each in span)) for phase, span in around.items()},
        **once,
    }  # fmt: skip
    total = sum(span.likely_s for span in spans.values())
    # Phases err independently: their errors add as squares.
    low = total - sqrt(sum((span.likely_s - span.low_s) ** 2 for span in spans.values()))
    high = total + sqrt(sum((span.high_s - span.likely_s) ** 2 for span in spans.values()))
    return replace(
        time,
        total_s=total,
        total_range_s=(low, high),
        phases_s={name: spans[name].likely_s if name in spans else 0.0 for name in PHASES},
        steps=count.total,
        missing=(ON_THE_CPU, DATA_FILES if to_its_end else DATA_FILES_AND_EVALUATION),
    )


def code_lines(
    steps: Sequence[Sequence[Event]], weights: Sequence[int], gpu: Gpu, most: int = MOST_LINES
) -> tuple[CodeLine, ...]:
    """The lines that keep the card busy longest, a line's backward pass counted with it. Collectives are no line's.

    `weights`: for how many steps each stands.
    """
    known: dict[tuple[object, ...], float] = {}
    spent: dict[str, float] = {}
    for events, weight in zip(steps, weights, strict=True):
        for op in events:
            if isinstance(op, Op):
                seconds = known.get(op.work)
                if seconds is None:
                    seconds = known[op.work] = op_seconds(op, gpu)
                line = op.source.removesuffix(BACKWARD)
                spent[line] = spent.get(line, 0.0) + weight * seconds
    total, count = sum(spent.values()), sum(weights)
    found = sorted(((each, line) for line, each in spent.items() if line and each), reverse=True)
    return tuple(CodeLine(line, each / count, each / total) for each, line in found[:most])


def _length_told(count: StepCount) -> list[str]:
    if count.total is not None:
        return [f"{count.total:,} optimizer steps in all, as {count.total_from} says"]
    return []


def _with_range(time: StepTime, gpu: Gpu, *, several: bool) -> StepTime:
    """Nobody timed the script: its range is that of what nobody timed."""
    return within(time, band_of(kind_of(time, gpu.name, A_SCRIPT, several=several), timed=False))


def _mean_time(parts: Sequence[tuple[StepTime, float]], steps: int) -> Time:
    """`parts`: the steps and what they do besides, each with how often all of them together do it."""

    def mean(value: Callable[[StepTime], float]) -> float:
        return sum(value(each) * weight for each, weight in parts) / steps

    breakdown: dict[str, float] = {}
    for each, weight in parts:
        for name, seconds in each.breakdown_s.items():
            breakdown[name] = breakdown.get(name, 0.0) + seconds * weight / steps
    bound = max(parts, key=lambda part: part[0].step_s * part[1])[0].bound_by
    return Time(
        step_s=mean(lambda each: each.step_s),
        low_s=mean(lambda each: each.low_s),
        high_s=mean(lambda each: each.high_s),
        tokens_per_s=None,
        tokens_per_s_per_gpu=None,
        total_s=None,
        bound_by=bound,
        breakdown_s=breakdown,
        why=(f"{bound}-bound: {parts_told(breakdown)}",),
        missing=(ON_THE_CPU,),
    )


def _sum(parts: Sequence[tuple[StepTime, float]]) -> SecondsRange:
    return SecondsRange(
        sum(each.step_s * times for each, times in parts),
        sum(each.low_s * times for each, times in parts),
        sum(each.high_s * times for each, times in parts),
    )


def _utilization(parts: Sequence[tuple[StepTime, float]], gpu: Gpu, processes: int) -> Utilization | None:
    """Of the same parts as the mean step."""

    def whole(value: Callable[[StepTime], float]) -> float:
        return sum(value(each) * weight for each, weight in parts)

    step_s = whole(lambda each: each.step_s)
    if not step_s:
        return None
    peak, bandwidth = gpu.dense_flop_per_s.get(PEAKS.get(parts[0][0].dtype, "")), gpu.memory_bytes_per_s
    model_flops = whole(lambda each: each.model_flops)
    return Utilization(
        mfu=None if peak is None else model_flops / step_s / peak,
        hfu=None if peak is None else whole(lambda each: each.flops) / step_s / peak,
        achieved_flop_per_s=model_flops / step_s,
        gpu_busy_fraction=whole(lambda each: each.gpu_busy_s) / step_s,
        memory_fraction=None if bandwidth is None else whole(lambda each: each.moved_bytes) / step_s / bandwidth,
        communication_fraction=whole(lambda each: each.communication_s) / step_s,
        host=HostNeeds(processes),
    )
