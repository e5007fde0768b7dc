"""How large DeepSpeed's buckets are, by the file a stack's users start from. They are much of what ZeRO holds."""

from __future__ import annotations

from tunecast.records import dataclass

MILLION = 10**6


@dataclass(frozen=True)
class Settings:
    """Elements, named as in DeepSpeed's `zero_optimization`; the defaults are its own (0.19.8, runtime/zero/config.py),
    which hold where accelerate is told `zero_stage` and no file."""

    reduce_bucket_size: int = 500 * MILLION
    prefetch_bucket_size: int = 50 * MILLION
    max_live_parameters: int = 1000 * MILLION
    max_reuse_distance: int = 1000 * MILLION
    param_persistence_threshold: int = 100_000
    sub_group_size: int = 1000 * MILLION
    overlap_comm: bool = False
    """Of stages 1 and 2: two buckets take turns."""
    told: str = "DeepSpeed's own defaults"


def settings_of(stack: str, stage: int, hidden: int) -> Settings:
    """ "auto" in a file is transformers' choice (integrations/deepspeed.py): by the square of the hidden size."""
    if stack == "axolotl":  # deepspeed_configs/zero1.json, zero2.json, zero3_bf16.json
        if stage < 3:
            return Settings(overlap_comm=True, told="Axolotl's deepspeed_configs")
        auto = _auto(hidden, "Axolotl's deepspeed_configs")
        return Settings(**{**auto, "max_live_parameters": 0, "max_reuse_distance": 0, "sub_group_size": 0})  # type: ignore[arg-type]
    if stack == "llama-factory" and stage == 3:  # examples/deepspeed/ds_z3_config.json; ds_z2_config.json has defaults
        return Settings(**_auto(hidden, "LLaMA-Factory's examples/deepspeed"))  # type: ignore[arg-type]
    return Settings()


def _auto(hidden: int, told: str) -> dict[str, int | str]:
    return {
        "reduce_bucket_size": hidden * hidden,
        "prefetch_bucket_size": int(0.9 * hidden * hidden),
        "param_persistence_threshold": 10 * hidden,
        "told": told,
    }
