"""Scaled dot-product attention takes the kernel CUDA would take.

On fake tensors torch falls to the math path, whose memory is another world's. The composite operation is therefore
replaced by the choice of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (`select_sdp_backend`) followed by the
kernel chosen, with the operations aten/src/ATen/native/transformers/attention.cpp runs around it. What the kernels
themselves allocate is in `kernels/attention.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn import functional

from tunecast.tape.trace import composites
from tunecast.tape.trace.card import Card

HALF = (torch.float16, torch.bfloat16)
MASK_ALIGNMENT = 8
"""Mask values the memory-efficient kernel loads at once (attention.cpp, `preprocess_mask`)."""
_libraries: list[torch.library.Library] = []


class Attention(NamedTuple):
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    gqa: bool = False

    def needs_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.query, self.key, self.value))


def install(card: Card) -> None:
    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        call = Attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        run = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}[choose(call, card)]
        return run(call)

    library = torch.library.Library("aten", "IMPL")
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", attention, key)
    _libraries.append(library)  # the registration lives as long as the library object
    composites.install()


def choose(call: Attention, card: Card) -> str:
    """The first backend whose conditions hold (sdp_utils.cpp, `can_use_cudnn_attention` and its neighbours)."""
    if not _well_formed(call):
        return "math"
    can_use = {"cudnn": _can_use_cudnn, "flash": _can_use_flash, "efficient": _can_use_efficient}
    return next((backend for backend in priority(card) if can_use[backend](call, card)), "math")


def priority(card: Card) -> tuple[str, ...]:
    """cuDNN goes first on Hopper and data-centre Blackwell (cuDNN 9.15.1 and later, which torch's default wheels
    bring); elsewhere it stands behind the math path, which takes everything (`check_prefer_cudnn_attention`)."""
    if card.capability in ((9, 0), (10, 0), (10, 3)):
        return ("cudnn", "flash", "efficient")
    return ("flash", "efficient")


def _well_formed(call: Attention) -> bool:
    """What all fused kernels ask: four dimensions, one batch size, nothing empty, widths side by side in memory."""
    tensors = (call.query, call.key, call.value)
    if any(t.dim() != 4 or t.shape[0] != call.query.shape[0] or t.shape[2] == 0 for t in tensors):
        return False
    looked_at = tensors if call.mask is None else (*tensors, call.mask)
    return all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in looked_at)


def _heads_fit(call: Attention) -> bool:
    heads, key_heads, value_heads = call.query.shape[1], call.key.shape[1], call.value.shape[1]
    if call.gqa:
        return key_heads == value_heads and heads % key_heads == 0
    return heads == key_heads == value_heads


def _can_use_cudnn(call: Attention, card: Card) -> bool:
    widths = call.query.shape[3], call.value.shape[3]
    widest = 256 if card.capability == (9, 0) else 192 if card.capability[0] == 10 and widths == (192, 128) else 128
    queries, keys = call.query.shape[2], call.key.shape[2]
    return (
        torch.backends.cuda.cudnn_sdp_enabled() and call.query.dtype in HALF and card.capability >= (8, 0)
        and _heads_fit(call) and all(w % 8 == 0 and w <= widest for w in widths)
        and keys > 1 and not (queries == 1 and call.dropout > 0)
        and (not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled())
    )  # fmt: skip


def _can_use_flash(call: Attention, card: Card) -> bool:
    width = call.query.shape[3]
    consumer = card.capability in ((8, 6), (8, 7), (8, 9)) or card.capability[0] == 12
    too_wide = 192 < width <= 224 or (width > 224 and call.dropout > 0)
    return (
        torch.backends.cuda.flash_sdp_enabled() and call.query.dtype in HALF and card.capability >= (8, 0)
        and call.mask is None and width == call.value.shape[3] and width <= 256 and _heads_fit(call)
        and not (call.causal and call.query.shape[2] != call.key.shape[2])
        and not (consumer and too_wide and call.needs_gradient())
    )  # fmt: skip


def _can_use_efficient(call: Attention, card: Card) -> bool:
    alignment = 8 if call.query.dtype in HALF else 4
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled() and call.query.dtype in (*HALF, torch.float32)
        and call.query.shape[1] == call.key.shape[1] == call.value.shape[1]
        and call.query.shape[3] % alignment == 0 and call.value.shape[3] % alignment == 0
    )  # fmt: skip


def _as_float_mask(mask: torch.Tensor | None, dtype: torch.dtype, hidden: float = -math.inf) -> torch.Tensor | None:
    """True is 0, False is `hidden` (attention.cpp, `convert_boolean_attn_mask_`)."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    low = torch.scalar_tensor(hidden, dtype=dtype, device=mask.device)
    zero = torch.scalar_tensor(0.0, dtype=dtype, device=mask.device)
    return torch.where(mask, zero, low)


def _cudnn(call: Attention) -> torch.Tensor:
    query, key, value = call.query, call.key, call.value
    mask = _as_float_mask(call.mask, query.dtype, hidden=-65504.0)
    out = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, mask, call.needs_gradient(), call.dropout, call.causal, False, scale=call.scale
    )
    return out[0]  # type: ignore[no-any-return]


def _flash(call: Attention) -> torch.Tensor:
    query, key, value, width = call.query, call.key, call.value, call.query.shape[3]
    if width % 8:
        query, key, value = (functional.pad(x, (0, 8 - width % 8)) for x in (query, key, value))
    scale = call.scale or 1 / math.sqrt(width)
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, call.dropout, call.causal, False, scale=scale
    )
    return out[0] if width % 8 == 0 else out[0][..., :width]  # type: ignore[no-any-return]


def _efficient(call: Attention) -> torch.Tensor:
    query, key, value = call.query, call.key, call.value
    mask = _as_float_mask(call.mask, query.dtype)
    if mask is not None:
        length = mask.shape[-1]
        if any(stride % MASK_ALIGNMENT for stride in mask.stride()[:-1]):
            mask = functional.pad(mask, (0, MASK_ALIGNMENT - length % MASK_ALIGNMENT))[..., :length]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    out = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, call.needs_gradient(), call.dropout, call.causal, scale=call.scale
    )
    return out[0]  # type: ignore[no-any-return]


def _math(call: Attention) -> torch.Tensor:
    """The plain formula in fp32 (attention.cpp, `_scaled_dot_product_attention_math`), written out because the mask is
    added in place on plain tensors and out of place on subclasses such as the fake ones."""
    dtype = call.query.dtype
    mask = _as_float_mask(call.mask, dtype)
    query, key, value = (t.float() if dtype in HALF else t for t in (call.query, call.key, call.value))
    half_scale = math.sqrt(call.scale or 1 / math.sqrt(query.shape[-1]))
    scaled = query * half_scale
    if call.causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _as_float_mask(mask, query.dtype)
    groups = query.shape[-3] // key.shape[-3] if call.gqa else 1
    keys, values = (t if groups == 1 else t.repeat_interleave(groups, -3) for t in (key, value))
    weights = torch.matmul(scaled, keys.transpose(-2, -1) * half_scale)
    if mask is not None:
        weights.add_(mask)
    weights = torch._safe_softmax(weights, -1)
    if call.dropout:
        weights = torch.dropout(weights, call.dropout, True)
    returned = weights.to(dtype)  # C++ makes the second result first; nobody takes it
    return (torch.matmul(weights, values).to(dtype), returned)[0]
