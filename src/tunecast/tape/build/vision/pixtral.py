"""Pixtral's vision tower, which takes images of any size, all of a batch as one row of patches
(transformers/models/pixtral/modeling_pixtral.py), and Mistral 3, which merges squares of patches into a token
(transformers/models/mistral3/modeling_mistral3.py). Images of a batch have one size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import rotate
from tunecast.tape.build.decoder import CheckpointingLayer, Config, GatedMLP
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Linear, Module, ModuleList, RMSNorm
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.features import Convolution, attend_to_all, put_features
from tunecast.tape.build.vision.text import WithAnyText, text_model


class PixtralRotary(Module):
    """`PixtralVisionRotaryEmbedding`: one set of frequencies for heights and widths."""

    attention_scaling = 1.0

    def __init__(self, machine: Machine, head_dim: int) -> None:
        super().__init__(machine)
        self.inv_freq = self.buffer(head_dim // 2)
        self.original_inv_freq = self.buffer(head_dim // 2)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine = self.machine
        with machine.no_grad(), machine.autocasting(None):
            half = self.inv_freq.shape[0]
            inv_freq_expanded = self.inv_freq.alias((1, half), None)
            position_ids_expanded = position_ids[..., None].float()
            freqs = position_ids_expanded @ inv_freq_expanded
            cos = freqs.cos() * self.attention_scaling
            sin = freqs.sin() * self.attention_scaling
            cos = self.recomposition_frequencies(cos)
            sin = self.recomposition_frequencies(sin)
            return cos.to(x.dtype), sin.to(x.dtype)

    def recomposition_frequencies(self, freq: Tensor) -> Tensor:
        first, second = freq.chunk(2, 2)
        freq_h, freq_w = first[:, 0], second[:, 1]
        freq_hw = F.cat([freq_h, freq_w], -1)
        return F.cat([freq_hw, freq_hw], -1)


class PixtralAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.num_heads = config["num_attention_heads"]
        self.head_dim = width // self.num_heads
        self.dropout = config.get("attention_dropout") or 0.0
        self.k_proj = Linear(machine, width, width)
        self.v_proj = Linear(machine, width, width)
        self.q_proj = Linear(machine, width, width)
        self.o_proj = Linear(machine, width, width)

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, position_embeddings: Any
    ) -> tuple[Tensor, Tensor | None]:
        batch_size, patches, _ = hidden_states.shape
        query_states = self.q_proj(hidden_states)
        key_states = self.k_proj(hidden_states)
        value_states = self.v_proj(hidden_states)
        query_states = query_states.view(batch_size, patches, self.num_heads, self.head_dim).transpose(1, 2)
        key_states = key_states.view(batch_size, patches, self.num_heads, self.head_dim).transpose(1, 2)
        value_states = value_states.view(batch_size, patches, self.num_heads, self.head_dim).transpose(1, 2)
        cos, sin = position_embeddings
        query_states, key_states = rotated(query_states, key_states, cos, sin)
        attn_output, attn_weights = attend_to_all(query_states, key_states, value_states, attention_mask, self.dropout)
        attn_output = attn_output.reshape(batch_size, patches, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb` with `unsqueeze_dim=0`."""
    cos = cos.unsqueeze(0)
    sin = sin.unsqueeze(0)
    q_embed = rotate(q, cos, sin)
    k_embed = rotate(k, cos, sin)
    return q_embed, k_embed


