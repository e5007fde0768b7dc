"""What Axolotl trains: all weights or adapters, on which layers, over weights of how many bits.

Source   axolotl/loaders/model.py, `ModelLoader._set_quantization_config`; axolotl/loaders/adapter.py,
         `_build_peft_lora_config`; axolotl/train.py and axolotl/utils/freeze.py.
"""

from __future__ import annotations

from typing import Any

from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.axolotl_keys import assume_default, is_on
from tunecast.job.recipes.values import switch, word

NVFP4 = "4 bits of NVIDIA's format, with 8 more for 16 weights, are taken as bitsandbytes' fp4, which are as large"
"""bitsandbytes has 32 bits for 64 weights. As in Axolotl's kernels, a layer's weights are dequantised where they are
used (axolotl/integrations/kernels)."""


def take_method(draft: Draft, keys: Keys) -> None:
    """4 bits count with adapter qlora alone, 8 bits with lora (`ModelLoader._set_quantization_config`)."""
    adapter = word(keys.get("adapter"))
    four, eight = keys.get("load_in_4bit"), is_on(keys.get("load_in_8bit"))
    if adapter in ("", "none"):
        draft.assume("method", "full")
        return
    if adapter not in ("lora", "qlora"):
        draft.refuse(f"adapter {adapter[:64]}", "LoRA's are modelled")
        return
    is_nvfp4 = adapter == "lora" and not eight and "nvfp4" in word(keys.document.get("base_model")).lower()
    is_quantised = adapter == "qlora" or eight or is_nvfp4 or is_on(keys.get("gptq"))
    draft.put("method", "qlora" if is_quantised else "lora", keys, "adapter")
    if adapter == "qlora":
        kwargs = "bnb_config_kwargs"
        kind = keys.get(f"{kwargs}.bnb_4bit_quant_type")
        draft.put(
            "quantization.format", kind or "nf4", keys, f"{kwargs}.bnb_4bit_quant_type", "load_in_4bit", "adapter"
        )
        double = switch(keys.get(f"{kwargs}.bnb_4bit_use_double_quant"))
        if double is None:
            draft.assume("quantization.double_quant", True)
        else:
            draft.put("quantization.double_quant", double, keys, f"{kwargs}.bnb_4bit_use_double_quant")
        keys.get(f"{kwargs}.llm_int8_has_fp16_weight", f"{kwargs}.bnb_4bit_quant_storage")
    elif eight:
        draft.put("quantization.format", "int8", keys, "load_in_8bit")
    elif is_nvfp4:
        for field, value in (("format", "fp4"), ("double_quant", False), ("experts", True)):
            draft.put(f"quantization.{field}", value, keys, "base_model")
        draft.not_modelled(keys, "base_model", NVFP4)
    elif is_quantised:
        draft.put("quantization.format", "gptq", keys, "gptq")
    elif is_on(four):
        draft.not_modelled(keys, "load_in_4bit", "with adapter lora Axolotl loads 16 bits; taken are these")
    take_experts(draft, keys)
    if is_quantised:
        # `_convert_embedding_modules_dtype` undoes what prepare_model_for_kbit_training cast
        draft.assume("quantization.prepare_kbit", False)
    take_adapter(draft, keys)


def take_experts(draft: Draft, keys: Keys) -> None:
    """Quantised as they are stacked, or as Llama 4's linear layers, which bitsandbytes takes as any other."""
    names = ("quantize_moe_experts", "llama4_linearized_experts")
    given = next((name for name in names if is_on(keys.get(name))), None)
    if given is None:
        return
    if draft.fields.get("quantization.format") in ("nf4", "fp4", "int8"):
        draft.put("quantization.experts", True, keys, given)
    elif given == names[1]:
        draft.not_modelled(keys, given, "each expert has linear layers of its own; taken are stacked ones")


