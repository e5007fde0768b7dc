"""Llama 3.2's vision tower: tiles of an image, and layers that are not recomputed
(transformers/models/mllama/modeling_mllama.py, `MllamaVisionModel`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.features import Convolution, attend_to_all
from tunecast.tape.build.vision.siglip import SiglipMLP

PADDED_TO = 8
"""Patches of a tile are padded to a multiple of it (`MllamaVisionModel.forward`)."""


class AspectRatioEmbedding(Module):
    """`MllamaPrecomputedAspectRatioEmbedding`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.max_num_tiles, self.hidden_size = config["max_num_tiles"], config["hidden_size"]
        rows = len(config["supported_aspect_ratios"]) + 1
        self.embedding = Embedding(machine, rows, self.max_num_tiles * self.hidden_size)
        self.gate = self.parameter(1)

    def forward(self, hidden_state: Tensor, aspect_ratio_ids: Tensor) -> Tensor:
        embeddings = self.embedding(aspect_ratio_ids)
        embeddings = embeddings.reshape(-1, self.max_num_tiles, 1, self.hidden_size)
        embeddings = embeddings * self.gate.tanh()
        hidden_state = hidden_state + embeddings
        return hidden_state


class PositionEmbedding(Module):
    """`MllamaPrecomputedPositionEmbedding`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.max_num_tiles, self.hidden_size = config["max_num_tiles"], config["hidden_size"]
        self.num_patches = (config["image_size"] // config["patch_size"]) ** 2 + 1
        self.gate = self.parameter(1)
        self.embedding = self.parameter(self.num_patches, self.hidden_size)
        rows = len(config["supported_aspect_ratios"]) + 1
        self.tile_embedding = Embedding(machine, rows, self.max_num_tiles * self.num_patches * self.hidden_size)

    def forward(self, hidden_state: Tensor, aspect_ratio_ids: Tensor) -> Tensor:
        gated_position_embedding = (1 - self.gate.tanh()) * self.embedding
        hidden_state = hidden_state + gated_position_embedding.view(1, 1, self.num_patches, self.hidden_size)
        tile_position_embedding = self.tile_embedding(aspect_ratio_ids)
        batch_size = hidden_state.shape[0]
        tile_position_embedding = tile_position_embedding.reshape(
            batch_size, self.max_num_tiles, self.num_patches, self.hidden_size
        )
        gated_tile_position_embedding = self.gate.tanh() * tile_position_embedding
        hidden_state = hidden_state + gated_tile_position_embedding
        return hidden_state


class VisionAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, self.num_heads = config["hidden_size"], config["attention_heads"]
        self.head_dim = width // self.num_heads
        self.q_proj = Linear(machine, width, width)
        self.k_proj = Linear(machine, width, width)
        self.v_proj = Linear(machine, width, width)
        self.o_proj = Linear(machine, width, width)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor | None]:
        query = self.q_proj(hidden_states)
        key = self.k_proj(hidden_states)
        value = self.v_proj(hidden_states)
        batch_size, length, _ = query.shape
        query = query.view(batch_size, length, self.num_heads, self.head_dim).transpose(1, 2)
        key = key.view(batch_size, length, self.num_heads, self.head_dim).transpose(1, 2)
        value = value.view(batch_size, length, self.num_heads, self.head_dim).transpose(1, 2)
        attn_output, attn_weights = attend_to_all(query, key, value, attention_mask)
        attn_output = attn_output.reshape(batch_size, length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


class VisionLayer(Module):
    """`MllamaVisionEncoderLayer`, which is none of those that are recomputed."""

    def __init__(self, machine: Machine, config: Config, is_gated: bool) -> None:
        super().__init__(machine)
        self.is_gated = is_gated
        if is_gated:
            self.gate_attn = self.parameter(1)
            self.gate_ffn = self.parameter(1)
        self.self_attn = VisionAttention(machine, config)
        self.mlp = SiglipMLP(machine, config)
        self.input_layernorm = LayerNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = LayerNorm(machine, config["hidden_size"])

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _attn_weights = self.self_attn(hidden_states, attention_mask=attention_mask)
        if self.is_gated:
            hidden_states = self.gate_attn.tanh() * hidden_states
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        if self.is_gated:
            hidden_states = self.gate_ffn.tanh() * hidden_states
        hidden_states = residual + hidden_states
        return hidden_states


class VisionEncoder(Module):
    def __init__(self, machine: Machine, config: Config, num_layers: int, is_gated: bool) -> None:
        super().__init__(machine)
        self.layers = ModuleList(machine, [VisionLayer(machine, config, is_gated) for _ in range(num_layers)])

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> list[Tensor]:
        """What every layer gives."""
        encoder_states = []
        for encoder_layer in self.layers:
            hidden_states = encoder_layer(hidden_states=hidden_states, attention_mask=attention_mask)
            encoder_states.append(hidden_states)
        return encoder_states


class VisionModel(Module):
    """`MllamaVisionModel`."""

    defaults: ClassVar[Config] = {
        "hidden_size": 1280, "hidden_act": "gelu", "num_hidden_layers": 32, "num_global_layers": 8,
        "attention_heads": 16, "num_channels": 3, "intermediate_size": 5120, "vision_output_dim": 7680,
        "image_size": 448, "patch_size": 14, "max_num_tiles": 4, "intermediate_layers_indices": (3, 7, 15, 23, 30),
        "supported_aspect_ratios": ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)),
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        width = config["hidden_size"]
        self.kept_layers = config["intermediate_layers_indices"]
        self.num_patches = (config["image_size"] // config["patch_size"]) ** 2 + 1
        self.patch_embedding = Convolution(machine, config["num_channels"], width, config["patch_size"], bias=False)
        self.class_embedding = self.parameter(width)
        self.gated_positional_embedding = PositionEmbedding(machine, config)
        self.pre_tile_positional_embedding = AspectRatioEmbedding(machine, config)
        self.post_tile_positional_embedding = AspectRatioEmbedding(machine, config)
        self.layernorm_pre = LayerNorm(machine, width)
        self.layernorm_post = LayerNorm(machine, width)
        self.transformer = VisionEncoder(machine, config, config["num_hidden_layers"], is_gated=False)
        self.global_transformer = VisionEncoder(machine, config, config["num_global_layers"], is_gated=True)

    def forward(self, pixel_values: Tensor, aspect_ratio_ids: Tensor, aspect_ratio_mask: Tensor) -> Tensor:
        batch_size, media, num_tiles, channels, height, width = pixel_values.shape
        images = batch_size * media
        pixel_values = pixel_values.reshape(images * num_tiles, channels, height, width)
        aspect_ratio_ids = aspect_ratio_ids.reshape(images, -1)
        patch_embeds = self.patch_embedding(pixel_values.to(self.patch_embedding.weight.dtype))
        hidden_state = patch_embeds.flatten(2).transpose(1, 2)
        _, num_patches, dim = hidden_state.shape
        hidden_state = hidden_state.reshape(images, num_tiles, -1, dim)
        hidden_state = self.pre_tile_positional_embedding(hidden_state, aspect_ratio_ids)
        hidden_state = hidden_state.reshape(images * num_tiles, num_patches, dim)
        hidden_state = self.apply_class_embedding(hidden_state)
        num_patches += 1
        hidden_state = hidden_state.reshape(images, num_tiles, num_patches, dim)
        hidden_state = self.gated_positional_embedding(hidden_state, aspect_ratio_ids)
        hidden_state = self.layernorm_pre(hidden_state)
        padding = -num_patches % PADDED_TO
        hidden_state = F.pad(hidden_state, padding, -2)
        padded = num_patches + padding
        attention_mask = aspect_ratio_mask.reshape(images, -1)
        attention_mask = aspect_ratio_attention_mask(attention_mask, padded, self.machine.weights_dtype)
        hidden_state = hidden_state.view(images, -1, dim)
        output = self.transformer(hidden_state, attention_mask=attention_mask)
        hidden_state = output[-1]
        hidden_state = self.layernorm_post(hidden_state)
        hidden_state = hidden_state.reshape(images, num_tiles, padded, dim)
        hidden_state = self.post_tile_positional_embedding(hidden_state, aspect_ratio_ids)
        hidden_state = hidden_state.reshape(images, num_tiles * padded, dim)
        global_output = self.global_transformer(hidden_state, attention_mask=attention_mask)
        hidden_state = global_output[-1]
        hidden_state = hidden_state.reshape(images, num_tiles, padded, dim)
        hidden_state = hidden_state[:, :, :num_patches]
        hidden_state = hidden_state.reshape(batch_size, media, num_tiles, num_patches, dim)
        all_intermediate_hidden_states = [output[place] for place in self.kept_layers]
        intermediate_hidden_states = F.stack(all_intermediate_hidden_states, -1)
        intermediate_hidden_states = intermediate_hidden_states.reshape(images, num_tiles, padded, -1)
        intermediate_hidden_states = intermediate_hidden_states[:, :, :num_patches]
        intermediate_hidden_states = intermediate_hidden_states.reshape(
            batch_size, media, num_tiles, num_patches, dim * len(self.kept_layers)
        )
        hidden_state = F.cat([hidden_state, intermediate_hidden_states], -1)
        return hidden_state

    def apply_class_embedding(self, hidden_state: Tensor) -> Tensor:
        batch_size, _, hidden_size = hidden_state.shape
        class_embedding = self.class_embedding.expand(batch_size, 1, hidden_size)
        hidden_state = F.cat([class_embedding, hidden_state], 1)
        return hidden_state

    def layers(self) -> Iterator[Any]:
        """Those that are recomputed."""
        return iter(())

    def input_embedding(self) -> Convolution:
        return self.patch_embedding


def aspect_ratio_attention_mask(aspect_ratio_mask: Tensor, target_length: int, dtype: Dtype) -> Tensor:
    """`_prepare_aspect_ratio_attention_mask`: tiles that are there, by all pairs of patches."""
    machine, (batch_size, tiles) = aspect_ratio_mask.machine, aspect_ratio_mask.shape
    attention_mask = aspect_ratio_mask.view(batch_size, tiles, 1, 1).to(dtype)
    attention_mask = machine.run("repeat", (attention_mask,), (batch_size, tiles, target_length, 1), dtype)
    machine.launch("fill_", (attention_mask,), dtype, 0)
    attention_mask = 1 - attention_mask
    attention_mask = attention_mask.reshape(batch_size, tiles * target_length, 1)
    attention_mask = F.matmul(attention_mask, attention_mask.transpose(1, 2)) * 1.0
    attention_mask = attention_mask.unsqueeze(1)
    return attention_mask
