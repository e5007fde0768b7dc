"""Processes that a script forks: let through, as long as they stay away from the card.

A forked process is held by the same sandbox. It computes on the host for real, since nothing is traced there, and gives
real tensors back; what would use the card there fails by name. `spawn` and `forkserver` would start a Python that
nothing holds: their processes are forked instead.
"""

from __future__ import annotations

import multiprocessing.context
import os
import traceback
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    _pop_mode,
)
from torch.utils._pytree import tree_flatten

from tunecast.tape.trace.kernel.seccomp import refuse_forks
from tunecast.tape.trace.places import place_of_caller

REFUSED = "a process that the script starts uses the card, and only the script's own process is traced"
_traced_process = os.getpid()


class AwayFromTheCard(TorchDispatchMode):
    def __init__(self, refuse: Callable[[str], None]) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_flatten((args, kwargs or {}))[0]:
            device = value if isinstance(value, torch.device) else getattr(value, "device", None)
            if isinstance(device, torch.device) and device.type == "cuda":
                place = place_of_caller()
                self._refuse(f"{REFUSED}{f' ({place})' if place else ''}")
                raise RuntimeError(REFUSED)
        return func(*args, **(kwargs or {}))


def allow_forks(refuse: Callable[[str], None]) -> None:
    """`refuse` is called in the forked process, with the sentence that the answer is to hold."""
    global _traced_process
    _traced_process = os.getpid()

    def in_child() -> None:
        refuse_forks()
        while _get_current_dispatch_mode_stack():
            _pop_mode()
        AwayFromTheCard(refuse).__enter__()
        ForkingPickler.register(torch.Tensor, reduce_by_value)

    import torch.multiprocessing.reductions  # registers its own, which share a storage by its descriptor

    ForkingPickler.register(FakeTensor, reduce_by_value)
    os.register_at_fork(after_in_child=in_child)
    contexts: dict[str, Any] = multiprocessing.context._concrete_contexts  # type: ignore[attr-defined]
    contexts.update(dict.fromkeys(("spawn", "forkserver"), contexts["fork"]))
    multiprocessing.context._default_context._default_context = contexts["fork"]  # type: ignore[attr-defined]


def reduce_by_value(tensor: torch.Tensor) -> Any:
    """Between processes tensors travel by their values; of one that nobody knows, ones do (patches.py)."""
    host = tensor.detach()
    is_bfloat = host.dtype == torch.bfloat16 and not isinstance(host, FakeTensor)
    return tensor_of_values, ((host.float() if is_bfloat else host).numpy(), tensor.dtype)


def tensor_of_values(values: Any, dtype: torch.dtype) -> torch.Tensor:
    with _disable_current_modes():
        return torch.from_numpy(values.copy()).to(dtype)


def is_forked() -> bool:
    return os.getpid() != _traced_process


def leave_if_forked(error: BaseException | None = None) -> None:
    """A forked process that comes to the end of the script has no answer to give."""
    if is_forked():
        if error is not None:
            traceback.print_exception(error)
        os._exit(0 if error is None else 1)