def take_adapter(draft: Draft, keys: Keys) -> None:
    draft.take("lora.rank", keys, "lora_r")
    draft.take("lora.alpha", keys, "lora_alpha")
    draft.take("lora.dropout", keys, "lora_dropout")
    assume_default(draft, "lora.dropout")
    draft.take("lora.dora", keys, "peft_use_dora")
    draft.take("lora.rslora", keys, "peft_use_rslora")
    given = keys.get("lora_target_modules")
    if is_on(keys.get("lora_target_linear")):
        draft.put("lora.targets", "all-linear", keys, "lora_target_linear")
        beyond = {"lm_head", "embed_tokens", "wte", "embed_in", "embed_out"}
        if isinstance(given, list) and beyond & {each for each in given if isinstance(each, str)}:
            draft.not_modelled(keys, "lora_target_modules", "embedding or head get adapters too")
    elif given:
        names = module_names(given)
        draft.put("lora.targets", given if names is None else names, keys, "lora_target_modules")
    take_parameters(draft, keys)
    if switch(keys.get("peft_autocast_adapter_dtype")) is False:
        draft.put("lora.adapter_dtype", "bfloat16", keys, "peft_autocast_adapter_dtype")
    else:
        draft.assume("lora.adapter_dtype", "float32", "PEFT")


def take_parameters(draft: Draft, keys: Keys) -> None:
    """Experts' stacked weights that get adapters, beside linear layers by their names."""
    given = keys.get("lora_target_parameters")
    if not is_on(given):
        return
    names = [given] if isinstance(given, str) else given
    modules = draft.fields.get("lora.targets", [])
    if all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in (names, modules)):
        draft.put("lora.targets", modules + names, keys, "lora_target_parameters")
    else:
        draft.not_modelled(keys, "lora_target_parameters", "experts' weights get adapters")


def module_names(given: Any) -> list[str] | None:
    """The modules an expression names: of `model.layers.[\\d]+.(mlp|self_attn).(up|down|q)_proj` up_proj, down_proj and
    q_proj. None where it is another. Expressions are never run: one may take forever."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list):
        return None
    names: list[str] = []
    for each in given:
        if not isinstance(each, str):
            return None
        paths = spelled_out(each.replace("\\.", ".").removeprefix("^").rstrip("$"))
        parts = [path.rpartition(".")[2] for path in paths]
        if not parts or not all(part.replace("_", "").isalnum() for part in parts):
            return None
        names += parts
    return list(dict.fromkeys(names))


MOST_SPELLINGS = 256


def spelled_out(pattern: str) -> list[str]:
    """What an expression of choices may be: of `a.(b|c)?.d` a..d, a.b.d and a.c.d. Nothing where they are too many, or
    not closed. What else expressions know stays as it is written."""
    stack: list[tuple[list[str], list[str]]] = []
    done, here = list[str](), [""]
    for place, letter in enumerate(pattern):
        if letter == "(":
            stack.append((done, here))
            done, here = [], [""]
        elif letter == "|":
            done, here = done + here, [""]
        elif letter == ")":
            if not stack:
                return []
            choices = done + here + ([""] if pattern[place + 1 : place + 2] == "?" else [])
            done, before = stack.pop()
            if len(before) * len(choices) > MOST_SPELLINGS:
                return []
            here = [first + choice for first in before for choice in choices]
        elif not (letter == "?" and pattern[place - 1 : place] == ")"):
            here = [each + letter for each in here]
    return [] if stack else done + here


FROZEN = (
    "Axolotl compares it with the start of a weight's name, base_model. with adapters, so that none is trained as the "
    "file stands; taken is that adapters are"
)
"""axolotl/utils/freeze.py, `freeze_layers_except`, `LayerNamePattern.match`; axolotl/train.py applies it to the model
with its adapters."""


def take_unfrozen(draft: Draft, keys: Keys) -> None:
    """All of the text's weights, or those of some layers."""
    given = keys.get("unfrozen_parameters")
    patterns = [each for each in given if isinstance(each, str)] if isinstance(given, list) else []
    if not patterns:
        return
    if draft.fields.get("method") != "full":
        draft.not_modelled(keys, "unfrozen_parameters", FROZEN)
        return
    starts = {each.removeprefix("^").rstrip(".*$").removesuffix(".weight") for each in patterns}
    if "lm_head" not in starts or not starts & {"model", "model.language_model"}:
        draft.not_modelled(keys, "unfrozen_parameters", "only these weights are trained; taken is that all are")
