"""What CUDA kernels allocate for themselves, which no fake kernel shows.

Each rule names the source it follows (paths in the PyTorch repository) and was compared with the allocation history
of the real kernel on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tunecast.tape.trace.card import Card

MIB = 1 << 20
MATRIX_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"}


def kept_for_life(name: str, args: tuple[Any, ...], card: Card) -> Iterator[tuple[str, int]]:
    """Workspaces made at the first use on a thread and stream, and never given back.

    cuBLAS takes 32 MiB on Hopper and later, 8.125 MiB before (aten/src/ATen/cuda/CublasHandlePool.cpp,
    `parseChosenWorkspaceSize`: 4096 KiB x 8, or 4096 KiB x 2 + 16 KiB x 8). A product with a one-dimensional bias goes
    through cublasLt, which has one of its own of 1 MiB (aten/src/ATen/cuda/CUDABlas.cpp, `_getWorkspaceSize`).
    """
    if name not in MATRIX_PRODUCTS:
        return
    yield "cublas_workspace", 32 * MIB if card.capability >= (9, 0) else 8 * MIB + 128 * 1024
    if name == "aten::addmm" and args[0].dim() == 1:
        yield "cublaslt_workspace", MIB


def temporaries(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, card: Card) -> tuple[int, ...]:
    """Sizes borrowed while the operation runs, after its outputs exist; a negative one gives the earliest back."""
    rule = TEMPORARIES.get(name)
    return () if rule is None else tuple(size for size in rule(args, kwargs, out) if size)


def _flash_backward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int, ...]:
    """softmax_d, dq_accum, and full-head dk/dv for grouped queries (flash_attn/flash_api.cpp, `mha_bwd`)."""
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    rounded, rounded_width = _round(length, 128), _round(width, 32)
    sizes = [batch * heads * rounded * 4, batch * heads * rounded * rounded_width * 4]
    if key.shape[1] != heads:
        sizes += [batch * heads * key.shape[2] * width * key.element_size()] * 2
    return tuple(sizes)


def _cudnn_backward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int, ...]:
    """cuDNN's plan: an fp32 dQ accumulator and a softmax sum (cudnn/MHA.cpp allocates what the plan asks for)."""
    batch, heads, length, width = args[1].shape
    return (batch * heads * length * width * 4 + batch * heads * length * 4,)


def _efficient_backward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int, ...]:
    batch, heads, length, width = args[1].shape
    return (batch * heads * length * 4, batch * heads * length * width * 4 if width > 64 else 0)


def _embedding_backward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int, ...]:
    """Above 3072 tokens: sort buffers, segment offsets, then an fp32 row a segment (Embedding.cu, EmbeddingBackwardKernel.cu)."""
    tokens, vocabulary, width = args[1].numel(), args[2], args[0].shape[-1]
    if tokens <= 3072:
        return ()
    segments = min(tokens, vocabulary)
    partial = tokens // 10 + segments
    return (tokens * 8, tokens * 8, tokens * 8, segments * 8, segments * 8, partial * 8, partial * width * 4)


TEMPORARIES = {
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::embedding_dense_backward": _embedding_backward,
}

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


def _round(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
