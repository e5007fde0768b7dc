"""How few layers and steps stand for all of a run: both engines make a short tape, and the rest follows from it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm
from typing import Any

from tunecast.job.job import Job

STEPS = 6
"""The contract's run: six optimizer steps, or one a length when there are more."""
MOST_MICRO_BATCHES = 4
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
USUAL_PERIODS = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "olmo3": 4, "llama4_text": 4}
"""Of architectures whose config.json may leave the kinds of layers out: the pattern their class then makes."""
SPARSE_STEPS = ("interleave_moe_layer_step", "decoder_sparse_step")
"""Every how many layers there are experts."""


def steps_of(job: Job) -> list[int]:
    """The padded length of every optimizer step of the run."""
    lengths = list(job.lengths or (job.seq_len,))
    return [lengths[i % len(lengths)] for i in range(max(STEPS, len(lengths)))]


def steps_to_trace(job: Job) -> tuple[list[int], list[int]]:
    """Lengths to trace, and the order in which the traced steps make the whole run.

    Step 0 creates the optimizer's state, so it is a kind of its own. Every later step with the same length is the
    same; two of them are traced where there is one length, so that what one leaves to the next is seen.
    """
    run = steps_of(job)
    distinct = list(dict.fromkeys(run[1:]))
    if len(distinct) == 1:
        return run[:3], [0, 1] + [2] * (len(run) - 2)
    place = {length: number for number, length in enumerate(distinct, start=1)}
    return [run[0], *distinct], [0, *(place[length] for length in run[1:])]


def layers_to_trace(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """(small, large, all): `small` holds the leading layers, one period and at least one last layer."""
    text = config.get("text_config", config)
    total = next(int(text[name]) for name in LAYER_COUNTS if name in text)
    period = layer_period(config)
    small = leading_layers(config) + period + 1
    small += (total - small) % period
    return small, small + period, total


def leading_layers(config: Mapping[str, Any]) -> int:
    """Layers at the front unlike the rest: the first (its input is the embedding, and what is made once is made in it),
    the second (it frees what the first left), more where DeepSeek says so."""
    text = config.get("text_config", config)
    return max(1, int(text.get("first_k_dense_replace") or 0)) + 1


def layer_period(config: Mapping[str, Any]) -> int:
    """After how many layers the pattern repeats: sliding and full attention alternate in some models, dense and sparse
    layers in others."""
    text = config.get("text_config", config)
    kinds: Sequence[Any] = text.get("layer_types") or text.get("no_rope_layers") or ()
    usual = int(text.get("sliding_window_pattern") or USUAL_PERIODS.get(text.get("model_type", ""), 1))
    found = next((p for p in range(1, len(kinds)) if all(kinds[i] == kinds[i + p] for i in range(len(kinds) - p))), 1)
    return lcm(found if kinds else usual, *(int(text.get(name) or 1) for name in SPARSE_STEPS))


def with_layers(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The same architecture with another number of layers, per-layer lists cut to match."""
    changed = copy.deepcopy(dict(config))
    text = changed.get("text_config", changed)
    for name in LAYER_COUNTS:
        if name in text:
            text[name] = layers
    if isinstance(text.get("layer_types"), list):
        text["layer_types"] = text["layer_types"][:layers]
    return changed


def with_few_micro_batches(job: Job) -> Job:
    """The job with at most 5 micro-batches a step: later ones add to gradients that exist and free what they make.

    Odd stays odd. Blocks of one size are taken in turns, and whose turn it is at the optimizer's step moved what was
    reserved by one segment (2 MiB) where 3, 4 and 9 micro-batches were compared.
    """
    most = MOST_MICRO_BATCHES + job.grad_accum % 2
    return replace(job, grad_accum=most) if job.grad_accum > most else job
