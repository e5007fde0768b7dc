"""Qwen2.5-VL: windows in the tower, and positions in time, height and width.

Source   transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py, `Qwen2_5_VisionTransformerPretrainedModel.forward`,
         `Qwen2_5_VLVisionAttention.forward`, `Qwen2_5_VLModel.forward`, `Qwen2_5_VLModel.get_placeholder_mask`;
         transformers/vision_utils.py, `get_vision_position_ids`, `get_vision_window_index`, `get_vision_cu_seqlens`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tunecast.job.images import Picture
from tunecast.tape.build import attention
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import CheckpointingLayer, Config, GatedMLP
from tunecast.tape.build.dtypes import INT32, INT64
from tunecast.tape.build.families.qwen import Qwen2, Qwen2Attention
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Linear, Module, ModuleList, RMSNorm
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.features import NO_WORKSPACE, placeholder_masks
from tunecast.tape.build.vision.mrope import MropeDecoder, MropeRotary, rope_index
from tunecast.tape.build.vision.parts import WithParts
from tunecast.tape.build.vision.windows import attend_parts


class PatchConvolution(Module):
    """`torch.nn.Conv3d` whose kernels do not overlap."""

    def __init__(self, machine: Machine, channels: int, width: int, kernel: Sequence[int], bias: bool = False) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width, channels, *kernel)
        self.bias: Any = self.parameter(width) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        self.machine.assumptions[NO_WORKSPACE] = None
        return F.conv_patches(x, self.weight, self.bias)


class PatchEmbed(Module):
    """`Qwen2_5_VisionPatchEmbed`."""

    gives_gradient = False
    """transformers' `enable_input_require_grads`."""

    def __init__(self, machine: Machine, config: Config, width: int) -> None:
        super().__init__(machine)
        kernel = (config["temporal_patch_size"], config["patch_size"], config["patch_size"])
        self.width = width
        self.proj = PatchConvolution(machine, config["in_channels"], width, kernel)

    def forward(self, hidden_states: Tensor) -> Tensor:
        target_dtype = self.proj.weight.dtype
        hidden_states = hidden_states.view(-1, *self.proj.weight.shape[1:])
        hidden_states = self.proj(hidden_states.to(target_dtype)).view(-1, self.width)
        if self.gives_gradient:
            hidden_states.requires_grad = True
        return hidden_states


