"""The memory of a job's own batches: its steps one after the other, each micro-batch as long and as full as it comes.

    data.lengths ──► batches_of ──► the steps that count ──► compose ──► one replay: allocated, reserved, least capacity

PyTorch's cache keeps what it got, so what is reserved follows from all lengths that came before: one length over and
over says half of it. Once the longest batch has come little more happens: what a step makes it lets go of, and the next
finds whole segments again. So of a long job its beginning is replayed and, in their order, the steps that set a record
or are among the largest. Evaluation comes between steps, with the largest of its batches.
Checked  against every step replayed, five jobs of 250 to 500 steps with lognormal lengths (LoRA and full, TRL, the
         Trainer and a plain loop, with and without checkpointing, expandable segments): the 32 first steps, records and
         the 32 largest come within 0.03 % of reserved and of least capacity with checkpointing, 0.25 % without;
         allocated is the same to the byte (tests/unit/test_own_batches.py repeats one).
         Whole Trainer and SFTTrainer jobs on an H200 (benchmarks/data/job_runs_dev.jsonl), all batches as predicted.
Ignored  saving, which takes nothing of the card; evaluation on several cards or by other programs than the Trainer, and
         compute_metrics; buffers a library makes for one length alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import Any

from tunecast.job.job import Job
from tunecast.job.lengths import Lengths, sample_lengths
from tunecast.job.stacks import stack_of
from tunecast.prediction.data.batches import (
    MicroBatch,
    batches_of,
    evaluates,
    micro_batch_of,
    padded,
    pair_of,
    steps_between_evaluations,
    trains_on_answers,
    unlabelled_of,
)
from tunecast.prediction.data.lengths import epoch_of, evaluated_rows, total_steps
from tunecast.records import NamedTuple, replace, replace_unchecked
from tunecast.tape.build.job_runs import evaluated, fold_job
from tunecast.tape.build.micro_batches import MicroBatchStructures, micro_batch_structures
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.tape.card import Card
from tunecast.tape.compose import EVALUATION, Composed, NotComposable, again_of, compose
from tunecast.tape.compose import MicroBatch as ComposedBatch
from tunecast.tape.fold import Folded
from tunecast.tape.op import Tape
from tunecast.tape.shorten import STEPS
from tunecast.tape.structure import Structure

MOST_READ = 100_000


class Budget(NamedTuple):
    """What a replay may take."""

    events: int
    """Of all orders together, at 0.1 to 0.2 microseconds each in C; a search for the least capacity takes as long as
    two to four of them."""
    structures: int
    """That are built of each kind of step, at 0.1 to 0.4 s each; beyond, the nearest one stands in."""
    reads: int = MOST_READ
    """Micro-batches that are looked at for the largest, of all ranks together, at some 3 microseconds each."""


WHOLLY = Budget(2_400_000, 24)
BRIEFLY = Budget(200_000, 2)
"""For a search that asks for hundreds of jobs: the first steps, records and some of the largest, in one order."""
AT_ONCE = Budget(200_000, 2, 4_096)
"""For whoever waits while typing, and gets the rest later: of the beginning alone."""
ORDERS = 3
"""Replayed where the order has to be drawn."""
MOST_RANKS = 4
"""Replayed where each has batches of its own: the first ones."""
MOST_EVALUATIONS = 3
USUAL_TURNS = 8
"""Micro-batches of a step whose structure tells how much one of them is: no other is built where there are no more."""
LEAST_STEPS = 12
"""A step of more micro-batches than leave room for so many steps is replayed with its largest ones."""

Step = tuple[MicroBatch, ...]


class OwnRun(NamedTuple):
    """The runs of a job that were put together, the one that counts not yet chosen."""

    orders: tuple[Composed, ...]
    known: bool
    """The order is the job's own, and these are its ranks; else they were drawn, and any may come."""
    largest: MicroBatch
    """For reports that name single blocks: of which a tape is written out."""
    told: str
    """One sentence: what was replayed of what."""


