"""From a job to its run on the fullest card: the layers this card holds, built or served by a structure there is.

    job > the layers of its cards > BuildRequest > Builder > PaperRun > Folded

`fold_job` gives the run as columns of numbers, in a fraction of the time its events take; `whole_tape` writes all of
them out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.records import replace, replace_unchecked
from tunecast.tape.build.builder import SHARED, Builder, MicroBatchStructures
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.layer_rhythm import job_rhythm
from tunecast.tape.build.paper_run import compiles_whole
from tunecast.tape.build.request import BuildRequest, Contents
from tunecast.tape.build.run import build
from tunecast.tape.build.sharding.layers import candidates, held, layer_count
from tunecast.tape.build.stacks import followed, program_of
from tunecast.tape.card import Card
from tunecast.tape.fold import Folded, Operations
from tunecast.tape.layers import NotRepeating, extended
from tunecast.tape.op import Tape
from tunecast.tape.program import FREE, Program
from tunecast.tape.schedule import NotRepeatable, scheduled
from tunecast.tape.shorten import steps_of, steps_to_trace, with_layers
from tunecast.tape.structure import PaperRun

MOST_COMPILED_LAYERS = 128
"""The deepest bundled model has 126: compiled on paper in some 10 s, with adapters on every linear layer."""


def fold_job(
    job: Job, config: Mapping[str, Any], card: Card, *, keeps_ops: bool = False, for_time: bool = False,
    builder: Builder = SHARED,
) -> Folded:  # fmt: skip
    """The run as columns of numbers; `make_tape` writes it out. With `keeps_ops` its operations come along, for those
    who price them too (tape/timed.py). Of cards that hold different layers it is the fullest one's, or `for_time` that
    of the one whose work is priced."""
    job = fill_in(job, config)
    model = program_of(job).model
    require_compilable(job, config)
    cards = (held(job, config, model),) if for_time else candidates(job, config, model)
    runs = [_fold_card(job, here, card, keeps_ops, builder) for here in cards]
    return runs[0] if len(runs) == 1 else max(runs, key=lambda run: most_alive_bytes(run.program))


def fold_rank(job: Job, config: Mapping[str, Any], card: Card, *, last: bool) -> Folded:
    """The run of a pipeline's first or last stage, whichever is the fullest."""
    job = fill_in(job, config)
    cards = candidates(job, config, program_of(job).model)
    return _fold_card(job, cards[-1 if last else 0], card, False, SHARED)


def _fold_card(job: Job, config: Mapping[str, Any], card: Card, keeps_ops: bool, builder: Builder) -> Folded:
    def make_tape() -> Tape:
        return _card_tape(job, config, card)

    contents = Contents.BOTH if keeps_ops else Contents.PROGRAM
    run = builder.run(BuildRequest(job, config, card, job.seq_len, contents))
    return Folded(run.program, make_tape, run.guesses, run.assumptions, followed(job), run.operations)


def operations_of(
    job: Job, config: Mapping[str, Any], card: Card, length: int, builder: Builder = SHARED
) -> Operations:
    """The operations of a job whose rows all have `length`, which may be shorter than its longest."""
    job = fill_in(job, config)
    return builder.operations(BuildRequest(job, held(job, config, program_of(job).model), card, length))


def evaluation_run(
    job: Job, config: Mapping[str, Any], card: Card, batch: int, length: int, contents: Contents = Contents.PROGRAM,
    builder: Builder = SHARED,
) -> PaperRun:  # fmt: skip
    """The batches of an evaluation, all of one size; raises `Unsupported` where the stack's way to evaluate is not
    known. Its last step is like all that follow."""
    job = replace_unchecked(evaluated(fill_in(job, config)), micro_batch=batch, grad_accum=1, lengths=None)
    request = BuildRequest(job, held(job, config, program_of(job).model), card, length, contents, evaluates=True)
    return builder.run(request)


def evaluated(job: Job) -> Job:
    """As `model.eval()` has it: nothing is dropped, and nothing computed again."""
    return replace_unchecked(job, lora=replace_unchecked(job.lora, dropout=0.0), gradient_checkpointing=False)


def micro_batch_structures(
    job: Job, config: Mapping[str, Any], card: Card, *, masked: bool = False, evaluates: bool = False, most: int = 24,
    builder: Builder = SHARED,
) -> MicroBatchStructures | None:  # fmt: skip
    """Structures for the job's own micro-batches, those with a mask or those without, or for the batches it is
    evaluated on; None where several cards hold different layers and take turns."""
    job = fill_in(job, config)
    cards = candidates(job, config, program_of(job).model)
    if len(cards) > 1 or job.parallel.pipeline > 1:
        return None
    request = BuildRequest(job, cards[0], card, job.seq_len, masked=masked, evaluates=evaluates)
    return MicroBatchStructures(builder, request, most)


def whole_tape(job: Job, config: Mapping[str, Any], card: Card) -> Tape:
    """The tape of the run the contract defines, every layer and every step of it, on the fullest card."""
    job = fill_in(job, config)
    cards = candidates(job, config, program_of(job).model)
    return _card_tape(job, cards[0], card) if len(cards) == 1 else fold_job(job, config, card).make_tape()


def _card_tape(job: Job, config: Mapping[str, Any], card: Card) -> Tape:
    lengths, order = steps_to_trace(job)
    try:
        tape = scheduled(_with_all_layers(job, config, card, lengths), order)
    except NotRepeatable:  # what a step leaves behind dies in none it was built with: all of them are built
        every = steps_of(job)
        tape = scheduled(_with_all_layers(job, config, card, every), range(len(every)))
    return replace(tape, versions=followed(job))


def _with_all_layers(job: Job, config: Mapping[str, Any], card: Card, lengths: list[int]) -> Tape:
    head, period, total, _ = rhythm = job_rhythm(job, config)
    small, large = rhythm.small, rhythm.small + period
    if large < total and not compiles_whole(job):
        with contextlib.suppress(NotRepeating):
            few, more = (build(job, with_layers(config, count), lengths, card) for count in (small, large))
            return extended(few, more, small, large, total, head=head)
    return build(job, config, lengths, card)


def require_compilable(job: Job, config: Mapping[str, Any]) -> None:
    """Raises `Unsupported` where compiling every layer on paper would take minutes."""
    layers = layer_count(config)
    if job.compile and compiles_whole(job) and layers > MOST_COMPILED_LAYERS:
        got = f"got true for a model of {layers} layers; allowed: up to {MOST_COMPILED_LAYERS}, since all of them are"
        raise Unsupported.at("compile", f"{got} compiled on paper. To fix: compile false, or --engine traced")


def most_alive_bytes(rows: Program) -> int:
    """In the steps, each as it is taken first: what loading brings and lets go of again is not asked."""
    sizes: dict[int, int] = {}
    alive = most = 0
    for number, (block, size) in enumerate(zip(rows.blocks, rows.sizes, strict=True)):
        if size >= 0:
            sizes[block] = size
            alive += size
            if alive > most and number >= rows.bounds[0]:
                most = alive
        elif size == FREE:
            alive -= sizes.pop(block, 0)
    return most
