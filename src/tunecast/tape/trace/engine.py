"""From a job to its tape: how many layers and steps to trace, and how the rest follows. Loads no torch.

Two short runs are traced at once, each in a process of its own: a few layers, and one period of layers more. From
them the tape of all layers follows exactly (`layers.py`); where it does not, all layers are traced.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.tape.card import Card
from tunecast.tape.layers import NotRepeating, extended
from tunecast.tape.op import Tape
from tunecast.tape.schedule import NotRepeatable, scheduled
from tunecast.tape.trace.run import Limits, Progress, trace_training

STEPS = 6
"""The contract's run: six optimizer steps, or one a length when there are more."""
WHOLE_STACKS = ("unsloth",)
"""Stacks whose layers are not alike: Unsloth's checkpointing keeps host buffers that grow over the layers."""
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def trace_job(
    job: Job,
    config: Mapping[str, Any],
    card: Card,
    *,
    exact: bool = False,
    python: str = sys.executable,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Tape:
    """The tape of the training run a job describes. `exact` traces every layer rather than a few."""

    ended = threading.Event()

    def unless_ended(passed_s: float) -> None:
        """Ctrl-C reaches the main thread alone, and one run's failure the other not at all; this ends both."""
        if ended.is_set():
            raise TunecastError("tracing was ended")
        if progress is not None:
            progress(passed_s)

    def traced(lengths: Sequence[int]) -> Tape:
        def with_count(count: int | None) -> Tape:
            chosen = config if count is None else with_layers(config, count)
            try:
                return trace_training(job, chosen, lengths, card, python=python, limits=limits, progress=unless_ended)
            except BaseException:
                ended.set()
                raise

        small, large, total = layers_to_trace(config)
        if not exact and not job.compile and job.stack not in WHOLE_STACKS and large < total:
            with ThreadPoolExecutor(2) as both:
                runs = [both.submit(with_count, count) for count in (small, large)]
                try:
                    small_tape, large_tape = (run.result() for run in runs)
                except BaseException:
                    ended.set()
                    raise
            with contextlib.suppress(NotRepeating):
                return extended(small_tape, large_tape, small, large, total, head=leading_layers(config))
        return with_count(None)

    lengths, order = steps_to_trace(job)
    tape = traced(lengths)
    try:
        return scheduled(tape, order)
    except NotRepeatable:
        return scheduled(traced(steps_of(job)), range(len(steps_of(job))))


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
    """After how many layers the pattern repeats: sliding and full attention alternate in some models."""
    text = config.get("text_config", config)
    kinds: Sequence[Any] = text.get("layer_types") or ()
    return next((p for p in range(1, len(kinds)) if all(kinds[i] == kinds[i + p] for i in range(len(kinds) - p))), 1)


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
