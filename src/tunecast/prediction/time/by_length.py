"""Step times by padded length: a few lengths are priced, and the mean step of an epoch follows.

A step's time is a maximum of lines in the length: host or card, arithmetic or memory. Six lengths between 64 and 2048
tokens give the mean of 16 within 1.5 %, a single one within 10 % (tests/unit/test_by_length.py, two jobs).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import ceil, sqrt
from typing import TYPE_CHECKING

from tunecast.prediction.data.lengths import Epoch
from tunecast.records import replace

if TYPE_CHECKING:
    from tunecast.prediction.time.runtime import StepTime

WAITING = "waiting"
"""Of a step's breakdown: for the rank whose rows are longest."""


class ByLength:
    """Seconds by padded length, where a few are known. Times are maxima of lines, so they bend upwards only.

    Between two known lengths the truth lies below the chord, and above the shorter's time and the lines through their
    other neighbours; it is the latter where one bend lies between. The mean is taken; from the last but one length on
    it is straight.
    """

    def __init__(self, known: Mapping[int, float]) -> None:
        self.points = sorted(known.items())

    def __call__(self, length: float) -> float:
        points = self.points
        if len(points) == 1:
            return points[0][1] * length / points[0][0]
        right = min(max(bisect_left(points, (length, 0.0)), 1), len(points) - 1)
        chord = self._line(right, length)
        if length < points[0][0] or right == len(points) - 1:
            return max(0.0, chord)
        beside = [self._line(other, length) for other in (right - 1, right + 1) if other > 0]
        return (chord + min(chord, max(points[right - 1][1], *beside))) / 2

    def _line(self, right: int, length: float) -> float:
        (x0, y0), (x1, y1) = self.points[right - 1], self.points[right]
        return y0 + (y1 - y0) * (length - x0) / (x1 - x0)


SELDOM = 0.005
"""Of micro-batches: lengths that are no more of them together move the mean by as little, however they are priced."""


