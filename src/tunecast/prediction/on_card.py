"""A tape on a card: replayed without limit, on the card, and under ever less.

    tape ──► replays ──► `OnCard`: what fits, the device's memory with its range, the blocks at the peak

Pure: a tape and a card in. What takes long waits until it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from tunecast.errors import UsageError
from tunecast.hardware.cluster import Cluster, cluster_of
from tunecast.hardware.spec import Gpu, card_name
from tunecast.job.job import Job
from tunecast.job.lengths import lengths_guess
from tunecast.job.names import PREFERENCES
from tunecast.job.releases import not_measured
from tunecast.job.stacks import DEFAULT_STACK, stack_of
from tunecast.prediction.memory.allocator import AllocatorSettings, takes_oldest_segment_first
from tunecast.prediction.memory.nccl import NONE as NO_BUFFERS
from tunecast.prediction.memory.nccl import NcclBuffers, nccl_bytes
from tunecast.prediction.memory.needs import Peak, least_beside, peak, smallest_capacity_bytes
from tunecast.prediction.memory.pages import pages_bytes
from tunecast.prediction.memory.ranges import Basis, device_was_measured, range_of
from tunecast.prediction.memory.replay import (
    AtPeak,
    LongReplays,
    Replay,
    Replays,
    ReplaySpread,
    one_of,
    replays_of,
    rows_of,
)
from tunecast.prediction.memory.vllm import NONE as NO_VLLM
from tunecast.prediction.memory.vllm import VllmShare, share_beside
from tunecast.prediction.verdict import Room, Verdict, room_within
from tunecast.records import NamedTuple, dataclass, replace
from tunecast.tape.compose import Composed
from tunecast.tape.fold import Folded
from tunecast.tape.op import Op, Tape, op_before
from tunecast.tape.program import Program
from tunecast.units import MIB, gib

if TYPE_CHECKING:
    from tunecast.prediction.data.own_batches import OwnRun
    from tunecast.prediction.lessons.correction import LearnedContext

ALL_BLOCKS = 100_000
"""Of the peak: all of them, since a report shows alike ones together."""


class Context(NamedTuple):
    """Device memory of the process outside PyTorch's allocator, while it trains."""

    nbytes: int
    low_bytes: int
    high_bytes: int
    measured: bool
    """By those who measured runs of the card; the ranges of what PyTorch reserves rest on them."""
    learned: bool = False
    """From the user's own runs."""


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


def learned_context(known: Context, learned: LearnedContext | None) -> Context:
    """As the user's own runs held it, where they were enough to say. Ranges of what PyTorch reserves stay those of a
    card that was not measured."""
    if learned is None:
        return known
    return known._replace(
        nbytes=learned.nbytes, low_bytes=learned.low_bytes, high_bytes=learned.high_bytes, learned=True
    )


def context_told(learned: LearnedContext | None) -> list[str]:
    if learned is None:
        return []
    return [f"memory: {learned.runs} of your runs on this card held {gib(learned.nbytes)} outside PyTorch"]


