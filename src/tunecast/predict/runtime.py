"""The time of one optimizer step: the host and the card run beside each other.

The host launches operations one after another; an operation starts on the card when it has been launched and its stream
is free. With c the host's clock, g the card's, l what launching takes and d what the operation takes:

    c <- c + l        g <- max(g, c) + d

This is linear in (max, +), so what a section does to the clocks is a small matrix, and a section that runs n times is
that matrix to the n-th power: exact, and no slower for 80 layers than for 2. Each further stream (collectives run on
some) has a clock of its own; `wait` makes one stream's clock at least another's, and where the host reads a result its
clock becomes at least the card's.

Ignored  the launch queue's end (1,024 kernels): a host that far ahead is not what the step waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from tunecast.hardware.spec import Gpu
from tunecast.predict.host import Host
from tunecast.predict.price import (
    ATTENTION,
    COMMUNICATION,
    MOVING,
    PRODUCTS,
    kind_of,
    moved_bytes,
    moving_terms,
    rates_of,
    seconds,
)
from tunecast.predict.time_ranges import range_of
from tunecast.tape.op import COLLECTIVES, SYNCHRONIZE, WAIT, Op, Phase
from tunecast.tape.timed import Section, Step

if TYPE_CHECKING:
    from tunecast.hardware.cluster import Cluster

NEVER = float("-inf")
READ_BY_THE_HOST = frozenset({"_local_scalar_dense", "nonzero", "argwhere", "masked_select", "is_nonzero"})
"""The host needs what they give before it goes on."""
COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch"
Matrix = list[list[float]]
"""Row i: where clock i stands, by where each clock stood before."""


@dataclass(frozen=True)
class StepTime:
    """One optimizer step. `breakdown_s` sums to `step_s`."""

    step_s: float
    low_s: float
    high_s: float
    breakdown_s: Mapping[str, float]
    bound_by: str
    """launch, compute, memory or communication."""
    gpu_busy_s: float
    """The card works on something other than communication."""
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


class _Distinct(NamedTuple):
    """What a price depends on: where in the model an operation is does not count."""

    op: Op
    kind: str
    terms: tuple[float, float, float] | None
    """Of one that only moves memory, `moving_terms`."""


class Lowered:
    """A step as numbers: the operations that differ in cost, and each section as places among them.

    Made once, it is priced on one card after another: `on(gpu, host)`.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.distinct: list[_Distinct] = []
        self.places: list[list[int]] = []
        """Of each section, where among `distinct` its operations are."""
        known: dict[tuple[object, ...], int] = {}
        lists: dict[int, list[int]] = {}
        for section in step.sections:
            places = lists.get(id(section.ops))
            if places is None:
                places = lists[id(section.ops)] = []
                for op in section.ops:
                    key = (op.name, op.shapes, op.dtype, op.flops, *op[3:6], op.group, op.layout)
                    place = known.get(key)
                    if place is None:
                        place = known[key] = len(self.distinct)
                        kind = kind_of(op.name)
                        self.distinct.append(_Distinct(op, kind, moving_terms(op) if kind == MOVING else None))
                    places.append(place)
            self.places.append(places)
        self.streams = sorted({0, *(op.stream for section in step.sections for op in section.ops)})
        self._launches: dict[Host, list[list[float]]] = {}

    @cached_property
    def parts(self) -> dict[tuple[str, str], dict[int, int]]:
        """By name in the breakdown and what it waits for: how often each distinct operation runs."""
        found: dict[tuple[str, str], dict[int, int]] = {}
        for section, places in zip(self.step.sections, self.places, strict=True):
            for op, place in zip(section.ops, places, strict=True):
                part = found.setdefault(_part(op, self.distinct[place].kind, section.phase), {})
                part[place] = part.get(place, 0) + section.times
        return found

    @cached_property
    def is_plain(self) -> bool:
        """One stream, and the host never waits: two clocks, one line through each section."""
        apart = {WAIT, SYNCHRONIZE, *READ_BY_THE_HOST, *COLLECTIVES}
        return self.streams == [0] and not any(found.op.name in apart for found in self.distinct)

    @cached_property
    def totals(self) -> tuple[int, int, int, int, str]:
        """FLOPs, those of the model, bytes, kernels, and the dtype of most FLOPs."""
        by_dtype: dict[str, int] = {}
        moved = kernels = 0
        for op, times in self.step.ops():
            by_dtype[op.dtype] = by_dtype.get(op.dtype, 0) + op.flops * times
            moved += moved_bytes(op) * times if op.kernels else 0
            kernels += op.kernels * times
        dtype = max(by_dtype, key=lambda name: by_dtype[name], default="bfloat16")
        return sum(by_dtype.values()), self.step.model_flops, moved, kernels, dtype

    def launches(self, host: Host) -> list[list[float]]:
        """Of each section, what each of its operations takes of the host."""
        if host not in self._launches:
            self._launches[host] = self._launched(host)
        return self._launches[host]

    def _launched(self, host: Host) -> list[list[float]]:
        made: dict[int, list[float]] = {}
        for section in self.step.sections:
            if id(section.ops) not in made:
                made[id(section.ops)] = [host.op_s(op, section.phase) for op in section.ops]
        return [made[id(section.ops)] for section in self.step.sections]

    def on(self, gpu: Gpu, host: Host, cluster: Cluster | None = None) -> StepTime:
        rates = rates_of(gpu)
        bandwidth, plain = rates.bytes_per_s, rates.flop_per_s("float32")
        prices = [
            seconds(op, rates) if terms is None else terms[0] / bandwidth + terms[1] / plain + terms[2]
            for op, _, terms in self.distinct
        ]
        communicates = [found.kind == COMMUNICATION for found in self.distinct]
        if cluster is not None and any(communicates):
            from tunecast.predict.collectives import collective_seconds

            for place, found in enumerate(self.distinct):
                if communicates[place]:
                    prices[place] = collective_seconds(found.op, cluster)
        launches = self.launches(host)
        end = self.end_s(prices, launches)
        alone = end
        if any(communicates):
            silent = [0.0 if apart else price for price, apart in zip(prices, communicates, strict=True)]
            alone = self.end_s(silent, launches)
        spent = {key: sum([prices[place] * times for place, times in part.items()]) for key, part in self.parts.items()}
        told = self._told(spent, end, alone, launches)
        low_s, high_s = range_of(told, gpu.name, several=cluster is not None)
        return replace(told, low_s=low_s, high_s=high_s)

    def _told(
        self, spent: Mapping[tuple[str, str], float], end: float, alone: float, launches: Sequence[Sequence[float]]
    ) -> StepTime:
        communication = sum(s for (_, kind), s in spent.items() if kind == COMMUNICATION)
        busy = {key: s for key, s in spent.items() if key[1] != COMMUNICATION}
        computing = sum(busy.values())
        breakdown: dict[str, float] = {}
        for (name, _), s in busy.items():
            breakdown[name] = breakdown.get(name, 0.0) + s
        # several streams may work at once: what they save is taken off in proportion
        overlap = min(1.0, alone / computing) if computing else 1.0
        breakdown = {name: s * overlap for name, s in breakdown.items() if s}
        breakdown[LAUNCH] = alone - computing * overlap
        breakdown[COMMUNICATION] = end - alone
        waits = {LAUNCH: breakdown[LAUNCH], COMMUNICATION: breakdown[COMMUNICATION]}
        for (_, kind), s in busy.items():
            waits[kind] = waits.get(kind, 0.0) + s * overlap
        flops, model_flops, moved, kernels, dtype = self.totals
        return StepTime(
            step_s=end,
            low_s=end,
            high_s=end,
            breakdown_s=breakdown,
            bound_by=max(waits, key=lambda name: waits[name]),
            gpu_busy_s=computing * overlap,
            cpu_s=sum(sum(row) * s.times for row, s in zip(launches, self.step.sections, strict=True)),
            flops=flops,
            moved_bytes=moved,
            communication_s=communication,
            model_flops=model_flops,
            kernels=kernels,
            dtype=dtype,
        )

    def end_s(self, prices: Sequence[float], launches: Sequence[Sequence[float]]) -> float:
        """When the last clock stands still; the card is idle when the step begins."""
        if self.is_plain:
            return self._plain_end(prices, launches)
        number = {stream: place for place, stream in enumerate(self.streams, start=1)}
        clocks = [0.0] * (len(self.streams) + 1)
        for section, places, launch in zip(self.step.sections, self.places, launches, strict=True):
            made = power(section_matrix(section, [prices[place] for place in places], launch, number), section.times)
            clocks = [max(a + clock for a, clock in zip(row, clocks, strict=True)) for row in made]
        return max(clocks)

    def _plain_end(self, prices: Sequence[float], launches: Sequence[Sequence[float]]) -> float:
        """The same for two clocks: a section takes the host `l`, the card `d`, and the card at least `x` from when the
        host begins; n of them in a row n l, n d and x + (n - 1) max(l, d)."""
        host = card = 0.0
        known: dict[int, tuple[float, float, float]] = {}
        for section, places, launch in zip(self.step.sections, self.places, launches, strict=True):
            found = known.get(id(section.ops))
            if found is None:
                launched, busy, behind = 0.0, 0.0, NEVER
                for place, cost in zip(places, launch, strict=True):
                    duration = prices[place]
                    launched += cost
                    busy += duration
                    behind = (behind if behind > launched else launched) + duration
                found = known[id(section.ops)] = (launched, busy, behind)
            launched, busy, behind = found
            more = section.times - 1
            card = max(card + section.times * busy, host + behind + more * max(launched, busy))
            host += section.times * launched
        return max(host, card)


