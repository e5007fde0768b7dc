"""The run of a traced script as it is replayed, and in words what was traced of it."""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.hardware.spec import Gpu
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import Replay, take
from tunecast.prediction.memory.so_far import allocator_request
from tunecast.prediction.on_card import allocator_settings, context_of
from tunecast.records import NamedTuple, replace
from tunecast.tape.compose import Composed, NotComposable
from tunecast.tape.op import Alloc, Op, Tape
from tunecast.tape.program import Program, program
from tunecast.tape.trace.request import AllocatorRequest, Answer
from tunecast.tape.whole_run import WholeRun, whole_run


class WholeScript(NamedTuple):
    rows: Composed | Program
    guesses: tuple[str, ...]
    """Why its figures are an estimate, where they are."""
    told: str
    """What was traced, in words."""
    steps: int
    replayed_steps: int = 0
    whole: WholeRun | None = None

    @property
    def stands_for(self) -> Mapping[int, int] | None:
        """Of the traced steps, for how many of the run each stands; None where all were traced."""
        return None if self.whole is None else self.whole.stands_for

    @property
    def steps_not_shown(self) -> tuple[int, ...]:
        """Skipped steps that would have to be traced for the run to be shown."""
        return () if self.whole is None else self.whole.steps_not_shown

    def tape_of(self, replay: Replay) -> Tape | None:
        """Around what is most; None where the traced tape is the run."""
        if self.whole is None:
            return None
        return self.whole.tape_around(max(range(len(replay.courses)), key=lambda n: replay.courses[n].peak_bytes))

    def op_without_room(self, replay: Replay) -> Op | None:
        """The operation whose request found no room."""
        if self.whole is None or replay.out_of_memory is None:
            return None
        stretch, served = replay.died_at
        return self.whole.op_at(stretch, served)


def replace_rows(run: WholeScript, tape: Tape) -> WholeScript:
    """The same script on one of several cards, whose tape that is."""
    return run._replace(rows=program(tape))


def script_settings(
    tape: Tape, gpu: Gpu, allocator: str | None, configured: AllocatorSettings | None, *, pretended: bool
) -> AllocatorSettings:
    """The allocator's, as named or as the script's environment has them."""
    settings = allocator_settings(allocator or "native", gpu, tape, pretended=pretended)
    if configured is None:
        return settings
    return replace(
        configured,
        device_total_bytes=settings.device_total_bytes,
        oldest_segment_first=settings.oldest_segment_first,
        capacity_is_physical=settings.capacity_is_physical,
    )


def memory_request(
    gpu: Gpu,
    allocator: str | None,
    configured: AllocatorSettings | None,
    capacity_bytes: int | None = None,
    reserve_bytes: int = 0,
) -> AllocatorRequest:
    """By what `torch.cuda` answers inside the script, before its tape is there.

    Ignored  what NCCL holds of a card that is one of several.
    """
    pretended, context_bytes = capacity_bytes is not None, context_of(gpu).nbytes
    settings = script_settings(Tape(()), gpu, allocator, configured, pretended=pretended)
    left_bytes = max(1, gpu.memory_bytes - context_bytes - reserve_bytes)
    return allocator_request(settings, context_bytes, left_bytes if capacity_bytes is None else capacity_bytes)


def script_run(tape: Tape, answer: Answer, asked: int | None) -> WholeScript:
    """Raises `NotComposable` where what was skipped does not fit what was traced.

    `asked`: for how many steps; 0 for all of them, None for the whole run with what can be skipped skipped.
    """
    steps = answer.steps
    guesses = [] if answer.finished or answer.error is not None else [_unfinished(answer, asked)]
    if not any(isinstance(event, Alloc) for event in tape.events):
        told = f"{steps} optimizer steps of the script, none of which used the GPU"
        return WholeScript(program(tape), tuple(guesses), told, steps)
    if not answer.skipped:
        which = f"all {steps}" if answer.finished else f"the first {steps}"
        told = f"{which} optimizer steps of the script, every one traced"
        if answer.all_traced:
            told += f": {answer.all_traced}"
        return WholeScript(program(tape), tuple(guesses), told, steps)
    try:
        run = whole_run(tape)
        take(run.rows, AllocatorSettings(), None)
    except (ArithmeticError, AssertionError, LookupError, StopIteration, ValueError) as error:
        raise NotComposable("the skipped steps cannot be put together") from error
    guesses += run.not_shown[:MOST_REASONS]
    replayed = run.steps - run.traced_steps
    which = "all" if answer.finished else "the first"
    told = f"{which} {steps} optimizer steps of the script: {run.traced_steps} traced, {replayed} replayed"
    return WholeScript(run.rows, tuple(guesses), told, steps, replayed, run)


MASKED_ATTENTION = (
    "batches are padded, and attention has a mask: three such programs reserved 0.3 to 0.7 % more on an H200 than "
    "their traces say, and held up to 3.3 MB more or 2.4 MB less; the cause is not found"
)
"""Whole programs (benchmarks/data/programs_on_card_runs.jsonl: sft 14, dpo 20, grpo 30 MiB; those without a mask agree
to the byte). No larger workspace of cuDNN's backward pass makes the difference, and of addresses only grpo depends."""
MOST_REASONS = 4
"""Not shown for the same reason step after step: a few are enough."""


def _unfinished(answer: Answer, asked: int | None) -> str:
    if asked is None or answer.too_long:
        return (
            f"the first {answer.steps} steps of the script, which was stopped since it took too long: a longer batch, "
            "an evaluation or a checkpoint may come later"
        )
    return (
        f"the first {answer.steps} steps of the script, as --steps asked: a longer batch, an evaluation or a "
        "checkpoint may come later (without --steps the whole run is answered)"
    )