def own_run(job: Job, config: Mapping[str, Any], card: Card, *, budget: Budget | None = None) -> OwnRun | None:
    """None where a job says nothing of its samples' lengths, or its stack's steps cannot be put together. `budget`
    None: all of it, in several orders."""
    lengths = sample_lengths(job.data)
    if lengths is None or job.lengths is not None:
        return None
    ranks, brief = ranks_of(job), budget is not None
    budget = budget or WHOLLY
    most_steps = max(STEPS, budget.reads // (job.grad_accum * ranks))
    first = batches_of(job, lengths, most_steps=most_steps)
    if first is None or not first.steps:
        return None
    if brief:
        rest = []
    elif first.known:
        rest = [batches_of(job, lengths, rank=r, most_steps=most_steps) for r in range(1, min(ranks, MOST_RANKS))]
    else:
        seeds = range(job.data.seed + 1, job.data.seed + ORDERS)
        drawn = [replace(job, data=replace(job.data, seed=seed)) for seed in seeds]
        rest = [batches_of(other, lengths, most_steps=most_steps) for other in drawn]
    every = [first.steps, *(each.steps for each in rest if each is not None and each.steps)]
    evaluation = evaluation_batches(job, lengths)
    if not counts_labels(job):  # then batches of one shape are alike
        every = [[tuple([micro._replace(padding=0) for micro in step]) for step in steps] for steps in every]
        evaluation = [micro._replace(padding=0) for micro in evaluation]
    try:
        largest = max((micro for step in every[0] for micro in step), key=lambda micro: micro.rows * micro.length)
        orders, taken, strangers = _composed(job, config, card, every, largest, evaluation, budget)
    except (NotComposable, OverflowError):
        return None
    told = _told(job, lengths, taken, len(first.steps), len(orders), first.known)
    if strangers:
        told += f"; {strangers:,} lengths are taken to run as the nearest that was built does"
    return OwnRun(orders, first.known, largest, told)


def counts_labels(job: Job) -> bool:
    """Whether the loss takes labelled tokens alone, as TRL's own head does (tape/build/chunked.py), and rows differ in
    them."""
    return stack_of(job).labelled_only and (not job.data.packing or job.data.packing_strategy == "wrapped")


def with_tape(folded: Folded, job: Job, own: OwnRun, config: Mapping[str, Any], card: Card) -> Folded:
    """The tape that is written out for reports: of the largest batch over and over."""

    def make_tape() -> Tape:
        rows, length = own.largest[:2]
        return fold_job(replace_unchecked(job, micro_batch=rows, seq_len=length), config, card).make_tape()

    return replace(folded, make_tape=make_tape)


def _composed(
    job: Job,
    config: Mapping[str, Any],
    card: Card,
    every: Sequence[Sequence[Step]],
    largest: MicroBatch,
    evaluation: Sequence[MicroBatch],
    budget: Budget,
) -> tuple[tuple[Composed, ...], int, int]:
    structures: dict[tuple[int, bool], MicroBatchStructures | None] = {}

    def structure_of(turns: int, micro: ComposedBatch) -> tuple[Structure, Sequence[int]] | None:
        rows, length, masked, padding, answers = micro
        if (turns, masked) not in structures:
            like, evaluates = replace_unchecked(job, grad_accum=max(1, turns)), turns == EVALUATION
            like = evaluated(like) if evaluates else like
            structures[turns, masked] = micro_batch_structures(
                like, config, card, masked=masked, evaluates=evaluates, most=budget.structures
            )
        found = structures[turns, masked]
        return None if found is None else found.of(rows, length, padding, answers)

    usual = min(job.grad_accum, USUAL_TURNS)
    one = structure_of(usual, largest)
    if one is None:
        raise NotComposable("there is no structure")
    program = one[0].program
    again = again_of(program)
    events = max(1, (program.bounds[again + 1] - program.bounds[again]) // usual)
    each = budget.events // len(every)
    turns = max(2, each // (LEAST_STEPS * events))
    short = [[fewer(step, turns) for step in steps] for steps in every]
    most = max(LEAST_STEPS, each // (events * max(len(step) for step in short[0])))
    chosen = [those_that_count(steps, most) for steps in short]
    batches = evaluation if evaluation and structure_of(EVALUATION, evaluation[0]) is not None else []
    composed = []
    for steps, numbers in zip(short, chosen, strict=True):
        at = _after(numbers, evaluated_after(job, len(steps))) if batches else []
        composed.append(compose([steps[n] for n in numbers], structure_of, dict.fromkeys(at, batches)))
    strangers = sum(found.strangers for found in structures.values() if found is not None)
    return tuple(composed), len(chosen[0]), strangers


def evaluated_after(job: Job, steps: int) -> list[int]:
    """The steps, by number, after which a run of so many is evaluated."""
    run = job.run
    if not evaluates(job):
        return []
    by_steps = run.eval_strategy == "steps"
    every = steps_between_evaluations(job, steps) if by_steps else max(1, ceil(steps / job.data.epochs))
    return [number - 1 for number in range(every, steps + 1, every)]


def _after(chosen: Sequence[int], evaluated: Sequence[int]) -> list[int]:
    """Of the steps that were chosen, by their place, those after which an evaluation comes before the next one; the
    first few, since the same batches come each time."""
    found = []
    for place, number in enumerate(chosen):
        until = chosen[place + 1] if place + 1 < len(chosen) else inf
        if any(number <= each < until for each in evaluated):
            found.append(place)
    return found[:MOST_EVALUATIONS]


def evaluation_batches(job: Job, lengths: Lengths) -> list[MicroBatch]:
    """Those of one evaluation that are as large as any before them. Samples are as long as the first trained on."""
    samples = min(evaluated_rows(job), MOST_READ // 10)
    if job.data.packing or not samples or ranks_of(job) > 1:
        return []
    order = lengths.order or [length for length, count in lengths.counts for _ in range(min(count, MOST_READ))]
    step = max(1, len(order) // samples) if lengths.order is None else 1
    own = [min(length, job.seq_len) for length in order[: samples * step : step]]
    prompts = lengths.prompts or [0] * len(own)
    pairs = None
    if lengths.pairs is not None and trains_on_answers(job):
        pairs = [pair_of(job, *each) for each in zip(*lengths.pairs, strict=True)][: samples * step : step]
    found: list[MicroBatch] = []
    for at in range(0, len(own), job.run.eval_batch):
        rows = own[at : at + job.run.eval_batch]
        if pairs is not None:
            micro = micro_batch_of(job, rows, pairs[at : at + len(rows)])
        else:
            length = padded(max(rows), job.data.pad_to_multiple_of)
            padding = len(rows) * length - sum(rows)
            unlabelled = sum(map(unlabelled_of, prompts[at : at + len(rows)], rows))
            micro = MicroBatch(len(rows), length, padding > 0, padding + unlabelled)
        if len(found) < 2 or all(micro.rows * micro.length > one.rows * one.length for one in found):
            found.append(micro)
    return found


def size_of(step: Sequence[MicroBatch]) -> tuple[int, int]:
    """By which steps are compared: the tokens of the largest micro-batch, then of all."""
    tokens = [micro.rows * micro.length for micro in step]
    return max(tokens), sum(tokens)


def fewer(step: Step, most: int) -> Step:
    """A step's first and last micro-batch and, in their order, the largest of those between."""
    if len(step) <= most:
        return step
    between = sorted(range(1, len(step) - 1), key=lambda at: -step[at].rows * step[at].length)[: most - 2]
    return (step[0], *(step[at] for at in sorted(between)), step[-1])


def those_that_count(steps: Sequence[Step], most: int) -> list[int]:
    """All steps where they are at most `most`; else the first ones, those that set a record, and the largest."""
    if len(steps) <= most:
        return list(range(len(steps)))
    kept = set(range(max(1, most // 2)))
    record = (0, 0)
    for at, step in enumerate(steps):
        size = size_of(step)
        if size[0] > record[0] or size[1] > record[1]:
            record = max(record[0], size[0]), max(record[1], size[1])
            kept.add(at)
    largest = sorted(range(len(steps)), key=lambda at: size_of(steps[at]), reverse=True)
    for at in largest:
        if len(kept) >= most:
            break
        kept.add(at)
    return sorted(kept)


def _told(job: Job, lengths: Lengths, taken: int, read: int, orders: int, known: bool) -> str:
    steps = total_steps(job, epoch_of(job, lengths))
    of = (
        f"{taken:,} of {max(read, steps or 0):,} optimizer steps" if taken < (steps or read) else f"all {taken:,} steps"
    )
    how = "in the Trainer's order" if known else f"in {orders} orders that were drawn"
    if known and orders > 1:
        how += f", of {orders} ranks"
    rest = "" if taken >= (steps or read) else ": the first, and those with the largest batches"
    return f"memory is that of the job's own batches, {of} replayed {how}{rest}"
