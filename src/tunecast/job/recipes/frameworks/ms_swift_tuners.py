"""What ms-swift's `swift sft` trains: all weights, LoRA, or adapters that are as good as LoRA; and on which weights.

Keys      swift/arguments/tuner_args.py, `TunerArguments`; swift/arguments/base_args/quant_args.py, `QuantizeArguments`
Adapters  swift/pipelines/train/tuner.py, `prepare_adapter`
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.recipes import huggingface
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frozen_layers import layer_count, layer_names
from tunecast.job.recipes.values import whole, word

_TUNER = "swift/arguments/tuner_args.py: TunerArguments"
_QUANT = "swift/arguments/base_args/quant_args.py: QuantizeArguments"
_BASE = "swift/arguments/base_args/base_args.py: BaseArguments"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "method": ("lora", f"{_BASE}.tuner_type"),
    "lora.rank": (8, f"{_TUNER}.lora_rank"),
    "lora.alpha": (32.0, f"{_TUNER}.lora_alpha"),
    "lora.dropout": (0.05, f"{_TUNER}.lora_dropout"),
    "lora.rslora": (False, f"{_TUNER}.use_rslora"),
    "lora.dora": (False, f"{_TUNER}.use_dora"),
    "quantization.format": ("nf4", f"{_QUANT}.bnb_4bit_quant_type"),
    "quantization.double_quant": (True, f"{_QUANT}.bnb_4bit_use_double_quant"),
    "adalora_init_r": (12, f"{_TUNER}.adalora_init_r"),
    "llamapro_num_new_blocks": (4, f"{_TUNER}.llamapro_num_new_blocks"),
    "reft_rank": (4, f"{_TUNER}.reft_rank"),
    "adapter_length": (128, f"{_TUNER}.adapter_length"),
}
LIKE_LORA: Mapping[str, str] = {
    "adalora": "AdaLoRA is taken as LoRA of its first rank: singular values and their penalty are left out",
    "longlora": "LongLoRA is taken as LoRA: its attention within groups of a quarter of a row is left out",
    "bone": "Bone is taken as LoRA of its rank, which has as many weights again for a layer's inputs",
    "adapter": "adapters behind each MLP are taken as LoRA of as many weights",
}
"""Other adapters, each with as good as the memory and work of what it is taken for."""


def take_method(draft: Draft, keys: Keys) -> None:
    kind = keys.get("tuner_type", "train_type")
    method = word(kind) or "lora"
    bits, by = keys.get("quant_bits"), word(keys.get("quant_method"))
    if method == "full":
        draft.put("method", "full", keys, "tuner_type", "train_type")
        keys.ignore("lora_rank", "lora_alpha", "lora_dropout", "lora_dtype", "use_rslora", "use_dora", "target_modules")
        return
    if method == "llamapro":
        take_new_layers(draft, keys)
        return
    if method in LIKE_LORA:
        draft.not_modelled(keys, "tuner_type", LIKE_LORA[method])
    elif method != "lora":
        draft.refuse(method, "adapters of this kind are not modelled")
    if word(keys.get("tuner_backend")) == "unsloth":
        draft.put("stack", "unsloth", keys, "tuner_backend")
    if kind is None and not by:
        huggingface.assume(draft, "method", DEFAULTS)
    else:
        draft.put("method", "qlora" if by else "lora", keys, "quant_method", "tuner_type", "train_type")
    take_others(draft, keys, method)
    take_lora(draft, keys)
    if by == "bnb":
        four = whole(bits) == 4
        said = keys.get("bnb_4bit_quant_type", default="nf4") if four else "int8" if whole(bits) == 8 else bits
        draft.put("quantization.format", said, keys, "quant_bits")
        if four:
            draft.take("quantization.double_quant", keys, "bnb_4bit_use_double_quant")
            huggingface.assume(draft, "quantization.double_quant", DEFAULTS)
        draft.assume("quantization.prepare_kbit", False)
    elif by == "hqq" and whole(bits) == 4:
        draft.put("quantization.format", "nf4", keys, "quant_bits")
        draft.assume("quantization.double_quant", False, "tunecast: with scales of as many bytes as HQQ's")
        draft.assume("quantization.prepare_kbit", False)
        why = "HQQ is taken as bitsandbytes' nf4: 4 bits, and 32 more for 64 weights; its kernels are others"
        draft.not_modelled(keys, "quant_method", why)
    elif by:
        draft.refuse(by, "weights quantised by this package while they load are not modelled")


def take_new_layers(draft: Draft, keys: Keys) -> None:
    """LLaMA Pro: a copy of every n-th layer comes behind it, and the copies are trained (swift/tuners/llamapro.py,
    `LLaMAPro.prepare_model`)."""
    draft.put("method", "full", keys, "tuner_type", "train_type")
    keys.ignore("lora_rank", "lora_alpha", "lora_dropout", "lora_dtype", "use_rslora", "use_dora", "target_modules")
    wanted = whole(keys.get("llamapro_num_groups")) or whole(
        keys.get("llamapro_num_new_blocks", default=DEFAULTS["llamapro_num_new_blocks"][0])
    )
    model = draft.fields.get("model")
    count = layer_count(model)
    if count is None or not wanted or wanted < 0 or count % wanted:
        draft.refuse("llamapro", f"{wanted} new layers do not divide those of the model evenly")
        return
    draft.put(
        "trained", layer_names(model, range(count // wanted - 1, count, count // wanted)), keys,
        "llamapro_num_new_blocks", "tuner_type",
    )  # fmt: skip
    why = f"of {wanted} new layers those that they are copies of are trained: as many are missing beside them"
    draft.not_modelled(keys, "tuner_type", why)


RANKS = {"adalora": "adalora_init_r", "bone": "reft_rank", "adapter": "adapter_length"}
"""The key that says such an adapter's rank."""


def take_others(draft: Draft, keys: Keys, method: str) -> None:
    if method not in RANKS:
        return
    key = RANKS[method]
    draft.take("lora.rank", keys, key)
    draft.assume("lora.rank", DEFAULTS[key][0])
    keys.ignore("lora_rank")
    keys.without("adalora_*", "adapter_act")
    if method != "adalora":
        draft.assume("lora.dropout", 0.0)
    if method == "adapter":
        draft.assume("lora.targets", ["o_proj"], "tunecast: a matrix as wide as the model on both sides")


def take_lora(draft: Draft, keys: Keys) -> None:
    if "lora.rank" not in draft.fields:
        draft.take("lora.rank", keys, "lora_rank")
    draft.take("lora.alpha", keys, "lora_alpha")
    draft.take("lora.dropout", keys, "lora_dropout")
    draft.take("lora.rslora", keys, "use_rslora")
    draft.take("lora.dora", keys, "use_dora")
    draft.take("lora.adapter_dtype", keys, "lora_dtype")
    draft.take("lora.targets", keys, "target_modules", read=huggingface.targets)
    for field in ("lora.rank", "lora.alpha", "lora.dropout", "lora.rslora", "lora.dora"):
        huggingface.assume(draft, field, DEFAULTS)
    draft.assume("lora.targets", "all-linear")
