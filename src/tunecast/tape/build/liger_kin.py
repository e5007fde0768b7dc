"""What Liger has for architectures beyond those whose traces were compared (`liger.MODELS`), as its source says.

Source   liger_kernel/transformers/monkey_patch.py, MODEL_TYPE_TO_APPLY_LIGER_FN and the function of each, of 0.8.5;
         transformers/integrations/liger.py, which trains without where Liger has none;
         axolotl/integrations/liger/models/base.py, `patch_lce_forward`, which fuses the head of any model.
Ignored  Liger's experts (LigerExperts), its rotations for Llama 4 and gpt-oss and its gated units with factors inside:
         transformers' own are taken, which keep as much or more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MethodType
from typing import Any

from tunecast.job.kernels import FUSED_HEAD, FUSED_LOSS
from tunecast.records import NamedTuple
from tunecast.tape.build import liger
from tunecast.tape.build.decoder import GatedMLP
from tunecast.tape.build.families.llama_kin import FusedMLP


class Kernels(NamedTuple):
    """Of one architecture."""

    rope: bool = True
    norms: bool = True
    in_place: bool = True
    """Its norms' gradients overwrite those that come in."""
    glu: bool = True
    experts: bool = False
    """It has Liger's experts, which are left out here."""
    fuses_head: bool = True
    """By itself; else its loss alone."""


_USUAL = Kernels()
_MOE = Kernels(rope=False, experts=True)
_NEXT = Kernels(rope=False, in_place=False)
KERNELS: Mapping[str, Kernels] = {
    **dict.fromkeys(("ministral", "hunyuan_v1_dense"), _USUAL),
    **dict.fromkeys(("mixtral", "qwen3_moe", "hunyuan_v1_moe"), Kernels(experts=True)),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _MOE),
    **dict.fromkeys(("qwen3_5_text", "glm4", "gemma4_text"), _NEXT),
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _NEXT._replace(experts=True)),
    **dict.fromkeys(("olmo3", "exaone4"), Kernels(in_place=False)),
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), Kernels(rope=False)),
    "qwen3_vl_text": Kernels(glu=False),
    "qwen3_vl_moe_text": Kernels(experts=True),
    "granite": Kernels(fuses_head=False),
    "falcon_h1": Kernels(glu=False),
    "llama4_text": Kernels(rope=False),
    "gpt_oss": Kernels(rope=False, glu=False),
    "deepseek_v4": Kernels(rope=False, glu=False),
    "nemotron": Kernels(rope=False, norms=False, glu=False),
}
NORMS = liger.NORMS | {"Gemma4Norm"}
NOT_TRACED = "kernels liger: those for {} follow liger-kernel's source and were not traced{}"
NO_EXPERTS = "; its experts are left out, which keep less than transformers' own"
NONE_THERE = "liger-kernel has no kernels for {}: it is trained without"
HEAD_ALONE = "kernels liger: of {} axolotl fuses the head and the loss alone, which was not traced"


def apply(model: Any, model_type: str, parts: Collection[str], fuses_any_head: bool) -> None:
    machine = model.machine
    kernels = KERNELS.get(model_type)
    if kernels is None:
        if fuses_any_head and FUSED_HEAD in parts:
            machine.guesses[HEAD_ALONE.format(model_type)] = None
            model.forward = MethodType(liger.causal_lm_forward, model)
        else:
            machine.assumptions[NONE_THERE.format(model_type)] = None
        return
    machine.guesses[NOT_TRACED.format(model_type, NO_EXPERTS if kernels.experts else "")] = None
    if kernels.rope and "liger_rope" in parts:
        machine.use_rotary(liger.rotary)
    if FUSED_HEAD in parts and (kernels.fuses_head or fuses_any_head):
        model.forward = MethodType(liger.causal_lm_forward, model)
    elif {FUSED_HEAD, FUSED_LOSS} & set(parts):
        model.cross_entropy = liger.cross_entropy
    for module in model.modules():
        kinds = {base.__name__ for base in type(module).__mro__}
        if kernels.norms and "liger_rms_norm" in parts and is_plain_norm(module, kinds):
            module.in_place = kernels.in_place
            module.forward = MethodType(liger.norm_forward, module)
        elif kernels.glu and "liger_glu" in parts and type(module).forward is GatedMLP.forward:
            module.forward = MethodType(liger.mlp_forward, module)
        elif kernels.glu and "liger_glu" in parts and type(module).forward is FusedMLP.forward:
            module.forward = MethodType(liger.fused_mlp_forward, module)


def is_plain_norm(module: Any, kinds: Collection[str]) -> bool:
    """One with a weight, that takes hidden states alone: no gate beside them."""
    takes_gate = any("Gate" in kind for kind in kinds)
    return bool(NORMS & set(kinds)) and not takes_gate and getattr(module, "weight", None) is not None
