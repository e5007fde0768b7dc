"""Scaled dot-product attention takes the kernel CUDA would take.

On fake tensors torch falls to the math path, whose memory is another world's. The composite operation is therefore
replaced by the choice of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (`select_sdp_backend`) followed by the
kernel chosen, with the operations aten/src/ATen/native/transformers/attention.cpp runs around it. What the kernels
themselves allocate is in `kernels/attention.py`.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from tunecast.tape.card import Card
from tunecast.tape.kernels.backend import Attention, choose
from tunecast.tape.kernels.shapes import HALF, name_of
from tunecast.tape.trace import composites

MASK_ALIGNMENT = 8
"""Mask values the memory-efficient kernel loads at once (attention.cpp, `preprocess_mask`)."""
_libraries: list[torch.library.Library] = []
masks_seen: set[str] = set()
"""Backends that were given one."""


def install(card: Card) -> None:
    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        keeps = keeps_gradient(query, key, value)
        call = Attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, keeps)
        run = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}[choose(call, card, enabled())]
        return run(call)

    library = torch.library.Library("aten", "IMPL")
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", attention, key)
    _libraries.append(library)  # the registration lives as long as the library object
    composites.install()


def keeps_gradient(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def enabled() -> frozenset[str]:
    """The backends the program has not switched off."""
    switches = {
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled()
        and (not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled()),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
    }
    return frozenset(name for name, on in switches.items() if on)


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
    if mask is not None:
        masks_seen.add("cudnn")
    out = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, mask, call.needs_gradient, call.dropout, call.causal, False, scale=call.scale
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
        query, key, value, mask, call.needs_gradient, call.dropout, call.causal, scale=call.scale
    )
    return out[0]  # type: ignore[no-any-return]


def _math(call: Attention) -> torch.Tensor:
    """The plain formula in fp32 (attention.cpp, `_scaled_dot_product_attention_math`), written out because the mask is
    added in place on plain tensors and out of place on subclasses such as the fake ones."""
    dtype = call.query.dtype
    mask = _as_float_mask(call.mask, dtype)
    query, key, value = (t.float() if name_of(dtype) in HALF else t for t in (call.query, call.key, call.value))
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
