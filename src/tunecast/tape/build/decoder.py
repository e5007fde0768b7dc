"""The causal language model on paper, after transformers' modeling files (5.17.0)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.tape.build import attention, ops
from tunecast.tape.build.autograd import checkpointed
from tunecast.tape.build.modules import Activation, Embedding, Linear, Module, ModuleList, RMSNorm
from tunecast.tape.build.tensor import BOOL, FLOAT32, INT64, Machine, Tensor

Config = Mapping[str, Any]


class RotaryEmbedding(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.width = head_dim(config)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine = self.machine
        length, half = position_ids.shape[1], self.width // 2
        position_ids_expanded = machine.run("_to_copy", (position_ids,), (1, 1, length), FLOAT32)
        inverse = Tensor(machine, position_ids_expanded.storage, (1, half, 1), FLOAT32)
        freqs = machine.run(
            "bmm", (inverse, position_ids_expanded), (1, half, length), FLOAT32, 2 * half * length,
            args=(inverse, position_ids_expanded),
        )  # fmt: skip
        emb = machine.run("cat", (freqs, freqs), (1, length, self.width), FLOAT32)
        cos = ops.map_("mul", ops.map_("cos", emb))
        sin = ops.map_("mul", ops.map_("sin", emb))
        return ops.to(cos, x.dtype), ops.to(sin, x.dtype)


def head_dim(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


class SelfAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        self.head_dim = head_dim(config)
        self.groups = heads // kv_heads
        bias = bool(config.get("attention_bias", False))
        self.q_proj = Linear(machine, hidden, heads * self.head_dim, bias)
        self.k_proj = Linear(machine, hidden, kv_heads * self.head_dim, bias)
        self.v_proj = Linear(machine, hidden, kv_heads * self.head_dim, bias)
        self.o_proj = Linear(machine, heads * self.head_dim, hidden, bias)

    def forward(self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any) -> Tensor:
        batch, length, _ = hidden_states.shape
        query_states = ops.transpose(ops.view(self.q_proj(hidden_states), batch, length, -1, self.head_dim), 1, 2)
        key_states = ops.transpose(ops.view(self.k_proj(hidden_states), batch, length, -1, self.head_dim), 1, 2)
        value_states = ops.transpose(ops.view(self.v_proj(hidden_states), batch, length, -1, self.head_dim), 1, 2)
        cos, sin = position_embeddings
        query_states, key_states = attention.apply_rotary(query_states, key_states, cos, sin)
        attn_output = attention.scaled_dot_product(
            query_states, key_states, value_states, attention_mask, gqa=self.groups > 1
        )
        attn_output = ops.contiguous(ops.transpose(attn_output, 1, 2))
        attn_output = ops.contiguous(ops.reshape(attn_output, batch, length, -1))
        attn_output = self.o_proj(attn_output)
        return attn_output  # type: ignore[no-any-return]


class GatedMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        bias = bool(config.get("mlp_bias", False))
        self.gate_proj = Linear(machine, hidden, inner, bias)
        self.up_proj = Linear(machine, hidden, inner, bias)
        self.down_proj = Linear(machine, inner, hidden, bias)
        self.act_fn = Activation(machine, config.get("hidden_act", "silu"))

    def forward(self, x: Tensor) -> Tensor:
        down_proj = self.down_proj(ops.multiply(self.act_fn(self.gate_proj(x)), self.up_proj(x)))
        return down_proj  # type: ignore[no-any-return]


class CheckpointingLayer(Module):
    """transformers/modeling_layers.py, `GradientCheckpointingLayer`: keyword arguments are held by the closure."""

    checkpoint = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.checkpoint:
            return super().__call__(*args, **kwargs)

        def again(*args: Any) -> Any:
            return super(CheckpointingLayer, self).__call__(*args, **kwargs)

        return checkpointed(self.machine, again, *args)


class Layer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.self_attn = SelfAttention(machine, config)
        self.mlp = GatedMLP(machine, config)
        self.input_layernorm = RMSNorm(machine, hidden)
        self.post_attention_layernorm = RMSNorm(machine, hidden)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask
        )
        hidden_states = ops.add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = ops.add(residual, hidden_states)
        return hidden_states


class Decoder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.embed_tokens = Embedding(machine, config["vocab_size"], config["hidden_size"])
        self.layers = ModuleList(machine)
        for _ in range(config["num_hidden_layers"]):
            self.layers.append(Layer(machine, config))
        self.norm = RMSNorm(machine, config["hidden_size"])
        self.rotary_emb = RotaryEmbedding(machine, config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        machine = self.machine
        inputs_embeds = self.embed_tokens(input_ids)
        length = input_ids.shape[1]
        position_ids = machine.run("add", (machine.run("arange", (), (length,), INT64),), (length,), INT64)
        position_ids = ops.unsqueeze(position_ids, 0)
        causal_mask = self.causal_mask(attention_mask)
        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(
                hidden_states, attention_mask=causal_mask, position_embeddings=position_embeddings,
                position_ids=position_ids,
            )  # fmt: skip
        hidden_states = self.norm(hidden_states)
        return hidden_states  # type: ignore[no-any-return]

    def causal_mask(self, attention_mask: Tensor) -> Any:
        """Nothing is masked but the future: the kernel is told so and needs no mask (masking_utils.py)."""
        machine = self.machine
        flags = machine.run("_to_copy", (attention_mask,), attention_mask.shape, BOOL)
        all_true = ops.total(flags, range(flags.dim()), dtype=INT64)
        machine.run("eq", (all_true,), (), BOOL)
        return None


class CausalLM(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.model = Decoder(machine, config)
        self.vocabulary = config["vocab_size"]
        self.lm_head = Linear(machine, config["hidden_size"], self.vocabulary)
        self.tied = bool(config.get("tie_word_embeddings", False))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        hidden_states = self.model(input_ids, attention_mask=attention_mask)
        logits = self.lm_head(ops.alias(hidden_states))
        return self.loss(logits, labels)

    def layers(self) -> Iterator[Any]:
        return iter(self.model.layers)

    def input_embedding(self) -> Any:
        return self.model.embed_tokens

    def output_embedding(self) -> Any:
        return self.lm_head

    def tie(self) -> None:
        if self.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """transformers/loss/loss_utils.py, `ForCausalLMLoss`; the caller keeps the logits."""
        machine = self.machine
        batch, length = labels.shape
        upcast = ops.to(logits, FLOAT32)
        labels = machine.run("constant_pad_nd", (labels,), (batch, length + 1), INT64)
        shift_labels = machine.run("clone", (labels,), (batch, length), INT64)
        upcast = ops.view(upcast, -1, self.vocabulary)
        shift_labels = ops.view(shift_labels, -1)
        return ops.cross_entropy(upcast, shift_labels)
