"""Gemma 1 to 3: norms in fp32 that add one to their weight, embeddings times a number; from 2 on norms on both sides of
a block, capped logits and windows, in 3 norms of queries and keys, two rotary bases, and a vision tower, which a batch
of text loads and does not run (transformers/models/{gemma,gemma2,gemma3,siglip})."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.dtypes import BOOL, INT32, INT64
from tunecast.tape.build.families.olmo import HeadNormedAttention, windows_but_every
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, window_of_blocks_mask
from tunecast.tape.build.modules import Embedding, Module
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.features import put_features
from tunecast.tape.build.vision.parts import WithParts
from tunecast.tape.build.vision.siglip import SiglipVision

TOKENS_PER_IMAGE = 256
"""`mm_tokens_per_image` where config.json is silent (transformers/models/gemma3/configuration_gemma3.py)."""


class ScaledEmbedding(Embedding):
    def __init__(self, machine: Machine, rows: int, width: int) -> None:
        super().__init__(machine, rows, width)
        if not machine.era.scales_embeddings_in_model:
            self.embed_scale = self.buffer(dtype=machine.weights_dtype)

    def forward(self, ids: Tensor) -> Tensor:
        if self.machine.era.scales_embeddings_in_model:
            return super().forward(ids)
        out = F.embedding(self.weight, ids) * self.embed_scale.to(self.weight.dtype)
        if self.gives_gradient:
            out.requires_grad = True
        return out


class GemmaNorm(Module):
    eps = 1e-6

    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width)

    def _norm(self, x: Tensor) -> Tensor:
        return x * F.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        output = self._norm(x.float())
        output = output * (self.weight.float() + 1.0)
        return output.to(x.dtype)


class GemmaDecoder(decoder.Decoder):
    normalizer = 1.0

    def first_hidden_states(self, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds * self.normalizer if not self.rotates else inputs_embeds

    def scale_hidden_states(self, hidden_states: Tensor) -> Tensor:
        """Until transformers 4 the model scaled, a name of its own for the result."""
        scales = self.rotates and self.machine.era.scales_embeddings_in_model
        return hidden_states * self.normalizer if scales else hidden_states


class Gemma(decoder.CausalLM):
    decoder_class: Any = GemmaDecoder
    norm_class: Any = GemmaNorm
    embedding_class = ScaledEmbedding
    defaults: ClassVar[Config] = {"head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}


class SandwichLayer(decoder.Layer):
    """A norm before and after attention, and before and after the MLP."""

    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, index, family)
        self.pre_feedforward_layernorm = GemmaNorm(machine, config["hidden_size"])
        self.post_feedforward_layernorm = GemmaNorm(machine, config["hidden_size"])

    def after_attention(self, hidden_states: Tensor) -> Tensor:
        return self.post_attention_layernorm(hidden_states)

    def before_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.pre_feedforward_layernorm(hidden_states)

    def after_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.post_feedforward_layernorm(hidden_states)


class Gemma2(Gemma):
    layer_class: Any = SandwichLayer
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 4096,
        "num_key_value_heads": 4, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
    }  # fmt: skip
    pattern = 2
    is_capped = True
    """Attention scores are."""

    def __init__(self, machine: Machine, config: Config) -> None:
        if machine.attention == "sdpa" and self.is_capped and machine.era.refuses_capped_sdpa:
            machine.use_eager_attention()
        super().__init__(machine, config)
        self.cap_logits(self.complete(config)["final_logit_softcapping"])

    def cap_logits(self, softcap: float | None) -> None:
        if softcap is not None:
            self.logit_steps = (lambda logits: logits / softcap, Tensor.tanh, lambda logits: logits * softcap)

    def complete(self, config: Config) -> dict[str, Any]:
        whole = super().complete({"sliding_window_pattern": self.pattern, **config})
        return {**whole, "hidden_act": whole["hidden_activation"]}

    def layer_types(self, config: Config) -> Sequence[str]:
        return windows_but_every(config["sliding_window_pattern"], config)


class Gemma3Attention(HeadNormedAttention):
    norm_class = GemmaNorm

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.softcap = None


class Gemma3(Gemma2):
    attention_class = Gemma3Attention
    rotary_class = decoder.RotaryByKind
    defaults: ClassVar[Config] = {**Gemma2.defaults, "final_logit_softcapping": None, "attn_logit_softcapping": None}
    pattern = 6
    is_capped = False


# -------------------------------------------------------------------- Gemma 3 with it: `Gemma3ForConditionalGeneration`


class VisionProjector(Module):
    """`Gemma3MultiModalProjector`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        vision, text_width = {**SiglipVision.defaults, **config["vision_config"]}, config["text_config"]["hidden_size"]
        width = vision["hidden_size"]
        self.mm_input_projection_weight = self.parameter(width, text_width)
        self.mm_soft_emb_norm = GemmaNorm(machine, width)
        self.patches_per_image = vision["image_size"] // vision["patch_size"]
        self.kernel_size = self.patches_per_image // isqrt(config.get("mm_tokens_per_image") or TOKENS_PER_IMAGE)
        self.avg_pool = AveragePool(machine, self.kernel_size)

    def forward(self, vision_outputs: Tensor) -> Tensor:
        batch_size, _, hidden_size = vision_outputs.shape
        reshaped_vision_outputs = vision_outputs.transpose(1, 2)
        reshaped_vision_outputs = reshaped_vision_outputs.reshape(
            batch_size, hidden_size, self.patches_per_image, self.patches_per_image
        )
        reshaped_vision_outputs = reshaped_vision_outputs.contiguous()
        pooled_vision_outputs = self.avg_pool(reshaped_vision_outputs)
        pooled_vision_outputs = pooled_vision_outputs.flatten(2)
        pooled_vision_outputs = pooled_vision_outputs.transpose(1, 2)
        normed_vision_outputs = self.mm_soft_emb_norm(pooled_vision_outputs)
        projected_vision_outputs = F.matmul(normed_vision_outputs, self.mm_input_projection_weight)
        return projected_vision_outputs.to(vision_outputs.dtype)


