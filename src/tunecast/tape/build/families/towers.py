"""Vision towers: what a model with eyes loads beside its language model. A batch of text does not run them, so they
have weights and no forward pass."""

from __future__ import annotations

from typing import ClassVar

from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, LayerNorm, Linear, Module, ModuleList


class Convolution(Module):
    """Patches of an image to vectors."""

    def __init__(self, machine: Machine, channels: int, width: int, patch: int, bias: bool = True) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width, channels, patch, patch)
        if bias:
            self.bias = self.parameter(width)


class SiglipEmbeddings(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, patch = config["hidden_size"], config["patch_size"]
        self.patch_embedding = Convolution(machine, config["num_channels"], width, patch)
        positions = (config["image_size"] // patch) ** 2
        self.position_embedding = Embedding(machine, positions, width)
        self.position_ids = self.buffer(1, positions, dtype=INT64)


class SiglipAttention(Module):
    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)
        self.k_proj = Linear(machine, width, width, bias=True)
        self.v_proj = Linear(machine, width, width, bias=True)
        self.q_proj = Linear(machine, width, width, bias=True)
        self.out_proj = Linear(machine, width, width, bias=True)


class SiglipMLP(Module):
    def __init__(self, machine: Machine, width: int, inner: int) -> None:
        super().__init__(machine)
        self.fc1 = Linear(machine, width, inner, bias=True)
        self.fc2 = Linear(machine, inner, width, bias=True)


class SiglipLayer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.layer_norm1 = LayerNorm(machine, width)
        self.self_attn = SiglipAttention(machine, width)
        self.layer_norm2 = LayerNorm(machine, width)
        self.mlp = SiglipMLP(machine, width, config["intermediate_size"])


class SiglipEncoder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.layers = ModuleList(machine, [SiglipLayer(machine, config) for _ in range(config["num_hidden_layers"])])


class PoolingHead(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.probe = self.parameter(1, 1, width)
        self.attention = TorchAttention(machine, width)
        self.layernorm = LayerNorm(machine, width)
        self.mlp = SiglipMLP(machine, width, config["intermediate_size"])


class TorchAttention(Module):
    """torch.nn.MultiheadAttention: one weight for queries, keys and values."""

    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)
        self.in_proj_weight = self.parameter(3 * width, width)
        self.in_proj_bias = self.parameter(3 * width)
        self.out_proj = Linear(machine, width, width, bias=True)


class SiglipVision(Module):
    """transformers/models/siglip/modeling_siglip.py, `SiglipVisionModel`."""

    defaults: ClassVar[Config] = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_channels": 3, "image_size": 224,
        "patch_size": 16, "vision_use_head": True,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        self.embeddings = SiglipEmbeddings(machine, config)
        self.encoder = SiglipEncoder(machine, config)
        self.post_layernorm = LayerNorm(machine, config["hidden_size"])
        if config["vision_use_head"]:
            self.head = PoolingHead(machine, config)