class DeviceMemory(NamedTuple):
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
    runs: Replays
    limited: Replay
    """With `capacity_bytes`."""
    spread: ReplaySpread | None = None
    """Of runs like this one that may come as well."""
    stack: str = DEFAULT_STACK
    """Whose training code the tape is of."""
    communication: NcclBuffers = NO_BUFFERS
    """Held by the library that talks to other cards."""
    cluster: Cluster | None = None
    """The other cards; None where there are none or nobody said."""
    managed_bytes: int = 0
    """Of a paged optimizer, in CUDA's managed memory."""
    vllm: VllmShare = NO_VLLM
    """Of an engine that generates on the card the model trains on."""
    unresolved: str = ""
    """Why the tape is not of the whole run, where it is not."""
    unexplained: str = ""
    """In what runs like this one were off on a card, where nobody knows why; its range covers that."""
    find_op: Callable[[Replay], Op | None] | None = None
    """The operation whose request found no room, where the tape is not the run."""

    @property
    def program(self) -> Program | Composed:
        return self.runs.rows

    @property
    def is_on_tape(self) -> bool:
        """Whether the run is `tape`, request by request; else that has its largest batch over and over."""
        return not isinstance(self.runs, LongReplays)

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
        varies = isinstance(self.runs, LongReplays) or bool(self.unexplained)
        several, guessed = self.cluster is not None, bool(self.guesses or self.unresolved)
        return Basis(self.stack, self.context.measured, guessed, several, varies, not_measured(self.versions) is None)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """What its range is wider for."""
        card = None if self.context.measured else f"no run was measured on the {card_name(self.gpu.name)}"
        return tuple(filter(None, (card, not_measured(self.versions))))

    @property
    def pages_bytes(self) -> int:
        """Of managed memory on the card: all that there is room for, the rest waits on the host."""
        return min(pages_bytes(self.managed_bytes), max(0, self.capacity_bytes - self.shown.reserved_bytes))

    @property
    def outside_bytes(self) -> int:
        """Of the card, and not PyTorch's to have."""
        return self.context.nbytes + self.communication.nbytes + self.vllm.nbytes

    @cached_property
    def device(self) -> DeviceMemory:
        """What the process holds of the card. A run that fills it with cached blocks, and surely fits, holds no more
        than there is."""
        found, room = self._device, self.room
        if not room.surely:
            return found
        most = self.capacity_bytes
        whole = most + self.outside_bytes
        (low, high), (reserved_low, reserved_high) = found.range_bytes, found.reserved_range_bytes
        return DeviceMemory(found.nbytes, (low, min(high, whole)), (reserved_low, min(reserved_high, most)))

    @cached_property
    def _device(self) -> DeviceMemory:
        """As like runs were measured, without what is alive at the peak: that takes as long as the replay."""
        shown, context, outside, vllm = self.shown, self.context, self.communication, self.vllm
        pages = self.pages_bytes
        nbytes = shown.reserved_bytes + pages + self.outside_bytes
        basis = self.basis
        below, above = (0, 0) if self.spread is None else self.spread.around(shown.reserved_bytes)
        low, high = range_of(shown.reserved_bytes, "reserved", basis)
        low, high = reserved = low - below, high + above
        if device_was_measured(basis):
            least, most = range_of(nbytes - vllm.nbytes, "device", basis)
            least, most = least + vllm.low_bytes, most + vllm.high_bytes
            return DeviceMemory(nbytes, (least - below, most + above), reserved)
        least = low + pages + context.low_bytes + outside.low_bytes + vllm.low_bytes
        most = high + pages + context.high_bytes + outside.high_bytes + vllm.high_bytes
        return DeviceMemory(nbytes, (least, most), reserved)

    @cached_property
    def room(self) -> Room:
        besides = self.outside_bytes + self.pages_bytes
        low_bytes, high_bytes = (max(0, end - besides) for end in self._device.range_bytes)
        shown = self.shown
        if self.spread is not None and not self.spread.all_fit:
            high_bytes = max(high_bytes, self.capacity_bytes + 1)
        room = room_within(
            (shown.reserved_bytes, low_bytes, high_bytes),
            shown.allocated_bytes,
            self.capacity_bytes,
            self.fits,
            lambda: self.smallest_capacity_bytes,
        )
        return room._replace(unresolved=self.unresolved) if self.unresolved else room

    @property
    def verdict(self) -> Verdict:
        """The room's, without the search for the least capacity where the replay alone decides."""
        return self.room.verdict if self.fits else "does not fit"

    @cached_property
    def tape(self) -> Tape:
        """Every event of the run, for reports that name modules and operations."""
        return self.make_tape()

    @property
    def op_without_room(self) -> Op | None:
        """What made the request that found no room."""
        end = self.limited.out_of_memory
        if end is None:
            return None
        if self.find_op is not None:
            return self.find_op(self.limited)
        return op_before(self.tape.events, end.request) if self.is_on_tape else None

    @cached_property
    def at_peak(self) -> AtPeak:
        return self.runs.at_peak(self.shown, self._shown_within)

    @property
    def _shown_within(self) -> int | None:
        return self.capacity_bytes if self.limited.completed else None

    @cached_property
    def phase_peaks(self) -> tuple[AtPeak, ...]:
        return self.runs.phase_peaks(self.shown, self._shown_within)

    @cached_property
    def peak(self) -> Peak:
        """`at_peak` with modules and blocks."""
        limit = self.capacity_bytes if self.fits and self.is_on_tape else None
        return peak(self.tape, self.settings, ALL_BLOCKS, limit, from_start=self.runs.from_start)

    @cached_property
    def _some_least_bytes(self) -> int:
        return smallest_capacity_bytes(self.runs)

    @cached_property
    def smallest_capacity_bytes(self) -> int:
        return least_beside(self.runs, self._some_least_bytes, self.capacity_bytes, self.fits)

    @property
    def fragmented(self) -> bool:
        return not self.fits and self._some_least_bytes <= self.capacity_bytes


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
    stack: str = DEFAULT_STACK,
    cluster: Cluster | None = None,
    managed_bytes: int = 0,
    own: OwnRun | None = None,
    vllm: VllmShare = NO_VLLM,
    script: Composed | Program | None = None,
    learned: LearnedContext | None = None,
) -> OnCard:
    """Replay the tape on a card, or the job's `own` batches, or the run of a `script`; `capacity_bytes` instead of what
    the card has for the allocator.

    `reserve_bytes` of the card are held by others: a display, another process. `vllm` generates beside the trainer.
    """
    context = learned_context(context_of(gpu), learned)
    communication = NO_BUFFERS if cluster is None else nccl_bytes(cluster, tape.versions.get("torch", "2.11"))
    outside_bytes = context.nbytes + communication.nbytes
    left_bytes = gpu.memory_bytes - outside_bytes - reserve_bytes
    if capacity_bytes is None and left_bytes <= 0:
        most = gib(gpu.memory_bytes - outside_bytes)
        told = f"got {gib(reserve_bytes)}, which leaves PyTorch nothing of the {most} it has on {gpu.name}"
        raise UsageError(f"hardware.reserve_bytes: {told}; allowed: less", field="hardware.reserve_bytes")
    capacity = max(1, left_bytes - vllm.nbytes) if capacity_bytes is None else capacity_bytes
    spread = None
    if script is not None:
        kind = LongReplays if isinstance(script, Composed) else Replays
        runs: Replays = kind(script, settings, from_start=True)
    elif own is None:
        runs = replays_of(rows_of(tape), settings)
    else:
        runs, spread = one_of(own.orders, own.known, settings, capacity)
    if vllm.most_bytes > vllm.nbytes:  # it takes more when the model does not train
        within = runs.within(capacity)
        left = left_bytes if capacity_bytes is None else capacity_bytes + vllm.nbytes
        vllm = share_beside(vllm, within if within.completed else runs.unlimited, left)
        capacity = max(1, left_bytes - vllm.nbytes) if capacity_bytes is None else capacity_bytes
    return OnCard(
        make_tape=tape.make_tape if isinstance(tape, Folded) else lambda: tape,
        guesses=(
            *tape.guesses,
            *([OF_AMD] if gpu.vendor == "AMD" and not context.measured else []),
            *filter(None, [vllm.told]),
        ),
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
        vllm=vllm,
    )


