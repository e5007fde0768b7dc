"""Nemotron-H and Nemotron 3: every layer is one thing alone, Mamba 2, attention without positions, an MLP or experts
(transformers/models/nemotron_h/modeling_nemotron_h.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tunecast.job.kernels import OF_MAMBA
from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import FULL, Config
from tunecast.tape.build.experts import Experts
from tunecast.tape.build.families.deepseek import V3Router
from tunecast.tape.build.families.delta import LINEAR, DeltaDecoder
from tunecast.tape.build.families.mamba import OLDER_KINDS, HybridAttention, MambaLayer
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Linear, Module, RMSNorm
from tunecast.tape.build.tensor import Tensor

EXPERTS, MLP = "moe", "mlp"
PATTERN: Mapping[str, str] = {"M": LINEAR, "E": EXPERTS, "*": FULL, "-": MLP}
"""`NemotronHConfig._pattern_to_list`."""


class WideNorm(RMSNorm):
    """Since 5.18 all of it is in fp32."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        if not self.machine.era.nemotron_norms_in_float32:
            return super().forward(hidden_states)
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.float()
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * F.rsqrt(variance + self.variance_epsilon)
        return (self.weight.float() * hidden_states).to(input_dtype)


class GroupedNormAfterGate(RMSNorm):
    def __init__(self, machine: Machine, width: int, groups: int) -> None:
        super().__init__(machine, width)
        self.groups = groups

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.float()
        hidden_states = hidden_states * F.silu(gate.float())
        batch_size, seq_len, last_dim = hidden_states.shape
        hidden_states_group = hidden_states.view(batch_size, seq_len, self.groups, last_dim // self.groups)
        variance = hidden_states_group.pow(2).mean(-1, keepdim=True)
        hidden_states_group = hidden_states_group * F.rsqrt(variance + self.variance_epsilon)
        hidden_states = hidden_states_group.view(batch_size, seq_len, last_dim)
        return self.weight * hidden_states.to(input_dtype)


class NemotronMixer(MambaLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        usual = {
            "mamba_n_heads": config["mamba_num_heads"], "mamba_n_groups": config["n_groups"],
            "mamba_d_state": config["ssm_state_size"], "mamba_chunk_size": config["chunk_size"],
            "mamba_d_ssm": config["mamba_num_heads"] * config["mamba_head_dim"],
            "mamba_d_conv": config["conv_kernel"], "mamba_conv_bias": config["use_conv_bias"],
            "mamba_proj_bias": config["use_bias"], "hidden_act": config["mamba_hidden_act"],
        }  # fmt: skip
        super().__init__(machine, {**config, **usual})

    def add_norm(self, machine: Machine, config: Config) -> None:
        self.norm = GroupedNormAfterGate(machine, self.inner, self.groups)


class NemotronAttention(HybridAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return False, False


class NemotronMLP(Module):
    def __init__(self, machine: Machine, config: Config, inner: str = "intermediate_size") -> None:
        super().__init__(machine)
        bias = bool(config["mlp_bias"])
        self.up_proj = Linear(machine, config["hidden_size"], config[inner], bias)
        self.down_proj = Linear(machine, config[inner], config["hidden_size"], bias)
        self.act_fn = Activation(machine, config["mlp_hidden_act"])

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))


class LatentExperts(Experts):
    """Without a gate."""

    gated = False


class NemotronMoe(Module):
    """Its experts may be narrower than the model: one projection before all of them, one after."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, latent = config["hidden_size"], config["moe_latent_size"]
        size = config["n_routed_experts"], latent or hidden, config["moe_intermediate_size"]
        self.experts = LatentExperts(machine, *size, config["mlp_hidden_act"])
        self.gate = V3Router(machine, config)
        self.shared_experts = NemotronMLP(machine, config, "moe_shared_expert_intermediate_size")
        self.is_latent = latent is not None
        if self.is_latent:
            self.fc1_latent_proj = Linear(machine, hidden, latent, bool(config["mlp_bias"]))
            self.fc2_latent_proj = Linear(machine, latent, hidden, bool(config["mlp_bias"]))

    def forward(self, hidden_states: Tensor) -> Tensor:
        residuals = hidden_states
        orig_shape = hidden_states.shape
        _, topk_weights, topk_indices = self.gate(hidden_states)
        hidden_states = hidden_states.view(-1, hidden_states.shape[-1])
        if self.is_latent:
            hidden_states = self.fc1_latent_proj(hidden_states)
        hidden_states = self.experts(hidden_states, topk_indices, topk_weights)
        if self.is_latent:
            hidden_states = self.fc2_latent_proj(hidden_states)
        hidden_states = hidden_states.view(*orig_shape)
        hidden_states = hidden_states + self.shared_experts(residuals)
        return hidden_states


class NemotronBlock(decoder.CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine)
        self.norm = WideNorm(machine, config["hidden_size"])
        self.kind = config["layer_types"][index]
        self.mixer: Any
        if self.kind == FULL:
            self.mixer = NemotronAttention(machine, config, index)
        else:
            self.mixer = {LINEAR: NemotronMixer, EXPERTS: NemotronMoe, MLP: NemotronMLP}[self.kind](machine, config)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.norm(hidden_states.to(self.norm.weight.dtype))
        if self.kind == LINEAR:
            hidden_states = self.mixer(hidden_states, attention_mask=attention_mask)
        elif self.kind == FULL:
            hidden_states, _ = self.mixer(
                hidden_states=hidden_states, attention_mask=attention_mask, position_ids=position_ids,
                position_embeddings=position_embeddings,
            )  # fmt: skip
        else:
            hidden_states = self.mixer(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class NemotronDecoder(DeltaDecoder):
    kernels = OF_MAMBA
    kernels_compared = False

    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        self.rotates = False
        parts = self.children
        self.children = {"embeddings": parts["embed_tokens"], "layers": parts["layers"], "norm_f": parts["norm"]}

    def masks(self, attention_mask: Tensor, inputs_embeds: Tensor) -> dict[str, Any]:
        return {**super().masks(attention_mask, inputs_embeds), EXPERTS: None, MLP: None}


class NemotronH(decoder.CausalLM):
    decoder_class = NemotronDecoder
    layer_class = NemotronBlock
    norm_class = WideNorm
    defaults: ClassVar[Config] = {
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504,
        "mlp_hidden_act": "relu2", "mlp_bias": False, "ssm_state_size": 128, "mamba_num_heads": 128,
        "mamba_head_dim": 64, "mamba_hidden_act": "silu", "n_groups": 8, "conv_kernel": 4, "use_conv_bias": True,
        "chunk_size": 128, "use_bias": False, "n_routed_experts": 8, "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688, "moe_latent_size": None, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "norm_topk_prob": True,
    }  # fmt: skip
    older_names: ClassVar[Mapping[str, str]] = {
        "mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias",
        "mamba_chunk_size": "chunk_size",
    }  # fmt: skip
    logit_steps = (lambda logits: logits.float(),)

    def complete(self, config: Config) -> dict[str, Any]:
        """`NemotronHConfig.__post_init__`: some names are older, and there are as many layers as are listed."""
        older = {self.older_names[name]: value for name, value in config.items() if name in self.older_names}
        whole = super().complete({**config, **older})
        return {**whole, "num_hidden_layers": len(whole["layer_types"])}

    def layer_types(self, config: Config) -> Sequence[str]:
        given = config.get("layer_types") or config.get("layers_block_type")
        if given is None and "hybrid_override_pattern" in config:
            given = [PATTERN[letter] for letter in config["hybrid_override_pattern"]]
        return [OLDER_KINDS.get(kind, kind) for kind in given or (LINEAR, EXPERTS, FULL, MLP)]
