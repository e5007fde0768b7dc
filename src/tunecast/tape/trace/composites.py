"""Composite operations take the branch they take on plain CUDA tensors.

Some operations are not kernels but C++ that runs other operations. What it runs depends on things that differ here:

1. Some are one kernel on CUDA and several operations where that kernel is missing, as in a CPU-only build of torch.
   A kernel is registered for them; it never runs, because fake tensors take the call before it would.
2. Some ask whether a tensor is a subclass (fake tensors are) or a dispatch mode is active, and then avoid writing in
   place. They are written out here as they are for plain tensors.
"""

from __future__ import annotations

from typing import Any

import torch

ONE_KERNEL_ON_CUDA = ("_fused_rms_norm", "silu_backward", "mish_backward")
"""All of torch 2.11 that have a CUDA kernel and a composite fallback, by a CUDA build's dispatch table."""
_libraries: list[torch.library.Library] = []


def install() -> None:
    if _libraries:
        return
    library = torch.library.Library("aten", "IMPL")
    for name in ONE_KERNEL_ON_CUDA:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            library.impl(name, _never_runs, "CUDA")
    for name, function in {"linear": linear, "one_hot": one_hot}.items():
        for key in ("AutogradCUDA", "CUDA"):
            library.impl(name, function, key)
    _libraries.append(library)  # the registration lives as long as the library object


def _never_runs(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a real tensor on a card that is not there")


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """One product with the bias inside, or, for an input that cannot be flattened, a product and an addition in place
    (aten/src/ATen/native/Linear.cpp, `linear`)."""
    if bias is None:
        return torch.matmul(input, weight.t())
    if input.dim() == 2:
        return torch.addmm(bias, input, weight.t())
    if input.is_contiguous() and input.dim() > 2 and bias.dim() == 1:
        flat = torch.addmm(bias, input.reshape(-1, input.shape[-1]), weight.t())
        return flat.view(*input.shape[:-1], weight.shape[0])
    return torch.matmul(input, weight.t()).add_(bias)


def one_hot(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Ones scattered into zeros (aten/src/ATen/native/Onehot.cpp); the class count, if asked for, is read back."""
    if num_classes == -1:
        num_classes = int(self.max().item()) + 1
    zeros = torch.zeros(*self.shape, num_classes, dtype=torch.int64, device=self.device)
    return zeros.scatter_(-1, self.unsqueeze(-1), 1)
