"""A request's run, built: the tape of a few layers and steps, folded into the program and operations of all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.tape.build.layer_rhythm import few_layers, job_rhythm
from tunecast.tape.build.request import BuildRequest, Contents
from tunecast.tape.build.run import build
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.tape.fold import Operations, folded_program
from tunecast.tape.layers import NotRepeating
from tunecast.tape.pattern import Pattern
from tunecast.tape.program import Program
from tunecast.tape.schedule import NotRepeatable
from tunecast.tape.shorten import Standing, steps_of, steps_to_trace
from tunecast.tape.structure import SYMBOLS, PaperRun

NO_ROWS = Program([], [], None, [], [], [0], [], [])


def paper_run(request: BuildRequest, symbolic: BuildRequest | None = None) -> PaperRun:
    """`symbolic` is the same request with symbols in the place of its numbers; None: it is built of the numbers."""
    paper = symbolic or request
    if request.contents is Contents.OPERATIONS:
        return _run_in_order(paper, [paper.length] * 2, [0, 1])._replace(program=NO_ROWS)
    job = request.job
    lengths, order = steps_to_trace(job)
    every, uniform = steps_of(job), len(set(lengths)) == 1
    if not job.lengths:
        lengths, every = [paper.length] * len(lengths), [paper.length] * len(every)
    if uniform and not _settles_late(job):  # two are enough where what the first leaves dies as the second's
        with contextlib.suppress(NotRepeatable):
            return _run_in_order(paper, lengths[:2], [0, *[1] * (len(order) - 1)])
    with contextlib.suppress(NotRepeatable):
        return _run_in_order(paper, lengths, order)
    return _run_in_order(paper, every, list(range(len(every))))


def _settles_late(job: Job) -> bool:
    """Two steps would not do: DDP makes its buckets anew in the second where it looks for no unused parameters
    (sharding/ddp.py). Where this is not said of a job that is so, two are built in vain."""
    return sharding_of(job).has_buckets and job.method == "full" and job.gradient_checkpointing and ranks_of(job) > 1


def _run_in_order(request: BuildRequest, lengths: list[int], order: list[int]) -> PaperRun:
    """A step of each of `lengths` is built; the run takes them in `order`."""
    keeps_ops = request.contents is not Contents.PROGRAM
    guards = request.guards
    for standing, config in _models(request.job, request.config):
        try:
            tape = build(
                request.job, config, lengths, request.card, keeps_ops=keeps_ops, standing=standing,
                priced_from=min(1, len(lengths) - 1), written=None if guards is None else guards.place,
                masked=request.masked, evaluates=request.evaluates, padding=request.padding,
            )  # fmt: skip
            rows = folded_program(tape, None if standing is None else standing.whole, order)
            break
        except NotRepeating:
            if standing is None:
                raise
    pattern = Pattern(tape, standing, guards, SYMBOLS) if keeps_ops else None
    operations = None if pattern is None else Operations(pattern, tuple(lengths))
    return PaperRun(rows, tape.guesses, tape.assumptions, operations)


def _models(job: Job, config: Mapping[str, Any]) -> Iterator[tuple[Standing | None, Mapping[str, Any]]]:
    """Models that may stand for the whole one, the smallest first, and last the whole one itself."""
    if not compiles_whole(job):
        yield from few_layers(job, config, job_rhythm(job, config))
    yield None, config


def compiles_whole(job: Job) -> bool:
    """Whether no layer stands for another. Code compiled for a whole model uses memory of one layer again in others;
    compiling every layer on paper takes a second or two. Where saved tensors move to the host, the last few stay,
    whatever layer they are of. DeepSpeed's buckets are full when they are, in whatever layer. The layers of interleaved
    stages run apart."""
    stack = stack_of(job)
    counts = sharding_of(job).is_zero and not stack.uses_megatron
    apart = stack.uses_megatron and job.parallel.virtual_stages > 1
    return (job.compile and stack.is_plain_loop) or job.offload_activations or counts or apart
