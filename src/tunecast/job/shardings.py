"""How data-parallel ranks may hold the model: the declaration of every `parallel.data`.

A new one is an entry here, whose name is then a choice of the field, and its program: a class in
tape/build/sharding, which `scheme_of` there makes. The stacks that can run it name it in job/stacks.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tunecast.records import dataclass, replace

if TYPE_CHECKING:
    from tunecast.job.job import Job


@dataclass(frozen=True)
class Sharding:
    name: str
    cuts_state: bool = False
    """Each rank keeps a part of the optimizer's state."""
    cuts_gradients: bool = False
    cuts_weights: bool = False
    """Each rank waits for the others' parts, layer by layer."""
    is_fsdp: bool = False
    """By torch's FSDP, whose files, casts and collectives are its own."""
    zero_stage: int = 0
    """Of DeepSpeed's ZeRO; 0: not DeepSpeed's."""
    mesh: tuple[str, ...] = ("shard",)
    """Dimensions of the ranks that share the data, innermost first. Two: it shards inside a machine and replicates
    across machines."""
    offloads: tuple[str, ...] = ()
    """Values of `parallel.offload` it can do, the least first."""
    uses_drives: bool = False
    """What it offloads may lie on NVMe drives."""
    formats: tuple[str, ...] = ()
    """Of quantized weights, those it can cut."""
    loads_onto_card: bool = False
    """Weights arrive on the card as they are read (`device_map`, `zero.Init`), not in host memory first."""
    has_buckets: bool = False
    """DDP's, which it makes anew in the second step where it looks for no unused parameters."""
    host_memory: str = ""
    """What is taken for granted of a machine's memory while it loads or resumes."""
    launcher: str = "--multi_gpu"
    """What `accelerate launch` is told."""
    more_cut: tuple[str, ...] = ()
    """What to try where memory is short, the mildest first. Who runs DeepSpeed stays with it."""
    most_cut: str = "fsdp"
    """Of the same library, the one that holds least per card."""

    @property
    def is_replicated(self) -> bool:
        """Every rank holds the whole model."""
        return not self.cuts_state

    @property
    def is_zero(self) -> bool:
        return self.zero_stage > 0

    @property
    def replicates_machines(self) -> bool:
        return len(self.mesh) > 1


_DDP = Sharding(
    "ddp",
    mesh=("data",),
    loads_onto_card=True,
    has_buckets=True,
    host_memory="every rank reads the whole optimizer when a run is resumed",
    more_cut=("fsdp",),
)
_ZERO1 = Sharding(
    "zero1",
    cuts_state=True,
    zero_stage=1,
    offloads=("optimizer",),
    formats=("nf4", "fp4"),
    host_memory="every rank loads the whole model before DeepSpeed has it",
    launcher="--use_deepspeed --zero_stage 1",
    more_cut=("zero2", "zero3"),
    most_cut="zero3",
)
_ZERO2 = replace(
    _ZERO1,
    name="zero2",
    cuts_gradients=True,
    zero_stage=2,
    launcher="--use_deepspeed --zero_stage 2",
    more_cut=("zero3",),
)
_ZERO3 = replace(
    _ZERO2,
    name="zero3",
    cuts_weights=True,
    zero_stage=3,
    offloads=("optimizer", "parameters"),
    uses_drives=True,
    loads_onto_card=True,
    host_memory="the model is loaded under DeepSpeed's zero.Init, so that no rank holds it whole",
    launcher="--use_deepspeed --zero_stage 3",
    more_cut=(),
)
_FSDP = Sharding(
    "fsdp",
    cuts_state=True,
    cuts_gradients=True,
    cuts_weights=True,
    is_fsdp=True,
    offloads=("parameters",),
    formats=("nf4", "fp4"),
    host_memory="every rank loads the whole model (fsdp_config cpu_ram_efficient_loading false, the default)",
    launcher="--use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP",
)
_HSDP = replace(_FSDP, name="hsdp", mesh=("shard", "replicate"))
SHARDINGS: Mapping[str, Sharding] = {each.name: each for each in (_DDP, _ZERO1, _ZERO2, _ZERO3, _FSDP, _HSDP)}
REPLICATED, SHARDED = _DDP.name, _FSDP.name
ZERO = tuple(name for name, each in SHARDINGS.items() if each.is_zero)


def sharding_of(job: Job) -> Sharding:
    return SHARDINGS[job.parallel.data]


def shards_and_copies(sharding: Sharding, gpus: int, nodes: int, replicate: int | None) -> tuple[int, int]:
    """Cards that share one copy of the weights, and copies: machines of `gpus` cards each, where `replicate` says no
    other."""
    if not sharding.replicates_machines:
        return gpus * nodes, 1
    return (gpus, nodes) if replicate is None else (max(1, gpus * nodes // replicate), replicate)


def able_to_offload(what: str) -> tuple[str, ...]:
    """The names of those that can."""
    return tuple(name for name, each in SHARDINGS.items() if what in each.offloads)


def is_spread(job: Job) -> bool:
    """Whether a card holds part of the model: files are the same, what is on the card is not."""
    parts = job.parallel
    is_split = (parts.layers, parts.tensor, parts.pipeline, parts.expert) != (1, 1, 1, 1)
    return is_split or not sharding_of(job).is_replicated
