"""Qwen2-VL: a tower whose patches see all of their image.

Source   transformers/models/qwen2_vl/modeling_qwen2_vl.py, `Qwen2VisionTransformerPretrainedModel.forward`,
         `Qwen2VLVisionBlock`, `PatchMerger`; the rest is Qwen2.5-VL's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tunecast.job.images import Picture
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import LayerNorm, Module, ModuleList, PlainMLP
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision import qwen2_5
from tunecast.tape.build.vision.qwen2_5 import (
    PatchEmbed,
    PatchMerger,
    VisionAttention,
    VisionRotary,
    ends_of_frames,
    frame_lengths,
    patch_positions,
)


class Qwen2Merger(PatchMerger):
    norm_class = LayerNorm


class Qwen2Block(qwen2_5.VisionBlock):
    def __init__(self, machine: Machine, config: Config) -> None:
        super(qwen2_5.VisionBlock, self).__init__(machine)
        width = config["embed_dim"]
        self.norm1 = LayerNorm(machine, width)
        self.norm2 = LayerNorm(machine, width)
        self.attn = VisionAttention(machine, width, config["num_heads"])
        self.mlp = self.make_mlp(machine, config)

    def make_mlp(self, machine: Machine, config: Config) -> Module:
        width = config["embed_dim"]
        return PlainMLP(machine, width, int(width * config["mlp_ratio"]), config["hidden_act"])


class Qwen2Tower(Module):
    defaults: ClassVar[Config] = {
        "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "hidden_act": "quick_gelu", "mlp_ratio": 4,
        "num_heads": 16, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        width = config["embed_dim"]
        self.merged = config["spatial_merge_size"]
        self.patch_embed = PatchEmbed(machine, config, width)
        self.rotary_pos_emb = VisionRotary(machine, width // config["num_heads"])
        self.blocks = ModuleList(machine, [Qwen2Block(machine, config) for _ in range(config["depth"])])
        self.merger = Qwen2Merger(machine, width, config["hidden_size"], self.merged)

    def forward(self, hidden_states: Tensor, pictures: Sequence[Picture]) -> tuple[Tensor, Tensor]:
        """Of all images of a batch: what the language model gets, and what the last block gave."""
        position_ids = patch_positions(self.machine, pictures)
        frames = frame_lengths(pictures)
        cu_seqlens = ends_of_frames(self.machine, pictures)
        hidden_states = self.patch_embed(hidden_states)
        position_embeddings = self.rotary_pos_emb(hidden_states, position_ids)
        for blk in self.blocks:
            hidden_states = blk(hidden_states, lengths=frames, position_embeddings=position_embeddings)
        merged_hidden_states = self.merger(hidden_states)
        del cu_seqlens
        return merged_hidden_states, hidden_states

    def layers(self) -> Iterator[Any]:
        return iter(self.blocks)

    def input_embedding(self) -> Any:
        return self.patch_embed


class Parts(qwen2_5.Parts):
    """`Qwen2VLModel`."""

    tower_class = Qwen2Tower


class Qwen2VL(qwen2_5.Qwen25VL):
    """`Qwen2VLForConditionalGeneration`."""

    parts_class = Parts
    counts_labels = True
