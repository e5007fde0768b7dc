"""The measured runs most like a job, and how far their predictions were off.

`measured_runs.csv` is written by `benchmarks/shipped_runs.py`: a line a run that was measured and predicted, with what
its distance to a job depends on. It is read when an answer says how far to trust it.

Distances add, a term a property; each is as large as predictions err more where it differs, roughly in steps of half a
run's own deviation, and 0 where it is the same:

    card           1 another card of its generation, 2 of another: rates are the card's; what kernels reach, its
                   generation's
    stack          1.5 another family: whose code allocates and launches
    cards          1.5 one against several: collectives, stragglers, shards
    precision      2 16 bits against 8 or 4: other kernels, other copies of weights
    method         1 quantised against not (dequantised in every pass), 0.5 adapters against all weights
    task           1.5 another loop: pairs, rollouts, embeddings, or a language model's own loss
    model          0.5 each doubling of its layers' weights: the share of the host, of lists, of the head changes
    tokens         0.25 each doubling of a micro-batch's: the same, less so
    recomputation  0.25: it repeats what is there
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log2
from typing import TYPE_CHECKING

from tunecast.job.names import LANGUAGE, ROLLOUTS
from tunecast.prediction.evidence import FEWEST, LOW_PRECISION, ONE, PER_ERROR, SEVERAL, SIXTEEN_BITS, family_of
from tunecast.records import NamedTuple
from tunecast.tables import text_beside
from tunecast.units import percent

if TYPE_CHECKING:
    from tunecast.hardware.spec import Gpu
    from tunecast.job.job import Job
    from tunecast.job.model import ModelConfig

TABLE = "measured_runs.csv"
COLUMNS = (
    *("card", "generation", "family", "cards", "precision", "method", "task"),
    *("id", "model", "size", "tokens", "recomputes", "memory", "time"),
)
KINDS = 7
"""Columns that say of which kind a run is."""
MOST = 12
"""Runs that are shown: of twelve, the middle ten are an 80 % range."""
LIKE = 3.0
"""The furthest a run may be to be called alike: another card of the generation and a model of four times the size, or
another stack and method; not another precision and card."""
UNKNOWN_SIZE = 1.0
"""The distance of models of which one's size is not known: two doublings."""


class RunTraits(NamedTuple):
    """What a distance depends on."""

    card: str
    generation: str
    """Its architecture: Hopper, Ada Lovelace."""
    family: str
    cards: str
    precision: str
    method: str
    task: str
    """`language`, `rollouts` or `other`."""
    model: str
    size: float | None
    """log2 of the weights of its layers' products; None where it is not known."""
    tokens: float
    """log2 of a micro-batch's."""
    recomputes: bool


class NearRun(NamedTuple):
    id: str
    traits: RunTraits
    memory_error: float | None
    """Measured over predicted, less 1; None where it was not measured."""
    time_error: float | None
    distance: float = 0.0


class ErrorRange(NamedTuple):
    """The middle 80 % of runs' errors."""

    runs: int
    low: float
    high: float

    @property
    def words(self) -> str:
        """`-1 to +4 %`."""
        digits = 0 if max(abs(self.low), abs(self.high)) >= 0.015 else 1
        low, high = _signed(self.low, digits), _signed(self.high, digits)
        return high if low == high else f"{low.removesuffix(' %')} to {high}"


def _signed(error: float, digits: int) -> str:
    told = percent(abs(error), digits)
    return told if float(told.split()[0]) == 0 else f"{'-' if error < 0 else '+'}{told}"


def traits_of(job: Job, model: ModelConfig | None, gpu: Gpu) -> RunTraits:
    return RunTraits(
        card=gpu.name,
        generation=gpu.architecture.partition(" ")[0],
        family=family_of(job.stack),
        cards=SEVERAL if job.hardware.cards > 1 else ONE,
        precision=LOW_PRECISION if job.matmul_dtype is not None else SIXTEEN_BITS,
        method=job.method,
        task=task_group(job.task),
        model=job.model,
        size=None if model is None else size_of(model.layers, model.hidden_size, model.intermediate_size),
        tokens=log2(job.micro_batch * job.seq_len),
        recomputes=job.gradient_checkpointing,
    )


def task_group(task: str) -> str:
    return "language" if task in LANGUAGE else "rollouts" if task in ROLLOUTS else "other"


def size_of(layers: int, hidden: int, intermediate: int) -> float:
    """Of attention's four and the MLP's three products, of one expert where there are several: close enough to say
    which models are of one size."""
    return log2(layers * (4 * hidden * hidden + 3 * hidden * intermediate))


def kind_distance(one: RunTraits, other: RunTraits) -> float:
    """Of what runs either share or do not."""
    far = 0.0
    if one.card != other.card:
        far += 1.0 if one.generation == other.generation else 2.0
    far += 1.5 * (one.family != other.family)
    far += 1.5 * (one.cards != other.cards)
    far += 2.0 * (one.precision != other.precision)
    if one.method != other.method:
        far += 1.0 if "qlora" in (one.method, other.method) else 0.5
    return far + 1.5 * (one.task != other.task)


