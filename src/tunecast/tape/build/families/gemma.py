"""Gemma 1 to 3: norms in fp32 that add one to their weight, embeddings times a number; from 2 on norms on both sides
of a block, capped logits and windows, in 3 norms of queries and keys and two rotary bases
(transformers/models/gemma*/modeling_gemma*.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder, ops
from tunecast.tape.build.decoder import FULL, SLIDING, Config, Step
from tunecast.tape.build.modules import Embedding, Module
from tunecast.tape.build.tensor import FLOAT32, Machine, Tensor


class ScaledEmbedding(Embedding):
    def __init__(self, machine: Machine, rows: int, width: int) -> None:
        super().__init__(machine, rows, width)
        if not machine.era.scales_embeddings_in_model:
            self.embed_scale = self.buffer(dtype=machine.weights_dtype)

    def forward(self, ids: Tensor) -> Tensor:
        if self.machine.era.scales_embeddings_in_model:
            return super().forward(ids)
        out = ops.multiply(ops.embedding(self.weight, ids), ops.to(self.embed_scale, self.weight.dtype))
        if self.gives_gradient:
            out.requires_grad = True
        return out


class GemmaNorm(Module):
    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width)

    def _norm(self, x: Tensor) -> Tensor:
        return ops.multiply(x, ops.rsqrt(ops.shift(ops.mean(ops.power(x), -1))))

    def forward(self, x: Tensor) -> Tensor:
        output = self._norm(ops.to(x, FLOAT32))
        output = ops.multiply(output, ops.shift(ops.to(self.weight, FLOAT32)))
        return ops.to(output, x.dtype)


class GemmaLayer(decoder.Layer):
    norm_class: Any = GemmaNorm


class GemmaDecoder(decoder.Decoder):
    layer_class: Any = GemmaLayer
    norm_class: Any = GemmaNorm
    embedding_class: Any = ScaledEmbedding

    def entering(self, inputs_embeds: Tensor) -> Tensor:
        return ops.scale(inputs_embeds) if not self.rotates else inputs_embeds

    def entering_late(self, hidden_states: Tensor) -> Tensor:
        """Until transformers 4 the model scaled, a name of its own for the result."""
        scales = self.rotates and self.machine.era.scales_embeddings_in_model
        return ops.scale(hidden_states) if scales else hidden_states


class Gemma(decoder.CausalLM):
    decoder_class: Any = GemmaDecoder
    defaults: ClassVar[Config] = {"head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}


class SandwichLayer(GemmaLayer):
    """A norm before and after attention, and before and after the MLP."""

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.pre_feedforward_layernorm = GemmaNorm(machine, config["hidden_size"])
        self.post_feedforward_layernorm = GemmaNorm(machine, config["hidden_size"])

    def after_attention(self, hidden_states: Tensor) -> Tensor:
        return self.post_attention_layernorm(hidden_states)  # type: ignore[no-any-return]

    def before_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.pre_feedforward_layernorm(hidden_states)  # type: ignore[no-any-return]

    def after_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.post_feedforward_layernorm(hidden_states)  # type: ignore[no-any-return]


def divide_by_cap(logits: Tensor) -> Tensor:
    return ops.scale(logits, "div")


CAPPED: Sequence[Step] = (divide_by_cap, ops.tanh, ops.scale)
"""Logits kept within plus and minus a number."""


class Gemma2Decoder(GemmaDecoder):
    layer_class: Any = SandwichLayer

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.mask_kinds = (FULL, SLIDING)


class Gemma2(decoder.CausalLM):
    decoder_class: Any = Gemma2Decoder
    defaults: ClassVar[Config] = {
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 4096,
        "num_key_value_heads": 4, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
    }  # fmt: skip
    pattern = 2

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        if self.completed(config)["final_logit_softcapping"] is not None:
            self.after_head = CAPPED

    def completed(self, config: Config) -> dict[str, Any]:
        whole = super().completed({"sliding_window_pattern": self.pattern, **config})
        return {**whole, "hidden_act": whole["hidden_activation"]}

    def layer_types(self, config: Config) -> Sequence[str]:
        """Of so many layers the last attends to everything."""
        every = config["sliding_window_pattern"]
        kinds = [SLIDING if (i + 1) % every else FULL for i in range(config["num_hidden_layers"])]
        return config.get("layer_types") or kinds


class Gemma3Attention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.q_norm = GemmaNorm(machine, self.head_dim)
        self.k_norm = GemmaNorm(machine, self.head_dim)
        self.softcap = None

    def projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query_states, key_states, value_states = super().projected(hidden_states)
        query_states = self.q_norm(query_states)
        key_states = self.k_norm(key_states)
        return query_states, key_states, value_states


class Gemma3Layer(SandwichLayer):
    attention_class: Any = Gemma3Attention


class Gemma3Decoder(Gemma2Decoder):
    layer_class: Any = Gemma3Layer
    rotary_class: Any = decoder.RotaryByKind


class Gemma3(Gemma2):
    decoder_class: Any = Gemma3Decoder
    defaults: ClassVar[Config] = {**Gemma2.defaults, "final_logit_softcapping": None, "attn_logit_softcapping": None}
    pattern = 6
