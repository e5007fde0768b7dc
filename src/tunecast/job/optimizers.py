"""The optimizers a job may name: transformers' `optim` names in its order, and what it has no name for.

A new one is an entry here, whose name is then a choice of the field; where its step is unlike all there are, also a
class in tape/build/optimizers, which `paper` names. The traced engine runs the class that `runs` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunecast.records import dataclass, field, replace

if TYPE_CHECKING:
    from tunecast.job.job import Job


@dataclass(frozen=True)
class OptimizerKind:
    name: str
    paper: str = ""
    """Module of tape/build/optimizers and class; '': the closed form does not know it."""
    runs: str = ""
    """Module and class; '': the traced engine does not run it."""
    package: str = ""
    """Where that comes from, if not with the trainer."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the real class is given beside the learning rate, by transformers' Trainer."""
    steps: Mapping[str, Any] = field(default_factory=dict)
    """What the class on paper is given."""
    projection: Mapping[str, Any] = field(default_factory=dict)
    """Of the weights it projects to a low rank: the settings of their group."""
    spares_ends: bool = False
    """Not for embedding and head, nor for what is no matrix: AdamW is, beside it."""
    in_backward: bool = False
    """It takes gradients while they come, before they are summed over cards."""
    layerwise: bool = False
    """One of it per parameter, each stepping as soon as its gradient is there."""
    on_shards: bool = False
    """Its kernels take the parts FSDP2 cuts as they take any tensor (tests/trace/test_sharding.py)."""
    on_partitions: bool = False
    """The same of ZeRO's flat partitions."""
    state_dtypes: tuple[str, ...] = ()
    """Values of `optimizer_state_dtype` it has."""
    masters: tuple[str, ...] = ()
    """Values of `master_weights` it has."""
    is_tried: bool = False
    """A plan tries it beside the user's own where the optimizer may change."""
    fused: str | None = None
    """The same steps in one kernel."""
    paged_twin: str | None = None
    """The same in 32 bits, with its state in managed memory."""
    eight_bit: str | None = None
    """The same with its state in 8 bits."""
    paged_eight_bit: str | None = None
    """And that in managed memory."""

    @property
    def is_paged(self) -> bool:
        """Its state is in CUDA's managed memory."""
        return bool(self.steps.get("paged"))

    @property
    def is_bitsandbytes(self) -> bool:
        return self.runs.startswith("bitsandbytes.")

    @property
    def steps_by_value(self) -> bool:
        """A rank's part of a weight is to it what a weight is: it goes value by value, or block by block. What projects
        weights, makes them orthogonal or steps while gradients come needs whole ones."""
        return bool(self.paper) and not (self.projection or self.in_backward or self.spares_ends)


def _bnb(name: str, runs: str, paper: str = "Blockwise", **steps: Any) -> OptimizerKind:
    return OptimizerKind(name, f"blockwise:{paper}", f"bitsandbytes.optim:{runs}", steps=steps)


def _layerwise(kind: OptimizerKind) -> OptimizerKind:
    return replace(kind, name=f"{kind.name}_layerwise", layerwise=True, in_backward=True)


