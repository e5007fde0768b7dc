"""From a job to its tape, inside the traced process: how many layers and steps to run, and how the rest follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.layers import NotRepeating, extended
from tunecast.tape.op import Tape
from tunecast.tape.schedule import scheduled
from tunecast.tape.trace import recipe
from tunecast.tape.trace.recorder import Recorder

STEPS = 6
"""The contract's run: six optimizer steps, or one a length when there are more."""
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def trace_job(job: Job, config: Mapping[str, Any], recorder: Recorder, *, exact: bool, versions: dict[str, str]) -> Tape:
    lengths, order = steps_to_trace(job)

    def traced(count: int | None) -> Tape:
        recipe.release(recorder)
        recipe.train(job, config if count is None else recipe.with_layers(config, count), lengths, recorder)
        return recorder.tape(versions)

    tape = None
    small, large, total = layers_to_trace(config)
    if not exact and not job.compile and large < total:
        try:
            tape = extended(traced(small), traced(large), small, large, total, head=leading_layers(config))
        except NotRepeating:
            tape = None
    tape = tape or traced(None)
    return scheduled(tape, order)


def steps_to_trace(job: Job) -> tuple[list[int], list[int]]:
    """Lengths to trace, and the order in which the traced steps make the whole run.

    Step 0 creates the optimizer's state, so it is a kind of its own. Every later step with the same length is the
    same; two of them are traced where there is one length, so that what one leaves to the next is seen.
    """
    lengths = list(job.lengths or (job.seq_len,))
    run = [lengths[i % len(lengths)] for i in range(max(STEPS, len(lengths)))]
    distinct = list(dict.fromkeys(run[1:]))
    if len(distinct) == 1:
        distinct *= 2
    place = {length: number for number, length in enumerate(distinct, start=1)}
    return [run[0], *distinct], [0, *(place[length] for length in run[1:])]


def layers_to_trace(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """(small, large, all): `small` holds the leading layers, one period and at least one last layer."""
    text = config.get("text_config", config)
    total = next(int(text[name]) for name in LAYER_COUNTS if name in text)
    period, head = layer_period(config), leading_layers(config)
    small = head + period + 1
    small += (total - small) % period
    return small, small + period, total


def leading_layers(config: Mapping[str, Any]) -> int:
    """Layers at the front unlike the rest: one always (its input is the embedding), more where DeepSeek says so."""
    text = config.get("text_config", config)
    return max(1, int(text.get("first_k_dense_replace") or 0))


def layer_period(config: Mapping[str, Any]) -> int:
    """After how many layers the pattern repeats: sliding and full attention alternate in some models."""
    text = config.get("text_config", config)
    kinds: Sequence[Any] = text.get("layer_types") or ()
    return next((p for p in range(1, len(kinds)) if all(kinds[i] == kinds[i + p] for i in range(len(kinds) - p))), 1)


