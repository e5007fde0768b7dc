"""SigLIP's vision tower on paper (transformers/models/siglip/modeling_siglip.py, `SiglipVisionModel`), and what CLIP's
has in common with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.features import Convolution, attend_to_all


class SiglipEmbeddings(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, patch = config["hidden_size"], config["patch_size"]
        self.patch_embedding = Convolution(machine, config["num_channels"], width, patch)
        positions = (config["image_size"] // patch) ** 2
        self.position_embedding = Embedding(machine, positions, width)
        self.position_ids = self.buffer(1, positions, dtype=INT64)

    def forward(self, pixel_values: Tensor) -> Tensor:
        target_dtype = self.patch_embedding.weight.dtype
        patch_embeds = self.patch_embedding(pixel_values.to(target_dtype))
        embeddings = patch_embeds.flatten(2).transpose(1, 2)
        embeddings = embeddings + self.position_embedding(self.position_ids)
        return embeddings


class SiglipAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.head_dim = width // config["num_attention_heads"]
        self.dropout = config.get("attention_dropout") or 0.0
        self.k_proj = Linear(machine, width, width, bias=True)
        self.v_proj = Linear(machine, width, width, bias=True)
        self.q_proj = Linear(machine, width, width, bias=True)
        self.out_proj = Linear(machine, width, width, bias=True)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        batch, length, _ = hidden_states.shape
        queries = self.q_proj(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
        keys = self.k_proj(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
        values = self.v_proj(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
        attn_output, attn_weights = attend_to_all(queries, keys, values, attention_mask, self.dropout)
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.out_proj(attn_output)
        return attn_output, attn_weights


class SiglipMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.activation_fn = Activation(machine, config["hidden_act"])
        self.fc1 = Linear(machine, width, inner, bias=True)
        self.fc2 = Linear(machine, inner, width, bias=True)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.fc1(hidden_states)
        hidden_states = self.activation_fn(hidden_states)
        hidden_states = self.fc2(hidden_states)
        return hidden_states


class SiglipLayer(CheckpointingLayer):
    parts: Sequence[str] = ("layer_norm1", "self_attn", "layer_norm2", "mlp")
    """In the order of the tree."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        made: dict[str, Any] = {"self_attn": SiglipAttention, "mlp": SiglipMLP}
        for name in self.parts:
            setattr(self, name, made[name](machine, config) if name in made else norm_of(machine, config))

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        part = self.children
        residual = hidden_states
        hidden_states = part["layer_norm1"](hidden_states)
        hidden_states, _ = part["self_attn"](hidden_states=hidden_states, attention_mask=attention_mask)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = part["layer_norm2"](hidden_states)
        hidden_states = part["mlp"](hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


def norm_of(machine: Machine, config: Config) -> LayerNorm:
    return LayerNorm(machine, config["hidden_size"])


class SiglipEncoder(Module):
    layer_class: Any = SiglipLayer

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        layers = [self.layer_class(machine, config) for _ in range(config["num_hidden_layers"])]
        self.layers = ModuleList(machine, layers)

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor | None = None, states: Any = None) -> Tensor:
        """`states`, where they are asked for (`output_hidden_states`): what goes into the first layer, and what each
        gives, which a hook of its module keeps (transformers/utils/output_capturing.py, `capture_outputs`)."""
        hidden_states = inputs_embeds
        if states is not None:
            states.append(hidden_states)
        for encoder_layer in self.layers:
            hidden_states = encoder_layer(hidden_states, attention_mask)
            if states is not None:
                states.append(hidden_states)
        return hidden_states


class TorchAttention(Module):
    """torch.nn.MultiheadAttention: one weight for queries, keys and values."""

    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)
        self.in_proj_weight = self.parameter(3 * width, width)
        self.in_proj_bias = self.parameter(3 * width)
        self.out_proj = Linear(machine, width, width, bias=True)


class PoolingHead(Module):
    """Weights alone: models that pool have no image run through it here."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.probe = self.parameter(1, 1, width)
        self.attention = TorchAttention(machine, width)
        self.layernorm = LayerNorm(machine, width)
        self.mlp = SiglipMLP(machine, config)


class SiglipVision(Module):
    defaults: ClassVar[Config] = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_channels": 3, "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh",
        "vision_use_head": True,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        self.embeddings = SiglipEmbeddings(machine, config)
        self.encoder = SiglipEncoder(machine, config)
        self.post_layernorm = LayerNorm(machine, config["hidden_size"])
        if config["vision_use_head"]:
            self.head = PoolingHead(machine, config)

    def forward(self, pixel_values: Tensor) -> Tensor:
        hidden_states = self.embeddings(pixel_values)
        last_hidden_state = self.encoder(hidden_states)
        last_hidden_state = self.post_layernorm(last_hidden_state)
        return last_hidden_state

    def layers(self) -> Iterator[Any]:
        return iter(self.encoder.layers)

    def input_embedding(self) -> Convolution:
        return self.embeddings.patch_embedding
