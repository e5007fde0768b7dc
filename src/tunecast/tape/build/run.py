"""A job's training run on paper: a machine that only takes note, and the stack's program on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.eras import era_of
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.machine import Detail, Machine, Setup
from tunecast.tape.build.sharding.layers import ends_of
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.stacks import followed, program_of
from tunecast.tape.card import Card
from tunecast.tape.kernels.blas import shares_workspace
from tunecast.tape.op import Tape
from tunecast.tape.shorten import Standing


def build(
    job: Job, config: Mapping[str, Any], lengths: Sequence[int], card: Card, torch_version: str | None = None,
    *, keeps_ops: bool = True, standing: Standing | None = None, priced_from: int = 0,
    written: Callable[[Any], int] | None = None, masked: bool = False, evaluates: bool = False,
    padding: int = 0,
) -> Tape:  # fmt: skip
    """The tape of one optimizer step for each of `lengths`; see `Detail` for `keeps_ops`, `standing` and `priced_from`.
    `written` says how a request's size is written down where it is no number. `masked`: batches have padding, or
    samples that share a row. `evaluates`: batches are evaluated on instead, one for each of `lengths`."""
    job = fill_in(job, config)
    stack = program_of(job)
    machine = paper_machine(
        job, config, card, Detail(keeps_ops, priced_from, standing), torch_version,
        masked=masked, padding=padding, evaluates=evaluates,
    )  # fmt: skip
    if not evaluates:
        stack.train(job, config, lengths, machine)
    elif hasattr(stack, "evaluate"):
        stack.evaluate(job, config, lengths, machine)
    else:
        raise Unsupported.at("run.eval_strategy", f"how {job.stack} evaluates is not known")
    return Tape(machine.tape_events(written), tuple(machine.guesses), tuple(machine.assumptions))


def paper_machine(
    job: Job, config: Mapping[str, Any], card: Card, detail: Detail, torch_version: str | None = None, **batches: Any
) -> Machine:
    """Before anything ran on it; `batches` is what `Setup` has of them."""
    stack = program_of(job)
    setup = Setup(
        DTYPES[job.weights_dtype],
        job.attention,
        shares_workspace(torch_version or followed(job)["torch"]),
        era_of(job.transformers_version),
        ends=ends_of(config),
        **batches,
    )
    if hasattr(stack, "setup"):
        setup = stack.setup(job, setup)
    return Machine(card, setup, detail, partial(getattr(stack, "scheme", Scheme), job))
