"""Gemma 4 with its other parts, which a batch of text loads and does not run: a vision tower, an audio tower, or in the
unified model embedders alone (transformers/models/{gemma4,gemma4_unified}/modeling_*.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.convolution import CausalConv
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.dtypes import BOOL, INT32, INT64, broadcast, promote
from tunecast.tape.build.families.gemma4 import Gemma4, Gemma4Norm
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, window_of_blocks_mask
from tunecast.tape.build.modules import LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.features import Convolution
from tunecast.tape.build.vision.gemma4 import ClippableLinear, MultimodalEmbedder, VisionTower
from tunecast.tape.build.vision.parts import WithParts

# --------------------------------------------------------------------------------------------------------------- audio


class SubSampleLayer(Module):
    def __init__(self, machine: Machine, inputs: int, outputs: int) -> None:
        super().__init__(machine)
        self.conv = Convolution(machine, inputs, outputs, 3, bias=False)
        self.norm = LayerNorm(machine, outputs, bias=False)


class SubSample(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        first, second = config["subsampling_conv_channels"]
        self.layer0 = SubSampleLayer(machine, 1, first)
        self.layer1 = SubSampleLayer(machine, first, second)
        self.input_proj_linear = Linear(machine, first // 4 * second, config["hidden_size"])


class AudioPositions(Module):
    def __init__(self, machine: Machine, hidden: int) -> None:
        super().__init__(machine)
        self.inv_timescales = self.buffer(1, 1, hidden // 2, dtype=machine.weights_dtype)


class AudioFeedForward(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.ffw_layer_1 = ClippableLinear(machine, config, hidden, 4 * hidden)
        self.ffw_layer_2 = ClippableLinear(machine, config, 4 * hidden, hidden)
        self.pre_layer_norm = Gemma4Norm(machine, hidden)
        self.post_layer_norm = Gemma4Norm(machine, hidden)


class AudioAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        width = hidden // heads
        self.q_proj = ClippableLinear(machine, config, hidden, heads * width)
        self.k_proj = ClippableLinear(machine, config, hidden, heads * width)
        self.v_proj = ClippableLinear(machine, config, hidden, heads * width)
        self.post = ClippableLinear(machine, config, hidden, hidden)
        self.relative_k_proj = Linear(machine, hidden, heads * width)
        self.per_dim_scale = self.parameter(width)
        self.softcap = self.buffer(dtype=machine.weights_dtype)


class LightConv1d(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.linear_start = ClippableLinear(machine, config, hidden, 2 * hidden)
        self.linear_end = ClippableLinear(machine, config, hidden, hidden)
        self.depthwise_conv1d = CausalConv(machine, hidden, config["conv_kernel_size"])
        self.pre_layer_norm = Gemma4Norm(machine, hidden)
        self.conv_norm = Gemma4Norm(machine, hidden)


class AudioLayer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.feed_forward1 = AudioFeedForward(machine, config)
        self.feed_forward2 = AudioFeedForward(machine, config)
        self.self_attn = AudioAttention(machine, config)
        self.lconv1d = LightConv1d(machine, config)
        self.norm_pre_attn = Gemma4Norm(machine, hidden)
        self.norm_post_attn = Gemma4Norm(machine, hidden)
        self.norm_out = Gemma4Norm(machine, hidden)


class AudioTower(Module):
    defaults: ClassVar[Config] = {
        "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8, "conv_kernel_size": 5,
        "subsampling_conv_channels": (128, 32), "use_clipped_linears": True, "output_proj_dims": 1536,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        self.subsample_conv_projection = SubSample(machine, config)
        self.rel_pos_enc = AudioPositions(machine, config["hidden_size"])
        self.layers = ModuleList(machine, [AudioLayer(machine, config) for _ in range(config["num_hidden_layers"])])
        self.output_proj = Linear(machine, config["hidden_size"], config["output_proj_dims"], bias=True)


# ----------------------------------------------------------------------------------------------------------- all parts


def where(condition: Tensor, first: Tensor | None, second: Tensor) -> Tensor:
    """None: a number, which becomes a tensor first."""
    machine = second.machine
    if first is None:
        first = machine.run("scalar_tensor", (), (), second.dtype)
    shape = broadcast(broadcast(condition.shape, first.shape), second.shape)
    dtype = promote(first.dtype, second.dtype)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        raise AssertionError("nobody takes a gradient through what it gives")

    node = start(machine, (first, second), back, (condition,))
    return finish(node, machine.run("where", (condition, first, second), shape, dtype))


def look_at(x: Tensor, mask: Tensor, found: int) -> None:
    """x[mask], which is counted and let go."""
    machine = x.machine
    places = machine.run("nonzero", (mask,), (found, mask.dim()), INT64, args=(mask,))
    machine.run("index", (x, places), (found,), x.dtype)


def blocks_of_images(mm_token_type_ids: Tensor) -> Tensor:
    """`get_block_sequence_ids_for_mask`: which image a token belongs to, -1 for text."""
    machine, shape = mm_token_type_ids.machine, mm_token_type_ids.shape
    is_vision = mm_token_type_ids.eq(1) | mm_token_type_ids.eq(2)
    is_prev_vision = machine.run("roll", (is_vision,), shape, BOOL)
    new_vision_starts = is_vision & ~is_prev_vision
    starts = new_vision_starts.to(INT32)
    counted = machine.run("cumsum", (starts,), shape, INT64, args=(starts, 1))
    del starts
    vision_group_ids = counted - 1
    del counted
    none = machine.run("scalar_tensor", (), (), INT64)
    return machine.run("where", (is_vision, vision_group_ids, none), shape, INT64)


class Parts(Module):
    """`Gemma4Model`."""

    sees_both_ways = False
    """Tokens of an image see each other."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        text, vision, audio = config["text_config"], config.get("vision_config"), config.get("audio_config")
        hidden = text["hidden_size"]
        self.sees_both_ways = text.get("use_bidirectional_attention") == "vision"
        if vision is not None:
            self.vision_tower = VisionTower(machine, vision)
        self.add_language_model(machine, text)
        if audio is not None:
            self.audio_tower = AudioTower(machine, audio)
        if vision is not None:
            width = vision.get("hidden_size", VisionTower.defaults["hidden_size"])
            self.embed_vision: Module = MultimodalEmbedder(machine, width, hidden)
        if audio is not None:
            width = audio.get("output_proj_dims", AudioTower.defaults["output_proj_dims"])
            self.embed_audio = MultimodalEmbedder(machine, width, hidden)

    def add_language_model(self, machine: Machine, text: Config) -> None:
        self.language_model: Any = Gemma4.decoder_class(machine, text, Gemma4)
        self.language_model.mask_kinds = tuple(sorted(set(text["layer_types"])))  # there in the order of a hash table

    def forward(
        self, input_ids: Tensor, attention_mask: Any, mm_token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None, image_position_ids: Any = None,
    ) -> Any:  # fmt: skip
        language_model = self.language_model
        image_mask, video_mask, audio_mask = input_ids.eq(0), input_ids.eq(0), input_ids.eq(0)
        multimodal_mask = image_mask | video_mask | audio_mask
        llm_input_ids = input_ids.clone()
        llm_input_ids = where(multimodal_mask, None, llm_input_ids)
        inputs_embeds = language_model.embed_tokens(llm_input_ids)
        per_layer_inputs = None
        if language_model.shape_per_layer[1]:
            pad_embedding = language_model.embed_tokens.weight[0, :]
            _llm_inputs_embeds = where(multimodal_mask[..., None], pad_embedding.view(1, 1, -1), inputs_embeds)
            per_layer_inputs = language_model.get_per_layer_inputs(llm_input_ids)
        image_features: Any = None
        if pixel_values is not None:
            image_features = self.get_image_features(pixel_values, image_position_ids)
            image_features = F.cat(image_features, 0).to(inputs_embeds.dtype)
            image_mask.sum(range(2), dtype=INT64)
            image_mask = image_mask.unsqueeze(-1).expand(*inputs_embeds.shape)
            look_at(inputs_embeds, image_mask, image_features.numel())
            inputs_embeds = F.masked_scatter(inputs_embeds, image_mask, image_features)
        position_ids = attention_mask if self.machine.packs else language_model.position_ids(inputs_embeds.shape[1])
        if self.sees_both_ways and mm_token_type_ids is not None:
            blocks = blocks_of_images(mm_token_type_ids)
            causal_mask_mapping = self.masks_of_blocks(attention_mask, inputs_embeds, blocks)
        else:
            block_sequence_ids = self.blocks(inputs_embeds)
            causal_mask_mapping = language_model.masks(attention_mask, inputs_embeds, block_sequence_ids)
        outputs = language_model(
            per_layer_inputs=per_layer_inputs, attention_mask=causal_mask_mapping, position_ids=position_ids,
            inputs_embeds=inputs_embeds,
        )  # fmt: skip
        return outputs if image_features is None else (outputs, image_features)

    def get_image_features(self, pixel_values: Tensor, image_position_ids: Tensor) -> list[Tensor]:
        last_hidden_state = self.vision_tower(pixel_values=pixel_values, pixel_position_ids=image_position_ids)
        pooler_output = self.embed_vision(inputs_embeds=last_hidden_state)
        non_pad_mask = image_position_ids.ne(-1).all(-1)
        self.machine.run("sum", (non_pad_mask,), (image_position_ids.shape[0],), INT64, args=(non_pad_mask, (1,)))
        images = int(pixel_values.shape[0])
        return pooler_output.split([pooler_output.shape[0] // images] * images, 0)

    def masks_of_blocks(self, attention_mask: Tensor, inputs_embeds: Tensor, blocks: Tensor) -> dict[str, Any]:
        """`create_masks_for_vision_model`: tokens of one image see each other in layers with windows."""
        full_mask = causal_mask(attention_mask, inputs_embeds)
        attention_mask.to(BOOL)  # `_preprocess_mask_arguments`
        sliding_mask = window_of_blocks_mask(attention_mask, inputs_embeds, blocks, self.language_model.window)
        return {FULL: full_mask, SLIDING: sliding_mask}

    def blocks(self, inputs_embeds: Tensor) -> Tensor | None:
        """Which image a token belongs to, where that is said of text too."""
        return None


class VisionEmbedder(Module):
    """Of the unified model, in the place of a tower."""

    def __init__(self, machine: Machine, config: Config, text_width: int) -> None:
        super().__init__(machine)
        width, patch = config["mm_embed_dim"], 3 * (config["patch_size"] * config["pooling_kernel_size"]) ** 2
        self.patch_ln1 = LayerNorm(machine, patch)
        self.patch_dense = Linear(machine, patch, width, bias=True)
        self.patch_ln2 = LayerNorm(machine, width)
        self.pos_embedding = self.parameter(config["mm_posemb_size"], 2, width)
        self.pos_norm = LayerNorm(machine, width)
        self.multimodal_embedder = MultimodalEmbedder(machine, config["output_proj_dims"], text_width)


class UnifiedParts(Parts):
    """`Gemma4UnifiedModel`."""

    vision_defaults: ClassVar[Config] = {
        "mm_embed_dim": 3840, "patch_size": 16, "pooling_kernel_size": 3, "mm_posemb_size": 1120,
        "output_proj_dims": 3840,
    }  # fmt: skip
    audio_width = 640

    def __init__(self, machine: Machine, config: Config) -> None:
        Module.__init__(self, machine)
        text, vision, audio = config["text_config"], config.get("vision_config"), config.get("audio_config")
        hidden = text["hidden_size"]
        self.add_language_model(machine, text)
        if vision is not None:
            self.embed_vision = VisionEmbedder(machine, {**self.vision_defaults, **vision}, hidden)
        if audio is not None:
            self.embed_audio = MultimodalEmbedder(machine, audio.get("output_proj_dims", self.audio_width), hidden)
        self.tells_blocks = text["use_bidirectional_attention"] == "vision"

    def blocks(self, inputs_embeds: Tensor) -> Tensor | None:
        return self.machine.run("full", (), inputs_embeds.shape[:-1], INT64) if self.tells_blocks else None


class Gemma4WithParts(WithParts, Gemma4):
    """`Gemma4ForConditionalGeneration`."""

    parts_class: Any = Parts
    counts_labels = False
    tower_paths = ("model.vision_tower", "model.audio_tower")
    projector_paths = ("model.embed_vision", "model.embed_audio")

    def towers(self) -> Sequence[Any]:
        """The unified model has none."""
        return [self.model.vision_tower] if "vision_tower" in self.model.children else []

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.cap_logits(self.complete(config["text_config"])["final_logit_softcapping"])


class Gemma4Unified(Gemma4):
    """`Gemma4UnifiedForCausalLM`: neither embeddings for layers nor experts."""

    defaults: ClassVar[Config] = {
        **Gemma4.defaults, "sliding_window": 1024, "use_bidirectional_attention": "vision",
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        return super().complete({**config, "hidden_size_per_layer_input": 0, "enable_moe_block": False})


class Gemma4UnifiedWithParts(Gemma4Unified, Gemma4WithParts):
    """`Gemma4UnifiedForConditionalGeneration`."""

    parts_class = UnifiedParts
