"""What the flash-attn CUDA extensions allocate: sizes, for the tracer's stand-in and for the closed form alike.

    FlashAttention 2   csrc/flash_attn/flash_api.cpp of flash-attn 2.8.3: `mha_fwd`, `mha_varlen_fwd`, `mha_bwd`,
                       `mha_varlen_bwd`
    FlashAttention 3   hopper/flash_api.cpp: `mha_fwd`, `mha_bwd`, which take both layouts

Tensors are (batch, length, heads, width), or (tokens, heads, width) where sequences lie end to end (`cu_seqlens`).
Ignored  decoding: a query of one token swaps heads and groups, which no training step does.
"""

from __future__ import annotations

from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.card import Card
from tunecast.tape.kernels.steps import ceil_div, up
from tunecast.tape.symbols import ask, compute

Shape = tuple[int, ...]
VERSION = "2.8.3"
"""The release followed, and the version given where none is installed."""


class FlashCall(NamedTuple):
    """What a caller asks for besides the tensors."""

    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    dropout: float = 0.0
    softcap: float = 0.0
    deterministic: bool = False
    return_probs: bool = False
    max_q: int = 0
    max_k: int = 0
    splits: int = 1


def counted_pairs(length: int, key_length: int, call: FlashCall) -> int:
    """Of queries and keys, as torch counts them: with the half that a causal mask hides, which kernels leave out.

    Blocks outside a window are not computed (flash_fwd_kernel.h, `n_block_min`): there, twice the band below the
    diagonal.
    """
    window = call.window[0] + 1
    if not call.causal or window <= 0 or window >= key_length:
        return length * key_length
    return window * (2 * min(length, key_length) - window)


class Sizes(NamedTuple):
    batch: int
    length: int
    key_length: int
    tokens: int
    key_tokens: int
    heads: int
    key_heads: int
    width: int
    varlen: bool

    @staticmethod
    def of(q: Any, k: Any, cu_q: Any, call: FlashCall) -> Sizes:
        if cu_q is None:
            batch, length, heads, width = q.shape
            key_length = k.shape[1]
            return Sizes(batch, length, key_length, batch * length, batch * key_length, heads, k.shape[2], width, False)
        tokens, heads, width = q.shape
        return Sizes(
            cu_q.numel() - 1, call.max_q, call.max_k, tokens, k.shape[0], heads, k.shape[1], width, True
        )  # fmt: skip

    def rows(self) -> Shape:
        """A number a query and head: logsumexp."""
        return (self.heads, self.tokens) if self.varlen else (self.batch, self.heads, self.length)


# ---------------------------------------------------------------- FlashAttention 2


def forward_parts_2(size: Sizes, call: FlashCall, card: Card) -> tuple[Shape, ...]:
    """fp32: where keys are split, sums and results of the splits."""
    splits = 1 if size.varlen or call.dropout else splits_2(size, card.sm_count)
    if splits == 1:
        return ()
    rows = (splits, size.batch, size.heads, size.length)
    return rows, (*rows, rounded_width_2(size.width))


def backward_floats_2(size: Sizes, call: FlashCall, card: Card) -> tuple[Shape, Shape]:
    """fp32: a softmax sum a row, and where dq is summed."""
    rounded = size.tokens + 128 * size.batch if size.varlen else up(size.length, 128)
    width = rounded_width_2(size.width)
    softmax_sums = (size.heads, rounded) if size.varlen else (size.batch, size.heads, rounded)
    accumulator = (rounded, size.heads, width) if size.varlen else (size.batch, rounded, size.heads, width)
    if call.deterministic:
        accumulator = (ceil_div(card.sm_count, size.batch * size.heads), *accumulator)
    return softmax_sums, accumulator


def rounded_width_2(width: int) -> int:
    return up(width, 32 if width <= 128 else 64)