def step_time(step: Step, gpu: Gpu, host: Host, cluster: Cluster | None = None) -> StepTime:
    """A step that begins with an idle card and ends when it is idle again: as in a loop that reads its loss every step,
    which the Trainer does (`logging_nan_inf_filter`)."""
    return Lowered(step).on(gpu, host, cluster)


def step_times(step: Step, gpus: Iterable[Gpu], host: Host) -> dict[str, StepTime]:
    """The same step on many cards, each alone."""
    lowered = Lowered(step)
    return {gpu.name: lowered.on(gpu, host) for gpu in gpus}


def _part(op: Op, kind: str, phase: Phase) -> tuple[str, str]:
    """(its name in the breakdown, what it keeps busy)."""
    if kind == COMMUNICATION:
        return COMMUNICATION, COMMUNICATION
    waits = COMPUTE if kind in (PRODUCTS, ATTENTION) else MEMORY
    if phase in (Phase.CLIP, Phase.OPTIMIZER):
        return "optimizer", waits
    if phase is Phase.BACKWARD and not op.by_engine:
        return "recomputation", waits
    return {PRODUCTS: "matrix_products", ATTENTION: "attention"}.get(kind, "memory_bound"), waits


def section_matrix(
    section: Section, prices: Sequence[float], launches: Sequence[float], number: Mapping[int, int]
) -> Matrix:
    """What one pass through the section does to the clocks: the host's is the first, `number` says which a stream's."""
    size = len(number) + 1
    rows: Matrix = [[0.0 if i == j else NEVER for j in range(size)] for i in range(size)]
    for op, duration, launch in zip(section.ops, prices, launches, strict=True):
        here = number[op.stream]
        if op.name == WAIT:
            rows[here] = _later(rows[here], rows[number.get(op.shapes[0][0], here)])
            continue
        if op.name == SYNCHRONIZE:
            rows[0] = [max(column) for column in zip(*rows, strict=True)]
            continue
        rows[0] = [a + launch for a in rows[0]]
        if op.kernels or duration:
            rows[here] = [a + duration for a in _later(rows[here], rows[0])]
        if op.name in READ_BY_THE_HOST:
            rows[0] = _later(rows[0], rows[here])
    return rows


def power(matrix: Matrix, times: int) -> Matrix:
    """`times` passes, by squaring."""
    out: Matrix | None = None
    while times:
        if times & 1:
            out = matrix if out is None else product(matrix, out)
        times >>= 1
        if times:
            matrix = product(matrix, matrix)
    if out is None:
        raise ValueError("a section runs at least once")
    return out


def product(after: Matrix, before: Matrix) -> Matrix:
    columns = list(zip(*before, strict=True))
    return [[max([a + b for a, b in zip(row, column, strict=True)]) for column in columns] for row in after]


def _later(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x if x > y else y for x, y in zip(a, b, strict=True)]
