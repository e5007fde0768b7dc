"""CLIP's vision tower (transformers/models/clip/modeling_clip.py, `CLIPVisionModel`), and LLaVA, which looks at what
its last layer but one gives (transformers/models/llava/modeling_llava.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, LayerNorm, Module
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.features import Convolution, Projector, put_features
from tunecast.tape.build.vision.siglip import SiglipEncoder, SiglipLayer
from tunecast.tape.build.vision.text import WithAnyText, text_model


class ClipEmbeddings(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, patch = config["hidden_size"], config["patch_size"]
        self.class_embedding = self.parameter(width)
        self.patch_embedding = Convolution(machine, config["num_channels"], width, patch, bias=False)
        positions = (config["image_size"] // patch) ** 2 + 1
        self.position_embedding = Embedding(machine, positions, width)
        self.position_ids = self.buffer(1, positions, dtype=INT64)

    def forward(self, pixel_values: Tensor) -> Tensor:
        batch_size = pixel_values.shape[0]
        target_dtype = self.patch_embedding.weight.dtype
        patch_embeds = self.patch_embedding(pixel_values.to(target_dtype))
        patch_embeds = patch_embeds.flatten(2).transpose(1, 2)
        class_embeds = self.class_embedding.expand(batch_size, 1, self.class_embedding.shape[0])
        embeddings = F.cat([class_embeds, patch_embeds], 1)
        embeddings = embeddings + self.position_embedding(self.position_ids)
        return embeddings


class ClipLayer(SiglipLayer):
    parts = ("self_attn", "layer_norm1", "mlp", "layer_norm2")


class ClipEncoder(SiglipEncoder):
    layer_class = ClipLayer


class ClipVision(Module):
    defaults: ClassVar[Config] = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu",
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        self.embeddings = ClipEmbeddings(machine, config)
        self.pre_layrnorm = LayerNorm(machine, config["hidden_size"])
        self.encoder = ClipEncoder(machine, config)
        self.post_layernorm = LayerNorm(machine, config["hidden_size"])

    def forward(self, pixel_values: Tensor) -> tuple[list[Tensor], Tensor]:
        """All hidden states, and the pooled one, which nobody here asks for."""
        states: list[Tensor] = []
        hidden_states = self.embeddings(pixel_values)
        hidden_states = self.pre_layrnorm(hidden_states)
        last_hidden_state = self.encoder(inputs_embeds=hidden_states, states=states)
        pooled_output = last_hidden_state[:, 0]
        pooled_output = self.post_layernorm(pooled_output)
        return states, pooled_output

    def layers(self) -> Iterator[Any]:
        return iter(self.encoder.layers)

    def input_embedding(self) -> Convolution:
        return self.embeddings.patch_embedding


class LlavaParts(Module):
    """`LlavaModel`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        vision, text = {**ClipVision.defaults, **config["vision_config"]}, config["text_config"]
        self.feature_layer = config["vision_feature_layer"]
        self.drops_first = config["vision_feature_select_strategy"] == "default"
        self.vision_tower = ClipVision(machine, vision)
        self.multi_modal_projector = Projector(
            machine, vision["hidden_size"], text["hidden_size"], config["projector_hidden_act"],
            config["multimodal_projector_bias"],
        )  # fmt: skip
        self.language_model = text_model(machine, text)

    def forward(self, input_ids: Tensor, attention_mask: Any, pixel_values: Tensor | None = None) -> tuple[Tensor, ...]:
        inputs_embeds = self.language_model.embed_tokens(input_ids)
        image_features: Any = None
        if pixel_values is not None:
            image_features = self.get_image_features(pixel_values)
            image_features = F.cat(image_features, 0).to(inputs_embeds.dtype)
            inputs_embeds = put_features(inputs_embeds, input_ids, image_features)
        outputs = self.language_model(attention_mask=attention_mask, inputs_embeds=inputs_embeds)
        return (outputs,) if image_features is None else (outputs, image_features)

    def get_image_features(self, pixel_values: Tensor) -> list[Tensor]:
        image_outputs = self.vision_tower(pixel_values)
        selected_image_feature = image_outputs[0][self.feature_layer]
        if self.drops_first:
            selected_image_feature = selected_image_feature[:, 1:]
        image_features = self.multi_modal_projector(selected_image_feature)
        return F.unbind(image_features)


class Llava(WithAnyText):
    parts_class = LlavaParts
    config_defaults: ClassVar[Config] = {
        "projector_hidden_act": "gelu", "vision_feature_select_strategy": "default", "vision_feature_layer": -2,
        "multimodal_projector_bias": True, "tie_word_embeddings": False,
    }  # fmt: skip
