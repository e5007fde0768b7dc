"""DeepSpeed: its ZeRO optimizers run as they are.

Before a step they ask the card whether a gradient is infinite or no number (runtime/zero/stage_1_and_2.py and
stage3.py, `has_overflow`; runtime/utils.py, `is_invalid_grad_norm`), and leave the step out if one is. Gradients on
fake tensors have no contents: what the question computes is recorded, and the answer is that all is finite. A step is
taken a group of parameters at a time, and is one step.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder

FINITE = "losses, gradients and weights are taken as finite: no NaN, no infinity"
OPTIMIZERS = {
    "deepspeed.runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3",
}


def install(recorder: Recorder) -> None:
    def norms_are_valid(module: ModuleType) -> None:
        module.is_invalid_grad_norm = said_to_be_finite(recorder, module.is_invalid_grad_norm)  # type: ignore[attr-defined]

    def gradients_are_finite(name: str, module: ModuleType) -> None:
        optimizer = getattr(module, name)
        optimizer.has_overflow = said_to_be_finite(recorder, optimizer.has_overflow)
        optimizer.step = in_one_step(recorder, optimizer.step)

    after_import("deepspeed.runtime.utils", norms_are_valid)
    for module, optimizer in OPTIMIZERS.items():
        after_import(module, functools.partial(gradients_are_finite, optimizer))


def said_to_be_finite(recorder: Recorder, question: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(question)
    def ask(*args: Any, **kwargs: Any) -> bool:
        guesses = Counter(recorder.guesses)
        question(*args, **kwargs)
        recorder.guesses.clear()
        recorder.guesses.update(guesses)
        recorder.assumptions[FINITE] = 1
        return False

    return ask


def in_one_step(recorder: Recorder, step: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(step)
    def take(*args: Any, **kwargs: Any) -> None:
        with recorder.scopes.one_step():
            step(*args, **kwargs)

    return take
