"""Attention on paper: rotary positions, and the kernels `scaled_dot_product_attention` may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start, wants
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels.backend import Attention, choose
from tunecast.tape.kernels.counts import SEVERAL

Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of queries or keys, cosines and sines."""
MASK_ALIGNMENT = 8
"""Mask values the memory-efficient kernel loads at once (attention.cpp, `preprocess_mask`)."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x * cos + rotate_half(x) * sin."""
    return x * cos + rotate_half(x) * sin


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    x1 = x[..., :half]
    x2 = x[..., half:]
    return F.cat((-x2, x1), -1)


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rotate_both(q, k, cos, sin) if q.machine.rotary is None else q.machine.rotary(q, k, cos, sin)


def rotate_both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rotate: Rotate = rotate) -> tuple[Tensor, Tensor]:
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    q_embed = rotate(q, cos, sin)
    k_embed = rotate(k, cos, sin)
    return q_embed, k_embed


def apply_partial_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The first part of each head turns, the rest is put back behind it."""
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    return rotate_part(q, k, cos, sin, rotate)


def rotate_part(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rotate: Rotate) -> tuple[Tensor, Tensor]:
    rotary_dim = cos.shape[-1]
    q_rot, q_pass = q[..., :rotary_dim], q[..., rotary_dim:]
    k_rot, k_pass = k[..., :rotary_dim], k[..., rotary_dim:]
    q_embed = rotate(q_rot, cos, sin)
    k_embed = rotate(k_rot, cos, sin)
    q_embed = F.cat((q_embed, q_pass), -1)
    k_embed = F.cat((k_embed, k_pass), -1)
    return q_embed, k_embed


def repeat_kv(hidden_states: Tensor, groups: int) -> Tensor:
    """A copy of keys or values for every query head."""
    batch, heads, length, width = hidden_states.shape
    if groups == 1:
        return hidden_states
    hidden_states = hidden_states.unsqueeze(2).expand(batch, heads, groups, length, width)
    return hidden_states.reshape(batch, heads * groups, length, width)


def attend(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, groups: int = 1, dropout: float = 0.0, *,
    position_ids: Tensor | None = None, window: int | None = None, softcap: float | None = None, eager: Any = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What `attention_interface` does in every model of transformers: the result as [batch, length, heads, width], and
    the weights, which only `eager` has and which the caller holds. `eager` is the family's own, where it has one.
    `causal`: no token sees later ones, where no mask says otherwise."""
    how = (dropout, position_ids, window, softcap)
    sequence = sequence_of(query.machine)
    if sequence is None:
        return attend_here(query, key, value, attention_mask, groups, *how, eager, causal)
    return sequence.attend(attend_here, query, key, value, attention_mask, *how)


def sequence_of(machine: Machine) -> Any:
    """Who splits rows over ranks, if somebody does."""
    return None if machine.scheme is None else machine.scheme.sequence