class AveragePool(Module):
    def __init__(self, machine: Machine, kernel: int) -> None:
        super().__init__(machine)
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.kernel)


class VisionAndText(Module):
    """`Gemma3Model`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        text = config["text_config"]
        self.vision_tower = SiglipVision(machine, config["vision_config"])
        self.multi_modal_projector = VisionProjector(machine, config)
        self.language_model: Any = Gemma3.decoder_class(machine, text, Gemma3)
        self.language_model.mask_kinds = tuple(sorted(set(text["layer_types"])))  # there in the order of a hash table

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """Hidden states, and the features of images where there are any (`image_hidden_states`)."""
        image_features = None
        inputs_embeds = self.language_model.embed_tokens(input_ids)
        if pixel_values is not None:
            image_features = self.get_image_features(pixel_values)
            image_features = image_features.to(inputs_embeds.dtype)
            inputs_embeds = put_features(inputs_embeds, input_ids, image_features)
        if token_type_ids is not None:
            block_sequence_ids = block_sequence_ids_of(token_type_ids)
            masks = self.masks_of_blocks(attention_mask, inputs_embeds, block_sequence_ids)
        else:
            masks = self.language_model.masks(attention_mask, inputs_embeds)
        hidden_states = self.language_model(inputs_embeds=inputs_embeds, attention_mask=masks)
        return hidden_states if image_features is None else (hidden_states, image_features)

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        last_hidden_state = self.vision_tower(pixel_values=pixel_values)
        return self.multi_modal_projector(last_hidden_state)

    def masks_of_blocks(self, attention_mask: Tensor, inputs_embeds: Tensor, blocks: Tensor) -> dict[str, Any]:
        """`create_masks_for_vision_model`: tokens of one image see each other."""
        full_mask = causal_mask(attention_mask, inputs_embeds, blocks=blocks)
        attention_mask.to(BOOL)  # `_preprocess_mask_arguments`
        sliding_mask = window_of_blocks_mask(attention_mask, inputs_embeds, blocks, self.language_model.window)
        return {FULL: full_mask, SLIDING: sliding_mask}


def block_sequence_ids_of(token_type_ids: Tensor) -> Tensor:
    """`get_block_sequence_ids_for_mask`: which image a token belongs to, -1 for text."""
    machine, (batch, length) = token_type_ids.machine, token_type_ids.shape
    is_image = token_type_ids.eq(1)
    is_previous_image = machine.run("constant_pad_nd", (is_image,), (batch, length + 1), BOOL)[:, :length]
    new_image_start = is_image & ~is_previous_image
    starts = new_image_start.to(INT32)
    counted = machine.run("cumsum", (starts,), starts.shape, INT64, args=(starts, 1))
    del starts
    group_ids = counted - 1
    del counted
    none = machine.run("scalar_tensor", (), (), INT64)
    return machine.run("where", (is_image, group_ids, none), group_ids.shape, INT64)


class Gemma3WithVision(WithParts, Gemma3):
    parts_class = VisionAndText
