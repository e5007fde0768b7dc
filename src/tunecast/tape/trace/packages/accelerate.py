"""accelerate (and transformers 4, which carries a copy): models initialised on another device.

`init_on_device` makes each parameter anew from its class and its attributes; a fake tensor has attributes of its own
that no constructor takes. Moving the parameter gives the same one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    def move_parameters(module: ModuleType) -> None:
        if hasattr(module, "init_on_device"):
            module.init_on_device = init_on_device  # type: ignore[attr-defined]

    after_import("accelerate.big_modeling", move_parameters)
    after_import("transformers.integrations.accelerate", move_parameters)


@contextlib.contextmanager
def init_on_device(device: torch.device, include_buffers: bool | None = None) -> Iterator[None]:
    if include_buffers:
        with device:
            yield
        return
    register = nn.Module.register_parameter

    def register_moved(module: nn.Module, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = moved(parameter, device)

    nn.Module.register_parameter = register_moved  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def moved(parameter: Any, device: torch.device) -> Any:
    there = parameter.to(device)
    if type(parameter) in (nn.Parameter, FakeTensor):
        return nn.Parameter(there, parameter.requires_grad)
    return there
