"""Gemma 4's vision tower: patches as rows of numbers, padded to as many as an image may have, whose features are pooled
by their places (transformers/models/gemma4/modeling_gemma4.py, `Gemma4VisionModel`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tunecast.tape.build import attention
from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import rotate
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.dtypes import BOOL, INT64
from tunecast.tape.build.families.gemma4 import Gemma4Norm
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import and_, as_numbers, draw_mask, padding
from tunecast.tape.build.modules import Activation, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor


class ClippableLinear(Module):
    """Bounds of what goes in and comes out, where the checkpoint has them."""

    holds_linear = True
    """It is no linear layer to PEFT, which adapts the one inside or fails."""

    def __init__(self, machine: Machine, config: Config, inputs: int, outputs: int) -> None:
        super().__init__(machine)
        self.linear = Linear(machine, inputs, outputs)
        self.clips = config["use_clipped_linears"]
        if self.clips:
            for name in ("input_min", "input_max", "output_min", "output_max"):
                setattr(self, name, self.buffer(dtype=machine.weights_dtype))

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.clips:
            hidden_states = clamp_between(hidden_states, self.own["input_min"], self.own["input_max"])
        hidden_states = self.linear(hidden_states)
        if self.clips:
            hidden_states = clamp_between(hidden_states, self.own["output_min"], self.own["output_max"])
        return hidden_states


def clamp_between(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """`torch.clamp` between numbers that lie on the card (FunctionsManual.cpp, `clamp_backward`)."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(2)
        zero = machine.run("scalar_tensor", (), (), gradient.dtype)
        above = machine.run("ge", (kept, low), kept.shape, BOOL)
        below = machine.run("le", (kept, high), kept.shape, BOOL)
        out = machine.run("where", (above, gradient, zero), gradient.shape, gradient.dtype)
        del above, below
        return (out,)

    node = start(machine, (x,), back, (low, high, x))
    return finish(node, machine.run("clamp", (x, low, high), x.shape, x.dtype, strides=F.kept_strides(x)))


class MultimodalEmbedder(Module):
    def __init__(self, machine: Machine, width: int, text_width: int) -> None:
        super().__init__(machine)
        self.embedding_projection = Linear(machine, width, text_width)
        self.embedding_pre_projection_norm = Gemma4Norm(machine, width, with_scale=False)

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        embs_normed = self.embedding_pre_projection_norm(inputs_embeds)
        return self.embedding_projection(embs_normed)


class PatchEmbedder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.input_proj = Linear(machine, 3 * config["patch_size"] ** 2, hidden)
        self.position_embedding_table = self.parameter(2, config["position_embedding_size"], hidden)

    def forward(self, pixel_values: Tensor, pixel_position_ids: Tensor, padding_positions: Tensor) -> Tensor:
        pixel_values = 2 * (pixel_values - 0.5)
        pixel_values = pixel_values.to(getattr(self.input_proj, "base_layer", self.input_proj).weight.dtype)
        hidden_states = self.input_proj(pixel_values)
        position_embeddings = self._position_embeddings(pixel_position_ids, padding_positions)
        return hidden_states + position_embeddings

    def _position_embeddings(self, pixel_position_ids: Tensor, padding_positions: Tensor) -> Tensor:
        clamped_positions = pixel_position_ids.clamp(0)
        x_emb = F.embedding(self.position_embedding_table[0], clamped_positions[..., 0])
        y_emb = F.embedding(self.position_embedding_table[1], clamped_positions[..., 1])
        position_embeddings = x_emb + y_emb
        zero = self.machine.run("scalar_tensor", (), (), position_embeddings.dtype)
        position_embeddings = F.where(padding_positions.unsqueeze(-1), zero, position_embeddings)
        return position_embeddings


class VisionAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, width = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim, self.groups, self.dropout = width, heads // kv_heads, config.get("attention_dropout") or 0.0
        self.q_proj = ClippableLinear(machine, config, hidden, heads * width)
        self.k_proj = ClippableLinear(machine, config, hidden, kv_heads * width)
        self.v_proj = ClippableLinear(machine, config, hidden, kv_heads * width)
        self.o_proj = ClippableLinear(machine, config, heads * width, hidden)
        self.q_norm = Gemma4Norm(machine, width)
        self.k_norm = Gemma4Norm(machine, width)
        self.v_norm = Gemma4Norm(machine, width, with_scale=False)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        batch, length, _ = hidden_states.shape
        cos, sin = position_embeddings
        query_states = self.q_proj(hidden_states).view(batch, length, -1, self.head_dim)
        query_states = self.q_norm(query_states)
        query_states = rotated_by_axis(query_states, cos, sin)
        query_states = query_states.transpose(1, 2)
        key_states = self.k_proj(hidden_states).view(batch, length, -1, self.head_dim)
        key_states = self.k_norm(key_states)
        key_states = rotated_by_axis(key_states, cos, sin)
        key_states = key_states.transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(batch, length, -1, self.head_dim)
        value_states = self.v_norm(value_states)
        value_states = value_states.transpose(1, 2)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout, causal=False
        )
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


