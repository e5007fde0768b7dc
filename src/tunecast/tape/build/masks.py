"""Attention masks on paper, after transformers/masking_utils.py (5.17.0): made once a forward pass, before the layers.

Where all tokens are real `sdpa` needs no mask but `is_causal`, unless a window must be cut out or samples of one row
are kept apart; `eager` always makes it. Where a batch has padding (`Machine.masked`: a job's own batches,
prediction/data/own_batches.py) `sdpa` gets one too.
Ignored  what flash-attn does about padding: rows are unpadded around its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunecast.tape.build import older
from tunecast.tape.build.dtypes import BOOL, INT64, Dtype, broadcast
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor

Pattern = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of indices of batch, head, query and key, each broadcast over the others' dimensions."""


def causal_mask(
    attention_mask: Tensor, inputs_embeds: Tensor, window: int | None = None, skip: bool = True,
    blocks: Tensor | None = None,
) -> Any:  # fmt: skip
    """`create_causal_mask`, `create_sliding_window_causal_mask`; `skip`: sdpa may do without one. `blocks` that tokens
    belong to are seen from both sides, and sdpa never does without a mask."""
    machine = inputs_embeds.machine
    if machine.era.masks_in_model:
        return older.causal_mask(attention_mask, inputs_embeds, window)
    if machine.packs:
        return packed_mask(attention_mask, inputs_embeds, window, blocks)
    attention_mask = attention_mask.to(BOOL)
    if machine.is_flash:
        attention_mask.all()
        return None
    pattern = causal if window is None else and_(within(window), causal)
    if blocks is not None:
        pattern = or_(pattern, same_block(blocks))
    if machine.attention == "eager":
        return eager_mask(attention_mask, inputs_embeds, pattern, window)
    traced = machine.graph is not None  # a compiler cannot see that all tokens are real (`is_tracing`)
    queries = None if machine.cache is None else inputs_embeds.shape[1]
    return sdpa_mask(attention_mask, pattern, window, skip and blocks is None and not traced, queries)


def window_of_blocks_mask(attention_mask: Tensor, inputs_embeds: Tensor, blocks: Tensor, window: int) -> Tensor | None:
    """`create_causal_mask` with functions of its own for what is seen besides (`blocks`, from both sides) and what of
    all that at most (a window): it is drawn by vmap (transformers/models/gemma3/modeling_gemma3.py,
    `create_masks_for_vision_model`)."""
    machine = inputs_embeds.machine
    attention_mask = attention_mask.to(BOOL)
    if machine.is_flash:
        attention_mask.all()
        return None
    pattern = and_(or_(causal, same_block(blocks), by_vmap=True), within(window), by_vmap=True)
    mask = sdpa_mask(attention_mask, pattern, None, skip=False, by_vmap=True)
    assert mask is not None
    return as_numbers(mask, inputs_embeds.dtype) if machine.attention == "eager" else mask


def recurrent_mask(attention_mask: Tensor) -> Tensor | None:
    """`create_recurrent_attention_mask`: which tokens are real, where some are not."""
    machine = attention_mask.machine
    if machine.packs:
        return None
    if machine.graph is None:
        attention_mask.eq(1).all()
        if not machine.masked:
            return None
    return attention_mask


def packed_mask(
    position_ids: Tensor, inputs_embeds: Tensor, window: int | None, blocks: Tensor | None = None
) -> Tensor:
    """Without a mask of padding, positions tell samples apart (`find_packed_sequence_indices`)."""
    machine, length = position_ids.machine, position_ids.shape[1]
    packed_sequence_mask = sequence_indices(position_ids)
    pattern = causal if window is None else and_(within(window), causal)
    pattern = and_(pattern, same_sequence(packed_sequence_mask))
    if blocks is not None:
        pattern = or_(pattern, same_block(blocks))
    if machine.attention == "eager":
        return as_numbers(draw_mask(machine, 1, length, pattern), inputs_embeds.dtype)
    return draw_mask(machine, 1, length, pattern)


def sequence_indices(position_ids: Tensor) -> Tensor:
    machine, (batch, length) = position_ids.machine, position_ids.shape
    first_dummy_value = machine.run("sub", (position_ids,), (batch, 1), INT64)
    joined = machine.run("cat", (first_dummy_value, position_ids), (batch, length + 1), INT64)
    position_diff = machine.run("sub", (joined, joined), (batch, length), INT64)
    del joined
    changes = position_diff.ne(1)
    packed_sequence_mask = machine.run("cumsum", (changes,), (batch, length), INT64, args=(changes, -1))
    del changes
    alone = machine.run("eq", (packed_sequence_mask,), (batch,), BOOL)
    machine.run("all", (alone,), (), BOOL, args=(alone,))
    return packed_sequence_mask


