"""What is said of a job on a card, as the public contract's `tunecast.prediction/1`. Pure: a tape and a card in.

    tape ──► replay without limit, on the card, and under ever less ──► `OnCard` ──► `Prediction`

`OnCard` keeps what a report draws (the peak's blocks, the phases); a `Prediction` is only what is published.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from tunecast.errors import TunecastError, UsageError
from tunecast.hardware.cluster import Cluster, cluster_of
from tunecast.hardware.names import card_name
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.predict.allocator import AllocatorSettings, takes_oldest_segment_first
from tunecast.predict.long_run import LongReplays, Spread, one_of
from tunecast.predict.memory import Peak, least_beside, peak, smallest_capacity_bytes
from tunecast.predict.nccl import NONE as NO_BUFFERS
from tunecast.predict.nccl import Buffers, nccl_bytes
from tunecast.predict.pages import pages_bytes
from tunecast.predict.ranges import Basis, device_was_measured, range_of
from tunecast.predict.replay import AtPeak, Replay, Replays, at_peak, phase_peaks, rows_of
from tunecast.predict.room import Room, Verdict, room_within
from tunecast.records import dataclass, replace
from tunecast.tape.compose import Composed
from tunecast.tape.fold import Folded
from tunecast.tape.op import Tape
from tunecast.tape.program import Program
from tunecast.units import MIB, gib

if TYPE_CHECKING:
    from tunecast.predict.own_batches import OwnRun

SCHEMA = "tunecast.prediction/1"
ALL_BLOCKS = 100_000
"""Of the peak: all of them, since a report shows alike ones together."""

ALLOCATOR_OF_STACK: Mapping[str, str] = {"unsloth": "expandable_segments"}
"""Importing unsloth sets PYTORCH_ALLOC_CONF (unsloth/__init__.py of 2026.10.9), whatever the job says."""


class Context(NamedTuple):
    """Device memory of the process outside PyTorch's allocator, while it trains."""

    nbytes: int
    low_bytes: int
    high_bytes: int
    measured: bool


H200_CONTEXT = Context(804_061_184, 787_283_968, 814_546_944, measured=True)
"""Of 71 runs on one H200 (torch 2.11.0+cu130): device memory in use less what torch reserved. 51 show the first figure,
67 lie in the range; one compiled run held 938,278,912."""
BARE_CONTEXT_BYTES = 256 * MIB
"""The least anyone reports of a card of today: an idle context on an RTX 3090 (invoke-ai/InvokeAI#9413); an RTX 6000
Ada holds 426 MiB (unslothai/unsloth-zoo#1053), the H200 621 MiB, and training adds kernels to each."""
MOST_CONTEXT_BYTES = 938_278_912


def context_of(gpu: Gpu) -> Context:
    """As measured on the card; else the H200's, which is more than any smaller card is known to hold."""
    measured = gpu.training_context_bytes
    if measured is None:
        return Context(H200_CONTEXT.nbytes, BARE_CONTEXT_BYTES, MOST_CONTEXT_BYTES, measured=False)
    # The spread is the H200's own; another card's figure moves with it.
    shift = measured - H200_CONTEXT.nbytes
    return Context(measured, H200_CONTEXT.low_bytes + shift, H200_CONTEXT.high_bytes + shift, measured=True)


@dataclass(frozen=True)
class Memory:
    """Of one GPU, the fullest. `breakdown_bytes` sums to `device_bytes`."""

    model_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    range_bytes: Mapping[str, tuple[int, int]]
    """80 %: `predict/ranges.py`."""
    peak_phase: str
    breakdown_bytes: Mapping[str, int]


