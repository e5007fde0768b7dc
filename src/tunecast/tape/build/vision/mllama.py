"""Llama 3.2 Vision: layers of cross-attention between those of the language model
(transformers/models/mllama/modeling_mllama.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import UsageError
from tunecast.tape.build import attention, decoder
from tunecast.tape.build.decoder import FULL, CheckpointingLayer, Config, GatedMLP
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module, RMSNorm
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.mllama_tower import VisionModel
from tunecast.tape.build.vision.parts import WithParts

# -------------------------------------------------------------------------------------------------- the language model


class CrossAttention(Module):
    """`MllamaTextCrossAttention`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, self.num_heads = config["hidden_size"], config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.head_dim, self.groups = hidden // self.num_heads, self.num_heads // self.kv_heads
        self.dropout = config.get("dropout") or 0.0
        self.q_proj = Linear(machine, hidden, self.num_heads * self.head_dim)
        self.k_proj = Linear(machine, hidden, self.kv_heads * self.head_dim)
        self.v_proj = Linear(machine, hidden, self.kv_heads * self.head_dim)
        self.o_proj = Linear(machine, self.num_heads * self.head_dim, hidden)
        self.q_norm = RMSNorm(machine, self.head_dim)
        self.k_norm = RMSNorm(machine, self.head_dim)

    def forward(
        self, hidden_states: Tensor, cross_attention_states: Tensor, attention_mask: Any
    ) -> tuple[Tensor, Tensor | None]:
        bsz, q_len, _ = hidden_states.shape
        query_states = self.q_proj(hidden_states)
        query_states = query_states.view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        query_states = self.q_norm(query_states)
        key_states = self.k_proj(cross_attention_states)
        value_states = self.v_proj(cross_attention_states)
        key_states = key_states.view(bsz, -1, self.kv_heads, self.head_dim).transpose(1, 2)
        value_states = value_states.view(bsz, -1, self.kv_heads, self.head_dim).transpose(1, 2)
        key_states = self.k_norm(key_states)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout
        )
        attn_output = attn_output.reshape(bsz, q_len, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


class CrossAttentionLayer(CheckpointingLayer):
    """`MllamaCrossAttentionDecoderLayer`."""

    sees_images = True

    def __init__(self, machine: Machine, config: Config, index: int) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.is_last = index == last_of_images(config)
        """Whose gradient of the features comes first: the others' are added to it."""
        self.cross_attn_attn_gate = self.parameter(1)
        self.cross_attn_mlp_gate = self.parameter(1)
        self.cross_attn = CrossAttention(machine, config)
        self.input_layernorm = RMSNorm(machine, hidden)
        self.mlp = GatedMLP(machine, config)
        self.post_attention_layernorm = RMSNorm(machine, hidden)

    def forward(
        self, hidden_states: Tensor, cross_attention_states: Tensor, cross_attention_mask: Any,
        full_text_row_masked_out_mask: Any, attention_mask: Any, position_embeddings: Any, position_ids: Any,
    ) -> Tensor:  # fmt: skip
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _attn_weights = self.cross_attn(
            hidden_states=hidden_states, attention_mask=cross_attention_mask,
            cross_attention_states=cross_attention_states,
        )  # fmt: skip
        hidden_states = residual + self.cross_attn_attn_gate.tanh() * hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        if full_text_row_masked_out_mask is not None:
            hidden_states = full_text_row_masked_out_mask[:, 0] * hidden_states
        hidden_states = residual + self.cross_attn_mlp_gate.tanh() * hidden_states
        return hidden_states


class TextAttention(decoder.SelfAttention):
    projects_first = True

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.dropout = config.get("dropout") or 0.0


class TextLayer(decoder.Layer):
    """`MllamaSelfAttentionDecoderLayer`, which is handed what the others look at."""

    sees_images = False

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, cross_attention_states: Any = None, cross_attention_mask: Any = None,
        full_text_row_masked_out_mask: Any = None, attention_mask: Any = None, position_embeddings: Any = None,
        position_ids: Any = None,
    ) -> Tensor:  # fmt: skip
        return super().forward(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip


def last_of_images(config: Config) -> int:
    return max([index for index in config["cross_attention_layers"] if index < config["num_hidden_layers"]], default=-1)


def layer_of(
    machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]
) -> TextLayer | CrossAttentionLayer:
    if index in config["cross_attention_layers"]:
        return CrossAttentionLayer(machine, config, index)
    return TextLayer(machine, config, index, family)


