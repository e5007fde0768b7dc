"""How large DeepSpeed's buckets are, by the file a stack's users start from. They are much of what ZeRO holds.

Of ZeRO-Infinity (`device: nvme`) its buffers in host memory, and what stays there (0.19.8, runtime/zero/
offload_config.py and stage3.py, runtime/swap_tensor/*.py). Sizes are elements of one rank's part.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.job.stacks import STACKS
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
class DeepSpeedSettings:
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


def settings_of(stack: str, stage: int, hidden: int) -> DeepSpeedSettings:
    """ "auto" in a file is transformers' choice (integrations/deepspeed.py): by the square of the hidden size."""
    declared = STACKS[stack]
    file = declared.deepspeed.get(stage)
    if file is None:
        return DeepSpeedSettings()
    values = {name: value for name, value in file.items() if name != "auto"}
    if "auto" in file:
        auto = {"reduce_bucket_size": hidden * hidden, "prefetch_bucket_size": int(0.9 * hidden * hidden)}
        values = auto | {"param_persistence_threshold": 10 * hidden} | values
    return DeepSpeedSettings(told=declared.deepspeed_file, **values)  # type: ignore[arg-type]


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