_ADAMW = OptimizerKind(
    "adamw_torch",
    "foreach:AdamW",
    "torch.optim:AdamW",
    on_shards=True,
    on_partitions=True,
    fused="adamw_torch_fused",
    paged_twin="paged_adamw_32bit",
    eight_bit="adamw_8bit",
    paged_eight_bit="paged_adamw_8bit",
)
_FUSED_ADAMW = replace(
    _ADAMW, name="adamw_torch_fused", paper="foreach:FusedAdamW", options={"fused": True}, fused=None, is_tried=True
)
_OTHER_ADAMW = replace(_ADAMW, paper="", runs="", on_shards=False, on_partitions=False, fused=None)
_TORCHAO = replace(_OTHER_ADAMW, paper="one_by_one:LowBitAdamW", package="torchao", options={"block_size": 256})
_ADAFACTOR = {"relative_step": False, "scale_parameter": False}
_GALORE = OptimizerKind(
    "galore_adamw",
    "low_rank:GaLore",
    "galore_torch:GaLoreAdamW",
    "galore-torch",
    projection={"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"},
)
_GALORE_ADAMW = replace(_GALORE, options={"no_deprecation_warning": True})
_GALORE_8BIT = replace(
    _GALORE, name="galore_adamw_8bit", paper="low_rank:GaLoreAdamW8bit", runs="galore_torch:GaLoreAdamW8bit"
)
_GALORE_ADAFACTOR = replace(
    _GALORE,
    name="galore_adafactor",
    paper="low_rank:GaLoreAdafactor",
    runs="galore_torch:GaLoreAdafactor",
    options=_ADAFACTOR,
)
_APOLLO = replace(
    _GALORE,
    name="apollo_adamw",
    paper="low_rank:Apollo",
    runs="apollo_torch:APOLLOAdamW",
    package="apollo-torch",
    projection={**_GALORE.projection, "proj": "random", "scale_type": "channel", "scale": 1.0},
)
_SCHEDULE_FREE = OptimizerKind(
    "schedule_free_adamw", "foreach:ScheduleFreeAdamW", "schedulefree:AdamWScheduleFree", "schedulefree"
)
_OF_TRANSFORMERS = (  # 5.17.0, training_args.py, OptimizerNames
    _ADAMW,
    _FUSED_ADAMW,
    replace(_OTHER_ADAMW, name="adamw_torch_xla"),  # another machine's, as is the next
    replace(_OTHER_ADAMW, name="adamw_torch_npu_fused"),
    OptimizerKind("adafactor", "one_by_one:Adafactor", "transformers.optimization:Adafactor", options=_ADAFACTOR),
    OptimizerKind("adamw_anyprecision"),  # torchdistx's, which nobody wrote down
    replace(_TORCHAO, name="adamw_torch_4bit", runs="torchao.optim:AdamW4bit", steps={"bits": 4}),
    replace(_TORCHAO, name="adamw_torch_8bit", runs="torchao.optim:AdamW8bit", steps={"bits": 8}),
    _bnb("ademamix", "AdEMAMix", "AdEMAMix", bits=32),
    OptimizerKind("sgd", "foreach:SGD", "torch.optim:SGD", on_shards=True, on_partitions=True),
    OptimizerKind("adagrad", "foreach:Adagrad", "torch.optim:Adagrad", on_shards=True),
    _bnb("adamw_bnb_8bit", "AdamW8bit"),
    replace(_bnb("adamw_8bit", "AdamW8bit"), is_tried=True),
    _bnb("ademamix_8bit", "AdEMAMix8bit", "AdEMAMix"),
    _bnb("lion_8bit", "Lion8bit", states=1),
    _bnb("lion_32bit", "Lion32bit", states=1, bits=32),
    _bnb("paged_adamw_32bit", "PagedAdamW32bit", bits=32, paged=True),
    replace(_bnb("paged_adamw_8bit", "PagedAdamW8bit", paged=True), is_tried=True),
    _bnb("paged_ademamix_32bit", "PagedAdEMAMix", "AdEMAMix", bits=32, paged=True),
    _bnb("paged_ademamix_8bit", "PagedAdEMAMix8bit", "AdEMAMix", paged=True),
    _bnb("paged_lion_32bit", "PagedLion32bit", states=1, bits=32, paged=True),
    _bnb("paged_lion_8bit", "PagedLion8bit", states=1, paged=True),
    OptimizerKind("rmsprop", "foreach:RMSprop", "torch.optim:RMSprop", on_shards=True, on_partitions=True),
    _bnb("rmsprop_bnb", "RMSprop32bit", states=1, bits=32, without_bfloat16=True),
    _bnb("rmsprop_bnb_8bit", "RMSprop8bit", states=1, without_bfloat16=True),
    _bnb("rmsprop_bnb_32bit", "RMSprop32bit", states=1, bits=32, without_bfloat16=True),
    *(_GALORE_ADAMW, _GALORE_8BIT, _GALORE_ADAFACTOR),
    *map(_layerwise, (_GALORE_ADAMW, _GALORE_8BIT, _GALORE_ADAFACTOR)),
    OptimizerKind("lomo", "one_by_one:Lomo", "lomo_optim:Lomo", "lomo-optim", in_backward=True),
    OptimizerKind("adalomo", in_backward=True),
    OptimizerKind("grokadamw", "one_by_one:GrokAdamW", "grokadamw:GrokAdamW", "grokadamw"),
    replace(_SCHEDULE_FREE, name="schedule_free_radam", runs="schedulefree:RAdamScheduleFree"),
    _SCHEDULE_FREE,
    replace(
        _SCHEDULE_FREE, name="schedule_free_sgd", paper="foreach:ScheduleFreeSGD", runs="schedulefree:SGDScheduleFree"
    ),
    _APOLLO,
    _layerwise(_APOLLO),
    OptimizerKind(
        "stable_adamw", "one_by_one:StableAdamW", "optimi:StableAdamW", "torch-optimi", {"weight_decay": 0.0}
    ),
)
MASTERS = ("none", "float32", "remainders")
_OWN = (
    replace(
        _ADAMW,
        name="adam_torch",
        paper="foreach:Adam",
        runs="torch.optim:Adam",
        options={"weight_decay": 0.01},
        fused=None,
    ),  # whose decay is added to the gradients; without one it is as AdamW is
    replace(_ADAMW, name="adamw_torch_single", paper="one_by_one:SingleAdamW", options={"foreach": False}, fused=None),
    OptimizerKind("muon", "one_by_one:Muon", "torch.optim:Muon", spares_ends=True),
    OptimizerKind(
        "te_fused_adam",
        "foreach:TransformerEngineAdam",
        package="transformer-engine",
        on_shards=True,
        state_dtypes=("float32", "bfloat16"),
        masters=MASTERS,
    ),
    OptimizerKind(
        "flash_adamw", "foreach:FlashAdamW", package="flashoptim", on_shards=True, masters=("none", "remainders")
    ),
)
"""What transformers has no `optim` name for."""
OPTIMIZERS: Mapping[str, OptimizerKind] = {each.name: each for each in (*_OF_TRANSFORMERS, *_OWN)}
OF_TRANSFORMERS = tuple(each.name for each in _OF_TRANSFORMERS)
DEFAULT_OPTIMIZER = _FUSED_ADAMW.name


def optimizer_of(job: Job) -> OptimizerKind:
    return OPTIMIZERS[job.optimizer]
