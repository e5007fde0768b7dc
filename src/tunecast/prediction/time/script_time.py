"""How long a step of a traced script takes: its own operations, priced as those of a job are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tunecast.hardware.spec import Gpu
from tunecast.prediction.price.host import DEFAULT_HOST
from tunecast.prediction.time.ranges import band_of, kind_of, within
from tunecast.prediction.time.reasons import parts_told
from tunecast.prediction.time.runtime import StepTime, step_time
from tunecast.prediction.values import Time, Timing
from tunecast.tape.op import Begin, Event, Phase, Tape
from tunecast.tape.step import step_of

if TYPE_CHECKING:
    from tunecast.hardware.cluster import Cluster

A_SCRIPT = "a script"
"""A stack that nobody timed."""
OF_A_SCRIPT = (
    "time: of the traced operations, launched by a host like the measured H200's; the Python calls of checkpointing "
    "leave no trace, so launch-bound steps may be longer"
)

REPLAYED = "time: a replayed step takes as long as the traced one with the nearest batch"


def script_timing(
    tape: Tape, gpu: Gpu, cluster: Cluster | None = None, stands_for: Mapping[int, int] | None = None
) -> Timing:
    """The mean of the script's steps. A script may run any operation: what cannot be priced is a warning, and must not
    take the memory with it. `stands_for`: of the steps that were traced, for how many of the run each stands."""
    steps = whole_steps(tape)
    if not steps:
        return Timing()
    weights = [1 if stands_for is None else stands_for.get(number, 0) for number in steps]
    if not any(weights):
        return Timing()
    try:
        times = [step_time(step_of(events, None), gpu, DEFAULT_HOST, cluster) for events in steps.values()]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return Timing(
            warnings=(f"time was not computed: {type(error).__name__} while pricing the script's operations",)
        )
    told = (OF_A_SCRIPT,) if stands_for is None else (OF_A_SCRIPT, REPLAYED)
    return Timing(_mean_time(times, weights, gpu, several=cluster is not None), assumptions=told)


def whole_steps(tape: Tape) -> Mapping[int, Sequence[Event]]:
    """By number, the events of every step with an optimizer's, but the first, which also makes the optimizer's state;
    that alone where there is no other."""
    whole = {
        number: events
        for number, events in tape.steps().items()
        if number >= 0 and any(isinstance(e, Begin) and e.phase is Phase.OPTIMIZER for e in events)
    }
    first = min(whole, default=0)
    return {number: events for number, events in whole.items() if number != first} or whole


def _mean_time(times: Sequence[StepTime], weights: Sequence[int], gpu: Gpu, *, several: bool) -> Time:
    """Nobody timed the script: its range is that of what nobody timed."""
    times = [within(each, band_of(kind_of(each, gpu.name, A_SCRIPT, several=several), timed=False)) for each in times]
    names = dict.fromkeys(name for each in times for name in each.breakdown_s)
    breakdown = {name: _mean([each.breakdown_s.get(name, 0.0) for each in times], weights) for name in names}
    bound = max(times, key=lambda each: each.step_s).bound_by
    return Time(
        step_s=_mean([each.step_s for each in times], weights),
        low_s=_mean([each.low_s for each in times], weights),
        high_s=_mean([each.high_s for each in times], weights),
        tokens_per_s=None,
        tokens_per_s_per_gpu=None,
        total_s=None,
        bound_by=bound,
        breakdown_s=breakdown,
        why=(f"{bound}-bound: {parts_told(breakdown)}",),
        missing=("data loading and what the script computes on the CPU",),
    )


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
