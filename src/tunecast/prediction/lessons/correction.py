"""What runs that were measured and predicted say of the next prediction: a correction of its time, and how sure it is.

The letters, all in logarithms, so that 10 % too long and 10 % too short are as far off:

    r   measured over predicted step, of a run
    r = card + stack + model + host + e        e the run's own deviation
    card, stack, ... ~ N(0, share x spread²)   each the same for all runs of that card (that stack on it, ...)
    e ~ N(0, s²)

`spread` is that of the shipped 80 % range of the step (half of it over `HALF`), which is how far off steps of that kind
are known to be; `SHARES` says which part of its square each level has, estimated from the residuals of published and
own runs (`benchmarks/learning.py`). The prior's mean is 0: without runs a prediction is the shipped one, to the bit.
The posterior mean and covariance are those of a linear model with normal effects: with Z the runs' effects, D the
prior's variances,

    A = Z'Z / s² + D^-1        mean = A^-1 Z'r / s²        covariance = A^-1

A job gets the sum of its effects, those nobody measured counting 0 with their prior's variance, and its range becomes
that of the posterior predictive: s² + the variance of that sum, where the shipped one is spread².

Steps that wait for the host are learned apart from those of the card: of 19 on an H200's hosts the residuals spread
14 %, of 59 others 4 %, and what makes one longer does not make the other.

Sources  Henderson, Best linear unbiased estimation and prediction under a selection model, Biometrics 31 (1975);
         Robinson, That BLUP is a good thing, Statistical Science 6 (1991).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import exp, log, sqrt
from typing import TYPE_CHECKING

from tunecast.prediction.lessons.table import SHARES
from tunecast.prediction.time.ranges import StepKind, kind_of
from tunecast.records import NamedTuple, dataclass, field, replace
from tunecast.units import percent

if TYPE_CHECKING:
    from tunecast.job.job import Job
    from tunecast.prediction.time.runtime import StepTime
    from tunecast.prediction.time.whole import Likely

HALF = 1.2816
"""Standard deviations from the middle of a normal distribution to the end of its 80 % range."""
LEVELS = ("card", "stack", "model", "host")


class Prior(NamedTuple):
    """Which part of a spread's square is whose; the first five sum to 1."""

    card: float
    stack: float
    model: float
    host: float
    within: float
    """A run's own."""
    freedom: float
    """How many runs' worth the expected deviation of a run counts beside what its like show."""

    @property
    def between(self) -> float:
        return self.card + self.stack + self.model + self.host


PRIORS = {waits: Prior(*shares) for waits, shares in SHARES.items()}


class Observed(NamedTuple):
    """A run that counts."""

    id: str
    began: str
    card: str
    waits: str
    """What its step waits for: `card` or `host`."""
    stack: str
    """Family, precision, one or several cards."""
    model: str
    host: str
    log_ratio: float
    """Of the measured step over the shipped prediction."""
    spread: float
    """Of that prediction's own range, in logarithms."""

    @property
    def cell(self) -> tuple[str, ...]:
        """Runs that differ in nothing that is learned."""
        return self.card, self.waits, self.stack, self.model, self.host


class LeftOut(NamedTuple):
    """A run that does not count, and why."""

    id: str
    card: str
    reason: str


class LearnedContext(NamedTuple):
    """Of a card: what runs held outside PyTorch's allocator."""

    nbytes: int
    low_bytes: int
    high_bytes: int
    runs: int