def priced_lengths(lengths: Mapping[float, float], most: int = 6) -> tuple[int, ...]:
    """The lengths to price, of their shares: all where they are few, but for what hardly comes (the last micro-batch of
    an epoch, which is not full); else from the shortest to the longest in equal steps."""
    whole = sorted({ceil(length) for length in lengths})
    if len(whole) <= most:
        return tuple(sorted({ceil(length) for length in _often(lengths)}))
    low, high = whole[0], whole[-1]
    return tuple(sorted({low + (high - low) * i // (most - 1) for i in range(most)}))


def _often(lengths: Mapping[float, float]) -> list[float]:
    by_share = sorted(lengths, key=lambda length: (lengths[length], length))
    seldom = 0.0
    for number, length in enumerate(by_share):
        seldom += lengths[length]
        if seldom > SELDOM:
            return by_share[number:]
    return by_share


def mean_step_s(epoch: Epoch, at: ByLength, grad_accum: int, ranks: int, *, each_waits: bool) -> float:
    """The mean optimizer step, which takes as long as its slowest rank.

    `each_waits`: ranks wait for each other in every micro-batch (sharded parameters), not only at the step's end.
    Ranks draw independently where order is random: the largest of `ranks` draws, exactly; of sums of `grad_accum`
    draws by their mean and variance, as of a normal distribution.
    """
    if epoch.turns is not None:
        known = {length: at(length) for length in {each for turn in epoch.turns for rank in turn for each in rank}}
        return sum(_turn_s(turn, known, each_waits) for turn in epoch.turns) / len(epoch.turns)
    times = sorted((at(length), share) for length, share in epoch.lengths.items())
    mean = sum(seconds * share for seconds, share in times)
    if ranks == 1:
        return mean
    if each_waits or grad_accum == 1:
        return _slowest_s(times, ranks)
    variance = sum(share * (seconds - mean) ** 2 for seconds, share in times)
    return min(times[-1][0], mean + sqrt(variance / grad_accum) * _largest_of_normals(ranks))


def _turn_s(turn: Sequence[Sequence[float]], known: Mapping[float, float], each_waits: bool) -> float:
    seconds: list[list[float]] = [[known[length] for length in rank] for rank in turn]
    if each_waits:
        columns: Iterable[tuple[float, ...]] = zip(*seconds, strict=True)
        return sum(max(column) for column in columns) / len(seconds[0])
    return max(sum(rank) / len(rank) for rank in seconds)


def _slowest_s(times: Iterable[tuple[float, float]], ranks: int) -> float:
    """Mean of the largest of `ranks` independent draws."""
    below = so_far = mean = 0.0
    for seconds, share in times:
        below += share
        mean += seconds * (min(1.0, below) ** ranks - so_far)
        so_far = min(1.0, below) ** ranks
    return mean


@cache
def _largest_of_normals(count: int) -> float:
    """Mean of the largest of so many standard normal draws: the integral of x n phi(x) Phi(x)**(n - 1)."""
    from statistics import NormalDist

    normal, width = NormalDist(), 0.01
    points = (width * i for i in range(-800, 801))
    return sum(x * count * normal.pdf(x) * normal.cdf(x) ** (count - 1) * width for x in points)


def mean_step(
    epoch: Epoch, steps: Mapping[int, StepTime], grad_accum: int, ranks: int, *, each_waits: bool
) -> StepTime:
    """The mean optimizer step of an epoch with all its parts; what they do not explain is waiting for longer rows."""
    if len(steps) == 1 and set(epoch.lengths) == {float(length) for length in steps}:
        return next(iter(steps.values()))

    def by_length(figure: Callable[[StepTime], float]) -> ByLength:
        return ByLength({length: figure(step) for length, step in steps.items()})

    def mean_s(figure: Callable[[StepTime], float]) -> float:
        return mean_step_s(epoch, by_length(figure), grad_accum, ranks, each_waits=each_waits)

    def plain(figure: Callable[[StepTime], float]) -> float:
        at = by_length(figure)
        return sum(share * at(length) for length, share in epoch.lengths.items())

    def part_s(name: str) -> float:
        return plain(lambda step: step.breakdown_s.get(name, 0.0))

    def task_s(name: str) -> float:
        return plain(lambda step: step.task_s.get(name, 0.0))

    step_s = mean_s(lambda step: step.step_s)
    names = dict.fromkeys(name for step in steps.values() for name in step.breakdown_s)
    parts = {name: part_s(name) for name in names}
    told = sum(parts.values())
    if told < step_s:
        parts[WAITING] = step_s - told
    else:
        parts = {name: part * step_s / told for name, part in parts.items()}
    return replace(
        next(iter(steps.values())),
        step_s=step_s,
        low_s=mean_s(lambda step: step.low_s),
        high_s=mean_s(lambda step: step.high_s),
        breakdown_s=parts,
        bound_by=_bound_by(epoch, steps),
        gpu_busy_s=plain(lambda step: step.gpu_busy_s),
        cpu_s=plain(lambda step: step.cpu_s),
        flops=round(plain(lambda step: float(step.flops))),
        moved_bytes=round(plain(lambda step: float(step.moved_bytes))),
        communication_s=plain(lambda step: step.communication_s),
        model_flops=round(plain(lambda step: float(step.model_flops))),
        task_s={name: task_s(name) for name in next(iter(steps.values())).task_s},
    )


def _bound_by(epoch: Epoch, steps: Mapping[int, StepTime]) -> str:
    """What bounds most of the time: of each length what bounds the next longer one that was priced."""
    known = sorted(steps)
    spent: dict[str, float] = {}
    for length, share in epoch.lengths.items():
        step = steps[known[min(bisect_left(known, length), len(known) - 1)]]
        spent[step.bound_by] = spent.get(step.bound_by, 0.0) + share * step.step_s
    return max(spent, key=lambda name: spent[name])