@dataclass(frozen=True)
class Prediction:
    """What is not computed is None, never 0."""

    id: str | int | None
    engine: str
    memory: Memory
    fits: bool
    fits_surely: bool
    """At the high end of the 80 % range too."""
    capacity_bytes: int
    smallest_capacity_bytes: int
    """At most `capacity_bytes` where it fits, more where it does not."""
    fragmented: bool = False
    """It does not fit for fragmentation alone: a smaller capacity, with which cached blocks are freed earlier, would
    do (`memory.smallest_capacity_bytes`)."""
    time: Mapping[str, Any] | None = None
    utilization: Mapping[str, Any] | None = None
    cost: Mapping[str, Any] | None = None
    energy: Mapping[str, Any] | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As the contract has it, ready for JSON."""
        memory = self.memory
        return {
            "schema": SCHEMA,
            "id": self.id,
            "engine": self.engine,
            "memory": {
                "model_bytes": memory.model_bytes,
                "allocated_bytes": memory.allocated_bytes,
                "reserved_bytes": memory.reserved_bytes,
                "device_bytes": memory.device_bytes,
                "range_bytes": {kind: list(bounds) for kind, bounds in memory.range_bytes.items()},
                "peak_phase": memory.peak_phase,
                "breakdown_bytes": dict(memory.breakdown_bytes),
            },
            "fits": self.fits,
            "fits_surely": self.fits_surely,
            "fragmented": self.fragmented,
            "capacity_bytes": self.capacity_bytes,
            "smallest_capacity_bytes": self.smallest_capacity_bytes,
            "time": self.time,
            "utilization": self.utilization,
            "cost": self.cost,
            "energy": self.energy,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }


class Device(NamedTuple):
    """What the process holds of the card."""

    nbytes: int
    range_bytes: tuple[int, int]
    reserved_range_bytes: tuple[int, int]


@dataclass(frozen=True)
class OnCard:
    """Everything the allocator's model says of one tape on one card. What takes long waits until it is asked for."""

    make_tape: Callable[[], Tape]
    guesses: tuple[str, ...]
    assumptions: tuple[str, ...]
    versions: Mapping[str, str]
    gpu: Gpu
    settings: AllocatorSettings
    context: Context
    capacity_bytes: int
    runs: Replays | LongReplays
    limited: Replay
    """With `capacity_bytes`."""
    spread: Spread | None = None
    """Of runs like this one that may come as well."""
    stack: str = "transformers"
    """Whose training code the tape is of."""
    communication: Buffers = NO_BUFFERS
    """Held by the library that talks to other cards."""
    cluster: Cluster | None = None
    """The other cards; None where there are none or nobody said."""
    managed_bytes: int = 0
    """Of a paged optimizer, in CUDA's managed memory."""

    @property
    def program(self) -> Program | Composed:
        return self.runs.rows

    @property
    def is_on_tape(self) -> bool:
        """Whether the run is `tape`, request by request; else that has its largest batch over and over."""
        return isinstance(self.runs, Replays)

    @property
    def unlimited(self) -> Replay:
        return self.runs.unlimited

    @property
    def fits(self) -> bool:
        return self.limited.completed

    @property
    def shown(self) -> Replay:
        """The card's own figures where the run completes on it, else those of a card without limit."""
        return self.limited if self.limited.completed else self.unlimited

    @property
    def basis(self) -> Basis:
        """What its ranges rest on."""
        varies = isinstance(self.runs, LongReplays)
        return Basis(self.stack, self.context.measured, bool(self.guesses), self.cluster is not None, varies)

    @property
    def pages_bytes(self) -> int:
        """Of managed memory on the card: all that there is room for, the rest waits on the host."""
        return min(pages_bytes(self.managed_bytes), max(0, self.capacity_bytes - self.shown.reserved_bytes))

    @property
    def outside_bytes(self) -> int:
        """Of the card, and not PyTorch's to have."""
        return self.context.nbytes + self.communication.nbytes

    @cached_property
    def device(self) -> Device:
        """What the process holds of the card. A run that fills it with cached blocks, and surely fits, holds no more
        than there is."""
        found, room = self._device, self.room
        if not room.surely:
            return found
        most = self.capacity_bytes
        whole = most + self.outside_bytes
        (low, high), (reserved_low, reserved_high) = found.range_bytes, found.reserved_range_bytes
        return Device(found.nbytes, (low, min(high, whole)), (reserved_low, min(reserved_high, most)))

    @cached_property
    def _device(self) -> Device:
        """As like runs were measured, without what is alive at the peak: that takes as long as the replay."""
        shown, context, outside = self.shown, self.context, self.communication
        pages = self.pages_bytes
        nbytes = shown.reserved_bytes + pages + self.outside_bytes
        basis = self.basis
        below, above = (0, 0) if self.spread is None else self.spread.around(shown.reserved_bytes)
        low, high = range_of(shown.reserved_bytes, "reserved", basis)
        low, high = reserved = low - below, high + above
        if device_was_measured(basis):
            least, most = range_of(nbytes, "device", basis)
            return Device(nbytes, (least - below, most + above), reserved)
        most = high + pages + context.high_bytes + outside.high_bytes
        return Device(nbytes, (low + pages + context.low_bytes + outside.low_bytes, most), reserved)

    @cached_property
    def room(self) -> Room:
        besides = self.outside_bytes + self.pages_bytes
        low_bytes, high_bytes = (max(0, end - besides) for end in self._device.range_bytes)
        shown = self.shown
        if self.spread is not None and not self.spread.all_fit:
            high_bytes = max(high_bytes, self.capacity_bytes + 1)
        return room_within(
            (shown.reserved_bytes, low_bytes, high_bytes),
            shown.allocated_bytes,
            self.capacity_bytes,
            self.fits,
            lambda: self.smallest_capacity_bytes,
        )

    @property
    def verdict(self) -> Verdict:
        """The room's, without the search for the least capacity where the replay alone decides."""
        return self.room.verdict if self.fits else "does not fit"

    @cached_property
    def tape(self) -> Tape:
        """Every event of the run, for reports that name modules and operations."""
        return self.make_tape()

    @cached_property
    def at_peak(self) -> AtPeak:
        if isinstance(self.runs, LongReplays):
            return self.runs.at_peak(self.shown, self._shown_within)
        return at_peak(self.runs.rows, self.shown)

    @property
    def _shown_within(self) -> int | None:
        return self.capacity_bytes if self.limited.completed else None

    @cached_property
    def phase_peaks(self) -> tuple[AtPeak, ...]:
        if isinstance(self.runs, LongReplays):
            return self.runs.phase_peaks(self.shown, self._shown_within)
        return phase_peaks(self.runs.rows, self.shown)

    @cached_property
    def peak(self) -> Peak:
        """`at_peak` with modules and blocks."""
        limit = self.capacity_bytes if self.fits and self.is_on_tape else None
        return peak(self.tape, self.settings, ALL_BLOCKS, limit)

    @cached_property
    def _some_least_bytes(self) -> int:
        return smallest_capacity_bytes(self.runs)

    @cached_property
    def smallest_capacity_bytes(self) -> int:
        return least_beside(self.runs, self._some_least_bytes, self.capacity_bytes, self.fits)

    @property
    def fragmented(self) -> bool:
        return not self.fits and self._some_least_bytes <= self.capacity_bytes


