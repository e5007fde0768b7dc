"""Scaled dot-product attention takes the kernel CUDA would take.

On fake tensors torch falls to the math path, whose memory is another world's. The composite operation is therefore
replaced by the choice of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (`select_sdp_backend`) followed by the
kernel chosen, exactly as aten/src/ATen/native/transformers/attention.cpp does it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from tunecast.tape.trace.card import Card

HALF = (torch.float16, torch.bfloat16)
_libraries: list[torch.library.Library] = []


def install(card: Card) -> None:
    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:
        backend = choose(query, key, value, attn_mask, enable_gqa, card)
        run = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}[backend]
        return run(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    library = torch.library.Library("aten", "IMPL")
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", attention, key)
    _libraries.append(library)  # the registration lives as long as the library object


def choose(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, gqa: bool, card: Card
) -> str:
    cuda = torch.backends.cuda
    width, value_width = query.shape[-1], value.shape[-1]
    half = query.dtype in HALF
    heads_agree = query.shape[1] == key.shape[1] == value.shape[1]
    for backend in priority(card):
        if backend == "cudnn" and cuda.cudnn_sdp_enabled() and half and card.capability >= (8, 0):
            widest = 256 if card.capability >= (10, 0) else 128
            fits = all(w % 8 == 0 and w <= widest for w in (width, value_width))
            if fits and (heads_agree or gqa) and query.shape[2] > 1:
                return backend
        if backend == "flash" and cuda.flash_sdp_enabled() and half and card.capability >= (8, 0):
            if mask is None and width == value_width and width <= 256 and (heads_agree or gqa):
                return backend
        if backend == "efficient" and cuda.mem_efficient_sdp_enabled() and heads_agree:
            alignment = 8 if half else 4
            if width % alignment == 0 and value_width % alignment == 0:
                return backend
    return "math"


def priority(card: Card) -> tuple[str, ...]:
    """cuDNN goes first on Hopper and Blackwell data-centre cards with a recent cuDNN, else last of the fused ones."""
    if card.capability in ((9, 0), (10, 0)):
        return ("cudnn", "flash", "efficient")
    return ("flash", "efficient", "cudnn")


def _as_float_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.full((), -math.inf, dtype=dtype, device=mask.device))


def _needs_gradient(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _cudnn(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: Any, gqa: bool) -> torch.Tensor:
    mask = _as_float_mask(mask, q.dtype)
    saves = _needs_gradient(q, k, v)
    out = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, mask, saves, dropout, causal, False, scale=scale)
    return out[0]  # type: ignore[no-any-return]


def _flash(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: Any, gqa: bool) -> torch.Tensor:
    width = q.shape[-1]
    if width % 8:
        q, k, v = (functional.pad(x, (0, 8 - width % 8)) for x in (q, k, v))
        scale = scale or 1 / math.sqrt(width)
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)
    return out[0][..., :width]  # type: ignore[no-any-return]


def _efficient(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: Any, gqa: bool) -> torch.Tensor:
    mask = _as_float_mask(mask, q.dtype)
    if mask is not None:
        if mask.shape[-1] % 16:  # the kernel loads 16 mask values at once: pad, then look at the unpadded part
            mask = functional.pad(mask, (0, 16 - mask.shape[-1] % 16))[..., : mask.shape[-1]]
        mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    saves = _needs_gradient(q, k, v)
    out = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, saves, dropout, causal, scale=scale)
    return out[0]  # type: ignore[no-any-return]


def _math(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: Any, gqa: bool) -> torch.Tensor:
    out = torch.ops.aten._scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=gqa)
    return out[0]  # type: ignore[no-any-return]