def same_sequence(packed_sequence_mask: Tensor) -> Pattern:
    def pattern(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        queries_sequence = look_up(packed_sequence_mask, batch_idx, q_idx)
        return queries_sequence.eq(look_up(packed_sequence_mask, batch_idx, kv_idx))

    return pattern


def sdpa_mask(
    padding_mask: Tensor, pattern: Pattern, window: int | None, skip: bool = True, queries: int | None = None,
    by_vmap: bool = False,
) -> Tensor | None:  # fmt: skip
    """`queries`: the last tokens, where keys of those before are kept."""
    machine = padding_mask.machine
    batch, length = padding_mask.shape
    keys = length if queries is None else keys_kept(queries, length, window)
    if skip and (window is None or keys < window):
        if machine.era.sums_mask:
            all_true = padding_mask.sum(range(2))
            all_true.eq(1)
        else:
            padding_mask.all()
        if not machine.masked:
            return None
    pattern = and_(pattern, padding(padding_mask), by_vmap=by_vmap)
    return draw_mask(machine, batch, length if queries is None else queries, pattern, keys)


def keys_kept(queries: int, length: int, window: int | None) -> int:
    """transformers/cache_utils.py, `get_mask_sizes`: of a layer with a window, its last tokens once it is full."""
    return length if window is None or length - queries < window else window - 1 + queries


def draw_mask(machine: Machine, batch: int, length: int, pattern: Pattern, keys: int | None = None) -> Tensor:
    """Of `length` queries and as many keys, or so many."""
    keys = length if keys is None else keys
    if not machine.era.adds_positions:  # made first, and counted up in place; `cache_position` is there already
        kv_arange = q_arange = machine.run("arange", (), (length,), INT64)
    batch_arange = machine.run("arange", (), (batch,), INT64)
    head_arange = machine.run("arange", (), (1,), INT64)
    if machine.era.adds_positions:
        q_arange = positions(machine, length)
        kv_arange = positions(machine, keys)
    attention_mask = pattern(
        batch_arange.view(batch, 1, 1, 1), head_arange.view(1, 1, 1, 1),
        q_arange.view(1, 1, length, 1), kv_arange.view(1, 1, 1, keys),
    )  # fmt: skip
    return attention_mask.expand(batch, 1, length, keys)


def positions(machine: Machine, length: int) -> Tensor:
    return machine.run("arange", (), (length,), INT64) + 0


def eager_mask(padding_mask: Tensor, inputs_embeds: Tensor, pattern: Pattern, window: int | None = None) -> Tensor:
    """The same, as 0 and the lowest number."""
    queries = None if padding_mask.machine.cache is None else inputs_embeds.shape[1]
    mask = sdpa_mask(padding_mask, pattern, window, skip=False, queries=queries)
    assert mask is not None
    return as_numbers(mask, inputs_embeds.dtype)


def as_numbers(mask: Tensor, dtype: Dtype) -> Tensor:
    machine = mask.machine
    zero = machine.run("scalar_tensor", (), (), dtype)
    lowest = machine.run("scalar_tensor", (), (), dtype)
    return machine.run("where", (mask, zero, lowest), mask.shape, dtype)


def causal(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return kv_idx.le(q_idx)


def within(window: int) -> Pattern:
    def pattern(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx.gt(q_idx - window)

    return pattern


def padding(padding_mask: Tensor) -> Pattern:
    def pattern(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return look_up(padding_mask, batch_idx, kv_idx)

    return pattern


def same_block(block_sequence_ids: Tensor) -> Pattern:
    """`blockwise_overlay`."""

    def pattern(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        q_group = look_up(block_sequence_ids, batch_idx, q_idx)
        kv_group = look_up(block_sequence_ids, batch_idx, kv_idx)
        return q_group.eq(kv_group) & q_group.ge(0)

    return pattern


def look_up(table: Tensor, batch_idx: Tensor, idx: Tensor) -> Tensor:
    shape = broadcast(batch_idx.shape, idx.shape)
    return table.machine.run("index", (table, batch_idx, idx), shape, table.dtype, args=(table, [batch_idx, idx]))


def or_(*patterns: Pattern, by_vmap: bool = False) -> Pattern:
    def either(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        result = q_idx.machine.run("new_zeros", (), q_idx.shape if by_vmap else (), BOOL)
        for pattern in patterns:
            result = result | pattern(batch_idx, head_idx, q_idx, kv_idx)
        return result

    return either


def and_(*patterns: Pattern, by_vmap: bool = False) -> Pattern:
    """`by_vmap`: each number is computed by itself, as far as the code is concerned (`use_vmap`)."""

    def both(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        machine = q_idx.machine
        under_vmap = by_vmap or not machine.era.adds_positions  # there a number is one a query
        result = machine.run("new_ones", (), q_idx.shape if under_vmap else (), BOOL)
        for pattern in patterns:
            result = result & pattern(batch_idx, head_idx, q_idx, kv_idx)
        return result

    return both
