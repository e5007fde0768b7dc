"""From a job to the tape of its whole run: a few layers and steps built, the rest following from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build.run import build
from tunecast.tape.card import Card
from tunecast.tape.layers import NotRepeating, extended
from tunecast.tape.op import Tape
from tunecast.tape.schedule import scheduled
from tunecast.tape.shorten import layers_to_trace, leading_layers, steps_to_trace, with_layers


def build_job(job: Job, config: Mapping[str, Any], card: Card) -> Tape:
    """The tape of the run the contract defines, every layer and every step of it."""
    lengths, order = steps_to_trace(job)
    small, large, total = layers_to_trace(config)
    if large < total:
        try:
            short = [build(job, with_layers(config, count), lengths, card) for count in (small, large)]
            return scheduled(extended(*short, small, large, total, head=leading_layers(config)), order)
        except NotRepeating:
            pass
    return scheduled(build(job, config, lengths, card), order)
