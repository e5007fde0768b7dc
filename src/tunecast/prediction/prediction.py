"""One value from a job to its answer, which every command, every report and Python read (`tunecast.prediction/1`).

    job ──► tape ──► replays on the card ──► memory ──┐
                └──► operations ──► time ─────────────┼──► Prediction
    job ──► files, host, evaluation: outside the step ┘

Each part is computed when it is first read: whoever reads memory alone does not pay for time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cached_property
from typing import ClassVar, Literal

from tunecast.errors import Unsupported
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.prediction.memory.ranges import range_of
from tunecast.prediction.on_card import OnCard, card_warnings, job_on_card
from tunecast.prediction.outside.needs import Outside, outside_of
from tunecast.prediction.values import Energy, JobCost, Memory, Ranges, Time, Timing, Utilization
from tunecast.records import replace
from tunecast.result import Result
from tunecast.tape.build.job_runs import SHARED, Builder
from tunecast.tape.op import Tape
from tunecast.units import gib

NOT_TIMED = Timing()

Clock = Callable[["Outside | None"], Timing]
"""The time of a tape, from what the run reads and writes."""
Guard = Callable[[], AbstractContextManager[None]]


class Prediction(Result):
    """What a job, or a script that was traced, needs, and how long it takes. What is not known is None, never 0.

    `on_card` is the replay of the tape behind `memory`, for reports that show more than is published; `clock` prices
    the tape, `builder` builds what else is asked for.
    """

    schema: ClassVar[str] = "tunecast.prediction/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "id", "engine", "memory", "fits", "fits_surely", "fragmented", "capacity_bytes"),
        *("smallest_capacity_bytes", "exactness", "reasons", "time", "utilization", "cost", "energy", "assumptions"),
        *("warnings", "outside"),
    )

    cost: JobCost | None = None
    """Of the machines, where it was asked for: `with_cost`."""

    def __init__(
        self,
        job: Job | None,
        model: ModelConfig | None,
        on_card: OnCard,
        *,
        engine: str = "traced",
        assumptions: Iterable[str] = (),
        warnings: Iterable[str] = (),
        clock: Clock | None = None,
        builder: Builder = SHARED,
    ) -> None:
        self._job, self._model, self.on_card, self.engine = job, model, on_card, engine
        self._assumptions, self._warnings = tuple(assumptions), tuple(warnings)
        self._clock, self._builder = clock, builder
        self._guard: Guard = nullcontext

    @property
    def job(self) -> Job:
        """With what follows from its model filled in."""
        assert self._job is not None, "a script was traced, not a job"
        return self._job

    @property
    def model(self) -> ModelConfig:
        assert self._model is not None, "a script was traced, not a job"
        return self._model

    @property
    def id(self) -> str | int | None:
        return None if self._job is None else self._job.id

    @cached_property
    def memory(self) -> Memory:
        return memory_of(self.on_card)

    @property
    def fits(self) -> bool:
        return self.on_card.fits

    @property
    def fits_surely(self) -> bool:
        """At the high end of the 80 % range too."""
        return self.on_card.room.surely

    @property
    def fragmented(self) -> bool:
        """It does not fit for fragmentation alone: a smaller capacity, with which cached blocks are freed earlier,
        would do (`smallest_capacity_bytes`)."""
        return self.on_card.fragmented

    @property
    def capacity_bytes(self) -> int:
        return self.on_card.capacity_bytes

    @property
    def smallest_capacity_bytes(self) -> int:
        """At most `capacity_bytes` where it fits, more where it does not. Takes several replays."""
        return self.on_card.smallest_capacity_bytes

    @property
    def exactness(self) -> Literal["exact", "estimate"]:
        held = self.on_card
        return "estimate" if held.guesses or held.unresolved or held.unexplained else "exact"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is an estimate: what is missing of the run, what was guessed. And what its ranges are wider for: a
        card or releases with which no run was measured."""
        missing = filter(None, [self.on_card.unresolved])
        unexplained = filter(None, [self.on_card.unexplained])
        return (*missing, *self.on_card.guesses, *unexplained, *self.on_card.unmeasured)

    @cached_property
    def timing(self) -> Timing:
        if self._clock is None:
            return NOT_TIMED
        with self._guard():
            return self._clock(self.files)

    @property
    def time(self) -> Time | None:
        return self.timing.time

    @property
    def utilization(self) -> Utilization | None:
        return self.timing.utilization

    @property
    def energy(self) -> Energy | None:
        return self.timing.energy

    @cached_property
    def files(self) -> Outside | None:
        """As `outside`, also where only what is read and written is known: for the time of it."""
        if self._job is None or self._model is None:
            return None
        try:
            with self._guard():
                return outside_of(self._job, self._model, lambda: self.on_card, self._builder)
        except Unsupported:
            return None

    @property
    def outside(self) -> Outside | None:
        """What the run needs around its training step."""
        return None if self.files is None else self.files.published

    @property
    def assumptions(self) -> tuple[str, ...]:
        """In the order they are made: of the tape, the cluster, the job, the releases followed, the time."""
        on_card = self.on_card
        own = (*on_card.assumptions, *_cluster_assumptions(on_card), *self._assumptions, *self._releases())
        return (*own, *self.timing.assumptions)

    @property
    def warnings(self) -> tuple[str, ...]:
        unread = self._job.not_modelled if self._job is not None else ()
        guesses = (f"{'not understood' if guess in unread else 'guessed'}: {guess}" for guess in self.on_card.guesses)
        return (*guesses, *self._warnings, *card_warnings(self.on_card), *self.timing.warnings)

    def _releases(self) -> list[str]:
        packages = ", ".join(f"{name} {version}" for name, version in sorted(self.on_card.versions.items()))
        return [f"{'traced with' if self.engine == 'traced' else 'follows'} {packages}"] if packages else []

    def guarded(self, guard: Guard) -> Prediction:
        """The same, entering `guard` before what depends on a model's own config.json is computed."""
        other = copy(self)
        other._guard = guard
        return other

    def without_evaluation(self) -> Prediction:
        """The same, all that was computed of it included, except what an evaluation between steps takes: the run is
        replayed once more for that."""
        other, files = copy(self), self.files
        other.files = None if files is None else replace(files, evaluate=lambda: None)
        return other

    def with_cost(self, cost: JobCost | None) -> Prediction:
        """The same prediction, all that was computed of it included, with a cost."""
        other = copy(self)
        other.cost = cost
        return other


