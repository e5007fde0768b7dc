"""DeepSeek's parts in others' models: GLM 4.5 to 4.7 (its experts behind attention of heads that turn in part), GLM 4.7
Flash (all of V3, layers listed one by one), Mistral 4 (V3's attention with queries that grow with their position, a
softmax over the experts), DeepSeek-V3.2 (V3 with an indexer that chooses the tokens a query looks at), GLM 5 (V3.2, in
which layers may share a choice)
(transformers/models/{glm4_moe,glm4_moe_lite,mistral4,deepseek_v32,glm_moe_dsa}/modeling_*.py)."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.errors import Unsupported, UsageError
from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import FULL, Config
from tunecast.tape.build.dtypes import BOOL, FLOAT16, FLOAT32, INT32, INT64
from tunecast.tape.build.experts import top_k
from tunecast.tape.build.families.deepseek import (
    DeepseekLayer,
    DeepseekV2,
    DeepseekV3,
    V2Moe,
    V3Attention,
    V3Router,
    rotate_both_interleaved,
)
from tunecast.tape.build.families.llama_kin import attention_scale
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask
from tunecast.tape.build.modules import LayerNorm, Linear, Module, RMSNorm
from tunecast.tape.build.tensor import Tensor

# ------------------------------------------------------------------------------------------------------------- GLM 4.5


class GlmMoeAttention(decoder.SelfAttention):
    came_later = True
    rotary = staticmethod(attention.apply_partial_rotary)

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.has_norms = bool(config["use_qk_norm"])
        if self.has_norms:
            self.q_norm = RMSNorm(machine, self.head_dim)
            self.k_norm = RMSNorm(machine, self.head_dim)

    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config["attention_bias"]), False

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_proj(hidden_states).view(*shape)
        key_states = self.k_proj(hidden_states).view(*shape)
        value_states = self.v_proj(hidden_states).view(*shape)
        if self.has_norms:
            query_states = self.q_norm(query_states)
            key_states = self.k_norm(key_states)
        return query_states.transpose(1, 2), key_states.transpose(1, 2), value_states.transpose(1, 2)


class GlmRouter(V3Router):
    correction_dtype = FLOAT32


class GlmExperts(V2Moe):
    router_class: Any = GlmRouter


class GlmMoe(decoder.CausalLM):
    layer_class = DeepseekLayer
    attention_class = GlmMoeAttention
    moe_class: Any = GlmExperts
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "attention_bias": False, "moe_intermediate_size": 1408, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "n_routed_experts": 128, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "norm_topk_prob": True, "use_qk_norm": False, "partial_rotary_factor": 0.5,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        share = decoder.rope_scaling(config).get("partial_rotary_factor")
        return super().complete(config if share is None else {**config, "partial_rotary_factor": share})


# ------------------------------------------------------------------------------------------------------- GLM 4.7 Flash


class ListedLayer(decoder.Layer):
    """Which layers have experts is listed."""

    def __init__(self, machine: Machine, config: Config, index: int, family: type[DeepseekV2]) -> None:
        super().__init__(machine, config, index, family)
        if config["mlp_layer_types"][index] == "sparse":
            self.mlp = family.moe_class(machine, config)


class GlmMoeLite(DeepseekV3):
    layer_class = ListedLayer
    moe_class = GlmExperts
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 20, "kv_lora_rank": 512, "q_lora_rank": 768, "n_group": 1, "n_routed_experts": 64,
        "n_shared_experts": 1, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "topk_group": 1, "v_head_dim": 256,
        "moe_intermediate_size": 1536, "num_experts_per_tok": 4, "norm_topk_prob": True, "rope_interleave": True,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        whole = super().complete(config)
        listed = whole.get("mlp_layer_types") or ["dense"] + ["sparse"] * (whole["num_hidden_layers"] - 1)
        return {**whole, "mlp_layer_types": listed}


# ----------------------------------------------------------------------------------------------------------- Mistral 4


class Mistral4Attention(V3Attention):
    def scale_queries(self, query_states: Tensor, position_ids: Any) -> Tensor:
        return query_states * attention_scale(position_ids).to(query_states.dtype)


class Mistral4Router(V3Router):
    corrected = False

    def scores(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        router_logits = F.linear(hidden_states, self.weight)
        return router_logits, F.softmax(router_logits)


class Mistral4Moe(V2Moe):
    router_class: Any = Mistral4Router


NOT_LISTED = "the model is made as Mistral4ForCausalLM, which AutoModelForCausalLM does not list"


class Mistral4(DeepseekV3):
    attention_class = Mistral4Attention
    moe_class = Mistral4Moe
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 32, "first_k_dense_replace": 0, "kv_lora_rank": 256, "q_lora_rank": 1024, "n_group": 1,
        "n_routed_experts": 128, "n_shared_experts": 1, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
        "topk_group": 1, "v_head_dim": 128, "moe_intermediate_size": 2048, "num_experts_per_tok": 4,
        "norm_topk_prob": True, "rope_interleave": True,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        machine.assumptions[NOT_LISTED] = None

    def complete(self, config: Config) -> dict[str, Any]:
        """`head_dim` is already what turns; what config.json says of its share is the same once more."""
        scaling = {**decoder.rope_scaling(config), "partial_rotary_factor": 1.0}
        return super().complete({**config, "rope_scaling": scaling})


# -------------------------------------------------------------------------------------------------------- DeepSeek-V3.2


def rotate_by_position(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Where heads come after positions."""
    cos = cos.unsqueeze(2)
    sin = sin.unsqueeze(2)
    q_embed = attention.rotate(q, cos, sin)
    k_embed = attention.rotate(k, cos, sin)
    return q_embed, k_embed