class PixtralLayer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.attention_norm = RMSNorm(machine, config["hidden_size"])
        self.feed_forward = GatedMLP(machine, {**config, "mlp_bias": False})
        self.attention = PixtralAttention(machine, config)
        self.ffn_norm = RMSNorm(machine, config["hidden_size"])

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, position_embeddings: Any, position_ids: Tensor
    ) -> Tensor:
        """Recomputed layers hold positions too, which only kernels of flash attention look at."""
        residual = hidden_states
        hidden_states = self.attention_norm(hidden_states)
        hidden_states, _ = self.attention(
            hidden_states=hidden_states, attention_mask=attention_mask, position_embeddings=position_embeddings
        )
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.ffn_norm(hidden_states)
        hidden_states = self.feed_forward(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class PixtralTransformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.layers = ModuleList(machine, [PixtralLayer(machine, config) for _ in range(config["num_hidden_layers"])])

    def forward(
        self, inputs_embeds: Tensor, attention_mask: Any, position_embeddings: Any, position_ids: Tensor,
        states: list[Tensor],
    ) -> Tensor:  # fmt: skip
        """`states`: see `SiglipEncoder`."""
        hidden_states = inputs_embeds
        states.append(hidden_states)
        for encoder_layer in self.layers:
            hidden_states = encoder_layer(
                hidden_states, attention_mask, position_embeddings=position_embeddings, position_ids=position_ids
            )
            states.append(hidden_states)
        return hidden_states


class PixtralVision(Module):
    defaults: ClassVar[Config] = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_channels": 3, "image_size": 1024, "patch_size": 16, "hidden_act": "gelu",
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        width = config["hidden_size"]
        self.patch_conv = Convolution(machine, config["num_channels"], width, config["patch_size"], bias=False)
        self.ln_pre = RMSNorm(machine, width)
        self.transformer = PixtralTransformer(machine, config)
        self.patch_positional_embedding = PixtralRotary(machine, width // config["num_attention_heads"])

    def forward(self, pixel_values: Tensor) -> list[Tensor]:
        """All hidden states."""
        states: list[Tensor] = []
        target_dtype = self.patch_conv.weight.dtype
        patch_embeds = self.patch_conv(pixel_values.to(target_dtype))
        patch_embeds_list = F.unbind(patch_embeds)
        patch_embeds = F.cat([p.flatten(1).t() for p in patch_embeds_list], 0).unsqueeze(0)
        patch_embeds = self.ln_pre(patch_embeds)
        position_ids: Any = []
        for patch in patch_embeds_list:
            hpos_ids, wpos_ids = self.positions(*patch.shape[1:])
            position_ids.append(pair(hpos_ids, wpos_ids))
        position_ids = F.cat(position_ids, 0)
        position_embeddings = self.patch_positional_embedding(patch_embeds, position_ids)
        attention_mask = None if self.machine.is_flash else self.block_mask(patch_embeds, len(patch_embeds_list))
        self.transformer(
            patch_embeds, attention_mask=attention_mask, position_embeddings=position_embeddings,
            position_ids=position_ids, states=states,
        )  # fmt: skip
        return states

    def positions(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """`torch.meshgrid`: views of rows and columns."""
        rows, columns = [self.machine.run("arange", (), (count,), INT64) for count in (height, width)]
        return rows.unsqueeze(1).expand(height, width), columns.unsqueeze(0).expand(height, width)

    def block_mask(self, tensor: Tensor, images: int) -> Tensor:
        """`generate_block_attention_mask`: patches of an image see those of the same."""
        machine, length = self.machine, tensor.shape[1]
        causal_mask = machine.run("full", (), (length, length), tensor.dtype)
        for _ in range(images):
            machine.launch("fill_", (), tensor.dtype, (length // images) ** 2 * tensor.element_size())
        return causal_mask[None, None].expand(tensor.shape[0], 1, length, length)

    def layers(self) -> Iterator[Any]:
        return iter(self.transformer.layers)

    def input_embedding(self) -> Convolution:
        return self.patch_conv


def pair(rows: Tensor, columns: Tensor) -> Tensor:
    return F.stack([rows.flatten(0), columns.flatten(0)], -1)


class PatchMerger(Module):
    """`Mistral3PatchMerger`."""

    def __init__(self, machine: Machine, width: int, patch: int, merged: int) -> None:
        super().__init__(machine)
        self.patch_size, self.spatial_merge_size = patch, merged
        self.merging_layer = Linear(machine, width * merged**2, width)

    def forward(self, image_features: Tensor, grids: list[tuple[int, int]]) -> Tensor:
        merged, d = self.spatial_merge_size, image_features.shape[-1]
        tokens_per_image = [h * w for h, w in grids]
        permuted_tensor = []
        for (h, w), image_tokens in zip(grids, image_features.split(tokens_per_image, 0), strict=True):
            image_grid = image_tokens.view(h, w, d).permute(2, 0, 1).unsqueeze(0)
            grid = F.unfold(image_grid, merged)
            grid = grid.view(d * merged**2, -1).t()
            permuted_tensor.append(grid)
        image_features = F.cat(permuted_tensor, 0)
        image_features = self.merging_layer(image_features)
        return image_features


class Mistral3Projector(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        vision = {**PixtralVision.defaults, **config["vision_config"]}
        width, text_width = vision["hidden_size"], config["text_config"]["hidden_size"]
        bias = config["multimodal_projector_bias"]
        self.norm = RMSNorm(machine, width)
        self.patch_merger = PatchMerger(machine, width, vision["patch_size"], config["spatial_merge_size"])
        self.linear_1 = Linear(machine, width, text_width, bias)
        self.act = Activation(machine, config["projector_hidden_act"])
        self.linear_2 = Linear(machine, text_width, text_width, bias)

    def forward(self, image_features: Tensor, grids: list[tuple[int, int]]) -> Tensor:
        image_features = self.norm(image_features)
        image_features = self.patch_merger(image_features, grids)
        hidden_states = self.linear_1(image_features)
        hidden_states = self.act(hidden_states)
        hidden_states = self.linear_2(hidden_states)
        return hidden_states


class Mistral3Parts(Module):
    """`Mistral3Model`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.vision_tower = PixtralVision(machine, config["vision_config"])
        self.multi_modal_projector = Mistral3Projector(machine, config)
        self.language_model = text_model(machine, config["text_config"])

    def forward(
        self, input_ids: Tensor, attention_mask: Any, pixel_values: Tensor | None = None,
        image_sizes: Tensor | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        inputs_embeds = self.language_model.embed_tokens(input_ids)
        image_features: Any = None
        if pixel_values is not None:
            image_features = self.get_image_features(pixel_values, image_sizes)
            image_features = F.cat(image_features, 0).to(inputs_embeds.dtype)
            inputs_embeds = put_features(inputs_embeds, input_ids, image_features)
        outputs = self.language_model(attention_mask=attention_mask, inputs_embeds=inputs_embeds)
        return (outputs,) if image_features is None else (outputs, image_features)

    def get_image_features(self, pixel_values: Tensor, image_sizes: Any) -> list[Tensor]:
        merger = self.multi_modal_projector.patch_merger
        height, width = (size // merger.patch_size for size in pixel_values.shape[2:])
        grids = [(height, width)] * int(pixel_values.shape[0])
        image_outputs = self.vision_tower(pixel_values)
        selected_image_feature = image_outputs[-1]
        image_features = self.multi_modal_projector(selected_image_feature.squeeze(0), grids)
        machine, images = self.machine, int(pixel_values.shape[0])
        merged = machine.run("floor_divide", (image_sizes,), (images, 2), INT64)
        machine.run("prod", (merged,), (images,), INT64)
        split_sizes = [h * w // merger.spatial_merge_size**2 for h, w in grids]
        return image_features.split(split_sizes, 0)


class Mistral3(WithAnyText):
    parts_class = Mistral3Parts
    config_defaults: ClassVar[Config] = {
        "projector_hidden_act": "gelu", "vision_feature_layer": -1, "multimodal_projector_bias": False,
        "spatial_merge_size": 2, "tie_word_embeddings": True,
    }  # fmt: skip
