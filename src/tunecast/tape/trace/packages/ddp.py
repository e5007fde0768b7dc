"""DistributedDataParallel: its reducer is C++ (torch/csrc/distributed/c10d/reducer.cpp) and runs as it is.

Buckets and their views, the copies into and out of them, the broadcast of the weights in pieces of 250 MiB: all are
operators and are recorded like any other. On the way stand

1. integers that come back from the card, when ranks compare their parameters (`verify_params_across_processes`) and
   when they agree on new buckets after the first backward pass (`rebuild_buckets`): fake tensors have no contents, so
   `HostIntegers` lets those be real, on the host, and charges the card for them;
2. the timer of the card that the reducer starts, which needs a driver: `HostTensors` makes it start the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from tunecast.tape.op import Role
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.values import INTEGERS

OWNER = "DistributedDataParallel"


def install(recorder: Recorder) -> None:
    def let_reducer_run(module: ModuleType) -> None:
        reducer: Any = module.Reducer
        initialise: Callable[..., None] = reducer.__init__
        set_static: Callable[..., None] = reducer._set_static_graph
        rebuild: Callable[..., bool] = reducer._rebuild_buckets
        verify: Callable[..., Any] = module._verify_params_across_processes

        def __init__(self: Any, params: list[Any], *args: Any, **kwargs: Any) -> None:
            # An accumulator remembers the device its parameter was on when it was made: make them before, for real.
            accumulators = [torch.autograd.graph.get_gradient_edge(p).node for p in params]
            first = len(recorder._blocks)
            with HostTensors(recorder, params[0].device):
                initialise(self, params, *args, **kwargs)
            name_buckets(recorder, first)
            del accumulators

        def _set_static_graph(self: Any) -> None:
            with HostTensors(recorder, torch.device("cuda", torch.cuda.current_device())):
                set_static(self)

        def _rebuild_buckets(self: Any) -> bool:
            first = len(recorder._blocks)
            with HostIntegers(recorder):
                rebuilt = rebuild(self)
            name_buckets(recorder, first)
            return rebuilt

        def _verify_params_across_processes(*args: Any, **kwargs: Any) -> Any:
            with HostIntegers(recorder):
                return verify(*args, **kwargs)

        reducer.__init__ = __init__
        reducer._set_static_graph, reducer._rebuild_buckets = _set_static_graph, _rebuild_buckets
        module._verify_params_across_processes = _verify_params_across_processes  # type: ignore[attr-defined]

    after_import("torch.distributed", let_reducer_run)


def name_buckets(recorder: Recorder, first: int) -> None:
    """What the reducer made and kept holds gradients on their way."""
    for number in range(first, len(recorder._blocks)):
        block = recorder._blocks[number]
        block.role, block.module = block.role or Role.GRADIENTS, OWNER


class HostIntegers(TorchDispatchMode):
    """Operations on nothing but integers run for real; one meant for the card occupies a block there while it lives."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        integers = all(not isinstance(x, FakeTensor) and x.dtype in INTEGERS for x in inputs)
        if not integers or (not inputs and kwargs.get("dtype") not in INTEGERS):
            return func(*args, **kwargs)
        with _disable_current_modes():
            out = func(*tree_map(_host, args), **{k: _host(v) for k, v in kwargs.items() if k != "pin_memory"})
        device = kwargs.get("device")
        on_card = device.type == "cuda" if device is not None else any(hasattr(x, "_tunecast_on_card") for x in inputs)
        if on_card and isinstance(out, torch.Tensor) and self.recorder._is_new(out.untyped_storage()):
            out._tunecast_on_card = True  # type: ignore[attr-defined]
            number = self.recorder.allocate(out.untyped_storage().nbytes(), OWNER)
            self.recorder._blocks[number].role = Role.TEMPORARIES
            self.recorder._watch(out.untyped_storage(), number)
        return out


class HostTensors(TorchDispatchMode):
    """Tensors say they are on the host; what is made for the host, other than integers, is made on the card.

    Integers: the map of parameters used (`initialize_local_used_map`) and its twin on the card, which is only charged.
    """

    def __init__(self, recorder: Recorder, card: torch.device) -> None:
        super().__init__()
        self.recorder, self.card = recorder, card

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name == "prim::device":
            return torch.device("cpu")
        if kwargs.get("dtype") not in INTEGERS:
            if kwargs.get("device") == torch.device("cpu"):
                kwargs = kwargs | {"device": self.card}
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        if name == "aten::empty":
            storage = out.untyped_storage()
            self.recorder._watch(storage, self.recorder.allocate(storage.nbytes(), OWNER))
        return out


def _host(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value