class Indexer(Module):
    """Scores every token for every query, without gradients, and chooses the best."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, self.heads, self.width = config["hidden_size"], config["index_n_heads"], config["index_head_dim"]
        self.rotated, self.most = config["qk_rope_head_dim"], config["index_topk"]
        self.wq_b = Linear(machine, config["q_lora_rank"], self.heads * self.width)
        self.wk = Linear(machine, hidden, self.width)
        self.k_norm = LayerNorm(machine, self.width)
        self.weights_proj = Linear(machine, hidden, self.heads)
        self.weights_proj.stays = True

    def forward(
        self, hidden_states: Tensor, q_resid: Tensor, position_embeddings: Any, attention_mask: Tensor
    ) -> Tensor:
        with self.machine.no_grad():
            return self.choose(hidden_states, q_resid, position_embeddings, attention_mask)

    def choose(
        self, hidden_states: Tensor, q_resid: Tensor, position_embeddings: Any, attention_mask: Tensor
    ) -> Tensor:
        batch_size, seq_len, _ = hidden_states.shape
        sizes = (self.rotated, self.width - self.rotated)
        cos, sin = position_embeddings
        q = self.wq_b(q_resid)
        q = q.view(batch_size, seq_len, self.heads, self.width)
        q_rot, q_pass = q.split(sizes, -1)
        k = self.k_norm(self.wk(hidden_states)).unsqueeze(2)
        k_rot, k_pass = k.split(sizes, -1)
        q_rot, k_rot = self.rotated_both(q_rot, k_rot, cos, sin)
        q = F.cat((q_rot, q_pass), -1)
        k = F.cat((k_rot, k_pass), -1).squeeze(2)
        q_float, k_float = q.float(), k.transpose(1, 2).float().unsqueeze(1)
        scores = F.matmul(q_float, k_float)
        del q_float, k_float
        scores = scores * self.width**-0.5
        scores = F.relu(scores)
        own = getattr(self.weights_proj, "base_layer", self.weights_proj).weight.dtype
        weights = self.weights_proj(hidden_states.to(own)).float() * self.heads**-0.5
        index_scores = F.matmul(weights.unsqueeze(2), scores).squeeze(2)
        if attention_mask.dtype == BOOL:
            index_scores = index_scores.masked_fill(~attention_mask, 0.0)
        else:
            index_scores = index_scores + attention_mask
        return top_k(index_scores, min(self.most, seq_len))[1].to(INT32)

    def rotated_both(self, q_rot: Tensor, k_rot: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_by_position(q_rot, k_rot, cos, sin)


class IndexedAttention(V3Attention):
    indexer_class: Any = Indexer

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.indexer, self.most = None, config["index_topk"]
        if config["indexer_types"][index] == "full":
            self.indexer = self.indexer_class(machine, config)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        return self.attend_to_chosen(hidden_states, position_embeddings, attention_mask, position_ids)[:2]

    def attend_to_chosen(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any,
        prev_topk_indices: Tensor | None = None,
    ) -> tuple[Tensor, Any, Tensor]:  # fmt: skip
        """And which tokens each query looks at, for layers that choose none themselves."""
        batch_size, seq_length = hidden_states.shape[:-1]
        q_resid = self.q_a_layernorm(self.q_a_proj(hidden_states))
        q_states = self.q_b_proj(q_resid).view(batch_size, seq_length, -1, self.plain + self.rotated).transpose(1, 2)
        q_pass, q_rot = q_states.split((self.plain, self.rotated), -1)
        compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
        kv_pass, k_rot = compressed_kv.split((self.kv_rank, self.rotated), -1)
        k_pass, k_rot = self.compress(kv_pass, k_rot)
        q_rot, k_rot = self.apply_rotary(q_rot, k_rot, position_embeddings)
        query_states = F.cat((q_pass, q_rot), -1)
        key_states, value_states = self.expand_kv(k_pass, k_rot)
        if self.indexer is None:
            if prev_topk_indices is None:  # the first of a pipeline's stage, which is sent them
                chosen = (batch_size, seq_length, min(self.most, seq_length))
                prev_topk_indices = self.machine.run("_to_copy", (), chosen, INT32)
            topk_indices = prev_topk_indices
        else:
            topk_indices = self.indexer(hidden_states, q_resid, position_embeddings, attention_mask[:, 0])
        index_mask = mask_of_others(topk_indices, key_states.shape[2])
        if attention_mask.dtype == BOOL:
            attention_mask = attention_mask & ~index_mask
        else:
            attention_mask = attention_mask.masked_fill(index_mask, 0.0)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch_size, seq_length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights, topk_indices


def mask_of_others(topk_indices: Tensor, keys: int) -> Tensor:
    """True at keys that were not chosen."""
    machine, shape = topk_indices.machine, (*topk_indices.shape[:2], keys)
    ones, places = machine.run("new_ones", (), shape, BOOL), topk_indices.to(INT64)
    return machine.run("scatter", (ones, places), shape, BOOL, args=(ones, -1, places)).unsqueeze(1)


class IndexedDecoder(decoder.Decoder):
    def masks(self, attention_mask: Any, inputs_embeds: Tensor) -> dict[str, Any]:
        """The indexer needs one in any case."""
        return {FULL: causal_mask(attention_mask, inputs_embeds, skip=False)}


class DeepseekV32(DeepseekV3):
    decoder_class = IndexedDecoder
    layer_class = ListedLayer
    attention_class = IndexedAttention
    moe_class = GlmExperts
    defaults: ClassVar[Config] = {
        **DeepseekV3.defaults, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64,
    }  # fmt: skip
    settled: ClassVar[Config] = {"mlp_bias": False, "rope_interleave": True}
    """Whatever config.json says."""

    def __init__(self, machine: Machine, config: Config) -> None:
        if machine.attention not in ("sdpa", "eager"):
            raise UsageError.at("attention", f"{config['model_type']} has no {machine.attention}; it has sdpa, eager")
        if machine.weights_dtype == FLOAT16:
            told = f"the closed form does not know {config['model_type']} in float16, parts in float32"
            raise Unsupported.at("weights_dtype", told)
        super().__init__(machine, config)

    def complete(self, config: Config) -> dict[str, Any]:
        whole = super().complete(config)
        layers, dense = whole["num_hidden_layers"], whole["first_k_dense_replace"]
        listed = whole.get("mlp_layer_types") or ["sparse" if index >= dense else "dense" for index in range(layers)]
        experts = whole.get("num_experts") or whole["n_routed_experts"]
        chosen = {"mlp_layer_types": listed, "indexer_types": self.indexer_types(whole), "n_routed_experts": experts}
        return {**whole, **chosen, **self.settled}

    def indexer_types(self, config: Config) -> list[str]:
        """Whether a layer has an indexer: all have."""
        return ["full"] * config["num_hidden_layers"]


# -------------------------------------------------------------------------------------------------------------- GLM 5


class InterleavingIndexer(Indexer):
    def rotated_both(self, q_rot: Tensor, k_rot: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_both_interleaved(q_rot, k_rot, cos, sin, 2)


class SharingAttention(IndexedAttention):
    indexer_class = InterleavingIndexer

    def forward(self, *args: Any, **where: Any) -> Any:
        return self.attend_to_chosen(*args, **where)


class SharingLayer(ListedLayer):
    def forward(self, hidden_states: Tensor, **where: Any) -> Any:  # type: ignore[override]
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _, topk_indices = self.self_attn(hidden_states=hidden_states, **where)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states, topk_indices


class SharingDecoder(IndexedDecoder):
    """A layer's choice goes on to the next."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        inputs_embeds = self.embed_tokens(input_ids)
        position_ids = attention_mask if self.machine.packs else self.position_ids(inputs_embeds.shape[1])
        masks = self.masks(attention_mask, inputs_embeds)
        hidden_states = inputs_embeds
        position_embeddings = self.positions(hidden_states, position_ids)
        topk_indices = None
        for decoder_layer in self.layers:
            hidden_states, topk_indices = decoder_layer(
                hidden_states, attention_mask=masks[FULL], position_embeddings=position_embeddings[FULL],
                position_ids=position_ids, prev_topk_indices=topk_indices,
            )  # fmt: skip
        hidden_states = self.norm(hidden_states)
        return hidden_states


class GlmMoeDsa(DeepseekV32):
    decoder_class = SharingDecoder
    layer_class = SharingLayer
    attention_class = SharingAttention
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 64, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 2048, "n_group": 1,
        "n_routed_experts": 256, "n_shared_experts": 1, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
        "topk_group": 1, "v_head_dim": 256, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
        "norm_topk_prob": True, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32,
    }  # fmt: skip

    def indexer_types(self, config: Config) -> list[str]:
        """`GlmMoeDsaConfig.__post_init__`."""
        pattern = config.get("indexer_types") or config.get("index_topk_pattern")
        if pattern is not None:
            return [{"F": "full", "S": "shared"}.get(kind, kind) for kind in pattern]
        every, offset = max(config.get("index_topk_freq", 1), 1), config.get("index_skip_topk_offset", 2)
        layers = range(config["num_hidden_layers"])
        return ["full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in layers]
