"""How large DeepSpeed's buckets are: as the job says, else as in the file a stack's users start from. They are much of
what ZeRO holds.

Of ZeRO-Infinity (`device: nvme`) its buffers in host memory, and what stays there (0.19.8, runtime/zero/
offload_config.py and stage3.py, runtime/swap_tensor/*.py). Sizes are elements of one rank's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.records import dataclass, fields

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
    overlap_comm: bool | None = None
    """Of stages 1 and 2: two buckets take turns; of stage 3, whose default it is: streams of their own."""
    round_robin_gradients: bool = False
    """Parameters are dealt out to ranks before they are cut."""
    told: str = "DeepSpeed's own defaults"


SETTINGS = tuple(each.name for each in fields(DeepSpeedSettings) if each.name != "told")
"""Which are fields of `parallel` too."""


def settings_of(job: Job, stage: int, hidden: int) -> DeepSpeedSettings:
    """What the job says, and of the rest what its stack's file does. "auto" is transformers' choice: by the square of
    the hidden size (integrations/deepspeed.py, `HfTrainerDeepSpeedConfig.trainer_config_finalize`)."""
    stack = stack_of(job)
    file: Mapping[str, Any] = stack.deepspeed.get(stage, {})
    auto = {
        "reduce_bucket_size": hidden * hidden,
        "prefetch_bucket_size": int(0.9 * hidden * hidden),
        "param_persistence_threshold": 10 * hidden,
    }
    said = {name: value for name in SETTINGS if (value := getattr(job.parallel, name)) is not None}
    values = {**(auto if "auto" in file else {}), **file, **said}
    values = {name: auto[name] if value == "auto" else value for name, value in values.items() if name in SETTINGS}
    others = stack.deepspeed_file if file else DeepSpeedSettings.told
    told = f"the job ({', '.join(said)}) and otherwise {others}" if said else others
    return DeepSpeedSettings(told=told, **values)


def sub_groups(part_numels: Sequence[int], size: int) -> list[list[int]]:
    """`_create_fp16_sub_groups`: elements of the parts in each group of masters that takes a step at once."""
    groups: list[list[int]] = [[]]
    for numel in part_numels:
        if sum(groups[-1]) >= size:
            groups.append([])
        groups[-1].append(numel)
    return [group for group in groups if group]


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
