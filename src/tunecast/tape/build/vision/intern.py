"""InternVL: a tower with a first token of its own and scaled branches, whose features are folded four into one
(transformers/models/internvl/modeling_internvl.py)."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt, prod
from typing import Any, ClassVar

from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Dropout, LayerNorm, Linear, Module, ModuleList, RMSNorm
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.features import Convolution, attend_to_all, put_features
from tunecast.tape.build.vision.siglip import SiglipMLP
from tunecast.tape.build.vision.text import WithAnyText, text_model


def sides(size: Any) -> tuple[int, int]:
    """Given as one number or as two."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class PatchEmbeddings(Module):
    gives_gradient = False

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        patch = sides(config["patch_size"])
        self.projection = Convolution(machine, config["num_channels"], config["hidden_size"], patch[0])

    def forward(self, pixel_values: Tensor) -> Tensor:
        embeddings = self.projection(pixel_values.to(self.projection.weight.dtype))
        embeddings = embeddings.flatten(2).transpose(1, 2)
        if self.gives_gradient:
            embeddings.requires_grad = True
        return embeddings


class InternEmbeddings(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.cls_token = self.parameter(1, 1, width)
        if config["use_mask_token"]:
            self.mask_token = self.parameter(1, 1, width)
        self.has_positions = config["use_absolute_position_embeddings"]
        if self.has_positions:
            pairs = zip(sides(config["image_size"]), sides(config["patch_size"]), strict=True)
            self.position_embeddings = self.parameter(1, prod(size // patch for size, patch in pairs) + 1, width)
        self.patch_embeddings = PatchEmbeddings(machine, config)
        self.dropout = Dropout(machine, config["hidden_dropout_prob"])

    def forward(self, pixel_values: Tensor) -> Tensor:
        embeddings = self.patch_embeddings(pixel_values)
        batch_size, _, width = embeddings.shape
        cls_tokens = self.cls_token.expand(batch_size, 1, width)
        embeddings = F.cat((cls_tokens, embeddings), 1)
        if self.has_positions:
            embeddings = embeddings + self.position_embeddings
        embeddings = self.dropout(embeddings)
        return embeddings


class InternAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, bias = config["hidden_size"], config["attention_bias"]
        self.num_heads = config["num_attention_heads"]
        self.head_dim = width // self.num_heads
        self.dropout, self.output_dropout = config["attention_dropout"], config["projection_dropout"]
        self.q_proj = Linear(machine, width, width, bias)
        self.k_proj = Linear(machine, width, width, bias)
        self.v_proj = Linear(machine, width, width, bias)
        self.projection_layer = Linear(machine, width, width, bias=True)
        self.has_norms = config["use_qk_norm"]
        if self.has_norms:
            self.q_norm = RMSNorm(machine, width)
            self.k_norm = RMSNorm(machine, width)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        batch_size, seq_len, width = hidden_states.shape
        query_states = self.q_proj(hidden_states)
        key_states = self.k_proj(hidden_states)
        value_states = self.v_proj(hidden_states)
        if self.has_norms:
            query_states = self.q_norm(query_states)
            key_states = self.k_norm(key_states)
        query_states = query_states.reshape(batch_size, seq_len, self.num_heads, self.head_dim).transpose(1, 2)
        key_states = key_states.reshape(batch_size, seq_len, self.num_heads, self.head_dim).transpose(1, 2)
        value_states = value_states.view(batch_size, seq_len, self.num_heads, self.head_dim).transpose(1, 2)
        attn_output, attn_weights = attend_to_all(
            query_states, key_states, value_states, None, self.dropout, eager=eager_attention
        )
        attn_output = attn_output.reshape(batch_size, seq_len, width)
        output = self.projection_layer(attn_output)
        output = F.dropout(output, self.output_dropout)
        return output, attn_weights


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, groups: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """`eager_attention_forward`: softmax in the scores' own dtype."""
    attn_weights = F.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5
    if attention_mask is not None:
        attn_weights = attn_weights + attention_mask
    attn_weights = F.softmax(attn_weights)
    attn_weights = F.dropout(attn_weights, dropout)
    attn_output = F.matmul(attn_weights, value)
    attn_output = attn_output.transpose(1, 2).contiguous()
    return attn_output, attn_weights


class InternLayer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        norm: Any = RMSNorm if config["norm_type"] == "rms_norm" else LayerNorm
        self.lambda_1 = self.parameter(width)
        self.lambda_2 = self.parameter(width)
        self.attention = InternAttention(machine, config)
        self.mlp = SiglipMLP(machine, config)
        self.layernorm_before = norm(machine, width)
        self.layernorm_after = norm(machine, width)
        self.dropout = Dropout(machine, config["hidden_dropout_prob"])

    def forward(self, hidden_states: Tensor) -> Tensor:
        attention_output, _ = self.attention(self.layernorm_before(hidden_states))
        attention_output = self.lambda_1 * attention_output
        hidden_states = attention_output + hidden_states
        layer_output = self.layernorm_after(hidden_states)
        layer_output = self.mlp(layer_output)
        layer_output = self.dropout(layer_output)
        layer_output = self.lambda_2 * layer_output
        layer_output = layer_output + hidden_states
        return layer_output


class InternEncoder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.layer = ModuleList(machine, [InternLayer(machine, config) for _ in range(config["num_hidden_layers"])])

    def forward(self, hidden_states: Tensor, states: list[Tensor] | None) -> Tensor:
        """`states`: see `SiglipEncoder`."""
        if states is not None:
            states.append(hidden_states)
        for layer_module in self.layer:
            hidden_states = layer_module(hidden_states)
            if states is not None:
                states.append(hidden_states)
        return hidden_states


class InternVision(Module):
    defaults: ClassVar[Config] = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "attention_bias": False, "use_qk_norm": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
        "attention_dropout": 0.0, "projection_dropout": 0.0, "norm_type": "layer_norm", "image_size": (448, 448),
        "patch_size": (14, 14), "num_channels": 3, "use_mask_token": False, "use_absolute_position_embeddings": True,
        "use_mean_pooling": True,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        self.embeddings = InternEmbeddings(machine, config)
        self.encoder = InternEncoder(machine, config)
        self.pools = config["use_mean_pooling"]
        if not self.pools:
            self.layernorm = LayerNorm(machine, config["hidden_size"])

    def forward(self, pixel_values: Tensor, states: list[Tensor] | None) -> Tensor:
        embedding_output = self.embeddings(pixel_values)
        sequence_output = self.encoder(embedding_output, states)
        if not self.pools:
            sequence_output = self.layernorm(sequence_output)
        return sequence_output

    def layers(self) -> Iterator[Any]:
        return iter(self.encoder.layer)

    def input_embedding(self) -> PatchEmbeddings:
        return self.embeddings.patch_embeddings


class InternProjector(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        vision = {**InternVision.defaults, **config["vision_config"]}
        inputs = vision["hidden_size"] * int(1 / config["downsample_ratio"]) ** 2
        outputs = config["text_config"]["hidden_size"]
        self.layer_norm = LayerNorm(machine, inputs)
        self.linear_1 = Linear(machine, inputs, outputs, bias=True)
        self.act = Activation(machine, config["projector_hidden_act"])
        self.linear_2 = Linear(machine, outputs, outputs, bias=True)

    def forward(self, image_features: Tensor) -> Tensor:
        hidden_states = self.layer_norm(image_features)
        hidden_states = self.linear_1(hidden_states)
        hidden_states = self.act(hidden_states)
        hidden_states = self.linear_2(hidden_states)
        return hidden_states


class InternParts(Module):
    """`InternVLModel`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.feature_layer = config["vision_feature_layer"]
        self.drops_first = config["vision_feature_select_strategy"] == "default"
        self.folded = int(1 / config["downsample_ratio"])
        self.vision_tower = InternVision(machine, config["vision_config"])
        self.multi_modal_projector = InternProjector(machine, config)
        self.language_model = text_model(machine, config["text_config"])

    def forward(self, input_ids: Tensor, attention_mask: Any, pixel_values: Tensor | None = None) -> tuple[Tensor, ...]:
        inputs_embeds = self.language_model.embed_tokens(input_ids)
        image_features = None
        if pixel_values is not None:
            image_features = self.get_image_features(pixel_values)
            image_features = image_features.to(inputs_embeds.dtype)
            inputs_embeds = put_features(inputs_embeds, input_ids, image_features)
        outputs = self.language_model(attention_mask=attention_mask, inputs_embeds=inputs_embeds)
        return (outputs,) if image_features is None else (outputs, image_features)

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        pixel_values = pixel_values.to(self.machine.weights_dtype)
        states: list[Tensor] | None = None if self.feature_layer == -1 else []
        vision_outputs = self.vision_tower(pixel_values=pixel_values, states=states)
        vision_features = vision_outputs if states is None else states[self.feature_layer]
        if self.drops_first:
            vision_features = vision_features[:, 1:]
        batch_size, channels, _ = vision_features.shape
        feature_size = isqrt(channels)
        vision_features = vision_features.reshape(batch_size, feature_size, feature_size, -1)
        vision_features = self.pixel_shuffle(vision_features)
        vision_features = vision_features.reshape(batch_size, -1, vision_features.shape[-1])
        vision_features = self.multi_modal_projector(vision_features)
        return vision_features

    def pixel_shuffle(self, vision_features: Tensor) -> Tensor:
        batch_size, width, height, channels = vision_features.shape
        by = self.folded
        vision_features = vision_features.view(batch_size, width, height // by, channels * by)
        vision_features = vision_features.permute(0, 2, 1, 3).contiguous()
        vision_features = vision_features.view(batch_size, height // by, width // by, channels * by**2)
        vision_features = vision_features.permute(0, 2, 1, 3).contiguous()
        return vision_features


class InternVL(WithAnyText):
    parts_class = InternParts
    config_defaults: ClassVar[Config] = {
        "downsample_ratio": 0.5, "projector_hidden_act": "gelu", "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default", "tie_word_embeddings": True,
    }  # fmt: skip
