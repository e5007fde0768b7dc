"""Composite operations take the branch they take on plain CUDA tensors.

Some operations are not kernels but C++ that runs other operations, and asks first what kind of tensor it has: on
subclasses (fake tensors are one) and under dispatch modes it avoids writing in place, or takes a slower path. Each
function here is the branch for plain CUDA tensors, written out.
"""

from __future__ import annotations

import torch

_libraries: list[torch.library.Library] = []


def install() -> None:
    library = torch.library.Library("aten", "IMPL")
    for name, function in {"linear": linear, "one_hot": one_hot, "rms_norm": rms_norm}.items():
        for key in ("AutogradCUDA", "CUDA"):
            library.impl(name, function, key)
    _libraries.append(library)  # the registration lives as long as the library object


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
    return torch.zeros(*self.shape, num_classes, dtype=torch.int64, device=self.device).scatter_(
        -1, self.unsqueeze(-1), 1
    )


def rms_norm(
    input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """One kernel where input and weight have one type (aten/src/ATen/native/layer_norm.cpp, `rms_norm_symint`);
    otherwise the formula, in fp32 for 16-bit inputs (`rms_norm_composite`)."""
    if weight is None or weight.dtype == input.dtype:
        return torch.ops.aten._fused_rms_norm(input, normalized_shape, weight, eps)[0]  # type: ignore[no-any-return]
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    dims = list(range(-len(normalized_shape), 0))
    mean_square = wide.pow(2).mean(dims, keepdim=True)
    inverse = mean_square.add_(torch.finfo(wide.dtype).eps if eps is None else eps).rsqrt()
    return (wide.mul(inverse) * weight).to(input.dtype)