class TextDecoder(decoder.Decoder):
    """`MllamaTextModel`."""

    extra_words = 8

    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        words = config["vocab_size"] + self.extra_words
        self.embed_tokens = family.embedding_class(machine, words, config["hidden_size"])

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Any = None, cross_attention_states: Any = None,
        cross_attention_mask: Any = None, full_text_row_masked_out_mask: Any = None,
    ) -> Tensor:  # fmt: skip
        if cross_attention_states is not None:
            self.refuse_going_back_twice(cross_attention_states)
        inputs_embeds = self.embed_tokens(input_ids)
        hidden_states = inputs_embeds
        position_ids = attention_mask if self.machine.packs else self.position_ids(inputs_embeds.shape[1])
        causal_mask = self.masks(attention_mask, inputs_embeds)[FULL]
        position_embeddings = self.positions(hidden_states, position_ids)[FULL]
        layers: Any = self.layers
        for decoder_layer in layers:
            if decoder_layer.sees_images and cross_attention_states is None:
                continue
            hidden_states = decoder_layer(
                hidden_states, cross_attention_states=cross_attention_states,
                cross_attention_mask=cross_attention_mask, attention_mask=causal_mask,
                full_text_row_masked_out_mask=full_text_row_masked_out_mask, position_ids=position_ids,
                position_embeddings=position_embeddings,
            )  # fmt: skip
        hidden_states = self.norm(hidden_states)
        return hidden_states

    def refuse_going_back_twice(self, cross_attention_states: Tensor) -> None:
        """Features are handed to layers by name, which torch/utils/checkpoint.py, `CheckpointFunction`, does not
        detach: each recomputed layer goes back through the tower by itself."""
        layers: Any = self.layers
        through = [layer for layer in layers if layer.sees_images and layer.checkpoint]
        if self.machine.reentrant and len(through) > 1 and cross_attention_states.requires_grad:
            told = "torch fails: each layer of cross-attention goes back through the vision tower, whose graph is gone"
            raise UsageError.at("checkpoint_reentrant", f"{told} after the first. To fix: checkpoint_reentrant false")


class MllamaText(decoder.CausalLM):
    """`MllamaForCausalLM`: of text alone, in which layers of cross-attention are passed over."""

    decoder_class = TextDecoder
    layer_class = staticmethod(layer_of)
    attention_class = TextAttention
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "cross_attention_layers": (3, 8, 13, 18, 23, 28, 33, 38),
        "tie_word_embeddings": False,
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- the whole


class MllamaParts(Module):
    """`MllamaModel`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        vision, text = {**VisionModel.defaults, **config["vision_config"]}, config["text_config"]
        self.hidden_size = text["hidden_size"]
        self.vision_model = VisionModel(machine, vision)
        self.language_model: Any = TextDecoder(machine, text, MllamaText)
        self.multi_modal_projector = Linear(machine, vision["vision_output_dim"], self.hidden_size, bias=True)

    def forward(
        self, input_ids: Tensor, attention_mask: Any, cross_attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None, aspect_ratio_ids: Any = None, aspect_ratio_mask: Any = None,
    ) -> Tensor:  # fmt: skip
        cross_attention_states = full_text_row_masked_out_mask = None
        if pixel_values is not None:
            vision_outputs = self.vision_model(
                pixel_values=pixel_values, aspect_ratio_ids=aspect_ratio_ids, aspect_ratio_mask=aspect_ratio_mask
            )
            cross_attention_states = vision_outputs
            cross_attention_states = self.multi_modal_projector(cross_attention_states).reshape(
                -1, cross_attention_states.shape[-2], self.hidden_size
            )
        if cross_attention_mask is not None:
            patches, dtype = self.vision_model.num_patches, self.machine.weights_dtype
            cross_attention_mask, full_text_row_masked_out_mask = masks_of_images(cross_attention_mask, patches, dtype)
            current_pos = self.machine.run("arange", (), (input_ids.shape[1],), INT64) + 0
            cross_attention_mask = at_positions(cross_attention_mask, current_pos)
            full_text_row_masked_out_mask = at_positions(full_text_row_masked_out_mask, current_pos)
        outputs = self.language_model(
            input_ids=input_ids, attention_mask=attention_mask, cross_attention_states=cross_attention_states,
            cross_attention_mask=cross_attention_mask, full_text_row_masked_out_mask=full_text_row_masked_out_mask,
        )  # fmt: skip
        return outputs


def masks_of_images(cross_attention_mask: Tensor, num_vision_tokens: int, dtype: Dtype) -> tuple[Tensor, Tensor]:
    """`_prepare_cross_attention_mask`: from tokens and tiles to tokens and patches, first as whole numbers."""
    machine, (batch_size, length) = cross_attention_mask.machine, cross_attention_mask.shape[:2]
    cross_attention_mask = cross_attention_mask.repeat_interleave(num_vision_tokens, 3)
    cross_attention_mask = cross_attention_mask.view(batch_size, length, -1)
    cross_attention_mask = cross_attention_mask.unsqueeze(1)
    shape = cross_attention_mask.shape
    inverted_cross_attn_mask = machine.run("rsub", (cross_attention_mask,), shape, FLOAT32).to(dtype)
    cross_attention_mask = filled(inverted_cross_attn_mask, inverted_cross_attn_mask.to(BOOL))
    full_text_row_masked_out_mask = cross_attention_mask.ne(0).any(-1).to(dtype)[..., None]
    machine.launch("mul_", (cross_attention_mask, full_text_row_masked_out_mask), dtype, cross_attention_mask.nbytes)
    return cross_attention_mask, full_text_row_masked_out_mask


def filled(x: Tensor, mask: Tensor) -> Tensor:
    return x.machine.run("masked_fill", (x, mask), x.shape, x.dtype)


def at_positions(x: Tensor, places: Tensor) -> Tensor:
    """x[:, :, places], of which nobody takes a gradient."""
    return x.machine.run("index", (x, places), x.shape, x.dtype, args=(x, [None, None, places]))


class Mllama(WithParts, MllamaText):
    """`MllamaForConditionalGeneration`."""

    parts_class = MllamaParts
    tower_paths: Sequence[str] = ("model.vision_model",)

    def towers(self) -> Sequence[Any]:
        return [self.model.vision_model]
