"""In the place of causal-conv1d's extension, which is compiled against CUDA: it computes nothing and allocates what
csrc/causal_conv1d.cpp (1.7.0) does. That is a copy of the result's gradient where it is not laid out as the input is;
workspaces are made only where `CAUSAL_CONV1D_DETERMINISTIC` or torch asks for deterministic kernels.

causal_conv1d/cpp_functions.py imports this first and wraps its functions as operators, which would answer fake tensors
without running: here they stay functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_custom_op = torch.library.custom_op


def custom_op(name: str, function: Any = None, /, **options: Any) -> Callable[..., Any]:
    if name.startswith("DaoAILab::"):
        return lambda function: function
    return _custom_op(name, function, **options)


torch.library.custom_op = custom_op  # type: ignore[assignment]


def causal_conv1d_fwd(*given: Any) -> None:
    """It fills what it is given."""


def causal_conv1d_bwd(x: torch.Tensor, weight: torch.Tensor, bias: Any, dout: torch.Tensor, *given: Any) -> None:
    is_channel_last = x.stride(1) == 1 and x.stride(2) > 1
    if not is_channel_last and dout.stride(2) != 1:
        dout = dout.contiguous()
    if is_channel_last and dout.stride(1) != 1:
        dout = dout.transpose(-1, -2).contiguous().transpose(-1, -2)
