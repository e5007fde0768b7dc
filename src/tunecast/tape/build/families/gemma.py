"""Gemma 1 to 3: norms in fp32 that add one to their weight, embeddings times a number; from 2 on norms on both sides of
a block, capped logits and windows, in 3 norms of queries and keys, two rotary bases, and a vision tower, which a batch
of text loads and does not run (transformers/models/{gemma,gemma2,gemma3,siglip})."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.families.olmo import HeadNormedAttention, windows_but_every
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor


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


# ------------------------------------------------------------------------ the vision tower: weights and no forward pass


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


# -------------------------------------------------------------------- Gemma 3 with it: `Gemma3ForConditionalGeneration`


class VisionProjector(Module):
    def __init__(self, machine: Machine, width: int, text_width: int) -> None:
        super().__init__(machine)
        self.mm_input_projection_weight = self.parameter(width, text_width)
        self.mm_soft_emb_norm = GemmaNorm(machine, width)


class VisionAndText(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        vision, text = config["vision_config"], config["text_config"]
        self.vision_tower = SiglipVision(machine, vision)
        self.multi_modal_projector = VisionProjector(machine, vision["hidden_size"], text["hidden_size"])
        self.language_model: Any = Gemma3.decoder_class(machine, text, Gemma3)
        self.language_model.mask_kinds = tuple(sorted(set(text["layer_types"])))  # there in the order of a hash table

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.language_model.embed_tokens(input_ids)
        masks = self.language_model.masks(attention_mask, inputs_embeds)
        return self.language_model(inputs_embeds=inputs_embeds, attention_mask=masks)


class WithParts(decoder.CausalLM):
    """A language model among other parts, all in one `model`."""

    parts_class: Any

    def __init__(self, machine: Machine, config: Config) -> None:
        Module.__init__(self, machine)
        text = self.complete(config["text_config"])
        self.model = self.parts_class(machine, {**config, "text_config": text})
        self.vocabulary = text["vocab_size"]
        self.lm_head = Linear(machine, text["hidden_size"], self.vocabulary)
        self.tied = bool(text["tie_word_embeddings"])

    def layers(self) -> Any:
        return iter(self.model.language_model.layers)

    def input_embedding(self) -> Any:
        return self.model.language_model.embed_tokens

    def tie(self) -> None:
        if self.tied:
            self.lm_head.weight = self.input_embedding().weight


class Gemma3WithVision(WithParts, Gemma3):
    parts_class = VisionAndText
