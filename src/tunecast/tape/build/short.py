"""From a job to the tape of its whole run: a few layers and steps built, the rest following from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build.run import build
from tunecast.tape.card import Card
from tunecast.tape.fold import Folded, in_order, unfolded
from tunecast.tape.layers import NotRepeating, extended
from tunecast.tape.op import Tape
from tunecast.tape.schedule import NotRepeatable, scheduled
from tunecast.tape.shorten import layers_to_trace, leading_layers, steps_of, steps_to_trace, with_layers

FOLLOWS: Mapping[str, str] = {
    "torch": "2.11.0", "transformers": "5.17.0", "peft": "0.21.0", "bitsandbytes": "0.50.2", "liger-kernel": "0.8.5",
}  # fmt: skip
"""The releases whose code is written down here."""


def build_job(job: Job, config: Mapping[str, Any], card: Card) -> Tape:
    """The tape of the run the contract defines, every layer and every step of it."""
    lengths, order = steps_to_trace(job)
    try:
        tape = scheduled(_with_all_layers(job, config, card, lengths), order)
    except NotRepeatable:  # what a step leaves behind dies in none it was built with: all of them are built
        every = steps_of(job)
        tape = scheduled(_with_all_layers(job, config, card, every), range(len(every)))
    return replace(tape, versions=FOLLOWS)


def _with_all_layers(job: Job, config: Mapping[str, Any], card: Card, lengths: list[int]) -> Tape:
    small, large, total = layers_to_trace(config)
    if large < total:
        with contextlib.suppress(NotRepeating):
            few, more = (build(job, with_layers(config, count), lengths, card) for count in (small, large))
            return extended(few, more, small, large, total, head=leading_layers(config))
    return build(job, config, lengths, card)


def fold_job(job: Job, config: Mapping[str, Any], card: Card) -> Folded:
    """The same run as columns of numbers, in a fraction of the time; `make_tape` writes it out."""
    lengths, order = steps_to_trace(job)

    def make_tape() -> Tape:
        return build_job(job, config, card)

    if len(set(lengths)) == 1:  # two steps are enough where what the first one leaves behind dies as the second one's
        with contextlib.suppress(NotRepeatable):
            return _folded(job, config, card, lengths[:2], [0, *[1] * (len(order) - 1)], make_tape)
    with contextlib.suppress(NotRepeatable):
        return _folded(job, config, card, lengths, order, make_tape)
    every = steps_of(job)
    return _folded(job, config, card, every, list(range(len(every))), make_tape)


def _folded(
    job: Job, config: Mapping[str, Any], card: Card, lengths: list[int], order: list[int], make_tape: Callable[[], Tape]
) -> Folded:
    small, large, total = layers_to_trace(config)
    head, period = leading_layers(config), large - small
    copies = (total - small) // period
    try:
        if copies < 1:
            raise NotRepeating("as few layers as stand for all")
        folds = (head, head + period - 1, copies + 1)
        tape = build(job, with_layers(config, small), lengths, card, keeps_ops=False, folds=folds)
        columns = unfolded(tape, small, head, period, copies)
    except NotRepeating:
        tape = build(job, config, lengths, card, keeps_ops=False)
        columns = unfolded(tape, total, head, period, 0)
    ordered, repeats = in_order(columns, order)
    return Folded(ordered, repeats, make_tape, tape.guesses, versions=FOLLOWS)
