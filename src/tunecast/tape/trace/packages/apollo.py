"""APOLLO draws its projections with a generator on the card, which is not there; what it draws has no contents here."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    def draw_without_generator(module: ModuleType) -> None:
        def stable_randn(shape: Any, seed: int, device: Any = None, dtype: Any = torch.float32) -> torch.Tensor:
            return torch.randn(shape, device=device, dtype=dtype)

        module.stable_randn = stable_randn  # type: ignore[attr-defined]

    after_import("apollo_torch.random_projector", draw_without_generator)
