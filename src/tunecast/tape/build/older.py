"""What models did themselves before transformers had it in one place: masks until 4.52, attention until 4.47."""

from __future__ import annotations

from typing import Any

from tunecast.tape.build import attention, flash
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Dtype
from tunecast.tape.build.tensor import Tensor


def causal_mask(attention_mask: Tensor, inputs_embeds: Tensor, window: int | None = None) -> Any:
    """`_update_causal_mask`: none where every token is real and the kernel can do without."""
    machine, dtype = inputs_embeds.machine, inputs_embeds.dtype
    length = attention_mask.shape[1]
    if machine.is_flash:
        zeros = attention_mask.eq(0)
        zeros.any()
        return None
    if machine.attention == "sdpa" and (window is None or length < window or not machine.era.windows_with_sdpa):
        ones = attention_mask.eq(1)
        ones.all()
        return None
    mask = four_dimensional(attention_mask, length, window, dtype)
    if machine.attention == "sdpa":
        attended = mask.eq(0).all(-1, keepdim=True)
        attended = ~attended
        mask = mask * attended
    return mask


def four_dimensional(attention_mask: Tensor, length: int, window: int | None, dtype: Dtype) -> Tensor:
    """`_prepare_4d_causal_attention_mask_with_cache_position`: the lowest number where a query may not look. (Mistral
    cut no triangle either where it has no window: one [length, length] less for a moment.)"""
    machine, square = attention_mask.machine, (length, length)
    causal_mask = machine.run("full", (), square, dtype)
    if window is None:
        causal_mask = machine.run("triu", (causal_mask,), square, dtype)
        machine.run("gt", (machine.run("arange", (), (length,), INT64),), square, BOOL)
    else:
        _diagonal_attend_mask = machine.run("gt", (machine.run("arange", (), (length,), INT64),), square, BOOL)
        columns = machine.run("arange", (), (length,), INT64)
        sliding_attend_mask = machine.run("le", (columns, machine.run("sub", (), (length, 1), INT64)), square, BOOL)
        del columns
        if machine.era.attends_by_class:
            del sliding_attend_mask
    machine.launch("mul_", (causal_mask,), dtype, causal_mask.nbytes)
    shape = (attention_mask.shape[0], 1, *square)
    causal_mask = machine.run("clone", (causal_mask,), shape, dtype)
    padding_mask = machine.run("add", (causal_mask, attention_mask), shape, dtype)
    padding_mask = machine.run("eq", (padding_mask,), shape, BOOL)
    machine.run("masked_fill", (causal_mask, padding_mask), shape, dtype)
    return causal_mask


def project(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All three products first."""
    batch, length, _ = hidden_states.shape
    query_states = self.q_proj(hidden_states)
    key_states = self.k_proj(hidden_states)
    value_states = self.v_proj(hidden_states)
    query_states = query_states.view(batch, length, -1, self.head_dim).transpose(1, 2)
    key_states = key_states.view(batch, length, -1, self.head_dim).transpose(1, 2)
    value_states = value_states.view(batch, length, -1, self.head_dim).transpose(1, 2)
    return query_states, key_states, value_states


def attention_forward(
    self: Any, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
) -> tuple[Tensor, Any]:
    """LlamaAttention, LlamaSdpaAttention and LlamaFlashAttention2 until 4.47: each name is bound anew as soon as its
    tensor is, in one function, so that keys and values go once they are repeated."""
    batch, length, _ = hidden_states.shape
    query_states, key_states, value_states = self.project(hidden_states)
    if position_embeddings is None:
        position_embeddings = self.rotary_emb(value_states, position_ids)
    query_states, key_states = self.apply_rotary(query_states, key_states, position_embeddings)
    if self.machine.is_flash:
        if self.repeats_for_flash:
            key_states = attention.repeat_kv(key_states, self.groups)
            value_states = attention.repeat_kv(value_states, self.groups)
        query_states = query_states.transpose(1, 2)
        key_states = key_states.transpose(1, 2)
        value_states = value_states.transpose(1, 2)
        if query_states.dtype == FLOAT32:
            dtype = flash.taken_dtype(query_states)
            query_states = query_states.to(dtype)
            key_states = key_states.to(dtype)
            value_states = value_states.to(dtype)
        attn_output = flash.attend(
            query_states, key_states, value_states, self.dropout, self.window, self.softcap, position_ids
        )
        return self.o_proj(attn_output.reshape(batch, length, -1).contiguous()), None
    key_states = attention.repeat_kv(key_states, self.groups)
    value_states = attention.repeat_kv(value_states, self.groups)
    if self.machine.attention == "sdpa" and attention_mask is not None:
        query_states = query_states.contiguous()
        key_states = key_states.contiguous()
        value_states = value_states.contiguous()
    attn_output, _attn_weights = attention.attend(
        query_states, key_states, value_states, attention_mask, 1, self.dropout, softcap=self.softcap
    )
    attn_output = attn_output.reshape(batch, length, -1)
    attn_output = self.o_proj(attn_output)
    return attn_output, None
