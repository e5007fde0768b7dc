"""The time of one optimizer step: the host and the card run beside each other.

The host launches operations one after another; an operation starts on the card when it has been launched and its stream
is free. With c the host's clock, g the card's, l what launching takes and d what the operation takes:

    c <- c + l        g <- max(g, c) + d

Each further stream (collectives run on some) has a clock of its own, and so has a communicator that several streams
use; `wait` makes one stream's clock at least another's, and where the host reads a result its clock becomes at least
the card's. `clocks.py` says how this is computed without going through every operation of every layer, `pricing.py` on
many cards at once.

Ignored  the launch queue's end (1,024 kernels): a host that far ahead is not what the step waits for.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import mul
from typing import TYPE_CHECKING

from tunecast.hardware.spec import Gpu
from tunecast.prediction.price import ATTENTION, COMMUNICATION, OFFLOAD, PRODUCTS, kind_of, moved_bytes, rates_of
from tunecast.prediction.price.attention import computed_flops
from tunecast.prediction.price.clocks import clock_program, ends, stretches_of
from tunecast.prediction.price.contention import slowdown, slowed, slowest
from tunecast.prediction.price.host import LEAN, MODES, Host, mode_of
from tunecast.prediction.price.offload import ON_DRIVES
from tunecast.prediction.price.pricing import CostTerms, Part, StepStructure, priced, step_structure, terms_of
from tunecast.records import NamedTuple, dataclass, field, replace
from tunecast.tape.op import Op, Phase
from tunecast.tape.step import Step, Table

if TYPE_CHECKING:
    from tunecast.hardware.cluster import Cluster
    from tunecast.prediction.price.rates import Rates

TASKS = (Phase.GENERATE, Phase.SCORE)
"""What a step may do before it trains; the host reads results at the end of each."""
COMPUTE, MEMORY, LAUNCH, NVME = "compute", "memory", "launch", "nvme"


@dataclass(frozen=True)
class StepTime:
    """One optimizer step. `breakdown_s` sums to `step_s`."""

    step_s: float
    low_s: float
    high_s: float
    """80 %: as long as `step_s` until `time_ranges.ranged` has said how far such steps are off."""
    breakdown_s: Mapping[str, float]
    bound_by: str
    """launch, compute, memory or communication: see `_bound_by`."""
    gpu_busy_s: float
    """The card works on something other than communication and copies to its host."""
    cpu_s: float
    """The host launches."""
    flops: int
    moved_bytes: int
    communication_s: float
    """All collectives, also what others hide."""
    model_flops: int = 0
    """Without recomputation."""
    kernels: int = 0
    dtype: str = "bfloat16"
    """That most FLOPs are in."""
    task_s: Mapping[str, float] = field(default_factory=dict)
    """Of a step that generates: what `generate`, `score` and `train` take of it, which sum to `step_s`."""


class GpuHost(NamedTuple):
    """Where a step runs: a card, its host, and the other cards if there are any."""

    gpu: Gpu
    host: Host
    cluster: Cluster | None = None


class Distinct(NamedTuple):
    """An operation, and what it is priced as; where in the model it is does not count."""

    op: Op
    kind: str


class _Counted(NamedTuple):
    """How often things run: the same for all steps of one structure."""

    structure: StepStructure
    runs: list[int]
    """Of each operation that differs."""
    model_runs: list[int]
    """Without those of a backward pass that computes again."""
    launched: list[int]
    """In a pass through the model, and then, all again, in each other of `MODES`."""


class Lowered:
    """A step as numbers: the operations that differ in cost, and each section as places among them.

    Made once, it is priced on any number of cards at once: `on_all`. What of it depends on no size is kept with the
    step's structure, so that another step of that structure finds it.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        table = step.table
        self.ops: Sequence[Op] = table.distinct
        kept = table.layout.kept
        if "time" not in kept:
            kept["time"] = _counted(table)
        self._counted: _Counted = kept["time"]
        self.structure: StepStructure = self._counted.structure
        self._launches: dict[Host, array[float]] = {}

    @cached_property
    def distinct(self) -> list[Distinct]:
        return list(map(Distinct, self.ops, self.structure.kinds))

    @property
    def parts(self) -> Mapping[Part, Mapping[int, int]]:
        """By name in the breakdown and what it waits for: how often each distinct operation runs."""
        return self.structure.parts

    @cached_property
    def terms(self) -> CostTerms:
        return terms_of(self.ops, self.structure.kinds)

    @cached_property
    def totals(self) -> tuple[int, int, int, int, str]:
        """FLOPs that kernels compute, those of the model, bytes, kernels, and the dtype of most FLOPs."""
        by_dtype: dict[str, int] = {}
        model_flops = moved = kernels = 0
        for op, times, model_times in zip(self.ops, self._counted.runs, self._counted.model_runs, strict=True):
            if op.flops:
                flops = computed_flops(op)
                by_dtype[op.dtype] = by_dtype.get(op.dtype, 0) + flops * times
                model_flops += flops * model_times
            if op.kernels:
                moved += moved_bytes(op) * times
                kernels += op.kernels * times
        dtype = max(by_dtype, key=lambda name: by_dtype[name], default="bfloat16")
        return sum(by_dtype.values()), model_flops, moved, kernels, dtype

    def launches(self, host: Host) -> array[float]:
        """What each operation takes of the host: in a pass through the model, then, all again, in an optimizer's step
        and in a pass that nobody records."""
        if host not in self._launches:
            launched = iter(self._counted.launched)
            each = [host.op_s(op, mode) if next(launched) else 0.0 for mode in MODES for op in self.ops]
            self._launches[host] = array("d", each)
        return self._launches[host]

    def on(self, gpu: Gpu, host: Host, cluster: Cluster | None = None) -> StepTime:
        return self.on_all([GpuHost(gpu, host, cluster)])[0]

    def on_all(self, places: Sequence[GpuHost]) -> list[StepTime]:
        """The same step on each, in one pass over all cards that have the same host."""
        by_host: dict[int, list[int]] = {}
        for number, place in enumerate(places):
            by_host.setdefault(id(place.host), []).append(number)
        found: dict[int, StepTime] = {}
        for numbers in by_host.values():
            host = places[numbers[0]].host
            launches = self.launches(host)
            cpu_s = sum(map(mul, launches, self._counted.launched))
            cards = [rates_of(places[number].gpu) for number in numbers]
            clusters = [places[number].cluster for number in numbers]
            told = self._priced(launches, cards, clusters, host.nvme_bytes_per_s)
            for number, (end, alone, each) in zip(numbers, told, strict=True):
                found[number] = self._told(end, alone, each, cpu_s)
        return [found[number] for number in range(len(places))]

    def _priced(
        self, launches: array[float], cards: list[Rates], clusters: list[Cluster | None], nvme_bytes_per_s: float | None
    ) -> list[tuple[float, float, tuple[float, ...]]]:
        """On each card when a step ends, when it would without communication, and what its parts take.

        Where collectives run beside kernels those are priced once more, as slow as that makes them.
        """

        def asked(on: list[Rates]) -> list[tuple[float, float, tuple[float, ...]]]:
            made = priced(self.structure, self.terms, self.ops, launches, on, clusters, nvme_bytes_per_s)
            spent = list(zip(*made.spent_s, strict=True)) or [()] * len(on)
            return list(zip(made.end_s, made.alone_s, spent, strict=True))

        cards = [
            card if cluster is None else slowest(card, cluster.ranks)
            for card, cluster in zip(cards, clusters, strict=True)
        ]
        alone = asked(cards)
        if not any(clusters) or not any(waits == COMMUNICATION for _, waits in self.structure.parts):
            return alone
        times = [
            1.0
            if cluster is None
            else slowdown(dict(zip(self.structure.parts, each, strict=True)), end - without, card, cluster)
            for (end, without, each), card, cluster in zip(alone, cards, clusters, strict=True)
        ]
        if max(times) == 1.0:
            return alone
        return asked([card if n == 1.0 else slowed(card, n) for card, n in zip(cards, times, strict=True)])

    def _told(self, end: float, alone: float, spent: Sequence[float], cpu_s: float) -> StepTime:
        count = self.step.count
        if count > 1:
            end, alone, cpu_s, spent = end / count, alone / count, cpu_s / count, [s / count for s in spent]
        computing = 0.0
        by_group: list[float] = []
        by_name: dict[str, float] = {}
        by_wait: dict[str, float] = {}
        for (name, waits), s in zip(self.structure.parts, spent, strict=True):
            if waits == COMMUNICATION:
                by_group.append(s)
                continue
            computing += s
            by_name[name] = by_name.get(name, 0.0) + s
            by_wait[waits] = by_wait.get(waits, 0.0) + s
        # several streams may work at once: what they save is taken off in proportion
        overlap = min(1.0, alone / computing) if computing else 1.0
        busy = computing * overlap
        breakdown = {name: s * overlap for name, s in by_name.items() if s}
        breakdown[LAUNCH], breakdown[COMMUNICATION] = alone - busy, end - alone
        communicating = max(end - alone, *by_group, 0.0)
        *totals, dtype = self.totals
        flops, model_flops, moved, kernels = [total // count for total in totals]
        return StepTime(
            step_s=end,
            low_s=end,
            high_s=end,
            breakdown_s=breakdown,
            bound_by=_bound_by(cpu_s, busy, communicating, by_wait),
            gpu_busy_s=busy - breakdown.get(OFFLOAD, 0.0) - breakdown.get(NVME, 0.0),
            cpu_s=cpu_s,
            flops=flops,
            moved_bytes=moved,
            communication_s=sum(by_group),
            model_flops=model_flops,
            kernels=kernels,
            dtype=dtype,
        )

    def end_s(self, prices: Sequence[float], launches: Sequence[float]) -> float:
        """When the last clock stands still, with a price for each distinct operation."""
        course = self.structure.course
        return ends(course, stretches_of(course, [[price] for price in prices], launches))[0]


def _bound_by(launching: float, computing: float, communicating: float, by_wait: Mapping[str, float]) -> str:
    """The host launches, the card computes and cards communicate beside each other: a step is bound by what alone would
    take longest, since whatever else got faster it would not get shorter than that.

    Alone the host takes all its launches, the card all it is busy; communication what its busiest communicator takes
    (others run beside it), or what the step is longer with it than without, if that is more. Of computing it is
    arithmetic or memory, whichever the card spends more on.
    """
    if launching and launching >= max(computing, communicating):
        return LAUNCH
    if communicating > computing:
        return COMMUNICATION
    return max(by_wait, key=by_wait.__getitem__, default=COMPUTE)


def step_time(step: Step, gpu: Gpu, host: Host, cluster: Cluster | None = None) -> StepTime:
    """A step that begins with an idle card and ends when it is idle again: as in a loop that reads its loss every step,
    which the Trainer does (`logging_nan_inf_filter`)."""
    whole = Lowered(step).on(gpu, host, cluster)
    phases = {phase for phase, _ in step.table.layout.turns}
    if phases.isdisjoint(TASKS):
        return whole
    task_s = {phase.value: 0.0 for phase in TASKS}
    for phase in [phase for phase in TASKS if phase in phases]:
        task_s[phase.value] = Lowered(step.only(phase)).on(gpu, host, cluster).step_s
    return replace(whole, task_s={**task_s, "train": max(0.0, whole.step_s - sum(task_s.values()))})


def _counted(table: Table) -> _Counted:
    distinct, rows, layout = table
    kinds = tuple(kind_of(op.name) for op in distinct)
    count = len(distinct)
    runs, model_runs, launched = [0] * count, [0] * count, [0] * (len(MODES) * count)
    sections = [(phase, times, row) for (phase, times), row in zip(layout.turns, rows, strict=True)]
    row_of = {id(row): row for row in rows}
    times_of: dict[tuple[int, Phase], int] = {}
    for phase, times, row in sections:
        times_of[id(row), phase] = times_of.get((id(row), phase), 0) + times
    parts: dict[Part, dict[int, int]] = {}
    for (name, phase), times in times_of.items():
        shift = count * mode_of(phase)
        for place, often in Counter(row_of[name]).items():
            op, all_times = distinct[place], often * times
            runs[place] += all_times
            launched[place + shift] += all_times
            if phase is not Phase.BACKWARD or op.by_engine:
                model_runs[place] += all_times
            part = parts.setdefault(_part(op, kinds[place], phase), {})
            part[place] = part.get(place, 0) + all_times
    return _Counted(step_structure(clock_program(sections, distinct), kinds, parts), runs, model_runs, launched)


def _part(op: Op, kind: str, phase: Phase) -> Part:
    """(its name in the breakdown, what it keeps busy); of a collective its group."""
    if kind == COMMUNICATION:
        return op.group, COMMUNICATION
    waits = COMPUTE if kind in (PRODUCTS, ATTENTION) else MEMORY
    if kind == OFFLOAD:
        return NVME if op.name in ON_DRIVES else OFFLOAD, waits
    if phase in LEAN:
        return "optimizer", waits
    if phase is Phase.BACKWARD and not op.by_engine:
        return "recomputation", waits
    return {PRODUCTS: "matrix_products", ATTENTION: "attention"}.get(kind, "memory_bound"), waits