def rotated_by_axis(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`apply_multidimensional_rope`: a part of each head by columns, a part by rows."""
    width = 2 * (x.shape[-1] // 4)
    x_parts, cos_parts, sin_parts = [each.split([width, width], -1) for each in (x, cos, sin)]
    y_parts = [
        rotate(part, cos_parts[axis].unsqueeze(2), sin_parts[axis].unsqueeze(2)) for axis, part in enumerate(x_parts)
    ]
    return F.cat(y_parts, -1)


class VisionMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = ClippableLinear(machine, config, hidden, inner)
        self.up_proj = ClippableLinear(machine, config, hidden, inner)
        self.down_proj = ClippableLinear(machine, config, inner, hidden)
        self.act_fn = Activation(machine, config["hidden_activation"])

    def forward(self, x: Tensor) -> Tensor:
        down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return down_proj


class VisionLayer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.self_attn = VisionAttention(machine, config)
        self.mlp = VisionMLP(machine, config)
        self.input_layernorm = Gemma4Norm(machine, hidden)
        self.post_attention_layernorm = Gemma4Norm(machine, hidden)
        self.pre_feedforward_layernorm = Gemma4Norm(machine, hidden)
        self.post_feedforward_layernorm = Gemma4Norm(machine, hidden)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(
            hidden_states=hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.pre_feedforward_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.post_feedforward_layernorm(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class VisionRotary(Module):
    """Height and width have half a head each, and both the same frequencies."""

    def __init__(self, machine: Machine, head_dim: int) -> None:
        super().__init__(machine)
        self.inv_freq = self.buffer(-(-head_dim // 2 // 2))
        self.original_inv_freq = self.buffer(-(-head_dim // 2 // 2))

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine = self.machine
        with machine.no_grad(), machine.autocasting(None):
            inv_freq_expanded = self.inv_freq.alias((1, self.inv_freq.shape[0]), None)
            position_ids_expanded = position_ids[..., None].float()
            freqs = position_ids_expanded @ inv_freq_expanded
            cos = freqs.cos() * 1.0
            sin = freqs.sin() * 1.0
            cos = self.recomposition_frequencies(cos)
            sin = self.recomposition_frequencies(sin)
            return cos.to(x.dtype), sin.to(x.dtype)

    def recomposition_frequencies(self, freq: Tensor) -> Tensor:
        freq_h, freq_w = freq[:, :, 0], freq[:, :, 1]
        return F.cat([freq_h, freq_h, freq_w, freq_w], -1)


class VisionEncoder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.rotary_emb = VisionRotary(machine, config["head_dim"])
        self.layers = ModuleList(machine, [VisionLayer(machine, config) for _ in range(config["num_hidden_layers"])])

    def forward(self, inputs_embeds: Tensor, attention_mask: Any, pixel_position_ids: Tensor) -> Tensor:
        attention_mask = self.mask_of(attention_mask, inputs_embeds)
        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, pixel_position_ids)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(
                hidden_states, attention_mask=attention_mask, position_embeddings=position_embeddings,
                position_ids=pixel_position_ids,
            )  # fmt: skip
        return hidden_states

    def mask_of(self, attention_mask: Tensor, inputs_embeds: Tensor) -> Tensor | None:
        """`create_bidirectional_mask`, where there are patches that only pad."""
        machine, (batch, length) = self.machine, attention_mask.shape
        if machine.attention != "eager":
            attention_mask.all()
        pictures = machine.pictures
        pads = pictures is not None and any(picture.patches < length for picture in pictures.images)
        if machine.is_flash or (machine.attention != "eager" and not pads):
            return None
        mask = draw_mask(machine, batch, length, and_(both_ways, padding(attention_mask)))
        return as_numbers(mask, inputs_embeds.dtype) if machine.attention == "eager" else mask


def both_ways(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx.ge(0)


class VisionPooler(Module):
    """`Gemma4VisionPooler`: squares of patches become one, by a product with what each has of them."""

    def forward(
        self, hidden_states: Tensor, pixel_position_ids: Tensor, padding_positions: Tensor, output_length: int
    ) -> tuple[Tensor, Tensor]:
        hidden_states = hidden_states.masked_fill(padding_positions.unsqueeze(-1), 0.0)
        hidden_states, padding_positions = self._avg_pool_by_positions(hidden_states, pixel_position_ids, output_length)
        hidden_states = hidden_states.float() * 1.0
        return hidden_states, padding_positions

    def _avg_pool_by_positions(
        self, hidden_states: Tensor, pixel_position_ids: Tensor, length: int
    ) -> tuple[Tensor, Tensor]:
        machine, (batch, patches, _) = self.machine, hidden_states.shape
        clamped_positions = pixel_position_ids.clamp(0)
        column = clamped_positions[..., 0]
        found = (((batch, 1), INT64), ((batch, 1), INT64))
        max_x = machine.run_many("max", (column,), found, args=(column, -1, True))[0] + 1
        kernel_idxs = machine.run("div", (clamped_positions,), clamped_positions.shape, INT64)
        row = machine.run("mul", (max_x // 1, kernel_idxs[..., 1]), (batch, patches), INT64)
        kernel_idxs = machine.run("add", (kernel_idxs[..., 0], row), (batch, patches), INT64)
        del row
        flags = machine.run("zeros", (), (batch, patches, length), INT64)
        machine.launch("scatter_", (flags, kernel_idxs), INT64, flags.nbytes)
        numbers = flags.float()
        del flags
        weights = numbers / 9.0
        del numbers
        output = weights.transpose(1, 2) @ hidden_states.float()
        mask = machine.run("logical_not", (weights.eq(0).all(1),), (batch, length), BOOL)
        return output.to(hidden_states.dtype), mask


class VisionTower(Module):
    defaults: ClassVar[Config] = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
        "num_key_value_heads": 12, "head_dim": 64, "patch_size": 16, "position_embedding_size": 10240,
        "use_clipped_linears": False, "standardize": False, "pooling_kernel_size": 3,
        "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        self.patch_embedder = PatchEmbedder(machine, config)
        self.encoder = VisionEncoder(machine, config)
        self.pooler = VisionPooler(machine)
        self.pooled = config["pooling_kernel_size"] ** 2
        self.standardizes = config["standardize"]
        if self.standardizes:
            self.std_bias = self.buffer(config["hidden_size"], dtype=machine.weights_dtype)
            self.std_scale = self.buffer(config["hidden_size"], dtype=machine.weights_dtype)

    def forward(self, pixel_values: Tensor, pixel_position_ids: Tensor) -> Tensor:
        output_length = pixel_values.shape[1] // self.pooled
        padding_positions = pixel_position_ids.eq(-1).all(-1)
        inputs_embeds = self.patch_embedder(pixel_values, pixel_position_ids, padding_positions)
        output = self.encoder(
            inputs_embeds=inputs_embeds, attention_mask=~padding_positions, pixel_position_ids=pixel_position_ids
        )
        hidden_states, pooler_mask = self.pooler(
            hidden_states=output, pixel_position_ids=pixel_position_ids, padding_positions=padding_positions,
            output_length=output_length,
        )  # fmt: skip
        hidden_states = where_seen(hidden_states, pooler_mask)
        if self.standardizes:
            hidden_states = (hidden_states - self.std_bias.float()) * self.std_scale.float()
        hidden_states = hidden_states.to(inputs_embeds.dtype)
        return hidden_states

    def layers(self) -> Iterator[Any]:
        return iter(self.encoder.layers)

    def input_embedding(self) -> Module:
        """transformers finds none, so that nothing is made to want a gradient."""
        return self.patch_embedder


def where_seen(x: Tensor, mask: Tensor) -> Tensor:
    """x[mask]: the tokens of images, without those that pad."""
    machine, shape = x.machine, x.shape
    pictures = machine.pictures
    assert pictures is not None, "features of images that are not there"
    rows = sum(picture.tokens for picture in pictures.images) * shape[0] // len(pictures.images)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), shape, gradients[0].dtype)
        args = (zeros, [node.take(0)], gradients[0], True)
        return machine.run_many("index_put", (zeros, gradients[0]), ((zeros.shape, zeros.dtype),), args=args)

    node = start(machine, (x,), back, (mask,))
    found = machine.run("nonzero", (mask,), (rows, 2), INT64, args=(mask,))
    return finish(node, machine.run("index", (x, found), (rows, shape[2]), x.dtype))
