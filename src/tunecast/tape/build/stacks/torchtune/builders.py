"""From a config.json to torchtune's builders (torchtune/models/*/_component_builders.py of 0.6.1, those of Qwen 3 of
the repository after it)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Embedding, Linear, Module, ModuleList
from tunecast.tape.build.stacks.torchtune import modules
from tunecast.tape.build.stacks.torchtune.attentions import (
    Gemma2Attention,
    Gemma2FinalNorm,
    Qwen3Attention,
    ScaledSelfAttentionLayer,
)
from tunecast.tape.build.stacks.torchtune.dora import DoRALinear
from tunecast.tape.build.stacks.torchtune.first import CausalSelfAttention, FirstFeedForward, TransformerDecoderLayer
from tunecast.tape.build.stacks.torchtune.nf4 import FrozenNF4Linear, QuantizedLoRALinear

Config = Mapping[str, Any]
Release = tuple[int, int]
NEWEST: Release = (0, 6)
FIRST: Release = (0, 1)
UNRELEASED: Release = (0, 7)
"""The repository after its last release."""


class Family(NamedTuple):
    rope: type[modules.RotaryPositionalEmbeddings] = modules.RotaryPositionalEmbeddings
    qkv_bias: bool = False
    activation: str = "silu"
    norm: type[modules.RMSNorm] = modules.RMSNorm
    embedding: type[Embedding] = Embedding
    ties: bool | None = None
    """Whether embedding and head are one; None: as config.json says."""
    most_positions: int = 1 << 30
    """Where the model builder's table is shorter than config.json's."""
    quantizes_all: bool = True
    """With QLoRA also the layers that are not adapted."""
    since: Release = FIRST


FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(ties=False),
    "gemma": Family(activation="gelu", norm=modules.GemmaRMSNorm, embedding=modules.GemmaNormEmbeddings, ties=True),
    "gemma2": Family(
        activation="gelu", norm=modules.GemmaRMSNorm, embedding=modules.GemmaNormEmbeddings, ties=True, since=(0, 5)
    ),
    "qwen2": Family(
        rope=modules.Qwen2RotaryPositionalEmbeddings, qkv_bias=True, most_positions=32768, quantizes_all=False
    ),
    "qwen3": Family(rope=modules.Qwen2RotaryPositionalEmbeddings, quantizes_all=False, since=UNRELEASED),
    "phi3": Family(rope=modules.HalvesRotaryPositionalEmbeddings, ties=False),
}
"""By config.json's `model_type`."""


class Adapters(NamedTuple):
    """What the builders are told of LoRA."""

    targets: Collection[str] = ()
    """By the names config.json's own model has: q_proj, ..., gate_proj, ..., lm_head."""
    rank: int = 0
    dropout: float = 0.0
    quantize_base: bool = False
    dora: bool = False


WITHOUT = Adapters()


def build(
    machine: Machine, config: Config, adapters: Adapters = WITHOUT, release: Release = NEWEST
) -> modules.TransformerDecoder | None:
    family = FAMILIES.get(config["model_type"])
    if family is None or release < family.since:
        return None
    return _Builder(machine, config, family, adapters, release).model()