@dataclass(frozen=True)
class Learned:
    """What was learned, from which runs. Predictions stay pure: whoever asks brings it along."""

    runs: tuple[Observed, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    contexts: Mapping[str, LearnedContext] = field(default_factory=dict)
    """By card."""
    starts: Mapping[str, Likely] = field(default_factory=dict)
    """By card: seconds from a program's start to its model's loading."""
    problem: str = ""
    """Why nothing could be learned, where the runs could not be read."""
    elsewhere: bool = False
    """Whether it is asked of other machines than those of the runs, whose hosts then say nothing."""


class Correction(NamedTuple):
    """Of a step's time."""

    log_ratio: float = 0.0
    weight: float = 0.0
    """How much of what is not known before is known now: 0 nothing, 1 all but a run's own deviation."""
    narrowing: float = 1.0
    """The range's half over the shipped one's."""
    runs: int = 0
    alike: int = 0
    """Of them those of this stack and model."""

    @property
    def ratio(self) -> float:
        return exp(self.log_ratio)

    @property
    def words(self) -> str:
        """`12 of your runs on this card: -4 %`."""
        off = self.ratio - 1
        told = "no change" if abs(off) < 0.0005 else f"{'+' if off > 0 else '-'}{percent(abs(off), 1)}"
        return f"{self.runs} of your runs on this card: {told}"


NONE = Correction()


def learned_elsewhere(learned: Learned) -> Learned:
    """What holds on a rented machine too: steps, by card, stack and model. What a program's start takes and what a
    process holds beside PyTorch are of the runs' own hosts and drivers."""
    return replace(learned, contexts={}, starts={}, elsewhere=True)


def least_ratio(learned: Learned | None, card: str) -> float:
    """What no correction of a step elsewhere on the card is below: 1, or where a run was faster than predicted, the
    fastest of them. Floors of time are lowered by it, so that they stay floors of corrected steps."""
    return exp(_ends(() if learned is None else [run for run in learned.runs if run.card == card])[0])


def _ends(runs: Sequence[Observed]) -> tuple[float, float]:
    """Of all that runs and the shipped prediction say, in logarithms."""
    ratios = [0.0, *(run.log_ratio for run in runs)]
    return min(ratios), max(ratios)


def stack_key(kind: StepKind) -> str:
    return f"{kind.family}, {kind.precision}, {kind.cards}"


def correction_of(learned: Learned, step: StepTime, job: Job, gpu_name: str) -> Correction:
    """Of a job's step, as it is predicted without."""
    several, low_precision = job.hardware.cards > 1, job.matmul_dtype is not None
    kind = kind_of(step, gpu_name, job.stack, several=several, low_precision=low_precision)
    return correction(learned, kind, job.model, spread_of(step.low_s, step.step_s, step.high_s))


def correction(learned: Learned, kind: StepKind, model: str, spread: float) -> Correction:
    """Of a step of that kind and model, whose shipped range has that spread."""
    runs = tuple(run for run in learned.runs if run.card == kind.card and run.waits == kind.waits)
    if not runs or spread <= 0:
        return NONE
    found = posterior(runs, stack_key(kind), model, spread, elsewhere=learned.elsewhere)
    if not learned.elsewhere:
        return found
    # Of crossed effects some without the others can sum to more than any run showed; a search needs an end.
    low, high = _ends(runs)
    return found._replace(log_ratio=min(high, max(low, found.log_ratio)))


@lru_cache(maxsize=1000)
def posterior(
    runs: tuple[Observed, ...], stack: str, model: str, spread: float, prior: Prior | None = None, *,
    elsewhere: bool = False,
) -> Correction:  # fmt: skip
    """`prior` None: the shipped one of what the runs' steps wait for. `elsewhere`: on a host nobody measured."""
    prior = PRIORS[runs[0].waits] if prior is None else prior
    square = spread * spread
    own = max(within_variance(runs, prior.within * square, prior.freedom), TINY)
    effects = sorted({effect for run in runs for effect in _effects(run)})
    place = {effect: index for index, effect in enumerate(effects)}
    variances = [max(getattr(prior, level) * square, TINY) for level, *_ in effects]
    hosts = {run.host for run in runs}
    own_host = {("host", *hosts)} if len(hosts) == 1 and not elsewhere else set()
    asked = {("card",), ("stack", stack), ("model", stack, model)} | own_host
    known = [place[effect] for effect in sorted(asked) if effect in place]
    ordered = sorted((run.log_ratio, [place[effect] for effect in _effects(run)]) for run in runs)
    weights = [1.0] * len(ordered)
    for last in range(ROUNDS):
        matrix = [[0.0] * len(effects) for _ in effects]
        right = [0.0] * len(effects)
        for index, variance in enumerate(variances):
            matrix[index][index] = 1 / variance
        for weight, (log_ratio, places) in zip(weights, ordered, strict=True):
            for i in places:
                right[i] += weight * log_ratio / own
                for j in places:
                    matrix[i][j] += weight / own
        units = [_unit(len(effects), index) for index in known] if last == ROUNDS - 1 else []
        means, *columns = _solve(matrix, [right, *units])
        deviations = [log_ratio - sum(means[index] for index in places) for log_ratio, places in ordered]
        weights = [(prior.freedom + 1) / (prior.freedom + each * each / own) for each in deviations]
    mean = sum(means[index] for index in known)
    variance = sum(column[index] for column in columns for index in known)
    seen = {effects[index][0] for index in known}
    before = prior.between * square
    left = variance + sum(getattr(prior, level) for level in LEVELS if level not in seen) * square
    alike = sum((run.stack, run.model) == (stack, model) for run in runs)
    return Correction(
        log_ratio=mean,
        weight=min(1.0, max(0.0, 1 - left / before)),
        narrowing=sqrt((own + left) / (before + prior.within * square)),
        runs=len(runs),
        alike=alike,
    )


ROUNDS = 8
"""Of weighing runs by how far they lie from what is said of them; the last change is below a thousandth."""
TINY = 1e-12
"""For a share of 0: the level is there and learns nothing."""


def _effects(run: Observed) -> tuple[tuple[str, ...], ...]:
    return ("card",), ("stack", run.stack), ("model", run.stack, run.model), ("host", run.host)


def within_variance(runs: Sequence[Observed], expected: float, prior_freedom: float) -> float:
    """Of a run's own deviation: what runs of one cell show about their mean, and some runs' worth of `expected`, so
    that three runs that happen to agree do not make a range of nothing.

    Source  Smyth, Linear models and empirical Bayes methods, 2004, section 3: a scaled inverse chi-square prior.
    """
    cells: dict[tuple[str, ...], list[float]] = {}
    for run in runs:
        cells.setdefault(run.cell, []).append(run.log_ratio)
    squares, freedom = 0.0, 0
    for values in cells.values():
        middle = sum(sorted(values)) / len(values)
        squares += sum(sorted((value - middle) ** 2 for value in values))
        freedom += len(values) - 1
    return (prior_freedom * expected + squares) / (prior_freedom + freedom)


def _unit(size: int, index: int) -> list[float]:
    return [float(index == each) for each in range(size)]


def _solve(matrix: list[list[float]], rights: list[list[float]]) -> list[list[float]]:
    """Of a positive definite matrix, by Cholesky's factors: a few dozen effects at most."""
    size = len(matrix)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            lower[i][j] = sqrt(rest) if i == j else rest / lower[j][j]
    solved = []
    for right in rights:
        forward: list[float] = []
        for i in range(size):
            forward.append((right[i] - sum(lower[i][k] * forward[k] for k in range(i))) / lower[i][i])
        backward = [0.0] * size
        for i in reversed(range(size)):
            rest = forward[i] - sum(lower[k][i] * backward[k] for k in range(i + 1, size))
            backward[i] = rest / lower[i][i]
        solved.append(backward)
    return solved


def spread_of(low_s: float, step_s: float, high_s: float) -> float:
    """Of a range around a step, in logarithms; 0 where there is none."""
    return (log(high_s) - log(low_s)) / 2 / HALF if 0 < low_s <= step_s <= high_s else 0.0


def learned_range(low: float, high: float, found: Correction) -> tuple[float, float]:
    """Around the corrected step, in logarithms, from the shipped range around the shipped one.

    Where that reaches further up than down, predictions of the kind are known to be short; as runs come, they say so
    themselves, and the range's middle goes to the corrected step.
    """
    middle, half = (1 - found.weight) * (low + high) / 2, found.narrowing * (high - low) / 2
    return min(0.0, middle - half), max(0.0, middle + half)


def corrected(step: StepTime, found: Correction) -> StepTime:
    """The step by as much longer, all its parts alike, and its range as narrow as runs make it."""
    if found.runs == 0:
        return step
    ratio = found.ratio
    low, high = learned_range(log(step.low_s / step.step_s), log(step.high_s / step.step_s), found)
    step_s = step.step_s * ratio
    return replace(
        step,
        step_s=step_s,
        low_s=step_s * exp(low),
        high_s=step_s * exp(high),
        breakdown_s={name: seconds * ratio for name, seconds in step.breakdown_s.items()},
        gpu_busy_s=step.gpu_busy_s * ratio,
        cpu_s=step.cpu_s * ratio,
        communication_s=step.communication_s * ratio,
        task_s={name: seconds * ratio for name, seconds in step.task_s.items()},
    )
