"""Device meshes and DTensor, which tensor parallelism and FSDP2 are made of."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import _disable_current_modes

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.values import known


def install(recorder: Recorder) -> None:
    after_import("torch.distributed.device_mesh", keep_ranks_real)
    functional = "torch.distributed._functional_collectives"
    after_import(functional, lambda module: wait_as_late_as_eager_code(module, recorder))
    after_import("torch.distributed.tensor._random", draw_without_state)
    after_import("torch.distributed.tensor._sharding_prop", lambda module: hide_whole_tensors(module, recorder))


def keep_ranks_real(module: ModuleType) -> None:
    """A mesh holds rank numbers in a tensor and slices it with the fake mode switched off: they must be real ones."""
    initialise: Callable[..., None] = module.DeviceMesh.__init__

    @functools.wraps(initialise)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            initialise(self, *map(_real, args), **{name: _real(value) for name, value in kwargs.items()})

    module.DeviceMesh.__init__ = __init__


def draw_without_state(module: ModuleType) -> None:
    """Random operations on a DTensor read and move the card's random state (16 bytes) so that ranks draw alike."""
    _replace_everywhere("is_rng_supported_mesh", module.is_rng_supported_mesh, lambda device_mesh: False)


def wait_as_late_as_eager_code(module: ModuleType, recorder: Recorder) -> None:
    """Under a fake mode torch believes it is being compiled, and waits for a collective where it starts it. Eager code
    waits when the result is first used."""
    asks: Callable[[], bool] = module._are_we_tracing

    def _are_we_tracing() -> bool:
        if recorder.paused or torch.compiler.is_dynamo_compiling():
            return asks()
        return get_proxy_mode() is not None

    _replace_everywhere("_are_we_tracing", asks, _are_we_tracing)
    # The wrapper that waits late is made by an operator whose shape-only form makes a tensor instead (torch >= 2.10).
    recorder.emulated["_c10d_functional::_wrap_tensor_autograd"] = module.AsyncCollectiveTensor


def hide_whole_tensors(module: ModuleType, recorder: Recorder) -> None:
    """Before it runs a rank's part, DTensor computes the shape of the whole result on fake tensors of its own; those
    are no memory of the card."""

    def unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            recorder.paused += 1
            try:
                return function(*args, **kwargs)
            finally:
                recorder.paused -= 1

        return run

    propagator = module.ShardingPropagator
    for name, value in list(vars(propagator).items()):
        if name.startswith("_propagate_tensor_meta") and callable(value):
            setattr(propagator, name, unrecorded(value))


def _replace_everywhere(name: str, old: Any, new: Any) -> None:
    """torch's modules import functions from each other by name, and some are loaded already."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch.distributed") and getattr(module, name, None) is old:
            setattr(module, name, new)


def _real(value: Any) -> Any:
    return known(value) if isinstance(value, FakeTensor) else value
