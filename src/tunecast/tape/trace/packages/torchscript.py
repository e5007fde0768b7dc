"""TorchScript: what it would compile runs as it is written.

Its interpreter makes tensors on the card past the tracer, and ends the process where there is none. Run as Python, the
same operations are seen.
Ignored  that on a card its executor fuses chains of element-wise operations from the third call on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    torch.jit._state.disable()  # as PYTORCH_JIT=0 does

    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, FunctionType) and not obj.__module__.startswith("torch."):
            return _noted(obj, recorder)
        return obj

    torch.jit.script = script


def _noted(function: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Many are compiled when a package is imported, and never called."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder.guesses[f"{function.__name__} is compiled by TorchScript, which may fuse it; traced as written"] = 1
        return function(*args, **kwargs)

    return call
