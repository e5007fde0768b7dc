"""Attention of a tower within parts of its patches: the windows of an image, or each image and frame by itself.

Without a kernel for parts of different lengths (flash-attn's), transformers' towers take one part after the other
(`torch.split`, then `attention_interface` for each). Hundreds of windows in every block are put together here, those of
one size as one operation: as many bytes in all, in fewer allocations, and as many kernels. That is a guess, and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import eager_attention, scaled_dot_product
from tunecast.tape.build.ops.views import view_of
from tunecast.tape.build.tensor import Tensor

MOST_PARTS = 64
"""As many are taken one after the other, as they are."""
TOGETHER = "windows of the vision tower's attention are put together: as many bytes and kernels, in fewer allocations"

BY_LENGTH = "of flash-attn in the vision tower (flash_attn_varlen_func) one call for each length of parts is counted"


def attend_parts(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Any]:
    """[1, heads, patches, width] to [1, patches, heads, width]; no patch sees one of another part. And what the
    caller's own names keep beside it until it returns."""
    is_flash = query.machine.is_flash
    if is_flash or len(lengths) > MOST_PARTS:
        query.machine.guesses[BY_LENGTH if is_flash else TOGETHER] = None
        return attend_alike(query, key, value, Counter(lengths))
    splits = [tensor.split(lengths, 2) for tensor in (query, key, value)]
    attn_outputs = [attend_part(*part) for part in zip(*splits, strict=True)]
    return F.cat(attn_outputs, 1), (splits, attn_outputs)


def attend_part(query: Tensor, key: Tensor, value: Tensor, *, calls: int = 1) -> Tensor:
    """`attention_interface` of a tower: without a mask, and both ways."""
    if query.machine.attention == "eager":
        return eager_attention(query, key, value, None, 1, 0.0)[0]
    if query.machine.is_flash:
        from tunecast.tape.build.flash import flash_attention  # few jobs name it

        return flash_attention(query, key, value, 0.0, None, None, None, causal=False)
    attn_output = scaled_dot_product(query, key, value, None, 0.0, causal=False, calls=calls)
    attn_output = attn_output.transpose(1, 2).contiguous()
    return attn_output


def attend_alike(query: Tensor, key: Tensor, value: Tensor, counts: Counter[int]) -> tuple[Tensor, Any]:
    """`counts`: how many parts there are of each length."""
    sizes = [length * count for length, count in counts.items()]
    splits = [tensor.split(sizes, 2) for tensor in (query, key, value)]
    attn_outputs = []
    for (length, count), *part in zip(counts.items(), *splits, strict=True):
        apart = attend_part(*[parts_of(tensor, count, length) for tensor in part], calls=count)
        attn_outputs.append(apart.reshape(1, count * length, *apart.shape[2:]))
        del apart, part
    return F.cat(attn_outputs, 1), (splits, attn_outputs)


def parts_of(x: Tensor, count: int, length: int) -> Tensor:
    """[1, heads, count * length, width] as [count, heads, length, width]."""
    _, heads, _, width = x.shape
    _, by_head, by_patch, by_value = x.stride()
    strides = (length * by_patch, by_head, by_patch, by_value)
    before = x.shape
    return view_of(
        x, (count, heads, length, width), strides, None,
        lambda node, gradients: (gradients[0].alias(before, None),),
    )  # fmt: skip
