"""torchvision built for CUDA beside a torch that is not: its Python, without the library that it compiled.

PyPI's torchvision is linked against CUDA's libraries, so torchvision/extension.py, `_load_library`, leaves its library
out where torch has none. torchvision/_meta_registrations.py then describes two operators that nobody declared, and
fails, though models and transforms use neither. With both declared (as in torchvision/csrc/ops/nms.cpp) all else loads;
whoever calls an operator of the library is refused by torchvision itself (`_assert_has_ops`).
"""

from __future__ import annotations

from types import ModuleType

import torch

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder

DESCRIBED = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def install(recorder: Recorder) -> None:
    after_import("torchvision.extension", declare_operators)


def declare_operators(module: ModuleType) -> None:
    if module._has_ops():
        return
    for name in DESCRIBED:
        torch.library.define(f"torchvision::{name}", SCHEMA)
