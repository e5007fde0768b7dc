"""Numbers a script reads and nobody knows: 1.0, until the script decides something by one.

`loss.item()` is printed, averaged and logged without harm. Where the script's own code compares it (`if loss < best:`),
the branch that is taken is a guess. Tests for NaN and infinity are none: numbers are taken as ordinary.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.scopes import LIBRARY_FOLDERS
from tunecast.tape.trace.values import known

EQUALITY = ("__eq__", "__ne__")
"""Of two such numbers it asks whether they are NaN: `assert loss.item() == loss.item()`."""
COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")
ARITHMETIC = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__pow__", "__neg__", "__abs__", "__round__"),
)


def follow(recorder: Recorder) -> None:
    """For the rest of this process."""
    item, get_scale = torch.Tensor.item, torch.amp.GradScaler.get_scale
    kind = unknown_number(recorder)

    def read(self: torch.Tensor) -> Any:
        value = item(self)
        is_unknown = isinstance(self, FakeTensor) and isinstance(value, float) and known(self) is None
        return kind(value) if is_unknown else value

    torch.Tensor.item = read  # type: ignore[method-assign, assignment]
    torch.amp.GradScaler.get_scale = lambda self: float(get_scale(self))  # type: ignore[method-assign]


def unknown_number(recorder: Recorder) -> type[float]:
    def compare(name: str) -> Callable[[Any, Any], Any]:
        def compared(self: float, other: Any) -> Any:
            is_nan_test = name in EQUALITY and isinstance(other, UnknownNumber)
            ordinary = not is_nan_test and (not isinstance(other, float) or math.isfinite(other))
            frame = sys._getframe(1)
            if other is not self and ordinary and not frame.f_code.co_filename.startswith((*LIBRARY_FOLDERS, "<")):
                where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
                recorder.guesses[f"a number compared at {where} is not known; taken as {float(self):g}"] += 1
            return getattr(float, name)(self, other)

        return compared

    def compute(name: str) -> Callable[..., Any]:
        def computed(self: float, *others: Any) -> Any:
            result = getattr(float, name)(self, *others)
            return UnknownNumber(result) if isinstance(result, float) else result

        return computed

    own = {"__slots__": (), "__hash__": float.__hash__, "__reduce__": lambda self: (float, (float(self),))}
    methods = {name: compare(name) for name in COMPARISONS} | {name: compute(name) for name in ARITHMETIC}
    UnknownNumber: type[float] = type("UnknownNumber", (float,), {**own, **methods})
    return UnknownNumber
