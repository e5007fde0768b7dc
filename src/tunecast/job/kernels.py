"""Packages of kernels: such as somebody chooses, and such as models take by themselves where they are installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunecast.job.job import Job

FLASH = ("flash_attention_2", "flash_attention_3", "flex_attention", "xformers")
"""Kernels of attention that make no scores, and take no mask of all pairs."""
ATTENTIONS = ("sdpa", "eager", *FLASH)
LIGER_PARTS: Mapping[str, tuple[str, ...]] = {
    "liger_rope": ("rope",),
    "liger_rms_norm": ("rms_norm",),
    "liger_glu": ("swiglu", "geglu"),
    "liger_cross_entropy": ("cross_entropy",),
    "liger_fused_linear_cross_entropy": ("fused_linear_cross_entropy",),
}
"""Liger's kernels one by one, and what its functions call them (liger_kernel/transformers/monkey_patch.py)."""
FUSED_HEAD, FUSED_LOSS = "liger_fused_linear_cross_entropy", "liger_cross_entropy"
CUT_HEAD, LORA_TRITON = "cut_cross_entropy", "lora_triton"
"""Apple's head and loss without logits; axolotl's fused adapters (lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel)."""
CHOSEN = ("liger", *LIGER_PARTS, CUT_HEAD, LORA_TRITON, "foak")
INSTALLED: Mapping[str, str] = {"fla": "fla", "causal-conv1d": "causal_conv1d", "mamba-ssm": "mamba_ssm"}
"""As Python imports them. Of flash-linear-attention, fla-core is the part that has them; transformers looks when it
imports a model (integrations/hub_kernels.py, `use_kernel_func_from_hub_with_fallback`)."""

OF_DELTA_RULE, OF_MAMBA, OF_CONVOLUTION = ("fla", "causal-conv1d"), ("mamba-ssm", "causal-conv1d"), ("causal-conv1d",)
TAKEN: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), OF_DELTA_RULE),
    **dict.fromkeys(("falcon_h1", "granitemoehybrid"), OF_MAMBA),
    **dict.fromkeys(("lfm2", "lfm2_moe"), OF_CONVOLUTION),
}
"""By config.json's `model_type`: whose kernels its layers without attention take."""


def is_flash(attention: str) -> bool:
    return attention in FLASH


def liger_parts(job: Job) -> frozenset[str]:
    """Those of Liger's kernels a job has; liger alone is all that Liger takes by itself, the head with the loss."""
    usual = [name for name in LIGER_PARTS if name != FUSED_LOSS] if "liger" in job.kernels else []
    return frozenset([*usual, *(name for name in job.kernels if name in LIGER_PARTS)])


def by_whole(names: Sequence[str]) -> list[str]:
    """Kernels with `liger` for the parts it stands for, where all of them are there."""
    usual = {name for name in LIGER_PARTS if name != FUSED_LOSS}
    return ["liger", *(name for name in names if name not in usual)] if usual <= set(names) else list(names)


def chosen_kernels(job: Job) -> tuple[str, ...]:
    return tuple(name for name in job.kernels if name in CHOSEN)
