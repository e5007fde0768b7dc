"""Megatron Core: states of its random numbers, which it hands to the card's generator itself.

megatron/core/tensor_parallel/random.py, `_set_cuda_rng_state`, does without torch.cuda's function, whose copy of the
state was slow. Numbers drawn on fake tensors have no contents, whatever the state.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    after_import("megatron.core.tensor_parallel.random", keep_state)


def keep_state(module: ModuleType) -> None:
    def _set_cuda_rng_state(new_state: Any, device: int = -1, graph_safe: bool = False) -> None: ...

    module._set_cuda_rng_state = _set_cuda_rng_state  # type: ignore[attr-defined]