def prediction_from_tape(job: Job, gpu: Gpu, tape: Tape) -> Prediction:
    """A job's tape on a card, without its time."""
    return Prediction(job, None, job_on_card(job, gpu, tape))


def memory_of(on_card: OnCard) -> Memory:
    shown, device, at_peak = on_card.shown, on_card.device, on_card.at_peak
    breakdown = {role.value: nbytes for role, nbytes in at_peak.by_role.items()}
    breakdown["allocator"] = shown.reserved_bytes - at_peak.allocated_bytes
    breakdown["context"] = on_card.context.nbytes
    if on_card.communication.nbytes:
        breakdown["communication"] = on_card.communication.nbytes
    if on_card.vllm.nbytes:
        breakdown["vllm"] = on_card.vllm.nbytes
    if on_card.pages_bytes:
        breakdown["paged_optimizer"] = on_card.pages_bytes
    return Memory(
        model_bytes=shown.model_bytes,
        allocated_bytes=at_peak.allocated_bytes,
        reserved_bytes=shown.reserved_bytes,
        device_bytes=device.nbytes,
        range_bytes=Ranges(
            allocated=range_of(at_peak.allocated_bytes, "allocated", on_card.basis),
            reserved=device.reserved_range_bytes,
            device=device.range_bytes,
        ),
        peak_phase=at_peak.phase.value,
        breakdown_bytes=breakdown,
    )


def _cluster_assumptions(on_card: OnCard) -> tuple[str, ...]:
    """What was taken for granted of the other cards."""
    if on_card.cluster is None:
        return ()
    low, value, high = on_card.communication
    buffers = f"NCCL's buffers take about {gib(value)} outside PyTorch ({gib(low)} to {gib(high)}, by version)"
    return (*on_card.cluster.assumptions, buffers)
