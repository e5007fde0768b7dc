"""LLaMA-Factory's trainings of some layers: `freeze`, LLaMA Pro, BAdam.

Source   llamafactory/hparams/finetuning_args.py, `FreezeArguments`; llamafactory/model/adapter.py,
         `_setup_freeze_tuning`; llamafactory/train/trainer_utils.py, `_create_badam_optimizer`;
         llamafactory/v1/plugins/model_plugins/peft.py, `FreezeParams`, `get_freeze_model`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frozen_layers import layer_count, layer_names
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.values import whole, word

DEFAULTS: Mapping[str, tuple[object, str]] = {
    "freeze_trainable_layers": (
        2,
        "llamafactory/hparams/finetuning_args.py: FreezeArguments.freeze_trainable_layers",
    ),
}


def take_frozen(draft: Draft, keys: Keys, within: str = "") -> None:
    """Layers at the end, or with a negative number at the beginning; with LLaMA Pro those that were put in between,
    the last of each group. `within`: before each key."""
    names = [f"{within}freeze_{name}" for name in ("trainable_layers", "trainable_modules", "extra_modules")]
    wanted = whole(keys.get(names[0], default=DEFAULTS["freeze_trainable_layers"][0]))
    modules, others = split(keys.get(names[1], default="all")), split(keys.get(names[2]))
    draft.put("method", "full", keys, f"{within}name" if within else "finetuning_type")
    model = draft.fields.get("model")
    count = layer_count(model)
    between = is_on(keys.get("use_llama_pro"))
    if count is None or not wanted:  # a model that is not known is refused by its name
        return
    layers = range(max(0, count - wanted), count) if wanted > 0 else range(min(-wanted, count))
    if between and wanted > 0 and count % wanted == 0:
        layers = range(count // wanted - 1, count, count // wanted)
    elif between:
        draft.not_modelled(keys, "use_llama_pro", f"LLaMA-Factory refuses {wanted} of {count} layers, no divisor")
    draft.put("trained", [*layer_names(model, layers, modules), *others], keys, *names)


def take_blocks(draft: Draft, keys: Keys) -> None:
    """BAdam, whose optimizer has the states of one block, a layer."""
    if not is_on(keys.get("use_badam")):
        keys.ignore("badam_mode")
        return
    if word(keys.get("badam_mode")) not in ("", "layer"):
        draft.refuse("use_badam", "BAdam with parts of each weight is not modelled")
    why = "BAdam trains one layer after the other: taken is the first, whose backward pass is the longest"
    draft.not_modelled(keys, "use_badam", why)
    draft.put("trained", layer_names(draft.fields.get("model"), [0]), keys, "use_badam")


def split(value: object) -> list[str]:
    """Names in a list, or separated by commas."""
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return [name.strip() for name in names if isinstance(name, str) and name.strip()]
