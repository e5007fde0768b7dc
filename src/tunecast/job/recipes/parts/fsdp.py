"""The keys of FSDP, which accelerate, the Trainer and Axolotl share; each is written with `fsdp_` before it or without.

Source: accelerate/utils/dataclasses.py, `FullyShardedDataParallelPlugin`; accelerate/commands/launch.py,
`launch_command_parser`; transformers/training_args.py, `TrainingArguments._process_fsdp_args`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.values import switch, whole, word

STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""accelerate's FSDP_SHARDING_STRATEGY, which a number from 1 on may name."""
SHARED: Mapping[str, tuple[str, bool]] = {
    "full_shard": ("fsdp", True),
    "shard_grad_op": ("fsdp", False),
    "no_shard": ("ddp", True),
    "hybrid_shard": ("hsdp", True),
    "hybrid_shard_zero2": ("hsdp", False),
}
STATE_DICTS = {"full_state_dict": "full", "sharded_state_dict": "sharded"}
LEAVES_WITHOUT_EFFECT = (
    "transformer_layer_cls_to_wrap", "transformer_cls_names_to_wrap", "sync_module_states", "final_state_dict_type",
    "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "xla_fsdp_settings", "xla_fsdp_config",
)  # fmt: skip


class FsdpKeys:
    """Of one mapping: a key by its name without `fsdp_`."""

    def __init__(self, keys: Keys, within: str) -> None:
        self.keys, self.within = keys, within

    def names(self, leaf: str) -> tuple[str, str]:
        return f"{self.within}.{leaf}", f"{self.within}.fsdp_{leaf}"

    def get(self, leaf: str) -> object:
        found: object = self.keys.get(*self.names(leaf))
        return found

    def written(self, leaf: str) -> str:
        """The one of its names that the file has."""
        return next((name for name in self.names(leaf) if self.keys.document.get(name) is not None), "")


def take_fsdp(
    draft: Draft, keys: Keys, within: str = "fsdp_config", version: int | None = None, name: str = "fsdp"
) -> None:
    """`version`: where the mapping names none. `name`: the key that asked for FSDP, where the mapping is empty."""
    of = FsdpKeys(keys, within)
    given = of.get("version")
    version = whole(given) or version
    if given is not None:
        draft.put("parallel.fsdp_version", version, keys, *of.names("version"))
    elif version is not None:
        draft.assume("parallel.fsdp_version", version)
    take_strategy(draft, of, name)
    if switch(of.get("offload_params")):
        draft.put("parallel.offload", "parameters", keys, *of.names("offload_params"))
    if switch(of.get("activation_checkpointing")):
        draft.put("gradient_checkpointing", True, keys, *of.names("activation_checkpointing"))
        draft.put("checkpoint_reentrant", False, keys, *of.names("activation_checkpointing"))
    if switch(of.get("activation_checkpointing_offload")) or switch(of.get("activation_cpu_offload")):
        names = (*of.names("activation_checkpointing_offload"), *of.names("activation_cpu_offload"))
        draft.put("offload_activations", True, keys, *names)
    take_loading(draft, of)
    take_details(draft, of, version)
    keys.ignore(*(name for leaf in LEAVES_WITHOUT_EFFECT for name in of.names(leaf)))


def take_strategy(draft: Draft, of: FsdpKeys, name: str) -> None:
    """`reshard_after_forward` is a switch of FSDP 2, or a strategy's name; a strategy counts where it is no switch."""
    strategy, reshards = of.get("sharding_strategy"), of.get("reshard_after_forward")
    by = next((leaf for leaf in ("sharding_strategy", "reshard_after_forward") if _strategy(of.get(leaf))), "")
    data, kept = SHARED[_strategy(of.get(by)) if by else "full_shard"]
    draft.put("parallel.data", data, of.keys, *(of.names(by) if by else ()), name, of.within)
    if isinstance(reshards, bool) or word(reshards) in ("true", "false"):
        draft.put("parallel.reshard_after_forward", switch(reshards), of.keys, *of.names("reshard_after_forward"))
    elif by:
        draft.put("parallel.reshard_after_forward", kept, of.keys, *of.names(by))
    for leaf, value in (("sharding_strategy", strategy), ("reshard_after_forward", reshards)):
        if value is not None and not _strategy(value) and switch(value) is None:
            draft.not_modelled(of.keys, of.written(leaf), "not one of the strategies that are known")


def _strategy(value: object) -> str:
    """Its name; '': it is none."""
    if isinstance(value, bool):
        return ""
    found = word(value)
    if found.isdecimal() and 1 <= int(found) <= len(STRATEGIES):
        return STRATEGIES[int(found) - 1]
    return found if found in STRATEGIES else ""


def take_loading(draft: Draft, of: FsdpKeys) -> None:
    loading = switch(of.get("cpu_ram_efficient_loading"))
    if loading is not None:
        draft.put("parallel.cpu_ram_efficient_loading", loading, of.keys, *of.names("cpu_ram_efficient_loading"))
    kind = of.get("state_dict_type")
    if kind is not None:
        known = STATE_DICTS.get(word(kind))
        draft.put("parallel.state_dict_type", known or kind, of.keys, *of.names("state_dict_type"))


def take_details(draft: Draft, of: FsdpKeys, version: int | None) -> None:
    """FSDP 1 is known as `accelerate launch` runs it: the next layer is gathered ahead."""
    policy, smallest = word(of.get("auto_wrap_policy")), whole(of.get("min_num_params"))
    if policy in ("size_based_wrap", "no_wrap") or (smallest and policy != "transformer_based_wrap"):
        leaf = "auto_wrap_policy" if policy else "min_num_params"
        draft.not_modelled(of.keys, of.written(leaf), "taken is a unit a decoder layer")
    original = switch(of.get("use_orig_params"))
    if version == 1 and original is not None:
        draft.put("parallel.use_orig_params", original, of.keys, *of.names("use_orig_params"))
    taken = {"limit_all_gathers": True, "forward_prefetch": False}
    for leaf, usual in taken.items():
        value = switch(of.get(leaf))
        if version == 1 and value is not None and value != usual:
            draft.not_modelled(of.keys, of.written(leaf), f"taken is {str(usual).lower()}")
    if word(of.get("backward_prefetch")) in ("backward_post", "2", "no_prefetch") and version == 1:
        draft.not_modelled(of.keys, of.written("backward_prefetch"), "taken is BACKWARD_PRE")
    for leaf, why in (
        ("ignored_modules", "some modules are not cut"),
        ("mixed_precision_policy", "taken is the mixed precision of the training"),
    ):
        if of.get(leaf):
            draft.not_modelled(of.keys, of.written(leaf), why)