class Predicted:
    """A prediction and what it was read off, for reports that show more than it says."""

    def __init__(
        self, job: Job, model: ModelConfig, held: OnCard, prediction: Prediction | Callable[[], Prediction]
    ) -> None:
        self.job, self.model, self.held = job, model, held
        self._prediction = prediction

    @cached_property
    def prediction(self) -> Prediction:
        """The least capacity alone takes several replays: it waits until somebody asks."""
        return self._prediction() if callable(self._prediction) else self._prediction


def allocator_settings(allocator: str, gpu: Gpu, tape: Tape | Folded, *, pretended: bool = False) -> AllocatorSettings:
    """`allocator` as a job names it; the rest follows from the card and the torch that was traced.

    A capacity that is only pretended binds as torch.cuda.set_per_process_memory_fraction does, a card by its end.
    """
    return AllocatorSettings(
        expandable_segments=allocator == "expandable_segments",
        device_total_bytes=gpu.memory_bytes,
        oldest_segment_first=takes_oldest_segment_first(tape.versions.get("torch", "2.12")),
        capacity_is_physical=not pretended,
    )


def on_card(
    tape: Tape | Folded,
    gpu: Gpu,
    settings: AllocatorSettings,
    capacity_bytes: int | None = None,
    reserve_bytes: int = 0,
    stack: str = "transformers",
    cluster: Cluster | None = None,
    managed_bytes: int = 0,
    own: OwnRun | None = None,
) -> OnCard:
    """Replay the tape on a card, or the job's `own` batches; `capacity_bytes` instead of what the card has for the
    allocator.

    `reserve_bytes` of the card are held by others: a display, another process.
    """
    context = context_of(gpu)
    communication = NO_BUFFERS if cluster is None else nccl_bytes(cluster, tape.versions.get("torch", "2.11"))
    outside_bytes = context.nbytes + communication.nbytes
    left_bytes = gpu.memory_bytes - outside_bytes - reserve_bytes
    if capacity_bytes is None and left_bytes <= 0:
        most = gib(gpu.memory_bytes - outside_bytes)
        told = f"got {gib(reserve_bytes)}, which leaves PyTorch nothing of the {most} it has on {gpu.name}"
        raise UsageError(f"hardware.reserve_bytes: {told}; allowed: less", field="hardware.reserve_bytes")
    capacity = left_bytes if capacity_bytes is None else capacity_bytes
    if own is None:
        runs: Replays | LongReplays = Replays(rows_of(tape), settings)
        spread = None
    else:
        runs, spread = one_of(own.orders, own.known, settings, capacity)
    return OnCard(
        make_tape=tape.make_tape if isinstance(tape, Folded) else lambda: tape,
        guesses=tape.guesses,
        assumptions=tape.assumptions,
        versions=tape.versions,
        gpu=gpu,
        settings=settings,
        context=context,
        capacity_bytes=capacity,
        runs=runs,
        limited=runs.within(capacity),
        stack=stack,
        communication=communication,
        cluster=cluster,
        managed_bytes=managed_bytes,
        spread=spread,
    )


