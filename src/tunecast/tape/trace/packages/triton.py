"""Triton kernels (Liger, Unsloth, bitsandbytes, flash-linear-attention, mamba-ssm) are never compiled or launched; a
launch is one operation.

What surrounds a launch, the allocation of its outputs, is ordinary torch and is traced as such. Some of it depends on
what Triton's driver says of the card (fla/utils/hardware.py, `check_shared_mem`).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from tunecast.tape.card import shared_memory_bytes
from tunecast.tape.op import Op
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder, nbytes


def install(recorder: Recorder) -> None:
    def launch(kernel: Any, *args: Any, **kwargs: Any) -> None:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        name = getattr(kernel, "__name__", None) or getattr(getattr(kernel, "fn", None), "__name__", "triton")
        recorder.launched(Op(f"triton::{name}", read_bytes=sum(map(nbytes, tensors)),
                             shapes=tuple(tuple(x.shape) for x in tensors[:3])))  # fmt: skip

    def silence_jit(module: ModuleType) -> None:
        module.JITFunction.run = lambda self, *args, **kwargs: launch(self, *args, **_tensors(kwargs))

    def silence_autotuner(module: ModuleType) -> None:
        for wrapper in (module.Autotuner, module.Heuristics):
            wrapper.run = lambda self, *args, **kwargs: launch(self.fn, *args, **_tensors(kwargs))
        module.Autotuner.best_config = property(lambda tuner: tuner.configs[0])  # nothing is timed

    def describe_card(module: ModuleType) -> None:
        card = recorder.card
        properties = {
            "multiprocessor_count": card.sm_count, "max_shared_mem": shared_memory_bytes(card.capability),
            "warpSize": 32, "max_num_regs": 65536, "sm_clock_rate": 1980000, "mem_clock_rate": 3201000,
            "mem_bus_width": 6144,
        }  # fmt: skip
        module.CudaUtils.get_device_properties = staticmethod(lambda device: properties)

    after_import("triton.backends.nvidia.driver", describe_card)
    after_import("triton.runtime.jit", silence_jit)
    after_import("triton.runtime.autotuner", silence_autotuner)


def _tensors(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