def attend_here(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, groups: int, dropout: float,
    position_ids: Tensor | None, window: int | None, softcap: float | None, eager: Any = None, causal: bool = True,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """All of a row, on this card."""
    implementation = query.machine.attention
    if implementation == "eager":
        if eager is not None:
            return eager(query, key, value, attention_mask, groups, dropout)
        return eager_attention(query, key, value, attention_mask, groups, dropout, softcap)
    if implementation == "flex_attention":
        from tunecast.tape.build.flash import flex_attention_forward

        return flex_attention_forward(query, key, value, groups, dropout), None
    if query.machine.is_flash:
        from tunecast.tape.build.flash import flash_attention  # few jobs name it

        return flash_attention(query, key, value, dropout, window, softcap, position_ids), None
    return sdpa_attention(query, key, value, attention_mask, groups, dropout, causal), None


def sdpa_attention(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, groups: int, dropout: float,
    causal: bool = True,
) -> Tensor:  # fmt: skip
    """transformers/integrations/sdpa_attention.py, `sdpa_attention_forward`: heads share keys inside the kernel only
    where no mask is given."""
    gqa, era = False, query.machine.era
    if groups > 1:
        gqa = attention_mask is None and key.shape[-1] == value.shape[-1] <= 256 and not era.repeats_heads
        if not gqa:
            key = repeat_kv(key, groups)
            value = repeat_kv(value, groups)
    if era.copies_heads:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    causal = causal and query.shape[2] > 1 and attention_mask is None
    attn_output = scaled_dot_product(query, key, value, attention_mask, dropout, causal, gqa)
    attn_output = attn_output.transpose(1, 2).contiguous()
    return attn_output


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, groups: int, dropout: float,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`eager_attention_forward` of most models: softmax in fp32, capped before the mask where Gemma 2 asks."""
    key_states = repeat_kv(key, groups)
    value_states = repeat_kv(value, groups)
    scaling = query.shape[-1] ** -0.5
    attn_weights = F.matmul(query, key_states.transpose(2, 3)) * scaling
    if softcap is not None:
        attn_weights = attn_weights / softcap
        attn_weights = attn_weights.tanh()
        attn_weights = attn_weights * softcap
    if attention_mask is not None:
        attn_weights = attn_weights + attention_mask
    attn_weights = F.softmax(attn_weights, FLOAT32).to(query.dtype)
    attn_weights = F.dropout(attn_weights, dropout)
    attn_output = F.matmul(attn_weights, value_states)
    attn_output = attn_output.transpose(1, 2).contiguous()
    return attn_output, attn_weights


def scaled_dot_product(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0, causal: bool = True,
    gqa: bool = False, calls: int = 1,
) -> Tensor:  # fmt: skip
    """`calls`: of how many of them it is the sum."""
    machine = query.machine
    if machine.autocast is not None:
        mask = F.cast_for_product(mask) if mask is not None else None
        value = F.cast_for_product(value)
        key = F.cast_for_product(key)
        query = F.cast_for_product(query)
    keeps = wants(machine, query, key, value)
    kernel = choose(Attention(query, key, value, mask, dropout, causal, None, gqa, keeps), machine.card)
    if kernel == "math":
        with machine.autocasting(None):
            return math(query, key, value, mask, dropout, causal, gqa)
    run = {"cudnn": cudnn, "flash": flash, "efficient": efficient}[kernel]
    return run(query, key, value, mask, dropout, causal, keeps, calls)


def as_numbers(mask: Tensor | None, dtype: Dtype) -> Tensor | None:
    """Flags become 0 and a very low number (aten/src/ATen/native/transformers/attention.cpp,
    `convert_boolean_attn_mask_`)."""
    if mask is None or mask.dtype != BOOL:
        return mask
    low = mask.machine.run("scalar_tensor", (), (), dtype)
    zero = mask.machine.run("scalar_tensor", (), (), dtype)
    return mask.machine.run("where", (mask, zero, low), mask.shape, dtype)


def math(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, gqa: bool
) -> Tensor:
    """The plain formula in fp32 (attention.cpp, `_scaled_dot_product_attention_math`)."""
    machine, dtype, given = query.machine, query.dtype, (query, key, value)
    mask = as_numbers(mask, dtype)
    query, key, value = [t.float() for t in given]
    half_scale = query.shape[-1] ** -0.25
    scaled = query * half_scale
    if causal:
        ones = machine.run("ones", (), (query.shape[2], key.shape[2]), BOOL)
        mask = pointwise("tril", ones)
        del ones
        mask = as_numbers(mask, FLOAT32)
    groups = query.shape[1] // key.shape[1] if gqa else 1
    keys, values = [t if groups == 1 else t.repeat_interleave(groups, 1) for t in (key, value)]
    weights = F.matmul(scaled, keys.transpose(2, 3) * half_scale)
    if mask is not None:
        weights = weights.add_(mask)
    weights = F.safe_softmax(weights)
    weights = F.dropout(weights, dropout)
    returned = weights.to(dtype)  # C++ makes the second result first; nobody takes it
    out = F.matmul(weights, values).to(dtype)
    del returned
    return out


def flops_of(query: Tensor, key: Tensor, value: Tensor) -> int:
    batch, heads, length, width = query.shape
    return 2 * batch * heads * length * key.shape[2] * (width + value.shape[3])


def interleaved(query: Tensor, width: int) -> Any:
    """[batch, heads, length, width] laid out [batch, length, heads, width]."""
    _, heads, length, _ = query.shape
    return (length * heads * width, width, heads * width, 1)


def matching(query: Tensor, width: int) -> Any:
    """Dimensions in memory as the query's are (cudnn/MHA.cpp, `alloc_with_matching_layout`)."""
    if width == query.shape[3]:
        return F.kept_strides(query)
    strides = query.stride()
    shape, packed, step = (*query.shape[:3], width), [0] * 4, 1
    for dim in sorted(range(4), key=lambda d: strides[d]):
        packed[dim], step = step, step * shape[dim]
    return tuple(packed)


def cudnn(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, keeps: bool,
    calls: int = 1,
) -> Tensor:  # fmt: skip
    mask = as_numbers(mask, query.dtype)
    batch, heads, length, _ = query.shape
    width = value.shape[3]
    out = (batch, heads, length, width)
    outs = ((out, query.dtype), ((batch, heads, length, 1), FLOAT32), ((), INT64), ((), INT64))
    flops = flops_of(query, key, value)
    args = (query, key, value, mask, keeps, dropout, causal, False)
    return _run("_scaled_dot_product_cudnn_attention", query, key, value, mask, outs, flops, args, dropout, calls)


def flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, keeps: bool,
    calls: int = 1,
) -> Tensor:  # fmt: skip
    batch, heads, length, width = query.shape
    if width % 8:
        query, key, value = [F.pad(x, -width % 8) for x in (query, key, value)]
    outs = ((query.shape, query.dtype), ((batch, heads, length), FLOAT32), ((2,), INT64), ((), INT64))
    flops = flops_of(query, key, value)
    args = (query, key, value, dropout, causal)
    out = _run("_scaled_dot_product_flash_attention", query, key, value, None, outs, flops, args, dropout, calls)
    return out[..., :width] if width % 8 else out


def efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, keeps: bool,
    calls: int = 1,
) -> Tensor:  # fmt: skip
    mask = as_numbers(mask, query.dtype)
    batch, heads, length, _ = query.shape
    if mask is not None:
        keys = mask.shape[-1]
        if any(stride % MASK_ALIGNMENT for stride in mask.stride()[:-1]):
            mask = F.pad(mask, -keys % MASK_ALIGNMENT)[..., :keys]
        mask = mask.expand(batch, heads, length, keys)
    rows = -(-length // 32) * 32
    outs = (((batch, heads, length, value.shape[3]), query.dtype), ((batch, heads, rows), FLOAT32))
    flops = flops_of(query, key, value)
    args = (query, key, value, mask, keeps, dropout, causal)
    return _run("_scaled_dot_product_efficient_attention", query, key, value, mask, outs, flops, args, dropout, calls)


def _run(
    name: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, outs: Sequence[Any], flops: int,
    args: tuple[Any, ...], dropout: float, calls: int,
) -> Tensor:  # fmt: skip
    machine = query.machine
    likes = [(t.shape, t.dtype) for t in (query, key, value)]
    laid_out = interleaved if "efficient" in name else matching

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        _, k, q, v, _, kept_out = (node.take(place) for place in range(6))
        arguments = (gradients[0], q, k, v, kept_out, None, None, None, None, dropout)
        kernels = calls * SEVERAL[name + "_backward"]
        made = machine.run_many(
            name + "_backward", (gradients[0], q, k, v), likes, flops * 5 // 2, arguments, kernels=kernels
        )
        for gradient, like in zip(made, (q, k, v), strict=True):
            gradient.strides = laid_out(like, like.shape[3])
        return made

    node = start(machine, (query, key, value), back, (mask, key, query, value))
    results = machine.run_many(name, (query, key, value), outs, flops, args, kernels=calls)
    out = results[0]
    out.strides = laid_out(query, out.shape[3])
    return finish(node, out, results[1], out.detach(), *[t for t in results[2:] if t is not None])