class VisionRotary(Module):
    """`Qwen2_5_VLVisionRotaryEmbedding`: half of the frequencies for rows, half for columns."""

    def __init__(self, machine: Machine, head_dim: int) -> None:
        super().__init__(machine)
        self.inv_freq = self.buffer(head_dim // 4)
        self.original_inv_freq = self.buffer(head_dim // 4)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        with self.machine.no_grad():
            position_ids_expanded = position_ids[..., None].float()
            freqs = position_ids_expanded * self.inv_freq
            cos = freqs.cos() * 1.0
            sin = freqs.sin() * 1.0
            cos = self.recompose(cos)
            sin = self.recompose(sin)
        return cos, sin

    def recompose(self, freq: Tensor) -> Tensor:
        freq_h, freq_w = freq[:, 0], freq[:, 1]
        freq_hw = F.cat((freq_h, freq_w), -1)
        return F.cat((freq_hw, freq_hw), -1)


class PatchMerger(Module):
    """`Qwen2_5_VLPatchMerger`: a square of patches becomes one token."""

    norm_class: Any = RMSNorm

    def __init__(self, machine: Machine, width: int, outputs: int, merged: int) -> None:
        super().__init__(machine)
        self.hidden_size = width * merged**2
        self.ln_q = self.norm_class(machine, width)
        layers = Linear(machine, self.hidden_size, self.hidden_size, bias=True), Activation(machine, "gelu")
        self.mlp = ModuleList(machine, (*layers, Linear(machine, self.hidden_size, outputs, bias=True)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_q(x).view(-1, self.hidden_size)
        return self.run(x)

    def run(self, x: Tensor) -> Tensor:
        """`nn.Sequential`."""
        for layer in self.mlp:
            x = layer(x)
        return x


def apply_rotary_vision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb_vision`: in float32, and back."""
    dtype = q.dtype
    q, k = q.float(), k.float()
    cos, sin = cos.unsqueeze(-2).float(), sin.unsqueeze(-2).float()
    q_embed = (q * cos) + (attention.rotate_half(q) * sin)
    k_embed = (k * cos) + (attention.rotate_half(k) * sin)
    q_embed = q_embed.to(dtype)
    k_embed = k_embed.to(dtype)
    return q_embed, k_embed


class VisionAttention(Module):
    """`Qwen2_5_VLVisionAttention`: every window, or every frame, by itself."""

    def __init__(self, machine: Machine, width: int, heads: int) -> None:
        super().__init__(machine)
        self.heads = heads
        self.qkv = Linear(machine, width, 3 * width, bias=True)
        self.proj = Linear(machine, width, width, bias=True)

    def forward(self, hidden_states: Tensor, lengths: Sequence[int], position_embeddings: Any) -> Tensor:
        machine, seq_length = self.machine, hidden_states.shape[0]
        query_states, key_states, value_states = F.unbind(
            self.qkv(hidden_states).reshape(seq_length, 3, self.heads, -1).permute(1, 0, 2, 3)
        )
        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_vision(query_states, key_states, cos, sin)
        query_states = query_states.transpose(0, 1).unsqueeze(0)
        key_states = key_states.transpose(0, 1).unsqueeze(0)
        value_states = value_states.transpose(0, 1).unsqueeze(0)
        each = machine.run("sub", (), (len(lengths),), INT32)
        attn_output, held = attend_parts(query_states, key_states, value_states, lengths)
        attn_output = attn_output.reshape(seq_length, -1).contiguous()
        attn_output = self.proj(attn_output)
        del each, held
        return attn_output


class VisionBlock(CheckpointingLayer):
    """`Qwen2_5_VLVisionBlock`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.norm1: Module = RMSNorm(machine, width)
        self.norm2: Module = RMSNorm(machine, width)
        self.attn = VisionAttention(machine, width, config["num_heads"])
        self.mlp: Module = GatedMLP(machine, {**config, "mlp_bias": True})

    def forward(self, hidden_states: Tensor, lengths: Sequence[int], position_embeddings: Any) -> Tensor:
        hidden_states = hidden_states + self.attn(
            self.norm1(hidden_states), lengths=lengths, position_embeddings=position_embeddings
        )
        hidden_states = hidden_states + self.mlp(self.norm2(hidden_states))
        return hidden_states


class VisionTower(Module):
    """`Qwen2_5_VisionTransformerPretrainedModel`."""

    defaults: ClassVar[Config] = {
        "depth": 32, "hidden_size": 3584, "hidden_act": "silu", "intermediate_size": 3420, "num_heads": 16,
        "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
        "out_hidden_size": 3584, "fullatt_block_indexes": (7, 15, 23, 31),
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        width = config["hidden_size"]
        self.merged = config["spatial_merge_size"]
        self.window = config["window_size"] // self.merged // config["patch_size"]
        """Tokens of a window's side."""
        self.whole_at = tuple(config["fullatt_block_indexes"])
        self.patch_embed = PatchEmbed(machine, config, width)
        self.rotary_pos_emb = VisionRotary(machine, width // config["num_heads"])
        self.blocks = ModuleList(machine, [VisionBlock(machine, config) for _ in range(config["depth"])])
        self.merger = PatchMerger(machine, width, config["out_hidden_size"], self.merged)

    def forward(self, hidden_states: Tensor, pictures: Sequence[Picture]) -> tuple[Tensor, Tensor]:
        """Of all images of a batch: what the language model gets, and what the last block gave."""
        machine = self.machine
        position_ids = patch_positions(machine, pictures)
        frames = frame_lengths(pictures)
        cu_seqlens = ends_of_frames(machine, pictures)
        windows = [length for picture in pictures for length in window_lengths(picture, self.merged, self.window)]
        with machine.on_host():
            window_index = machine.run("cat", (), (sum([p.patches for p in pictures]) // self.merged**2,), INT64)
        cu_window_seqlens = ends_of_windows(machine, pictures, len(windows), self.merged, self.window)
        hidden_states = self.patch_embed(hidden_states)
        hidden_states = self.permute(hidden_states, window_index)
        position_embeddings = self.rotary_pos_emb(hidden_states, position_ids)
        position_embeddings = tuple([self.permute(freq, window_index) for freq in position_embeddings])
        for layer_num, blk in enumerate(self.blocks):
            lengths = frames if layer_num in self.whole_at else windows
            hidden_states = blk(hidden_states, lengths=lengths, position_embeddings=position_embeddings)
        with machine.on_host():
            reverse_indices = machine.run("argsort", (window_index,), window_index.shape, INT64)
        merged_hidden_states = self.merger(hidden_states)
        merged_hidden_states = merged_hidden_states[reverse_indices]
        del cu_seqlens, cu_window_seqlens
        return merged_hidden_states, hidden_states

    def layers(self) -> Iterator[Any]:
        return iter(self.blocks)

    def input_embedding(self) -> Any:
        return self.patch_embed

    def permute(self, x: Tensor, window_index: Tensor) -> Tensor:
        """`permute_input_for_window_attn`."""
        seq_len = x.shape[0]
        x = x.reshape(seq_len // self.merged**2, self.merged**2, -1)
        x = x[window_index]
        x = x.reshape(seq_len, -1)
        return x


def patch_positions(machine: Machine, pictures: Sequence[Picture]) -> Tensor:
    """`get_vision_position_ids`: the row and the column of each patch."""
    spatial_merge_size = machine.run("_to_copy", (), (1,), INT64)
    position_ids = []
    hpos_ids: Any = None
    wpos_ids: Any = None
    for picture in pictures:
        _, height, width = picture.grid
        hpos_ids, wpos_ids = [machine.run("arange", (), (side,), INT64) for side in (height, width)]
        hpos_ids = machine.run("clone", (hpos_ids,), (height * width,), INT64)
        wpos_ids = machine.run("clone", (wpos_ids,), (height * width,), INT64)
        both = machine.run("stack", (hpos_ids, wpos_ids), (height * width, 2), INT64)
        position_ids.append(machine.run("repeat", (both,), (picture.patches, 2), INT64))
        del both
    found = machine.run("cat", position_ids, (sum([p.patches for p in pictures]), 2), INT64)
    del spatial_merge_size, hpos_ids, wpos_ids, position_ids
    return found


def frame_lengths(pictures: Sequence[Picture]) -> list[int]:
    """Patches that see each other: those of a frame, or a pair of them."""
    return [height * width for frames, height, width in (picture.grid for picture in pictures) for _ in range(frames)]


def ends_of_frames(machine: Machine, pictures: Sequence[Picture]) -> Tensor:
    """`get_vision_cu_seqlens`."""
    frames = sum([picture.grid[0] for picture in pictures])
    sizes = machine.run("mul", (), (len(pictures),), INT64)
    found = machine.run("repeat_interleave", (), (frames,), INT64)
    seqlens = machine.run("index_select", (sizes, found), (frames,), INT64)
    del sizes, found
    summed = machine.run("cumsum", (seqlens,), (frames,), INT32, args=(seqlens, 0))
    ends = machine.run("constant_pad_nd", (summed,), (frames + 1,), INT32)
    return ends


def window_lengths(picture: Picture, merged: int, window: int) -> list[int]:
    """`get_vision_window_index`: patches of each window, row by row; those at the edges are smaller."""
    frames, height, width = picture.grid

    def sides(patches: int) -> list[int]:
        tokens = patches // merged
        return [min(window, tokens - first) for first in range(0, tokens, window)]

    return [merged**2 * rows * columns for rows in sides(height) for columns in sides(width)] * frames


def ends_of_windows(machine: Machine, pictures: Sequence[Picture], windows: int, merged: int, window: int) -> Tensor:
    """Moved to the card with the empty windows that padding makes, then without."""

    def padded(patches: int) -> int:
        return patches // merged // window + 1

    every = sum([frames * padded(height) * padded(width) for frames, height, width in (p.grid for p in pictures)])
    cu_window_seqlens = machine.run("_to_copy", (), (every + 1,), INT32)
    cu_window_seqlens = machine.run("unique_consecutive", (cu_window_seqlens,), (windows + 1,), INT32)
    return cu_window_seqlens


class Parts(Module):
    """`Qwen2_5_VLModel`."""

    tower_class: Any = VisionTower

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.visual = self.tower_class(machine, config["vision_config"])
        self.language_model = Qwen25VL.decoder_class(machine, config["text_config"], Qwen25VL)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Tensor:
        rows = input_ids.shape[0]
        inputs_embeds = self.language_model.embed_tokens(input_ids)
        if "pixel_values" in images:
            image_embeds: Any = self.features(images["pixel_values"], self.pictures(rows, is_video=False))
            image_embeds = F.cat(image_embeds, 0).to(inputs_embeds.dtype)
            image_mask, _ = placeholder_masks(input_ids, is_video=False)
            inputs_embeds = F.masked_scatter(inputs_embeds, image_mask, image_embeds)
        if "pixel_values_videos" in images:
            video_embeds: Any = self.features(images["pixel_values_videos"], self.pictures(rows, is_video=True))
            video_embeds = F.cat(video_embeds, 0).to(inputs_embeds.dtype)
            _, video_mask = placeholder_masks(input_ids, is_video=True)
            inputs_embeds = F.masked_scatter(inputs_embeds, video_mask, video_embeds)
        position_ids = self.position_ids(input_ids, attention_mask) if images else None
        return self.language_model(
            inputs_embeds=inputs_embeds, attention_mask=attention_mask, position_ids=position_ids
        )

    def pictures(self, rows: int, is_video: bool) -> list[Picture]:
        """Of a batch."""
        found = self.machine.pictures
        assert found is not None, "pixels without pictures"
        return list(found.videos if is_video else found.images) * rows

    def features(self, pixel_values: Tensor, pictures: Sequence[Picture]) -> list[Tensor]:
        """`get_image_features`, of each image by itself; videos the same."""
        pixel_values = pixel_values.to(self.machine.weights_dtype)
        pooler_output, last_hidden_state = self.visual(pixel_values, pictures=pictures)
        counts = self.machine.run("prod", (), (len(pictures),), INT64)
        sizes = self.machine.run("floor_divide", (counts,), (len(pictures),), INT64)
        del counts, sizes
        image_embeds = pooler_output.split([picture.tokens for picture in pictures], 0)
        del last_hidden_state
        return image_embeds

    def position_ids(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found = self.machine.pictures
        assert found is not None, "positions of images without pictures"
        return rope_index(input_ids, attention_mask, found.seen, self.visual.merged)


class Qwen25Attention(Qwen2Attention):
    projects_first = True


class Qwen25VL(WithParts, Qwen2):
    """`Qwen2_5_VLForConditionalGeneration`."""

    parts_class = Parts
    decoder_class = MropeDecoder
    attention_class = Qwen25Attention
    rotary_class = MropeRotary
    counts_labels = False
    tower_paths = ("model.visual",)
    projector_paths = ("model.visual.merger",)

    def towers(self) -> Sequence[Any]:
        return [self.model.visual]
