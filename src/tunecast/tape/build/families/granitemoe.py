"""GraniteMoE: experts, and Granite's factors at embedding, residuals, attention and logits
(transformers/models/granitemoe/modeling_granitemoe.py)."""

from __future__ import annotations

from typing import ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import FULL, Config
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.experts import Experts, Router, top_k
from tunecast.tape.build.families import granite
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module, RMSNorm
from tunecast.tape.build.tensor import Tensor

DEFAULTS: Config = {"num_local_experts": 8, "num_experts_per_tok": 2}


class GraniteRouter(Router):
    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        router_logits = F.linear(hidden_states, self.weight).float()
        top_k_logits, top_k_index = top_k(router_logits, self.top_k)
        top_k_weights = F.softmax(top_k_logits).to(hidden_states.dtype)
        return top_k_index, top_k_weights, router_logits


class SparseMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        experts, hidden = config["num_local_experts"], config["hidden_size"]
        self.router = GraniteRouter(machine, experts, hidden, config["num_experts_per_tok"])
        inner = config["intermediate_size"]
        self.experts = Experts(machine, experts, hidden, inner, config.get("hidden_act", "silu"))

    def forward(self, layer_input: Tensor) -> Tensor:
        bsz, length, emb_size = layer_input.shape
        hidden_states = layer_input.reshape(-1, emb_size)
        top_k_index, top_k_weights, _ = self.router(hidden_states)
        layer_output = self.experts(hidden_states, top_k_index, top_k_weights)
        return layer_output.view(bsz, length, emb_size)


class Layer(granite.Layer):
    """Granite's, with the experts registered last and under another name."""

    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        Module.__init__(self, machine)
        self.self_attn = decoder.SelfAttention(machine, config, index)
        self.input_layernorm = RMSNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = RMSNorm(machine, config["hidden_size"])
        self.block_sparse_moe = SparseMoe(machine, config)

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        return self.block_sparse_moe(hidden_states)


class Decoder(decoder.Decoder):
    embedding_multiplier = 1.0

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        """The embedding is scaled after the mask is made, and replaced."""
        machine = self.machine
        inputs_embeds = self.embed_tokens(input_ids)
        length = input_ids.shape[1]
        position_ids = machine.run("add", (machine.run("arange", (), (length,), INT64),), (length,), INT64)
        position_ids = position_ids.unsqueeze(0)
        masks = self.masks(attention_mask, inputs_embeds)
        inputs_embeds = inputs_embeds * self.embedding_multiplier
        hidden_states = inputs_embeds
        position_embeddings = self.positions(hidden_states, position_ids)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(
                hidden_states, attention_mask=masks[FULL], position_embeddings=position_embeddings[FULL],
                position_ids=position_ids,
            )  # fmt: skip
        hidden_states = self.norm(hidden_states)
        return hidden_states


class CausalLM(decoder.CausalLM):
    decoder_class = Decoder
    layer_class = Layer
    defaults: ClassVar[Config] = DEFAULTS
    logit_steps = granite.CausalLM.logit_steps