class _Builder:
    def __init__(self, machine: Machine, config: Config, family: Family, adapters: Adapters, release: Release) -> None:
        self.machine, self.config, self.family, self.adapters, self.release = machine, config, family, adapters, release
        self.old = release < (0, 5)
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.shared_rope: modules.RotaryPositionalEmbeddings | None = None

    def model(self) -> modules.TransformerDecoder:
        machine, config = self.machine, self.config
        layers = ModuleList(machine, [self.layer(number) for number in range(config["num_hidden_layers"])])
        tok_embeddings = self.family.embedding(machine, config["vocab_size"], config["hidden_size"])
        output: Module
        ties = bool(config.get("tie_word_embeddings")) if self.family.ties is None else self.family.ties
        if ties:
            output = modules.TiedLinear(tok_embeddings)
        else:
            output = self.linear("lm_head", config["hidden_size"], config["vocab_size"])
        kind = modules.TransformerDecoder4 if self.old else modules.TransformerDecoder
        norm: Module = self.norm(config["hidden_size"])
        if config["model_type"] == "gemma2":
            norm = Gemma2FinalNorm(machine, self.norm(config["hidden_size"]))
        return kind(machine, tok_embeddings, layers, norm, output)

    def layer(self, number: int) -> modules.TransformerSelfAttentionLayer:
        machine, hidden, inner = self.machine, self.config["hidden_size"], self.config["intermediate_size"]
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = self.family.qkv_bias
        projections = [
            self.linear("q_proj", hidden, wide, bias),
            self.linear("k_proj", hidden, narrow, bias),
            self.linear("v_proj", hidden, narrow, bias),
            self.linear("o_proj", wide, hidden),
        ]
        attn = self.attention(number, projections)
        gates = [
            self.linear("gate_proj", hidden, inner),
            self.linear("down_proj", inner, hidden),
            self.linear("up_proj", hidden, inner),
        ]
        feed_forward, layer = modules.FeedForward, modules.TransformerSelfAttentionLayer
        if self.release == FIRST:
            feed_forward, layer = FirstFeedForward, TransformerDecoderLayer
        mlp = feed_forward(machine, gates, Activation(machine, self.family.activation))
        norms = [self.norm(hidden) for _ in range(2)]
        if self.config["model_type"] == "gemma2":
            return ScaledSelfAttentionLayer(machine, attn, mlp, norms, [self.norm(hidden) for _ in range(2)])
        return layer(machine, attn, mlp, norms)

    def attention(self, number: int, projections: Sequence[Module]) -> modules.MultiHeadAttention:
        heads, head_dim, kind = (self.heads, self.kv_heads), self.head_dim, self.config["model_type"]
        if kind == "qwen3":
            norms = [self.norm(head_dim) for _ in range(2)]
            return Qwen3Attention(self.machine, projections, heads, head_dim, self.rope(), norms)
        if kind == "gemma2":
            made = Gemma2Attention(self.machine, projections, heads, head_dim, self.rope())
            made.sliding_window_size = self.config.get("sliding_window", 4096) if number % 2 == 0 else None
            return made
        attention = modules.MultiHeadAttention4 if self.old else modules.MultiHeadAttention
        if self.release == FIRST:
            attention = CausalSelfAttention
        return attention(self.machine, projections, heads, head_dim, self.rope())

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = False) -> Linear:
        adapters = self.adapters
        quantized = adapters.quantize_base and name != "lm_head"
        if name not in adapters.targets:
            quantized = quantized and self.family.quantizes_all
        else:
            kind: type[modules.LoRALinear] = DoRALinear if adapters.dora else modules.LoRALinear
            kind = QuantizedLoRALinear if quantized else kind
            return kind(self.machine, inputs, outputs, bias, adapters.rank, adapters.dropout)
        return (FrozenNF4Linear if quantized else Linear)(self.machine, inputs, outputs, bias)

    def norm(self, width: int) -> modules.RMSNorm:
        kind = self.family.norm
        written_out = self.old or self.release >= UNRELEASED
        return (modules.RMSNorm4 if written_out and kind is modules.RMSNorm else kind)(self.machine, width)

    def rope(self) -> modules.RotaryPositionalEmbeddings:
        """One table for all layers where Llama 3.1's scaling is, and in the builders without LoRA; those with LoRA
        make one a layer, and before 0.5 a layer was copied whole."""
        positions = min(self.config["max_position_embeddings"], self.family.most_positions)
        made = self.family.rope(self.machine, self.head_dim, positions, self.shared_rope)
        if self.shared_rope is None and (self.config.get("rope_scaling") or not (self.old or self.adapters.rank)):
            self.shared_rope = made
        return made
