"""Puts the pieces together: one call, and this process trains on a card that is not there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tunecast.tape.card import Card
from tunecast.tape.op import Role
from tunecast.tape.trace import attention, check, cuda, graphs, native, packages, patches
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.repeats import Repeats
from tunecast.tape.trace.scopes import Scopes

TELLS_TRACEBACKS = logging.getLogger("torch._subclasses.fake_tensor")
"""Of every operation whose shapes do not fit, before the script's own error says so (`_dispatch_impl`)."""


@contextlib.contextmanager
def tracing(card: Card, *, devices: int = 1, local_rank: int = 0) -> Iterator[Recorder]:
    """For the rest of this process: the patches are not undone, so run it in a process of its own."""
    check.require_supported_version()
    import torch._dynamo  # noqa: F401  it inspects torch.cuda when imported, so before that changes

    native.accept_cuda_without_gpu()
    TELLS_TRACEBACKS.setLevel(logging.CRITICAL)
    scopes = Scopes()
    recorder = Recorder(card, scopes)
    cuda.install(card, recorder, devices=devices, local_rank=local_rank)
    graphs.install(recorder)
    attention.install(card)
    patches.install(recorder)
    packages.install(recorder)
    scopes.install()
    scopes.on_forward.append(lambda root: name_parameters(recorder, root))
    scopes.on_backward_end.append(lambda: name_gradients(recorder))
    scopes.on_optimizer_end.append(lambda optimizer: name_optimizer_state(recorder, optimizer))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, recorder:
        recorder.run_fake = Repeats(mode).run
        check.require_faithful_trace(recorder)
        yield recorder


def name_parameters(recorder: Recorder, root: torch.nn.Module) -> None:
    for name, parameter in root.named_parameters():
        adapter = "lora_" in name or "modules_to_save" in name or "adapter" in name
        role = Role.ADAPTERS if adapter else Role.WEIGHTS
        _name(recorder, parameter, role, name.rpartition(".")[0])
        state = getattr(parameter, "quant_state", None)
        for tensor in _tensors_in(state):
            _name(recorder, tensor, Role.WEIGHTS, name.rpartition(".")[0])
    for name, buffer in root.named_buffers():
        _name(recorder, buffer, Role.WEIGHTS, name.rpartition(".")[0])


def name_gradients(recorder: Recorder) -> None:
    for root in recorder.scopes.roots:
        for name, parameter in root.named_parameters():
            if parameter.grad is not None:
                _name(recorder, parameter.grad, Role.GRADIENTS, name.rpartition(".")[0])


def name_optimizer_state(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        local = getattr(parameter, "_local_tensor", parameter)  # a DTensor's own part
        module = recorder.module_of(local) if isinstance(local, torch.Tensor) else ""
        for value in state.values() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor):
                _name(recorder, value, Role.OPTIMIZER, module)


def _name(recorder: Recorder, tensor: torch.Tensor, role: Role, module: str) -> None:
    local = getattr(tensor, "_local_tensor", tensor)
    if isinstance(local, FakeTensor) and local.device.type == "cuda":
        recorder.set_role(local, role, module)


def _tensors_in(state: object) -> Iterator[torch.Tensor]:
    for value in vars(state).values() if hasattr(state, "__dict__") else ():
        if isinstance(value, torch.Tensor):
            yield value
        elif hasattr(value, "absmax"):
            yield from _tensors_in(value)
