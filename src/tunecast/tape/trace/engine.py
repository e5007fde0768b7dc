"""From a job to its tape: how many layers and steps to trace, and how the rest follows. Loads no torch.

Two short runs are traced at once, each in a process of its own: a few layers, and one period of layers more. From
them the tape of all layers follows exactly (`layers.py`); where it does not, all layers are traced.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.tape.card import Card
from tunecast.tape.layers import NotRepeating, extended
from tunecast.tape.op import Tape
from tunecast.tape.schedule import NotRepeatable, scheduled
from tunecast.tape.shorten import layers_to_trace, leading_layers, steps_of, steps_to_trace, with_layers
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.run import Progress, trace_training


def trace_job(
    job: Job,
    config: Mapping[str, Any],
    card: Card,
    *,
    exact: bool = False,
    python: str = sys.executable,
    limits: TraceLimits | None = None,
    progress: Progress | None = None,
) -> Tape:
    """The tape of the training run a job describes. `exact` traces every layer rather than a few."""

    ended = threading.Event()
    failures: list[BaseException] = []

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
            except BaseException as error:
                failures.append(error)
                ended.set()
                raise

        small, large, total = layers_to_trace(config)
        if not exact and not job.compile and not stack_of(job).layers_differ and large < total:
            with ThreadPoolExecutor(2) as both:
                runs = [both.submit(with_count, count) for count in (small, large)]
                try:
                    small_tape, large_tape = (run.result() for run in runs)
                except BaseException as error:
                    ended.set()
                    raise (failures or [error])[0] from None  # the other's end is no reason
            with contextlib.suppress(NotRepeating):
                return extended(small_tape, large_tape, small, large, total, head=leading_layers(config))
        return with_count(None)

    lengths, order = steps_to_trace(job)
    tape = traced(lengths)
    try:
        return scheduled(tape, order)
    except NotRepeatable:
        return scheduled(traced(steps_of(job)), range(len(steps_of(job))))
