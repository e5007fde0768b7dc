"""Llama 4 with its vision tower: patches cut out and multiplied, positions as complex numbers, four features folded
into one (transformers/models/llama4/modeling_llama4.py, `Llama4ForConditionalGeneration`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.families import llama4
from tunecast.tape.build.families.deepseek import COMPLEX64, complex_mul, view_as_complex, view_as_real
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.features import attend_to_all, put_features
from tunecast.tape.build.vision.parts import WithParts
from tunecast.tape.build.vision.siglip import SiglipMLP


def rotated(query: Tensor, key: Tensor, freqs_ci: Tensor) -> tuple[Tensor, Tensor]:
    """`vision_apply_rotary_emb`."""
    query_ = view_as_complex(query.float().reshape(*query.shape[:-1], -1, 2))
    key_ = view_as_complex(key.float().reshape(*key.shape[:-1], -1, 2))
    freqs_ci = freqs_ci.view(1, query_.shape[1], 1, query_.shape[3])
    query_out = view_as_real(complex_mul(query_, freqs_ci)).flatten(3)
    key_out = view_as_real(complex_mul(key_, freqs_ci)).flatten(3)
    return query_out.to(query.dtype), key_out.to(key.dtype)


class VisionAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.head_dim = width // config["num_attention_heads"]
        self.dropout = config.get("attention_dropout") or 0.0
        self.q_proj = Linear(machine, width, width, bias=True)
        self.k_proj = Linear(machine, width, width, bias=True)
        self.v_proj = Linear(machine, width, width, bias=True)
        self.o_proj = Linear(machine, width, width, bias=True)

    def forward(self, hidden_states: Tensor, freqs_ci: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, length, _ = hidden_states.shape
        query_states = self.q_proj(hidden_states).view(batch, length, -1, self.head_dim)
        key_states = self.k_proj(hidden_states).view(batch, length, -1, self.head_dim)
        value_states = self.v_proj(hidden_states).view(batch, length, -1, self.head_dim)
        query_states, key_states = rotated(query_states, key_states, freqs_ci)
        query_states = query_states.transpose(1, 2)
        key_states = key_states.transpose(1, 2)
        value_states = value_states.transpose(1, 2)
        attn_output, attn_weights = attend_to_all(
            query_states, key_states, value_states, None, self.dropout, eager=llama4.eager_attention
        )
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


class VisionLayer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.self_attn = VisionAttention(machine, config)
        self.mlp = SiglipMLP(machine, {**config, "hidden_act": "gelu"})
        self.input_layernorm = LayerNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = LayerNorm(machine, config["hidden_size"])

    def forward(self, hidden_state: Tensor, freqs_ci: Tensor) -> tuple[Tensor]:
        residual = hidden_state
        hidden_state = self.input_layernorm(hidden_state)
        hidden_state, _attn_weights = self.self_attn(hidden_state, freqs_ci=freqs_ci)
        hidden_state = residual + hidden_state
        residual = hidden_state
        hidden_state = self.post_attention_layernorm(hidden_state)
        hidden_state = self.mlp(hidden_state)
        hidden_state = residual + hidden_state
        outputs = (hidden_state,)
        return outputs


class VisionEncoder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.layers = ModuleList(machine, [VisionLayer(machine, config) for _ in range(config["num_hidden_layers"])])

    def forward(self, hidden_states: Tensor, freqs_ci: Tensor) -> Tensor:
        for encoder_layer in self.layers:
            layer_outputs = encoder_layer(hidden_state=hidden_states, freqs_ci=freqs_ci)
            hidden_states = layer_outputs[0]
        return hidden_states


class UnfoldConvolution(Module):
    gives_gradient = False

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.patch = config["patch_size"]
        self.linear = Linear(machine, config["num_channels"] * self.patch**2, config["hidden_size"])

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = F.unfold(hidden_states, self.patch)
        hidden_states = hidden_states.permute(0, 2, 1)
        hidden_states = self.linear(hidden_states)
        if self.gives_gradient:
            hidden_states.requires_grad = True
        return hidden_states


class VisionRotary(Module):
    def __init__(self, machine: Machine, positions: int, head_dim: int) -> None:
        super().__init__(machine)
        self.freqs_ci = self.buffer(positions, 1, head_dim // 2, dtype=COMPLEX64)

    def forward(self) -> Tensor:
        return self.freqs_ci


class VisionMLP2(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.fc1 = Linear(machine, config["intermediate_size"], config["projector_input_dim"])
        self.fc2 = Linear(machine, config["projector_output_dim"], config["projector_output_dim"])
        self.dropout = config["projector_dropout"]

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.fc1(hidden_states)
        hidden_states = F.gelu(hidden_states)
        hidden_states = F.dropout(hidden_states, self.dropout)
        return F.gelu(self.fc2(hidden_states))


class PixelShuffleMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.folded = int(1 / config["pixel_shuffle_ratio"])
        self.mlp = VisionMLP2(machine, config)

    def forward(self, encoded_patches: Tensor) -> Tensor:
        encoded_patches = self.pixel_shuffle(encoded_patches)
        return self.mlp(encoded_patches)

    def pixel_shuffle(self, input_tensor: Tensor) -> Tensor:
        (batch_size, num_patches, channels), by = input_tensor.shape, self.folded
        side = isqrt(num_patches)
        input_tensor = input_tensor.view(batch_size, side, side, channels)
        reshaped_tensor = input_tensor.view(batch_size, side, side // by, channels * by)
        reshaped_tensor = reshaped_tensor.permute(0, 2, 1, 3).contiguous()
        reshaped_tensor = reshaped_tensor.view(batch_size, side // by, side // by, channels * by**2)
        reshaped_tensor = reshaped_tensor.permute(0, 2, 1, 3).contiguous()
        output_tensor = reshaped_tensor.view(batch_size, -1, reshaped_tensor.shape[-1])
        return output_tensor


class VisionModel(Module):
    """`Llama4VisionModel`."""

    defaults: ClassVar[Config] = {
        "hidden_size": 768, "num_hidden_layers": 34, "num_attention_heads": 16, "num_channels": 3,
        "intermediate_size": 5632, "vision_output_dim": 7680, "image_size": 448, "patch_size": 14,
        "pixel_shuffle_ratio": 0.5, "projector_input_dim": 4096, "projector_output_dim": 4096,
        "projector_dropout": 0.0,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        width, patches = config["hidden_size"], (config["image_size"] // config["patch_size"]) ** 2 + 1
        self.class_embedding = self.parameter(width)
        self.positional_embedding_vlm = self.parameter(patches, width)
        self.patch_embedding = UnfoldConvolution(machine, config)
        self.rotary_embedding = VisionRotary(machine, patches, width // config["num_attention_heads"])
        self.layernorm_pre = LayerNorm(machine, width)
        self.layernorm_post = LayerNorm(machine, width)
        self.model = VisionEncoder(machine, config)
        self.vision_adapter = PixelShuffleMLP(machine, config)

    def forward(self, pixel_values: Tensor) -> Tensor:
        hidden_state = self.patch_embedding(pixel_values)
        tiles, num_patches, hidden_dim = hidden_state.shape
        class_embedding = self.class_embedding.expand(tiles, 1, hidden_dim)
        hidden_state = F.cat([hidden_state, class_embedding], 1)
        num_patches += 1
        hidden_state = hidden_state.reshape(tiles, 1, num_patches, hidden_dim)
        positional_embedding = self.positional_embedding_vlm.to(hidden_state.dtype)
        hidden_state = hidden_state + positional_embedding
        hidden_state = self.layernorm_pre(hidden_state)
        hidden_state = hidden_state.view(tiles, -1, hidden_dim)
        freqs_ci = self.rotary_embedding()
        output = self.model(hidden_state, freqs_ci=freqs_ci)
        hidden_state = output
        hidden_state = self.layernorm_post(hidden_state)
        hidden_state = hidden_state[:, : num_patches - 1]
        hidden_state = self.vision_adapter(hidden_state)
        return hidden_state

    def layers(self) -> Iterator[Any]:
        return iter(self.model.layers)

    def input_embedding(self) -> UnfoldConvolution:
        return self.patch_embedding


class Projector(Module):
    def __init__(self, machine: Machine, inputs: int, outputs: int) -> None:
        super().__init__(machine)
        self.linear_1 = Linear(machine, inputs, outputs)

    def forward(self, image_features: Tensor) -> Tensor:
        hidden_states = self.linear_1(image_features)
        return hidden_states


class TextModel(llama4.CausalLM):
    """`Llama4ForCausalLM`, of embeddings made outside: hidden states and logits."""

    def forward(self, inputs_embeds: Tensor, attention_mask: Any) -> Tensor:  # type: ignore[override]
        hidden_states = self.model(inputs_embeds=inputs_embeds, attention_mask=attention_mask)
        logits = self.lm_head(hidden_states[:])
        return logits


class Llama4(WithParts, llama4.CausalLM):
    """A language model with its head, beside a tower and a projector."""

    tower_paths: Sequence[str] = ("vision_model",)
    projector_paths: Sequence[str] = ("multi_modal_projector",)

    def __init__(self, machine: Machine, config: Config) -> None:
        Module.__init__(self, machine)
        text, vision = self.complete(config["text_config"]), {**VisionModel.defaults, **config["vision_config"]}
        self.model_type = str(text.get("model_type"))
        self.vision_model = VisionModel(machine, vision)
        self.multi_modal_projector = Projector(machine, vision["vision_output_dim"], text["hidden_size"])
        self.language_model = TextModel(machine, text)
        self.vocabulary = text["vocab_size"]
        self.tied = False

    def forward(self, input_ids: Tensor, attention_mask: Any, labels: Tensor, **images: Any) -> Any:
        pixel_values = images.get("pixel_values")
        inputs_embeds = self.input_embedding()(input_ids)
        image_features = None
        if pixel_values is not None:
            image_features = self.vision_model(pixel_values)
            vision_flat = image_features.view(-1, image_features.shape[-1])
            projected_vision_flat = self.multi_modal_projector(vision_flat).to(inputs_embeds.dtype)
            inputs_embeds = put_features(inputs_embeds, input_ids, projected_vision_flat)
        logits = self.language_model(attention_mask=attention_mask, inputs_embeds=inputs_embeds)
        given = self.output(logits, labels)
        return (*given, image_features) if self.gives_logits and image_features is not None else given

    def base(self) -> Any:
        told = "Llama 4 with images is not written down there: its head lies in the language model. To fix:"
        raise Unsupported.at("loss", f"{told} stack transformers")

    def layers(self) -> Any:
        return iter(self.language_model.model.layers)

    def towers(self) -> Sequence[Any]:
        return [self.vision_model]

    def input_embedding(self) -> Any:
        return self.language_model.model.embed_tokens

    def output_embedding(self) -> Any:
        return self.language_model.lm_head

    def tie(self) -> None:
        """It never is."""
