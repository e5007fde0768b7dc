"""What an operation allocates on the card beside the outputs a fake kernel shows, and what libraries keep for life.

The rules are in `kernels/`; this file is what the recorder asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from tunecast.tape.card import Card
from tunecast.tape.kernels import IN_PLACE_IN_BACKWARD, RULES
from tunecast.tape.kernels.blas import LT_WORKSPACE_BYTES, MATRIX_PRODUCTS, shares_workspace, workspace_bytes
from tunecast.tape.kernels.steps import Borrow, KernelCall, Make, Return, Script, Step


def steps(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, card: Card, by_engine: bool = False
) -> tuple[Step, ...] | None:
    """The allocations of one operation in order; None: its outputs in order, and nothing else.

    An output tensor without a `Make` is not on the card: it lives on the host, or the real kernel leaves it empty.
    `by_engine`: the autograd engine called it, no Python between; asked only for `IN_PLACE_IN_BACKWARD`.
    """
    rule = RULES.get(name)
    if rule is None:
        return None
    outputs = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)]
    script = Script()
    rule(KernelCall(args, kwargs, outputs, card, by_engine), script)
    return script.steps()


def kept_for_life(
    name: str, args: tuple[Any, ...], card: Card, kwargs: dict[str, Any] | None = None
) -> Iterator[tuple[str, int]]:
    """Workspaces made at the first use on a thread and stream, right after the output, and never given back.

    A product with a bias goes through cublasLt, which has one of its own; from torch 2.13 on the two share one. Both
    are kept by handle and stream, and every thread has a handle. Sizes are in `kernels/blas.py`.
    """
    if name not in MATRIX_PRODUCTS:
        return
    shared = shares_workspace(torch.__version__)
    yield "cublas_workspace", workspace_bytes(card, shared)
    if name == "aten::addmm" and not shared and _takes_bias_epilogue(args, kwargs or {}):
        yield "cublaslt_workspace", LT_WORKSPACE_BYTES


def _takes_bias_epilogue(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """aten/src/ATen/native/cuda/Blas.cpp, `isInputCompliesAddmmCudaLt`."""
    bias, _, right = args[:3]
    one_row = bias.numel() == right.shape[1] == bias.shape[-1]
    return bool(one_row and bias.is_contiguous() and kwargs.get("beta", 1) == 1)


UNKNOWN_CONVOLUTION = (
    "what cuDNN borrows for convolutions is not published and not counted: often as much as a layer's input cut into "
    "patches, with cudnn.benchmark up to what is free; it takes another algorithm where memory is short"
)
"""aten/src/ATen/native/cudnn/Conv_v8.cpp, `try_plans`: a plan whose workspace cannot be had is passed over."""
PATCHES = (
    "what cuDNN borrows while a convolution cuts images into patches is not counted: nothing or 15 MB forward, 15 to "
    "149 MB for the weight's gradient, which comes last of a backward pass"
)
"""As an H200 did (benchmarks/patch_convolutions.py)."""


def convolution_note(name: str, args: tuple[Any, ...]) -> tuple[str, bool] | None:
    """What is not known of a convolution, and whether that is a guess. Of patches that do not overlap it was measured,
    and is little but for the weight's gradient. Channels that are apart take torch's own kernels, which borrow nothing.
    """
    forward = name == "aten::convolution"
    if not forward and name != "aten::convolution_backward":
        return None
    weight, stride, padding, groups = (args[place] for place in ((1, 3, 4, 8) if forward else (2, 4, 5, 9)))
    if groups > 1 and groups == weight.shape[0]:
        return None
    kernel = list(weight.shape[2:])
    if any(padding) or list(stride) != kernel or max(kernel, default=1) == 1:
        return UNKNOWN_CONVOLUTION, True
    return PATCHES, not forward and bool(args[-1][1])


FOREACH_CHUNK = 65536
FOREACH_BLOCKS = 320
FOREACH_TENSORS = (110, 64, 48, 36, 30)


def kernel_count(name: str, args: tuple[Any, ...], inputs: list[torch.Tensor]) -> int:
    """One, except for `_foreach` operations: a launch takes so many tensors and so many blocks of 65,536 elements
    (aten/src/ATen/native/cuda/MultiTensorApply.cuh, `depth_to_max_tensors`, `depth_to_max_blocks`)."""
    if not name.startswith(("aten::_foreach", "aten::_fused")):
        return 1
    lists = [a for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)]
    if not lists:
        return 1
    most = FOREACH_TENSORS[min(len(lists), len(FOREACH_TENSORS)) - 1]
    launches = tensors = blocks = 0
    for tensor in lists[0]:
        tensors += 1
        blocks += -(-tensor.numel() // FOREACH_CHUNK)
        if tensors == most or blocks >= FOREACH_BLOCKS:
            launches += max(1, blocks // FOREACH_BLOCKS)
            tensors, blocks = 0, blocks % FOREACH_BLOCKS
    return launches + (1 if tensors or blocks else 0)


__all__ = [
    "IN_PLACE_IN_BACKWARD",
    "Borrow",
    "Make",
    "Return",
    "Step",
    "convolution_note",
    "kept_for_life",
    "kernel_count",
    "steps",
]
