"""Qwen3-VL, also with experts: learned positions that are interpolated, and features of three depths of the tower.

Source   transformers/models/qwen3_vl/modeling_qwen3_vl.py, `Qwen3VLVisionModel.forward`, `Qwen3VLTextModel.forward`,
         `Qwen3VLTextModel._deepstack_process`, `Qwen3VLModel.forward`, `Qwen3VLTextRotaryEmbedding`;
         transformers/vision_utils.py, `get_vision_interpolation_indices_and_weights`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.job.images import Picture
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import FLOAT32, INT64, Dtype
from tunecast.tape.build.families.qwen import Qwen3, Qwen3MoeLM
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Embedding, LayerNorm, Linear, Module, ModuleList, PlainMLP
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision import qwen2_5
from tunecast.tape.build.vision.features import placeholder_masks
from tunecast.tape.build.vision.mrope import MropeDecoder, MropeRotary
from tunecast.tape.build.vision.parts import WithParts
from tunecast.tape.build.vision.qwen2 import Qwen2Block
from tunecast.tape.build.vision.qwen2_5 import (
    PatchConvolution,
    VisionRotary,
    ends_of_frames,
    frame_lengths,
    patch_positions,
)

NO_TIMES = "the words between the frames of a video that say its time are taken to be text after it"
"""transformers/models/qwen3_vl/processing_qwen3_vl.py: each pair of frames has its time before it and marks around."""


class Qwen3MLP(PlainMLP):
    up, activation, down = "linear_fc1", "act_fn", "linear_fc2"


class Qwen3Block(Qwen2Block):
    def make_mlp(self, machine: Machine, config: Config) -> Module:
        return Qwen3MLP(machine, config["embed_dim"], config["intermediate_size"], config["hidden_act"])


class Qwen3PatchEmbed(qwen2_5.PatchEmbed):
    def __init__(self, machine: Machine, config: Config, width: int) -> None:
        super().__init__(machine, config, width)
        kernel = self.proj.weight.shape[2:]
        self.proj = PatchConvolution(machine, config["in_channels"], width, kernel, bias=True)


class Qwen3Merger(Module):
    """`Qwen3VLVisionPatchMerger`: normed before patches are put together, or after."""

    def __init__(self, machine: Machine, config: Config, *, norms_after: bool) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.hidden_size, self.norms_after = width * config["spatial_merge_size"] ** 2, norms_after
        self.norm = LayerNorm(machine, self.hidden_size if norms_after else width)
        self.linear_fc1 = Linear(machine, self.hidden_size, self.hidden_size, bias=True)
        self.act_fn = Activation(machine, "gelu")
        self.linear_fc2 = Linear(machine, self.hidden_size, config["out_hidden_size"], bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.view(-1, self.hidden_size) if self.norms_after else x).view(-1, self.hidden_size)
        x = self.linear_fc2(self.act_fn(self.linear_fc1(x)))
        return x


class Qwen3Tower(Module):
    """`Qwen3VLVisionModel`."""

    defaults: ClassVar[Config] = {
        "depth": 27, "hidden_size": 1152, "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 4304,
        "num_heads": 16, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "out_hidden_size": 3584, "num_position_embeddings": 2304, "deepstack_visual_indexes": (8, 16, 24),
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        width = config["hidden_size"]
        config["embed_dim"] = width
        self.merged = config["spatial_merge_size"]
        self.patch_embed = Qwen3PatchEmbed(machine, config, width)
        self.pos_embed = Embedding(machine, config["num_position_embeddings"], width)
        self.rotary_pos_emb = VisionRotary(machine, width // config["num_heads"])
        self.blocks = ModuleList(machine, [Qwen3Block(machine, config) for _ in range(config["depth"])])
        self.merger = Qwen3Merger(machine, config, norms_after=False)
        self.deep = tuple(config["deepstack_visual_indexes"])
        mergers = [Qwen3Merger(machine, config, norms_after=True) for _ in self.deep]
        if self.has_deep_mergers:
            self.deepstack_merger_list = ModuleList(machine, mergers)

    has_deep_mergers = True

    def forward(self, hidden_states: Tensor, pictures: Sequence[Picture]) -> tuple[Any, ...]:
        """Of all images of a batch: what the language model gets, what the last block gave, and what blocks before
        gave."""
        interp_indices, interp_weights = interpolation(self.machine, pictures)
        position_ids = patch_positions(self.machine, pictures)
        frames = frame_lengths(pictures)
        cu_seqlens = ends_of_frames(self.machine, pictures)
        hidden_states = self.patch_embed(hidden_states)
        pos_embeds = (self.pos_embed(interp_indices) * interp_weights[:, :, None]).sum(1)
        hidden_states = hidden_states + pos_embeds.to(hidden_states.dtype)
        position_embeddings = self.rotary_pos_emb(hidden_states, position_ids)
        seq_len = hidden_states.shape[0]
        hidden_states = hidden_states.reshape(seq_len, -1)
        deepstack_feature_lists = []
        for layer_num, blk in enumerate(self.blocks):
            hidden_states = blk(hidden_states, lengths=frames, position_embeddings=position_embeddings)
            if self.has_deep_mergers and layer_num in self.deep:
                merger = self.deepstack_merger_list.children[str(self.deep.index(layer_num))]
                deepstack_feature = merger(hidden_states)
                deepstack_feature_lists.append(deepstack_feature)
        merged_hidden_states = self.merger(hidden_states)
        del cu_seqlens
        return merged_hidden_states, hidden_states, deepstack_feature_lists

    def layers(self) -> Iterator[Any]:
        return iter(self.blocks)

    def input_embedding(self) -> Any:
        """Which `enable_input_require_grads` does not find: the class names none (`_input_embed_layer`)."""
        return None


def interpolation(machine: Machine, pictures: Sequence[Picture]) -> tuple[Tensor, Tensor]:
    """`get_vision_interpolation_indices_and_weights`: four learned positions for each patch, and how much of each."""
    images, patches = len(pictures), sum([picture.patches for picture in pictures])

    def of(name: str, *inputs: Tensor, dtype: Dtype = INT64, wide: tuple[int, ...] = ()) -> Tensor:
        return machine.run(name, inputs, (patches, *wide), dtype)

    def spread(values: Tensor) -> Tensor:
        found = of("repeat_interleave")
        return of("index_select", values, found)

    first = machine.run("mul", (), (images,), INT64)
    counts = machine.run("mul", (first,), (images,), INT64)
    del first
    heights = spread(counts)
    widths = spread(counts)
    summed = machine.run("cumsum", (counts,), (images,), INT64, args=(counts, 0))
    padded = machine.run("constant_pad_nd", (summed,), (images,), INT64)
    del summed
    starts = spread(padded)
    del padded
    machine.run("sum", (counts,), (), INT64, args=(counts, (0,), False))
    counted = of("arange")
    from_start = of("sub", counted, starts)
    del counted
    sizes = of("mul", heights, widths)
    within = of("remainder", from_start, sizes)
    del from_start, sizes
    blocks_w = of("floor_divide", widths)
    in_col = of("remainder", within)
    rows = of("floor_divide", within)
    in_row = of("remainder", rows)
    del rows
    blocks = of("floor_divide", within)
    block_col = of("remainder", blocks, blocks_w)
    del blocks
    in_row_of_blocks = of("mul", blocks_w)
    block_row = of("floor_divide", within, in_row_of_blocks)
    del in_row_of_blocks
    rows = of("mul", block_row)
    row = of("add", rows, in_row)
    del rows
    columns = of("mul", block_col)
    col = of("add", columns, in_col)
    del columns
    h_taps, h_weights = taps_and_weights(machine, row, patches)
    w_taps, w_weights = taps_and_weights(machine, col, patches)
    scaled = of("mul", h_taps, wide=(2,))
    indices = of("add", scaled, w_taps, wide=(2, 2)).reshape(-1, 4)
    del scaled
    weights = of("mul", h_weights, w_weights, dtype=FLOAT32, wide=(2, 2)).reshape(-1, 4)
    return indices, weights


def taps_and_weights(machine: Machine, index: Tensor, patches: int) -> tuple[Tensor, Tensor]:
    """`_interpolation_axis_taps_weights`, of two neighbours."""

    def of(name: str, *inputs: Tensor, dtype: Dtype = FLOAT32, wide: tuple[int, ...] = ()) -> Tensor:
        return machine.run(name, inputs, (patches, *wide), dtype)

    index = of("_to_copy", index)
    scaled = of("mul", index)
    less = of("sub", dtype=INT64)
    clamped = of("clamp", less, dtype=INT64)
    del less
    src = of("div", scaled, clamped)
    del scaled, clamped
    floor = of("floor", src)
    offsets = machine.run("arange", (), (2,), INT64)
    long = of("_to_copy", floor, dtype=INT64)
    raw_taps = of("add", long, offsets, dtype=INT64, wide=(2,))
    del long
    taps = of("clamp", raw_taps, dtype=INT64, wide=(2,))
    apart = of("sub", src, floor, wide=(1,))
    further = of("sub", apart, offsets, wide=(2,))
    del apart
    distance = of("abs", further, wide=(2,))
    del further
    rest = of("rsub", distance, wide=(2,))
    weights = of("clamp", rest, wide=(2,))
    return taps, weights


class InterleavedRotary(MropeRotary):
    """`Qwen3VLTextRotaryEmbedding`: frequencies take turns in time, height and width."""

    def recompose(self, freq: Tensor) -> Tensor:
        freqs_thw = freq[0]
        for section in self.mrope_section[1:]:
            freq.machine.launch("copy_", (), FLOAT32, freqs_thw.nbytes * section // sum(self.mrope_section))
        return F.cat((freqs_thw, freqs_thw), -1)


class Qwen3Decoder(MropeDecoder):
    """`Qwen3VLTextModel`."""

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Any = None, inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None, visual_pos_masks: Tensor | None = None,
        deepstack_visual_embeds: Sequence[Tensor] = (),
    ) -> Tensor:  # fmt: skip
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        rows, length, _ = inputs_embeds.shape
        text_position_ids = None
        if position_ids is None:
            position_ids = self.machine.run("arange", (), (length,), INT64) + 0
            position_ids = position_ids.view(1, 1, -1).expand(4, rows, length)
            text_position_ids = position_ids[0]
            position_ids = position_ids[1:]
        masks = self.masks(attention_mask, inputs_embeds)
        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        for layer_idx, decoder_layer in enumerate(self.layers):
            layer_outputs = decoder_layer(
                hidden_states, attention_mask=masks[self.kinds[layer_idx]], position_embeddings=position_embeddings,
                position_ids=text_position_ids,
            )  # fmt: skip
            hidden_states = layer_outputs
            if layer_idx < len(deepstack_visual_embeds):
                assert visual_pos_masks is not None, "features without places"
                hidden_states = add_at(hidden_states, visual_pos_masks, deepstack_visual_embeds[layer_idx])
        hidden_states = self.norm(hidden_states)
        return hidden_states


def add_at(hidden_states: Tensor, visual_pos_masks: Tensor, visual_embeds: Tensor) -> Tensor:
    """`_deepstack_process`."""
    visual_embeds = visual_embeds.to(hidden_states.dtype)
    hidden_states = hidden_states.clone()
    local_this = taken(hidden_states, visual_pos_masks, visual_embeds.shape[0]) + visual_embeds
    return put(hidden_states, visual_pos_masks, local_this)


def taken(x: Tensor, mask: Tensor, count: int) -> Tensor:
    """x[mask, :]"""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), shape, dtype)
        args = (zeros, [node.take(0)], gradients[0], True)
        return (machine.run("index_put", (zeros, gradients[0]), shape, dtype, args=args),)

    node = start(machine, (x,), back, (mask,))
    found = machine.run("nonzero", (mask,), (count, mask.dim()), INT64, args=(mask,))
    return finish(node, machine.run("index", (x, found), (count, shape[-1]), dtype))


def put(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    """x[mask, :] = values: the same memory with a longer history."""
    machine, shape, dtype, count = x.machine, x.shape, x.dtype, values.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, mask = gradients[0], node.take(0)
        of_x = of_values = None
        if node.needs[0]:
            zeros = machine.run("zeros", (), count, dtype)
            args = (gradient, [mask], zeros, False)
            of_x = machine.run("index_put", (gradient, zeros), shape, dtype, args=args)
            del zeros, args
        if node.needs[1]:
            found = machine.run("nonzero", (mask,), (count[0], mask.dim()), INT64, args=(mask,))
            of_values = machine.run("index", (gradient, found), count, dtype)
        return of_x, of_values

    node = start(machine, (x, values), back, (mask,))
    found = machine.run("nonzero", (mask,), (count[0], mask.dim()), INT64, args=(mask,))
    machine.launch("index_put_", (x, found, values), dtype, values.nbytes)
    return finish(node, x.alias(x.shape, x.strides))


class Parts(qwen2_5.Parts):
    """`Qwen3VLModel`."""

    tower_class: Any = Qwen3Tower
    is_deep = True

    def __init__(self, machine: Machine, config: Config) -> None:
        Module.__init__(self, machine)
        self.visual = self.tower_class(machine, config["vision_config"])
        family = self.family_of(config["text_config"])
        self.language_model = family.decoder_class(machine, config["text_config"], family)
        for layer in list(self.language_model.layers)[: len(self.visual.deep)]:
            layer.takes_features = True  # which tells it from those that follow, also where layers stand for others

    def family_of(self, text: Config) -> Any:
        return Qwen3VLMoe if text.get("num_experts") else Qwen3VL

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Tensor:
        if self.is_deep and "pixel_values" in images and "pixel_values_videos" in images:
            told = "got images and frames, which Qwen3-VL puts together in a way that is not written down; allowed: one"
            raise Unsupported.at("vision.frames", told)
        if "pixel_values_videos" in images:
            self.machine.guesses[NO_TIMES] = None
        rows = input_ids.shape[0]
        inputs_embeds = self.language_model.embed_tokens(input_ids)
        deep: dict[str, Any] = {}
        for name, is_video in (("pixel_values", False), ("pixel_values_videos", True)):
            if name in images:
                image_outputs = self.outputs(images[name], self.pictures(rows, is_video))
                image_embeds = image_outputs[0]
                deepstack_image_embeds = image_outputs[2]
                image_embeds = F.cat(image_embeds, 0).to(inputs_embeds.dtype)
                image_mask = placeholder_masks(input_ids, is_video)[is_video]
                inputs_embeds = F.masked_scatter(inputs_embeds, image_mask, image_embeds)
                if self.is_deep:
                    image_mask = image_mask[..., 0]
                    deep = {"visual_pos_masks": image_mask, "deepstack_visual_embeds": deepstack_image_embeds}
        position_ids = self.position_ids(input_ids, attention_mask) if images else None
        return self.language_model(
            inputs_embeds=inputs_embeds, attention_mask=attention_mask, position_ids=position_ids, **deep
        )

    def outputs(self, pixel_values: Tensor, pictures: Sequence[Picture]) -> Any:
        """`get_image_features`: they hold what the tower gave until the model is done."""
        pixel_values = pixel_values.to(self.machine.weights_dtype)
        image_embeds, last_hidden_state, deepstack_features = self.visual(pixel_values, pictures=pictures)
        counts = self.machine.run("prod", (), (len(pictures),), INT64)
        sizes = self.machine.run("floor_divide", (counts,), (len(pictures),), INT64)
        del counts, sizes
        image_embeds = image_embeds.split([picture.tokens for picture in pictures], 0)
        return image_embeds, last_hidden_state, deepstack_features


class OfQwen3(WithParts):
    """What both have in common."""

    parts_class = Parts
    decoder_class: Any = Qwen3Decoder
    rotary_class: Any = InterleavedRotary
    counts_labels = False
    tower_paths = ("model.visual",)
    projector_paths: Sequence[str] = ("model.visual.merger", "model.visual.deepstack_merger_list")

    def towers(self) -> Sequence[Any]:
        return [self.model.visual]


class Qwen3VL(OfQwen3, Qwen3):
    """`Qwen3VLForConditionalGeneration`."""


class Qwen3VLMoe(OfQwen3, Qwen3MoeLM):
    """`Qwen3VLMoeForConditionalGeneration`."""
