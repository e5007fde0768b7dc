"""DTensor (tensor parallelism, FSDP2): torch computes the shape of the whole, unsharded result on fake tensors of its
own before it runs a rank's part; those are no memory of the card."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    def unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            recorder.paused += 1
            try:
                return function(*args, **kwargs)
            finally:
                recorder.paused -= 1

        return run

    def pause(module: ModuleType) -> None:
        propagator = module.ShardingPropagator
        for name in vars(propagator):
            if name.startswith("_propagate_tensor_meta") and callable(getattr(propagator, name)):
                setattr(propagator, name, unrecorded(getattr(propagator, name)))

    after_import("torch.distributed.tensor._sharding_prop", pause)