def splits_2(size: Sizes, sm_count: int) -> int:
    """`num_splits_heuristic`: few, long rows are cut along the keys until 85 % of the best occupancy is reached."""
    numbers = [size.batch * size.heads, size.length, size.key_length, sm_count]
    if not ask(_is_split_2, size.width, numbers):
        return 1
    splits: int = compute(_splits_2, size.width, numbers)
    return splits


def _is_split_2(width: int, *numbers: int) -> bool:
    return _splits_2(width, *numbers) > 1


def _splits_2(width: int, rows: int, length: int, key_length: int, sms: int) -> int:
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    key_blocks = ceil_div(key_length, block)
    work = rows * ceil_div(length, 64)
    processors = 2 * sms
    if work >= 0.8 * processors:
        return 1
    efficiency = {}
    for splits in range(1, min(128, processors, key_blocks) + 1):
        if splits == 1 or ceil_div(key_blocks, splits) != ceil_div(key_blocks, splits - 1):
            waves = work * splits / processors
            efficiency[splits] = waves / ceil_div(work * splits, processors)
    best = max(efficiency.values(), default=0.0)
    return next((splits for splits, value in efficiency.items() if value >= 0.85 * best), 1)


# ---------------------------------------------------------------- FlashAttention 3

WIDTHS_3 = (64, 96, 128, 192, 256)


def scheduler_numbers_3(size: Sizes, call: FlashCall, card: Card) -> int:
    """int32 counters of the forward kernel."""
    masked = call.causal or call.window != (-1, -1)
    if card.capability >= (9, 0):
        counted = (masked and call.splits == 1) or size.varlen
    else:
        counted = call.splits > 1 if size.varlen else call.causal
    return int(counted) + (size.batch if one_per_sequence_3(size) else 0)


def one_per_sequence_3(size: Sizes) -> bool:
    return size.varlen and size.batch <= 992


class Backward3(NamedTuple):
    floats: tuple[Shape, ...]
    """softmax sum, logsumexp, dq."""
    zeroed: tuple[Shape, ...]
    """Keys and values with fewer heads are summed in fp32 buffers of their own, and not expanded as in 2."""
    semaphores: tuple[Shape, ...]
    """int32."""


def backward_3(size: Sizes, widest: int, call: FlashCall, card: Card) -> Backward3:
    width = next(w for w in WIDTHS_3 if widest <= w)
    block_q, block_k = blocks_3(width, card.capability, call)
    rows: Shape
    key_rows: Shape
    if size.varlen:
        rows = (size.heads, up(size.tokens + size.batch * block_q, block_q))
        key_rows = (size.key_heads, up(size.key_tokens + size.batch * block_k, block_k))
    else:
        rows = (size.batch, size.heads, up(size.length, block_q))
        key_rows = (size.batch, size.key_heads, up(size.key_length, block_k))
    grouped = size.key_heads != size.heads
    semaphores: list[Shape] = [(ceil_div(size.length, block_q), size.batch, size.heads)]
    if grouped and call.deterministic:
        semaphores += [(ceil_div(size.key_length, block_k), size.batch, size.key_heads)] * 2
    return Backward3((rows, rows, (*rows, width)), ((*key_rows, width),) * 2 if grouped else (), tuple(semaphores))


def blocks_3(width: int, capability: tuple[int, int], call: FlashCall) -> tuple[int, int]:
    """kBlockM, kBlockN: rows of queries and of keys a thread block of the backward kernel takes."""
    masked = call.causal or call.window != (-1, -1) or call.softcap > 0
    if capability >= (9, 0):
        queries = {64: 96 if call.causal and call.softcap > 0 else 128, 128: 64 if masked else 80}.get(width, 64)
        return queries, 128 if width <= 128 else 96 if width <= 192 else 80
    if capability in ((8, 6), (8, 9)):
        return 64 if width <= 192 else 32, {64: 128, 96: 128, 128: 96}.get(width, 64)
    return 128 if width <= 64 else 64, 128 if width <= 128 else 80 if width <= 192 else 64
