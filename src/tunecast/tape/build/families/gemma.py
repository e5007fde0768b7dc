"""Gemma 1 to 3: norms in fp32 that add one to their weight, embeddings times a number; from 2 on norms on both sides
of a block, capped logits and windows, in 3 norms of queries and keys and two rotary bases
(transformers/models/{gemma,gemma2,gemma3})."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, Module
from tunecast.tape.build.tensor import Tensor


class ScaledEmbedding(Embedding):
    def __init__(self, machine: Machine, rows: int, width: int) -> None:
        super().__init__(machine, rows, width)
        if not machine.era.scales_embeddings_in_model:
            self.embed_scale = self.buffer(dtype=machine.weights_dtype)

    def forward(self, ids: Tensor) -> Tensor:
        if self.machine.era.scales_embeddings_in_model:
            return super().forward(ids)
        out = F.embedding(self.weight, ids) * self.embed_scale.to(self.weight.dtype)
        if self.gives_gradient:
            out.requires_grad = True
        return out


class GemmaNorm(Module):
    eps = 1e-6

    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width)

    def _norm(self, x: Tensor) -> Tensor:
        return x * F.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        output = self._norm(x.float())
        output = output * (self.weight.float() + 1.0)
        return output.to(x.dtype)


class GemmaDecoder(decoder.Decoder):
    normalizer = 1.0

    def first_hidden_states(self, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds * self.normalizer if not self.rotates else inputs_embeds

    def scale_hidden_states(self, hidden_states: Tensor) -> Tensor:
        """Until transformers 4 the model scaled, a name of its own for the result."""
        scales = self.rotates and self.machine.era.scales_embeddings_in_model
        return hidden_states * self.normalizer if scales else hidden_states


class Gemma(decoder.CausalLM):
    decoder_class = GemmaDecoder
    norm_class = GemmaNorm
    embedding_class = ScaledEmbedding
    defaults: ClassVar[Config] = {"head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}


class SandwichLayer(decoder.Layer):
    """A norm before and after attention, and before and after the MLP."""

    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, index, family)
        self.pre_feedforward_layernorm = GemmaNorm(machine, config["hidden_size"])
        self.post_feedforward_layernorm = GemmaNorm(machine, config["hidden_size"])

    def after_attention(self, hidden_states: Tensor) -> Tensor:
        return self.post_attention_layernorm(hidden_states)

    def before_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.pre_feedforward_layernorm(hidden_states)

    def after_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.post_feedforward_layernorm(hidden_states)


class Gemma2(Gemma):
    layer_class = SandwichLayer
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 4096,
        "num_key_value_heads": 4, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
    }  # fmt: skip
    pattern = 2
    is_capped = True
    """Attention scores are."""

    def __init__(self, machine: Machine, config: Config) -> None:
        if machine.attention == "sdpa" and self.is_capped and machine.era.refuses_capped_sdpa:
            machine.use_eager_attention()
        super().__init__(machine, config)
        softcap = self.complete(config)["final_logit_softcapping"]
        if softcap is not None:
            self.logit_steps = (lambda logits: logits / softcap, Tensor.tanh, lambda logits: logits * softcap)

    def complete(self, config: Config) -> dict[str, Any]:
        whole = super().complete({"sliding_window_pattern": self.pattern, **config})
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

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query_states, key_states, value_states = super().project(hidden_states)
        query_states = self.q_norm(query_states)
        key_states = self.k_norm(key_states)
        return query_states, key_states, value_states


class Gemma3(Gemma2):
    attention_class = Gemma3Attention
    rotary_class = decoder.RotaryByKind
    defaults: ClassVar[Config] = {**Gemma2.defaults, "final_logit_softcapping": None, "attn_logit_softcapping": None}
    pattern = 6
    is_capped = False
