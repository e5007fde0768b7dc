"""How large DeepSpeed's buckets are, by the file a stack's users start from. They are much of what ZeRO holds.

Of ZeRO-Infinity (`device: nvme`) its buffers in host memory, and what stays there (0.19.8, runtime/zero/
offload_config.py and stage3.py, runtime/swap_tensor/*.py). Sizes are elements of one rank's part.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.records import dataclass

MILLION = 10**6
OPTIMIZER_BUFFERS = 4
"""`buffer_count` of offload_optimizer: of float32, each as large as the largest sub-group."""
PARAMETER_BUFFERS, PARAMETER_BUFFER_SIZE = 5, 100 * MILLION
"""`buffer_count` and `buffer_size` of offload_param."""
MAX_IN_CPU = 1000 * MILLION
"""`max_in_cpu`: trained weights that stay in host memory beside drives."""
MIN_AIO_BYTES = 1 << 20
"""Smaller parts are not worth a file (swap_tensor/utils.py)."""


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


def sub_groups(part_numels: Sequence[int], size: int) -> list[int]:
    """`_create_fp16_sub_groups`: elements of each group of masters that takes a step at once."""
    groups, open_ = [], 0
    for numel in part_numels:
        open_ += numel
        if open_ >= size:
            groups.append(open_)
            open_ = 0
    return groups + ([open_] if open_ else [])


def kept_in_memory(part_numels: Sequence[int], size: int) -> list[bool]:
    """Of each trained parameter, whether it stays in host memory when the others go to drives: its whole sub-group has
    room in `max_in_cpu` behind those before (`_create_param_groups_fp16_flat_cpu_memory`)."""
    kept: list[bool] = []
    behind = open_ = waiting = 0
    for numel in part_numels:
        open_, waiting = open_ + numel, waiting + 1
        if open_ >= size:
            behind += open_
            kept += [behind <= MAX_IN_CPU] * waiting
            open_ = waiting = 0
    return kept + [behind + open_ <= MAX_IN_CPU] * waiting