def size_distance(one: RunTraits, model: str, size: float | None, tokens: float, recomputes: bool) -> float:
    """Of what runs have more or less of."""
    far = 0.25 * abs(one.tokens - tokens) + 0.25 * (one.recomputes != recomputes)
    if one.model == model:
        return far
    if one.size is None or size is None:
        return far + UNKNOWN_SIZE
    return far + 0.5 * abs(one.size - size)


def distance(one: RunTraits, other: RunTraits) -> float:
    return kind_distance(one, other) + size_distance(one, other.model, other.size, other.tokens, other.recomputes)


def shipped(asked: RunTraits) -> list[NearRun]:
    """Of those that come with the package, the nearest whose memory and whose time were measured (`like_runs`). Runs of
    one kind share the beginning of their line, and hardly any kind is near: most lines are not taken apart."""
    _, *lines = text_beside(__file__, TABLE).splitlines()
    kinds: dict[str, tuple[float, RunTraits]] = {}
    found = []
    for line in lines:
        kind, id, model, size, tokens, recomputes, memory, time = line.rsplit(",", len(COLUMNS) - KINDS)
        if kind not in kinds:
            card, generation, family, cards, precision, method, task = kind.split(",")
            traits = RunTraits(card, generation, family, cards, precision, method, task, "", None, 0, recomputes=False)
            kinds[kind] = kind_distance(asked, traits), traits
        far, of_kind = kinds[kind]
        if far <= LIKE and ((memory and of_kind.family == asked.family) or (time and of_kind.card == asked.card)):
            weights = float(size) if size else None
            far += size_distance(asked, model, weights, float(tokens), recomputes == "1")
            if far <= LIKE:
                found.append((far, id, memory, time, of_kind, model, weights, tokens, recomputes))
    found.sort()
    of_memory = [each for each in found if each[2] and each[4].family == asked.family][:MOST]
    of_time = [each for each in found if each[3] and each[4].card == asked.card][:MOST]
    return [
        NearRun(
            id,
            of_kind._replace(model=model, size=weights, tokens=float(tokens), recomputes=recomputes == "1"),
            _error(memory),
            _error(time),
            far,
        )
        for far, id, memory, time, of_kind, model, weights, tokens, recomputes in dict.fromkeys([*of_memory, *of_time])
    ]


def _error(cell: str) -> float | None:
    return int(cell) / PER_ERROR if cell else None


def near(asked: RunTraits, runs: Iterable[NearRun]) -> list[NearRun]:
    """Of further runs those that are near enough."""
    return [run._replace(distance=at) for run in runs if (at := distance(asked, run.traits)) <= LIKE]


class LikeRuns(NamedTuple):
    """The nearest runs whose memory was measured, and those whose time was; None where they are too few to tell."""

    memory_runs: tuple[NearRun, ...]
    time_runs: tuple[NearRun, ...]

    @property
    def memory(self) -> ErrorRange | None:
        return middle([run.memory_error for run in self.memory_runs if run.memory_error is not None])

    @property
    def time(self) -> ErrorRange | None:
        return middle([run.time_error for run in self.time_runs if run.time_error is not None])

    @property
    def words(self) -> str:
        """`12 runs like yours: memory -1 to +4 %, time ± 0 %`; empty where there are too few."""
        memory, time = self.memory, self.time
        told = [
            f"{what} {found.words}{'' if found.runs == first else f' ({found.runs})'}"
            for first in [(memory or time or ErrorRange(0, 0, 0)).runs]
            for what, found in (("memory", memory), ("time", time))
            if found is not None
        ]
        return f"{(memory or time or ErrorRange(0, 0, 0)).runs} runs like yours: {', '.join(told)}" if told else ""


def like_runs(asked: RunTraits, runs: Iterable[NearRun]) -> LikeRuns:
    """Of runs that are near enough, the nearest; of equally near ones by their id, so that the answer is always the
    same.

    Memory is the stack's, so its runs are of the same family; time is the card's, so its runs are of the same card.
    Others may be as near by all else, and say nothing of it.
    """
    ordered = sorted(runs, key=lambda run: (run.distance, run.id))
    return LikeRuns(
        tuple([run for run in ordered if run.memory_error is not None and run.traits.family == asked.family][:MOST]),
        tuple([run for run in ordered if run.time_error is not None and run.traits.card == asked.card][:MOST]),
    )


def middle(errors: Sequence[float]) -> ErrorRange | None:
    """The middle 80 %: of ten and more without the tenth at either end; of fewer all."""
    if len(errors) < FEWEST:
        return None
    found = sorted(errors)
    cut = len(found) // 10
    return ErrorRange(len(found), found[cut], found[-1 - cut])
