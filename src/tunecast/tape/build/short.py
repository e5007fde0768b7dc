"""From a job to the tape of its whole run: a few layers and steps built, the rest following from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build.run import build
from tunecast.tape.card import Card
from tunecast.tape.layers import NotRepeating, extended
from tunecast.tape.op import Tape
from tunecast.tape.schedule import scheduled
from tunecast.tape.shorten import layers_to_trace, leading_layers, steps_to_trace, with_layers

FOLLOWS: Mapping[str, str] = {
    "torch": "2.11.0", "transformers": "5.17.0", "peft": "0.21.0", "bitsandbytes": "0.50.2", "liger-kernel": "0.8.5",
}  # fmt: skip
"""The releases whose code is written down here."""


def build_job(job: Job, config: Mapping[str, Any], card: Card) -> Tape:
    """The tape of the run the contract defines, every layer and every step of it."""
    lengths, order = steps_to_trace(job)
    small, large, total = layers_to_trace(config)
    if large < total:
        try:
            few, more = (build(job, with_layers(config, count), lengths, card) for count in (small, large))
            whole = extended(few, more, small, large, total, head=leading_layers(config))
        except NotRepeating:
            whole = build(job, config, lengths, card)
    else:
        whole = build(job, config, lengths, card)
    return replace(scheduled(whole, order), versions=FOLLOWS)
