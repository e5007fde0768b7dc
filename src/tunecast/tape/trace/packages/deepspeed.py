"""DeepSpeed: its ZeRO optimizers run as they are.

Before a step they ask the card whether a gradient is infinite or no number (runtime/zero/stage_1_and_2.py and
stage3.py, `has_overflow`; runtime/utils.py, `is_invalid_grad_norm`), and leave the step out if one is. Gradients on
fake tensors have no contents: what the question computes is recorded, and the answer is that all is finite. A step is
taken a group of parameters at a time, and is one step.

Its own optimizers (FusedAdam, DeepSpeedCPUAdam) are C++ that it compiles when it is first used. They work in place, so
here an update on the card is one operation, and one on the host is none.
"""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tunecast.tape.op import Op
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder, nbytes

FINITE = "losses, gradients and weights are taken as finite: no NaN, no infinity"
OPTIMIZERS = {
    "deepspeed.runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3",
}


ON_THE_CARD = {"fused_adam": ("multi_tensor_adam",), "fused_lion": ("multi_tensor_lion",)}
ON_THE_HOST = {
    "cpu_adam": ("create_adam", "destroy_adam", "adam_update"),
    "cpu_adagrad": ("create_adagrad", "destroy_adagrad", "adagrad_update"),
    "cpu_lion": ("create_lion", "destroy_lion", "lion_update"),
}
"""Functions of the extensions, by the name DeepSpeed builds them under (ops/op_builder)."""


def install(recorder: Recorder) -> None:
    def norms_are_valid(module: ModuleType) -> None:
        module.is_invalid_grad_norm = said_to_be_finite(recorder, module.is_invalid_grad_norm)  # type: ignore[attr-defined]

    def gradients_are_finite(name: str, module: ModuleType) -> None:
        optimizer = getattr(module, name)
        optimizer.has_overflow = said_to_be_finite(recorder, optimizer.has_overflow)
        optimizer.step = in_one_step(recorder, optimizer.step)

    def compile_nothing(module: ModuleType) -> None:
        load = module.OpBuilder.load

        def load_stand_in(self: Any, *args: Any, **kwargs: Any) -> Any:
            names = {**ON_THE_CARD, **ON_THE_HOST}.get(self.name)
            if names is None:
                return load(self, *args, **kwargs)
            update = functools.partial(launch_update, recorder) if self.name in ON_THE_CARD else nothing
            return types.SimpleNamespace(**{name: functools.partial(update, name) for name in names})

        module.OpBuilder.load = load_stand_in

    after_import("deepspeed.ops.op_builder.builder", compile_nothing)
    after_import("deepspeed.runtime.utils", norms_are_valid)
    for module, optimizer in OPTIMIZERS.items():
        after_import(module, functools.partial(gradients_are_finite, optimizer))


def launch_update(recorder: Recorder, name: str, chunk_size: int, overflow: Any, lists: Any, *values: Any) -> None:
    """Gradients are read; parameters and their states are read and written (csrc/adam/multi_tensor_adam.cu)."""
    gradients, *others = (sum(map(nbytes, tensors)) for tensors in lists)
    recorder.launched(Op(f"deepspeed::{name}", read_bytes=gradients + sum(others), written_bytes=sum(others)))


def nothing(name: str, *args: Any) -> None: ...


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
