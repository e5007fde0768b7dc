"""Granite: Llama with numbers multiplied in (transformers/models/granite/modeling_granite.py)."""

from __future__ import annotations

from typing import Any

from tunecast.tape.build import decoder, ops
from tunecast.tape.build.tensor import Tensor


class Layer(decoder.Layer):
    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
        hidden_states = ops.add(residual, ops.scale(hidden_states))
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = ops.add(residual, ops.scale(hidden_states))
        return hidden_states


class Decoder(decoder.Decoder):
    layer_class: Any = Layer
    after_embedding = (ops.scale,)


class CausalLM(decoder.CausalLM):
    decoder_class: Any = Decoder
    after_head = (lambda logits: ops.scale(logits, "div"),)
