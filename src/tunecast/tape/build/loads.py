"""The run of `from_pretrained` alone: what loading a model onto one card does to its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.job import Data, Job
from tunecast.job.parallel import Parallel
from tunecast.job.stacks import DEFAULT_STACK
from tunecast.records import replace_unchecked
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import paper_machine
from tunecast.tape.build.layer_rhythm import few_layers, job_rhythm
from tunecast.tape.build.machine import Detail
from tunecast.tape.build.stacks.transformers import load
from tunecast.tape.card import Card
from tunecast.tape.fold import folded_program
from tunecast.tape.layers import NotRepeating
from tunecast.tape.op import Tape
from tunecast.tape.program import Program
from tunecast.tape.shorten import Standing


def load_tape(
    job: Job, config: Mapping[str, Any], card: Card, reading: Mapping[str, int] | None,
    *, standing: Standing | None = None, touched: bool = True,
) -> Tape:  # fmt: skip
    """`touched`: the program has had a small tensor on the card before. `reading`: the options of
    `load_checkpoint`; None: the model is loaded on the host."""
    job = fill_in(job, config)
    machine = paper_machine(job, config, card, Detail(keeps_ops=False, standing=standing))
    if touched:
        machine.run("zeros", (), (1,), FLOAT32)
    model = load(job, config, machine, reading, over_host=reading is None)
    machine.end()
    del model
    return Tape(machine.tape_events(), tuple(machine.guesses), tuple(machine.assumptions))


def load_program(job: Job, config: Mapping[str, Any], card: Card, *, onto_card: bool = True) -> Program:
    """The load of every layer onto an empty card, of a few that stand for all where they do. `onto_card`: with a device
    map; else the model is loaded on the host, and its tensors are moved one by one."""
    alone = replace_unchecked(job.hardware, gpus=1, nodes=1)
    job = replace_unchecked(in_plain_loop(job), kernels=(), parallel=Parallel(), hardware=alone, data=Data())
    reading = {"cached_bytes": 0, "card_bytes": card.total_bytes} if onto_card else None
    for standing, few in [*few_layers(job, config, job_rhythm(job, config)), (None, config)]:
        try:
            tape = load_tape(job, few, card, reading, standing=standing, touched=False)
            return folded_program(tape, None if standing is None else standing.whole, [])
        except NotRepeating:
            if standing is None:
                raise
    raise AssertionError("a whole model stands for itself")


def in_plain_loop(job: Job) -> Job:
    """The same model in transformers' own loop, without what other stacks do to it."""
    return replace_unchecked(
        job,
        stack=DEFAULT_STACK,
        stack_version=None,
        compile=False,
        loss=None,
        matmul_dtype=None,
        offload_activations=False,
    )
