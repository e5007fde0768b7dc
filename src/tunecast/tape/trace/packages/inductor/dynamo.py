"""The front end of the compiler at work inside the trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tunecast.tape.trace.check import version
from tunecast.tape.trace.packages.inductor.replacing import constant, replace
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.scopes import Scopes


def install(recorder: Recorder) -> None:
    let_dynamo_compile(recorder)
    keep_phase(recorder.scopes)
    hand_on_fakes()
    know_parameter_subclasses()
    tell_functions_apart()
    answer_for_the_device()


def let_dynamo_compile(recorder: Recorder) -> None:
    """Dynamo leaves code alone under a dispatch mode, unless that is infrastructure such as FakeTensorMode. It
    switches such modes off while it compiles and on again to run what it compiled, which is just what is wanted."""
    type(recorder).is_infra_mode = classmethod(lambda cls: True)  # type: ignore[method-assign]


def keep_phase(scopes: Scopes) -> None:
    """To draw the backward graph the compiler runs a backward pass of its own, which is not the program's."""
    from torch._dynamo import convert_frame

    def within_phase(convert: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(*args: Any, **kwargs: Any) -> Any:
            phase = scopes.phase
            try:
                return convert(*args, **kwargs)
            finally:
                scopes.phase = phase

        return __call__

    replace(convert_frame.CatchErrorsWrapper, "__call__", within_phase)


def hand_on_fakes() -> None:
    """After Dynamo the next stage makes fakes of the inputs again, in a mode of its own. Inputs that are fakes
    already, of another mode, it refuses before torch 2.11; make its fakes for it."""
    from torch._dynamo.output_graph import OutputGraph

    if version() >= (2, 11):
        return

    def fakes(self: Any) -> list[Any]:
        contexts, mode = self.tracing_context.tensor_to_context, self.tracing_context.fake_mode
        inputs = [arg.example for arg in self.graphargs]
        return [mode.from_tensor(x, symbolic_context=contexts[x], source=contexts[x].tensor_source)
                if isinstance(x, FakeTensor) and x in contexts else x for x in inputs]  # fmt: skip

    replace(OutputGraph, "example_inputs", lambda old: fakes)


def know_parameter_subclasses() -> None:
    """A quantised weight is here a fake tensor as well as bitsandbytes' parameter. Dynamo takes the latter as a tensor
    only while it dispatches like one, which the former does not."""
    from torch._dynamo.variables.builder import VariableBuilder

    def as_tensor(wrap: Callable[..., Any]) -> Callable[..., Any]:
        def _wrap(self: Any, value: Any) -> Any:
            mixed = isinstance(value, FakeTensor) and type(value) is not FakeTensor
            return self.wrap_tensor(value) if mixed else wrap(self, value)

        return _wrap

    replace(VariableBuilder, "_wrap", as_tensor)


def tell_functions_apart() -> None:
    """Dynamo keeps a table of what `torch.cuda` and `torch.accelerator` offer, and wants no function in it twice."""
    seen: set[int] = set()
    for module in (torch.cuda, torch.accelerator):
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value.__module__.startswith("tunecast."):
                if id(value) in seen:
                    setattr(module, name, functools.partial(value))
                seen.add(id(value))


def answer_for_the_device() -> None:
    """The compiler's view of a CUDA device holds the functions `torch.cuda` had before the card was pretended."""
    from torch._dynamo.device_interface import CudaInterface

    names = ("current_device", "set_device", "device_count", "device", "stream", "current_stream", "set_stream",
             "synchronize", "get_device_properties", "memory_allocated", "is_bf16_supported")  # fmt: skip
    for name in names:
        replace(CudaInterface, name, functools.partial(_as_torch_cuda_has_it, name))
    for name in ("exchange_device", "maybe_exchange_device", "get_raw_stream"):
        replace(CudaInterface, name, lambda old: staticmethod(constant(0)))


def _as_torch_cuda_has_it(name: str, old: Any) -> Any:
    return staticmethod(getattr(torch.cuda, name))