def memory_of(held: OnCard) -> Memory:
    shown, device = held.shown, held.device
    breakdown = {role.value: nbytes for role, nbytes in held.at_peak.by_role.items()}
    breakdown["allocator"] = shown.reserved_bytes - held.at_peak.allocated_bytes
    breakdown["context"] = held.context.nbytes
    if held.communication.nbytes:
        breakdown["communication"] = held.communication.nbytes
    if held.pages_bytes:
        breakdown["paged_optimizer"] = held.pages_bytes
    return Memory(
        model_bytes=shown.model_bytes,
        allocated_bytes=held.at_peak.allocated_bytes,
        reserved_bytes=shown.reserved_bytes,
        device_bytes=device.nbytes,
        range_bytes={
            "allocated": range_of(held.at_peak.allocated_bytes, "allocated", held.basis),
            "reserved": device.reserved_range_bytes,
            "device": device.range_bytes,
        },
        peak_phase=held.at_peak.phase.value,
        breakdown_bytes=breakdown,
    )


def prediction_of(
    held: OnCard,
    *,
    id: str | int | None = None,
    engine: str = "traced",
    assumptions: Iterable[str] = (),
    warnings: Iterable[str] = (),
) -> Prediction:
    return Prediction(
        id=id,
        engine=engine,
        memory=memory_of(held),
        fits=held.fits,
        fits_surely=held.room.surely,
        capacity_bytes=held.capacity_bytes,
        smallest_capacity_bytes=held.smallest_capacity_bytes,
        fragmented=held.fragmented,
        assumptions=(*held.assumptions, *_cluster(held), *assumptions, *_versions(held.versions, engine)),
        warnings=(*(f"guessed: {guess}" for guess in held.guesses), *warnings, *card_warnings(held)),
    )


def without_time(said: Prediction, error: Exception) -> Prediction:
    """What cannot be priced must not take the memory with it: it is a warning, also where the error is our own."""
    if isinstance(error, TunecastError):
        why = f"time: {error.message}"
    elif os.environ.get("TUNECAST_DEBUG"):
        raise error
    else:
        why = f"time was not computed: {type(error).__name__}, which is an error of tunecast's own"
    return replace(said, warnings=(*said.warnings, why))


def prediction_from_tape(job: Job, gpu: Gpu, tape: Tape) -> Prediction:
    """What a job's tape says of it on a card."""
    return prediction_of(job_on_card(job, gpu, tape), id=job.id)


def job_on_card(job: Job, gpu: Gpu, tape: Tape | Folded, managed_bytes: int = 0, own: OwnRun | None = None) -> OnCard:
    capacity_bytes = job.hardware.capacity_bytes
    allocator = ALLOCATOR_OF_STACK.get(job.stack, job.allocator)
    settings = allocator_settings(allocator, gpu, tape, pretended=capacity_bytes is not None)
    others, reserve_bytes = others_of(job, gpu), job.hardware.reserve_bytes
    return on_card(tape, gpu, settings, capacity_bytes, reserve_bytes, job.stack, others, managed_bytes, own)


def others_of(job: Job, gpu: Gpu) -> Cluster | None:
    """The cards a job runs on, where its ranks are several."""
    hardware = job.hardware
    if hardware.gpus * hardware.nodes == 1 and hardware.interconnect is None:
        return None
    cluster = cluster_of(job, gpu)
    return cluster if cluster.ranks > 1 else None


def _cluster(held: OnCard) -> tuple[str, ...]:
    """What was taken for granted of the other cards."""
    if held.cluster is None:
        return ()
    low, value, high = held.communication
    buffers = f"NCCL's buffers take about {gib(value)} outside PyTorch ({gib(low)} to {gib(high)}, by version)"
    return (*held.cluster.assumptions, buffers)


def _versions(versions: Mapping[str, str], engine: str) -> list[str]:
    if not versions:
        return []
    packages = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return [f"{'traced with' if engine == 'traced' else 'follows'} {packages}"]


def card_warnings(held: OnCard) -> list[str]:
    """What is not known of the card."""
    unlike = []
    if held.gpu.vendor == "AMD" and not held.context.measured:
        unlike.append(
            "guessed: no AMD GPU was measured; torch's ROCm build has the same allocator, but which kernels run and "
            "what they borrow is taken from CUDA"
        )
    return [*unlike, *context_warnings(held)]


def context_warnings(held: OnCard) -> list[str]:
    """Its bounds are in the range of the prediction."""
    if held.context.measured:
        return []
    low, high = gib(held.context.low_bytes), gib(held.context.high_bytes)
    return [
        f"the CUDA context of the {card_name(held.gpu.name)} was not measured: taken as the H200's "
        f"({gib(held.context.nbytes)}; GPUs hold {low} to {high})"
    ]
