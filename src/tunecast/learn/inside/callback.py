"""A callback of transformers' Trainer, and so of TRL's trainers, Axolotl and LLaMA-Factory. It needs nothing to be
installed, transformers included: the Trainer asks for methods, not for a class (trainer_callback.py,
`CallbackHandler.call_event`)."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from tunecast.learn.inside.batches import count_batches
from tunecast.learn.inside.process import WatchedProcess, watched_from_outside

MOST_AHEAD = 100_000
"""Micro-batches of one step, which the Trainer collects before it begins."""

SUMMARY = "train_runtime"
"""In the Trainer's last log, just before `on_train_end`: there MLflowCallback and TrackioCallback close their runs, and
they come before callbacks that a program names."""


class InsideCallback:
    """Measures the trainings of its process. `make` gives what it measures with where nothing outside does."""

    def __init__(self, make: Callable[[], WatchedProcess | None] | None = None) -> None:
        self._make = make
        self._process: WatchedProcess | None = None
        self._training = False
        self._ahead: deque[tuple[int, int] | None] = deque(maxlen=MOST_AHEAD)

    def __getattr__(self, name: str) -> Any:
        """Events of releases to come."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._process is None or self._process.over:
            self._process = watched_from_outside() or (self._make() if self._make is not None else None)

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **others: Any) -> None:
        self.on_init_end(args, state, control)
        if self._process is None:
            return
        self._training = True
        self._ahead.clear()
        with contextlib.suppress(Exception):  # loaders that forbid it are not counted
            count_batches(train_dataloader, self._count)
        self._process.measures.of = state.max_steps
        self._process.measures.enter("first_step" if self._process.measures.steps == 0 else "training")

    def _count(self, waited_s: float, tokens: tuple[int, int] | None) -> None:
        if self._process is not None:
            self._process.measures.waited_s += waited_s
            self._ahead.append(tokens)

    def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A micro-batch is trained on; accelerate asks for one more than that."""
        tokens = self._ahead.popleft() if self._ahead else None
        if tokens is not None and self._process is not None:
            self._process.measures.count(*tokens)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        if self._process is None:
            return None
        self.on_substep_end(args, state, control)
        self._process.measures.end_step(state.global_step, state.max_steps)
        if self._process.stops(state.global_step):
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False
        self._enter_next(control)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._enter_next(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._enter_next(control)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._enter_next(control)

    def _enter_next(self, control: Any) -> None:
        """The Trainer evaluates, then saves, as `control` says (`_maybe_log_save_evaluate`)."""
        if self._process is None or not self._training:
            return
        measures = self._process.measures
        if control.should_evaluate:
            measures.enter("evaluation")
        elif control.should_save:
            measures.enter("save")
        elif measures.phase in ("evaluation", "save"):
            measures.enter("training")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        if self._process is not None and isinstance(logs, dict) and "loss" in logs:
            self._process.loss = (state.global_step, logs["loss"])
            self._process.read_loss()
        if self._process is not None and self._training and isinstance(logs, dict) and SUMMARY in logs:
            self._process.tell_trackers()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._process is not None and self._training:
            self._training = False
            self._process.trained()


def _nothing(*arguments: Any, **others: Any) -> None:
    return None
