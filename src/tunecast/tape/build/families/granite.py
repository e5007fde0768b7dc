"""Granite: Llama with numbers multiplied in (transformers/models/granite/modeling_granite.py)."""

from __future__ import annotations

from tunecast.tape.build import decoder
from tunecast.tape.build.tensor import Tensor


class Layer(decoder.Layer):
    residual_multiplier = 1.0

    def attention_branch(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.residual_multiplier

    def mlp_branch(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.residual_multiplier


class Decoder(decoder.Decoder):
    embedding_multiplier = 1.0

    def scale_embeddings(self, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds * self.embedding_multiplier


class CausalLM(decoder.CausalLM):
    decoder_class = Decoder
    layer_class = Layer
    logit_steps = (lambda logits: logits / 8.0,)
