"""What the fused attention kernels borrow and in which order they allocate.

Letters: B batch, H query heads, Hk key heads, M queries, N keys, K width of queries and keys, V width of values.
"""

from __future__ import annotations

from collections.abc import Iterator

from tunecast.records import NamedTuple
from tunecast.tape.card import Card
from tunecast.tape.kernels.shapes import Shaped
from tunecast.tape.kernels.steps import KernelCall, Rule, Script, ceil_div, nbytes, up
from tunecast.tape.symbols import ask, compute

FLOAT_BYTES = 4
CUDNN_PLAN_BYTES = 256
"""Every plan of cuDNN 9's attention asks for this much beside the buffers its frontend lays out."""


def cudnn_forward(call: KernelCall, script: Script) -> None:
    """The random state comes first, on the card; the log-sum-exp only where a backward pass will want it
    (aten/src/ATen/native/transformers/cuda/attention.cu, `_scaled_dot_product_cudnn_attention_cuda`; cudnn/MHA.cpp)."""
    script.make(2, 3, 0)
    if call.args[4]:
        script.make(1)
    script.borrow(CUDNN_PLAN_BYTES)


def cudnn_backward(call: KernelCall, script: Script) -> None:
    """One block: dQ summed in fp32, a sum a query row, and dK and dV a query head where heads share keys
    (cudnn-frontend, `scaled_dot_product_flash_attention.h`, the backward node's workspace)."""
    query, key, value = call.args[1:4]
    batch, heads, queries, width = query.shape
    script.make(0, 1, 2)
    workspace_bytes = batch * heads * queries * (width + 1) * FLOAT_BYTES + CUDNN_PLAN_BYTES
    if heads != key.shape[1]:
        for each in (width, value.shape[3]):
            workspace_bytes += up(batch * heads * key.shape[2] * each * query.element_size(), 128)
    script.borrow(workspace_bytes)


def flash_forward(call: KernelCall, script: Script) -> None:
    """Few queries and many keys: keys are split over blocks, whose results meet in fp32
    (flash_attn/flash_api.cpp, `mha_fwd`, `set_params_splitkv`). With dropout the random state is made twice."""
    query, key = call.args[:2]
    batch, heads, queries, width = query.shape
    dropout = call.argument(3, "dropout_p", 0.0)
    script.make(0, 1)
    if dropout:
        replaced = script.borrow(16)
        script.make(3, 2)
        script.give_back(replaced)
        return
    splits = flash_splits(batch * heads, queries, key.shape[2], width, call.card)
    if splits > 1:
        sums = script.borrow(splits * batch * heads * queries * FLOAT_BYTES)
        partial = script.borrow(splits * batch * heads * queries * flash_width(width) * FLOAT_BYTES)
        script.make(2, 3)
        script.give_back(sums, partial)
    else:
        script.make(2, 3)