OF_AMD = (
    "no AMD GPU was measured; torch's ROCm build has the same allocator, but which kernels run and what they borrow is "
    "taken from CUDA"
)


def job_on_card(
    job: Job,
    gpu: Gpu,
    tape: Tape | Folded,
    managed_bytes: int = 0,
    own: OwnRun | None = None,
    vllm: VllmShare = NO_VLLM,
    learned: LearnedContext | None = None,
) -> OnCard:
    capacity_bytes = job.hardware.capacity_bytes
    allocator = stack_of(job).allocator or job.allocator
    settings = allocator_settings(allocator, gpu, tape, pretended=capacity_bytes is not None)
    others, reserve_bytes = others_of(job, gpu), job.hardware.reserve_bytes
    held = on_card(
        tape, gpu, settings, capacity_bytes, reserve_bytes, job.stack, others, managed_bytes, own, vllm, learned=learned
    )
    guesses = (*job.not_modelled, *filter(None, [lengths_guess(job.data), answers_guess(job)]))
    return replace(held, guesses=(*held.guesses, *guesses)) if guesses else held


def answers_guess(job: Job) -> str | None:
    """Of preferences TRL's fused head computes on the tokens of answers alone, in chunks, the last as long as these
    leave (trl/trainer/dpo_trainer.py, `_compute_loss`). How many there are follows from the lengths of prompts and of
    both answers: DPO's are counted in the data, but not those of the pass before training that asks a reference."""
    if job.task not in PREFERENCES or not (job.data.has_lengths or job.data.path is not None):
        return None
    from tunecast.prediction.data.batches import counts_answers  # few jobs have pairs
    from tunecast.tape.build.tasks.reference import FUSED, head_of

    if head_of(job) != FUSED or (job.preference.reference != "precomputed" and counts_answers(job)):
        return None
    return ANSWERS_GUESS


ANSWERS_GUESS = (
    "prompts and padding of samples of many lengths are taken as trained on; the head computes on answers alone"
)


def others_of(job: Job, gpu: Gpu) -> Cluster | None:
    """The cards a job runs on, where its ranks are several."""
    hardware = job.hardware
    if hardware.cards == 1 and hardware.interconnect is None:
        return None
    cluster = cluster_of(job, gpu)
    return cluster if cluster.ranks > 1 else None


def card_warnings(held: OnCard) -> list[str]:
    """Its bounds are in the range of the prediction."""
    if held.context.measured or held.context.learned:
        return []
    low, high = gib(held.context.low_bytes), gib(held.context.high_bytes)
    return [
        f"the CUDA context of the {card_name(held.gpu.name)} was not measured: taken as the H200's "
        f"({gib(held.context.nbytes)}; GPUs hold {low} to {high})"
    ]
