"""The causal language model on paper, after transformers' modeling files (5.17.0)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tunecast.tape.build import attention, older
from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Dtype
from tunecast.tape.build.experts import refuse_router_loss
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask
from tunecast.tape.build.modules import Activation, Buffer, Embedding, Linear, Module, ModuleList, RMSNorm
from tunecast.tape.build.recompute import checkpoint_reentrant, recomputing
from tunecast.tape.build.tensor import Tensor

Config = Mapping[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, as transformers' configurations name them."""


class RotaryEmbedding(Module):
    scales = True
    attention_scaling = 1.0
    also_longrope: Sequence[str] = ()
    """Other names the family gives it."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.width = rotary_width(config)
        self.inv_freq = self.buffer(self.width // 2)
        self.original_inv_freq = self.inv_freq if machine.era.one_table else self.buffer(self.width // 2)
        self.long_inv_freq: Buffer | None = None
        scaling = rope_scaling(config)
        self.rope_type = str(scaling.get("rope_type") or scaling.get("type") or "default")
        before = (place.get("original_max_position_embeddings") for place in (config, scaling))
        self.short_length = next((found for found in before if found), config.get("max_position_embeddings") or 0)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine = self.machine
        self.fit_to(position_ids)
        freqs, _kept = self.angles(position_ids)
        emb = machine.run("cat", (freqs, freqs), (*position_ids.shape, self.width), FLOAT32)
        if not machine.era.scales_last:
            cos = emb.cos() * self.attention_scaling
            sin = emb.sin() * self.attention_scaling
        else:
            cos = emb.cos()
            sin = emb.sin()
            if self.scales:
                cos = cos * self.attention_scaling
                sin = sin * self.attention_scaling
        dtype = self.result_dtype(x)
        return cos.to(dtype), sin.to(dtype)

    def angles(self, position_ids: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One per position and frequency, and what the caller's own names keep beside them until it returns."""
        machine, half = self.machine, self.width // 2
        if not machine.era.rotates_by_product:
            return position_ids.unsqueeze(-1).float() * self.inv_freq.float(), ()
        rows, length = position_ids.shape
        inverse = self.inv_freq.alias((1, half, 1), None).float()
        position_ids_expanded = machine.run("_to_copy", (position_ids,), (rows, 1, length), FLOAT32)
        args = (inverse, position_ids_expanded)
        freqs = machine.run("bmm", args, (rows, half, length), FLOAT32, 2 * rows * half * length, args=args)
        return freqs.transpose(1, 2), args

    def result_dtype(self, x: Tensor) -> Dtype:
        return x.dtype

    def fit_to(self, position_ids: Tensor) -> None:
        """Some kinds of scaling look at the longest position first (modeling_rope_utils.py, `dynamic_rope_update`)."""
        dynamic = "dynamic" in self.rope_type
        if not dynamic and self.rope_type not in ("longrope", *self.also_longrope):
            return
        machine = self.machine
        seq_len = machine.run("max", (position_ids,), (), INT64, args=(position_ids,)) + 1
        if machine.era.chooses_table and not dynamic:
            self.choose_table(seq_len)
            return
        machine.run("gt", (seq_len,), (), BOOL)
        if dynamic:  # the run is never longer than `max_position_embeddings`, so nothing else happens
            machine.run("lt", (seq_len,), (), BOOL)
        elif position_ids.shape[1] > self.short_length:
            self.inv_freq = self.long_frequencies()
        else:
            self.inv_freq = self.original_inv_freq

    def choose_table(self, seq_len: Tensor) -> None:
        """Both are there from the first step on."""
        machine = self.machine
        if self.long_inv_freq is None:
            self.long_inv_freq = self.long_frequencies()
        is_longer = machine.run("gt", (seq_len,), (), BOOL)
        args = (is_longer, self.long_inv_freq, self.original_inv_freq)
        chosen = machine.run("where", args, self.long_inv_freq.shape, FLOAT32)
        self.inv_freq = Buffer(machine, chosen.storage, chosen.shape, FLOAT32)

    def long_frequencies(self) -> Buffer:
        machine, half = self.machine, (self.width // 2,)
        ext_factors = machine.run("_to_copy", (), half, FLOAT32)
        inv_freq_shape = machine.run("arange", (), half, INT64).float() / self.width
        slowed = ext_factors * inv_freq_shape.pow(2)
        inverse = slowed.reciprocal()
        return Buffer(machine, (inverse * self.attention_scaling).storage, half, FLOAT32)


class LayerTable(RotaryEmbedding):
    """The table an attention of its own had until transformers 4.47: its cosines were never scaled."""

    scales = False


class RotaryByKind(Module):
    """Other frequencies for other kinds of layers."""

    rotary_class: Any = RotaryEmbedding

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        for kind in sorted(set(layer_kinds(config))):
            setattr(self, kind, self.rotary_class(machine, config))

    def forward(self, x: Tensor, position_ids: Tensor, kind: str) -> Any:
        return self.children[kind].forward(x, position_ids)


def head_dim(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def layer_kinds(config: Config) -> Sequence[str]:
    return config.get("layer_types") or [FULL] * config["num_hidden_layers"]


def rope_scaling(config: Config) -> Config:
    return config.get("rope_scaling") or config.get("rope_parameters") or {}


def rotary_width(config: Config) -> int:
    """How much of a head is rotated; frequencies come in pairs."""
    share = config.get("partial_rotary_factor") or rope_scaling(config).get("partial_rotary_factor") or 1.0
    width = int(head_dim(config) * share)
    return width + width % 2


class SelfAttention(Module):
    """Families differ in how queries, keys and values come about (`project`) and get their positions
    (`apply_rotary`)."""

    came_later = False
    """The family is newer than releases in which every implementation of attention was a class."""
    projects_first = False
    """All three products come before a head is told from another."""
    rotary: Any = staticmethod(attention.apply_rotary)
    """How cosines and sines turn queries and keys."""
    eager: Any = None
    """The family's own attention without a kernel, where it has one."""

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine)
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        self.head_dim = head_dim(config)
        self.groups = heads // kv_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = config.get("attention_dropout") or 0.0
        self.residual_dropout = config.get("residual_dropout") or 0.0
        self.window = config.get("sliding_window") if layer_kinds(config)[index] == SLIDING else None
        """For kernels that are told how far back to look; those of sdpa get a mask instead."""
        self.softcap = config.get("attn_logit_softcapping")
        self.add_projections(machine, config)
        self.repeats_for_flash = machine.era.repeats_for_flash(str(config.get("model_type")))
        if machine.era.table_in_layers:
            self.rotary_emb = LayerTable(machine, config)

    def add_projections(self, machine: Machine, config: Config) -> None:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_heads = heads // self.groups
        bias, bias_after = self.biases(config)
        self.q_proj = Linear(machine, hidden, heads * self.head_dim, bias)
        self.k_proj = Linear(machine, hidden, kv_heads * self.head_dim, bias)
        self.v_proj = Linear(machine, hidden, kv_heads * self.head_dim, bias)
        self.o_proj = Linear(machine, heads * self.head_dim, hidden, bias_after)

    def biases(self, config: Config) -> tuple[bool, bool]:
        """Of the projections before and after attention."""
        bias = bool(config.get("attention_bias", False))
        return bias, bias

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        if self.machine.era.attends_by_class and not self.came_later:
            return older.attention_forward(self, hidden_states, position_embeddings, attention_mask, position_ids)
        batch, length, _ = hidden_states.shape
        query_states, key_states, value_states = self.qkv(hidden_states, position_embeddings)
        if self.machine.cache is not None:
            key_states, value_states = self.machine.cache.update(key_states, value_states, self.window)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids, window=self.window, softcap=self.softcap, eager=self.eager,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        attn_output = F.dropout(attn_output, self.residual_dropout)
        return attn_output, attn_weights

    def qkv(self, hidden_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as attention takes them."""
        query_states, key_states, value_states = self.project(hidden_states)
        query_states, key_states = self.apply_rotary(query_states, key_states, position_embeddings)
        return query_states, key_states, value_states

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = hidden_states.shape
        if self.projects_first or self.machine.era.attends_by_class:
            return older.project(self, hidden_states)
        query_states = self.q_proj(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
        key_states = self.k_proj(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
        return query_states, key_states, value_states

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        return self.rotary(query_states, key_states, cos, sin)


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
        down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return down_proj


class CheckpointingLayer(Module):
    """transformers/modeling_layers.py, `GradientCheckpointingLayer`: keyword arguments are held by the closure; until
    4.51 models gave all their tensors by position, which the reentrant kind lets go of one layer after the other."""

    checkpoint = False
    wants_input = False
    """Its first input is made to need a gradient."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.checkpoint:
            return super().__call__(*args, **kwargs)
        if self.wants_input and not args[0].requires_grad:
            args[0].requires_grad = True

        names = [name for name, given in kwargs.items() if isinstance(given, Tensor)]
        if not self.machine.era.layers_by_position:
            names = []
        args = (*args, *[kwargs.pop(name) for name in names])

        def again(*args: Any) -> Any:
            given = dict(zip(names, args[len(args) - len(names) :], strict=True))
            return super(CheckpointingLayer, self).__call__(*args[: len(args) - len(names)], **given, **kwargs)

        if self.machine.reentrant:
            return checkpoint_reentrant(self.machine, again, *args)
        with recomputing(self.machine, again, args):
            return again(*args)


class Layer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[CausalLM]) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.self_attn = family.attention_class(machine, config, index)
        self.mlp = family.mlp_class(machine, config)
        self.input_layernorm = family.norm_class(machine, hidden)
        self.post_attention_layernorm = family.norm_class(machine, hidden)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.before_attention(hidden_states)
        hidden_states, _ = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
        hidden_states = self.after_attention(hidden_states)
        hidden_states = residual + self.attention_branch(hidden_states)
        residual = hidden_states
        hidden_states = self.before_mlp(hidden_states)
        hidden_states = self.feed_forward(hidden_states)
        hidden_states = self.after_mlp(hidden_states)
        hidden_states = residual + self.mlp_branch(hidden_states)
        return hidden_states

    # Families differ in which norm stands where. What replaces `hidden_states` lets go of what it was before.

    def before_attention(self, hidden_states: Tensor) -> Tensor:
        return self.input_layernorm(hidden_states)

    def after_attention(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    def before_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.post_attention_layernorm(hidden_states)

    def after_mlp(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    # And in what is added to the residual, which is a temporary beside `hidden_states`.

    def attention_branch(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    def mlp_branch(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        return self.mlp(hidden_states)


class Decoder(Module):
    tells_positions = True
    """Its layers get positions, besides cosines and sines."""

    def __init__(self, machine: Machine, config: Config, family: type[CausalLM]) -> None:
        super().__init__(machine)
        self.kinds = layer_kinds(config)
        self.mask_kinds = tuple(dict.fromkeys((*family.mask_kinds, *self.kinds)))
        """Masks that are made, in this order, whether a layer needs them or not."""
        self.window = config.get("sliding_window")
        self.embed_tokens = family.embedding_class(machine, config["vocab_size"], config["hidden_size"])
        layers = range(config["num_hidden_layers"])
        self.layers = ModuleList(machine, [family.layer_class(machine, config, index, family) for index in layers])
        self.norm = family.norm_class(machine, config["hidden_size"])
        self.rotates = not machine.era.rotates_in_layers(str(config.get("model_type")))
        if self.rotates:
            self.rotary_emb = family.rotary_class(machine, config)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Any = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Inside a model with other parts, embeddings and masks are made outside."""
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        inputs_embeds = self.scale_embeddings(inputs_embeds)
        length = inputs_embeds.shape[1]
        position_ids = attention_mask if self.machine.packs else self.position_ids(length)
        position_ids = self.positions_of_rows(position_ids, inputs_embeds.shape[0])
        masks = attention_mask if isinstance(attention_mask, dict) else self.masks(attention_mask, inputs_embeds)
        hidden_states = self.first_hidden_states(inputs_embeds)
        position_embeddings = self.positions(hidden_states, position_ids)
        hidden_states = self.scale_hidden_states(hidden_states)
        for decoder_layer, kind in zip(self.layers, self.kinds, strict=True):
            hidden_states = decoder_layer(
                hidden_states, attention_mask=masks[kind], position_embeddings=position_embeddings[kind],
                position_ids=position_ids if self.tells_positions else None,
            )  # fmt: skip
        hidden_states = self.norm(hidden_states)
        return hidden_states

    def position_ids(self, length: int) -> Tensor:
        """The batch's own, or counted."""
        machine = self.machine
        for own in (attention.sequence_of(machine), machine.cache):
            if own is not None and own.position_ids is not None:
                return own.position_ids
        position_ids = machine.run("arange", (), (length,), INT64)
        if machine.era.adds_positions:
            position_ids = position_ids + 0
        return position_ids.unsqueeze(0)

    def positions_of_rows(self, position_ids: Tensor, rows: int) -> Tensor:
        """What layers are told: one row for all, unless a family has one for each."""
        return position_ids

    def scale_embeddings(self, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds

    def first_hidden_states(self, inputs_embeds: Tensor) -> Tensor:
        """What the first layer gets."""
        return inputs_embeds

    def scale_hidden_states(self, hidden_states: Tensor) -> Tensor:
        """The same, where positions come first."""
        return hidden_states

    def masks(self, attention_mask: Tensor, inputs_embeds: Tensor) -> dict[str, Any]:
        """By kind of layer."""
        return {
            kind: causal_mask(attention_mask, inputs_embeds, self.window if kind == SLIDING else None)
            for kind in self.mask_kinds
        }

    def positions(self, hidden_states: Tensor, position_ids: Tensor) -> dict[str, Any]:
        """Cosines and sines by kind of layer; None where layers make their own."""
        if not self.rotates:
            return dict.fromkeys(self.kinds, None)
        if isinstance(self.rotary_emb, RotaryByKind):
            return {kind: self.rotary_emb(hidden_states, position_ids, kind) for kind in sorted(set(self.kinds))}
        return dict.fromkeys(self.kinds, self.rotary_emb(hidden_states, position_ids=position_ids))


class CausalLM(Module):
    """Its parts are named apart, so that a family can put its own in their place."""

    decoder_class: Any = Decoder
    layer_class: Any = Layer
    attention_class: Any = SelfAttention
    mlp_class: Any = GatedMLP
    norm_class: Any = RMSNorm
    rotary_class: Any = RotaryEmbedding
    embedding_class: Any = Embedding
    mask_kinds: Sequence[str] = (FULL,)
    """Kinds of layers whose mask is made, whether there is one or not."""
    defaults: ClassVar[Config] = {}
    """What the family's configuration class takes where config.json is silent."""
    logit_steps: Sequence[Callable[[Tensor], Tensor]] = ()
    """What is done to the logits before the loss; each result replaces the one before."""
    gives_logits = False
    counts_labels = True  # transformers' `accepts_loss_kwargs`
    towers: Any = staticmethod(tuple)  # none; models with any: tape/build/vision
    num_items_in_batch: Any = None
    cross_entropy: Any = staticmethod(F.cross_entropy)

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        refuse_router_loss(config)
        config = self.complete(config)
        self.model_type = str(config.get("model_type"))
        self.model = self.decoder_class(machine, config, type(self))
        self.vocabulary = config["vocab_size"]
        self.lm_head = Linear(machine, config["hidden_size"], self.vocabulary)
        self.tied = bool(config.get("tie_word_embeddings", False))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        hidden_states = self.model(input_ids, attention_mask=attention_mask)
        logits = self.lm_head(hidden_states[:])
        for step in self.logit_steps:
            logits = step(logits)
        if self.machine.era.widens_logits(self.model_type):
            logits = logits.float()
        return self.output(logits, labels)

    def output(self, logits: Tensor, labels: Tensor) -> Any:
        """The loss, and the logits where somebody takes them."""
        loss = self.loss(logits, labels)
        return (loss, logits) if self.gives_logits else loss

    def base(self) -> Any:
        return self.model

    def complete(self, config: Config) -> dict[str, Any]:
        """With what config.json leaves unsaid."""
        whole = {**self.defaults, **config}
        return {**whole, "layer_types": self.layer_types(whole)}

    def layer_types(self, config: Config) -> Sequence[str]:
        """What each layer attends to, which decides its mask."""
        return [FULL] * config["num_hidden_layers"]

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
        upcast = logits.float()
        if machine.era.shifts_logits:
            shift_logits = upcast[..., : length - 1, :].contiguous()
            shift_labels = labels[..., 1:length].contiguous()
            shift_logits = shift_logits.view(-1, self.vocabulary)
            return self.divide_by_items(self.cross_entropy(shift_logits, shift_labels.view(-1)))
        shift_labels = labels
        if attention.sequence_of(machine) is None:  # split rows have labels that were shifted before
            labels = machine.run("constant_pad_nd", (labels,), (batch, length + 1), INT64)
            shift_labels = labels[..., 1 : length + 1].contiguous()
        upcast = upcast.view(-1, self.vocabulary)
        shift_labels = shift_labels.view(-1)
        return self.divide_by_items(self.cross_entropy(upcast, shift_labels))

    def divide_by_items(self, loss: Tensor) -> Tensor:
        """`fixed_cross_entropy`: a sum over the number of labels, where the caller counted them."""
        return loss if self.num_items_in_batch is None else loss / self.num_items_in_batch