def flash_backward(call: KernelCall, script: Script) -> None:
    """softmax_d, dq_accum, and dK and dV a query head where heads share keys (flash_api.cpp, `mha_bwd`).
    Gradient and result are copied when their heads are not interleaved."""
    gradient, query, key, value, out = call.args[:5]
    batch, heads, queries, width = query.shape
    for tensor in (gradient, out):
        script.borrow(_copy_bytes(tensor))
    script.make(0, 1, 2)
    rows = batch * heads * up(queries, 128)
    script.borrow(rows * FLOAT_BYTES)
    script.borrow(rows * flash_width(width) * FLOAT_BYTES)
    if heads != key.shape[1]:
        for tensor in (key, value):
            script.borrow(nbytes(tensor) // tensor.shape[1] * heads)


def flash_width(width: int) -> int:
    return up(width, 32 if width <= 128 else 64)


def flash_splits(batch_heads: int, queries: int, keys: int, width: int, card: Card) -> int:
    """flash_api.cpp, `num_splits_heuristic`: the fewest splits that fill the card within 85 % of the best filling."""
    numbers = [batch_heads, queries, keys, card.sm_count]
    if not ask(_is_split, width, numbers):  # how often is a number like others, which structures need not share
        return 1
    splits: int = compute(_splits, width, numbers)
    return splits


def _is_split(width: int, *numbers: int) -> bool:
    return _splits(width, *numbers) > 1


def _splits(width: int, batch_heads: int, queries: int, keys: int, sms: int) -> int:
    blocks = ceil_div(keys, 256 if width <= 64 else 128 if width <= 128 else 64)
    tiles = batch_heads * ceil_div(queries, 64)
    places = sms * 2
    if tiles >= 0.8 * places:
        return 1
    filled = {}
    for splits in range(1, min(128, places, blocks) + 1):
        if splits == 1 or ceil_div(blocks, splits) != ceil_div(blocks, splits - 1):
            waves = tiles * splits / places
            filled[splits] = waves / ceil_div(tiles * splits, places)
    best = max(filled.values())
    return min(splits for splits, share in filled.items() if share >= 0.85 * best)


def efficient_forward(call: KernelCall, script: Script) -> None:
    """The random state stays on the host. Above a width of 128 the 32-by-128 kernel keeps its sums in global memory,
    in fp32 (aten/src/ATen/native/transformers/cuda/attention.cu; mem_eff_attention/kernels/cutlassF.h)."""
    query, value = call.args[0], call.args[2]
    batch, heads, queries, _ = query.shape
    script.make(0)
    if call.args[4]:
        script.make(1)
    if query.element_size() == 2 and value.shape[3] > 128:
        script.borrow(batch * heads * queries * value.shape[3] * FLOAT_BYTES)


def efficient_backward(call: KernelCall, script: Script) -> None:
    """delta, then one workspace (aten/src/ATen/native/transformers/cuda/attention_backward.cu). In fp32 delta is
    computed by ordinary operations: a product, its sum, a transposed copy."""
    gradient, query, key, value = call.args[:4]
    batch, heads, queries, _ = query.shape
    rows_bytes = batch * heads * queries * FLOAT_BYTES
    script.borrow(_copy_bytes(gradient))
    script.make(*range(len(call.outputs)))
    if query.element_size() == 2:
        delta = script.borrow(rows_bytes)
    else:
        product, total = script.borrow(nbytes(gradient)), script.borrow(rows_bytes)
        transposed = queries > 1 and heads > 1
        delta = script.borrow(rows_bytes) if transposed else total
        script.give_back(*((total, product) if transposed else (product,)))
    floats = efficient_workspace_floats(query, key, value, call.card, bool(call.argument(9, "dropout_p", 0.0)))
    workspace = script.borrow(batch * heads * floats * FLOAT_BYTES)
    script.give_back(delta, workspace)


class Tile(NamedTuple):
    """A backward kernel of cutlass: rows of queries, rows of keys, widest head, sums of dK and dV in registers."""

    queries: int
    keys: int
    widest: int
    in_registers: bool


def efficient_workspace_floats(query: Shaped, key: Shaped, value: Shaped, card: Card, dropout: bool) -> int:
    """mem_eff_attention/kernel_backward.h, `workspace_elements_gq`, `_gk`, `_gv`: per query block and width block a
    tile and a counter of 4; per key split dK and dV where they are not summed in registers and are not fp32."""
    queries, width, keys, value_width = query.shape[2], query.shape[3], key.shape[2], value.shape[3]
    half = query.element_size() == 2
    tile = next(t for t in backward_tiles(half, card, dropout) if max(width, value_width) <= t.widest)
    floats = ceil_div(queries, tile.queries) * ceil_div(width, tile.keys) * (4 + tile.queries * tile.keys)
    if half and not tile.in_registers:
        batch_heads = query.shape[0] * query.shape[1]
        splits = ceil_div(keys, tile.keys)
        if batch_heads >= 256 and keys <= 2 * tile.keys:
            splits = 1
        splits = max(1, min(splits, 200 // batch_heads))
        floats += splits * tile.keys * (up(width, tile.queries) + up(value_width, tile.queries))
    return up(floats, 4)


def backward_tiles(half: bool, card: Card, dropout: bool) -> Iterator[Tile]:
    """In the order they are tried (mem_eff_attention/kernels/cutlassB.h, sm80 and later). Each wants its shared
    memory: cards with 99 KiB (sm 8.6, 8.9, 12.x) pass over the 128 x 128 one."""
    small = card.capability in ((8, 6), (8, 7), (8, 9)) or card.capability[0] == 12
    if not half:
        yield Tile(64, 64, 64, False)
        if not small:
            yield Tile(128, 64, 65536, False)
        yield Tile(64, 64, 65536, False)
        return
    yield Tile(64, 64, 64, True)
    if card.capability in ((8, 6), (8, 9)) and not dropout:
        yield Tile(128, 64, 96, True)
    if not small:
        yield Tile(128, 128, 128, True)
    yield Tile(64, 64, 128, False)
    if not small:
        yield Tile(128, 64, 65536, False)
    yield Tile(64, 64, 65536, False)


def _copy_bytes(tensor: Shaped) -> int:
    """The kernels want heads interleaved, [batch, length, heads, width]; any other layout is copied."""
    return 0 if tensor.transpose(1, 2).is_contiguous() else nbytes(tensor)


RULES: dict[str, Rule] = {
    "aten::_scaled_dot_product_cudnn_attention": cudnn_forward,
    "aten::_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
    "aten::_scaled_dot_product_flash_attention": flash_forward,
    "aten::_scaled_dot_product_flash_attention_backward": flash_backward,
    "aten::_scaled_dot_product_efficient_attention": efficient_forward,
    "aten::_scaled_dot_product_efficient_attention_backward": efficient_backward,
}
