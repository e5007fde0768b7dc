"""Optimizers and gradient clipping on paper: the state the first step makes, and what every step borrows.

blockwise.py   bitsandbytes' optimizers on paper: 8-bit state with a scale a block
foreach.py     torch.optim on paper: kernels that take a list of tensors, a list by dtype
low_rank.py    GaLore and APOLLO on paper: moments of the gradient's projection, a matrix at a time
one_by_one.py  optimizers that take a parameter at a time: StableAdamW, LOMO, Adafactor, Muon, torchao's AdamW
state.py       what optimizers share, the clipping of gradients before them, and an optimizer for each weight

What is not written down is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.optimizers import OPTIMIZERS, OptimizerKind, optimizer_of
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.tape.build.dtypes import DTYPES, Shape
from tunecast.tape.build.event_log import HOST
from tunecast.tape.build.machine import Detail, Machine
from tunecast.tape.build.optimizers.state import InBackward, Optimizer, State, clip_gradients
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.card import Card
from tunecast.tape.op import Role

__all__ = ["Optimizer", "State", "clip_gradients", "make_optimizer", "package_of", "state_of"]


def make_optimizer(
    job: Job, parameters: Sequence[Tensor], outer: Sequence[Tensor] = (), linear: Sequence[Tensor] = ()
) -> Optimizer:
    """As job/optimizers.py declares it. `outer` are the weights of embedding and head, which Muon is not for; `linear`
    those GaLore is for."""
    kind = optimizer_of(job)
    _class_of(kind)
    guess_parts(job, kind, parameters[0].machine)
    if kind.projection and not linear:
        raise UsageError.at("optimizer", "this model has no linear layers a projection works on")
    if kind.layerwise and job.grad_accum > 1:
        told = f"optimizer: transformers refuses {kind.name} with grad_accum {job.grad_accum}. To fix: grad_accum 1"
        raise UsageError(told, field="optimizer")
    if kind.layerwise:
        return InBackward(parameters, lambda own: _make(kind, own, outer, linear))
    return _make(kind, parameters, outer, linear, **_precisions(job))


ON_PARTS = "optimizer {}: a rank's part of a weight is taken for a weight of its size, which nobody compared"
MUON_ON_PARTS = (
    "optimizer muon on FSDP's shards: each rank is taken to work on its own rows; a matrix that is gathered whole for "
    "its products is left out"
)


def guess_parts(job: Job, kind: OptimizerKind, machine: Machine) -> None:
    """Of optimizers that were traced on whole weights alone, where accelerate cuts them."""
    sharding = sharding_of(job)
    if not stack_of(job).uses_accelerate:
        return
    is_cut = sharding.is_fsdp and job.hardware.gpus * job.hardware.nodes > 1
    if kind.spares_ends and is_cut:
        machine.guesses[MUON_ON_PARTS] = None
    elif (is_cut and not kind.on_shards) or (sharding.is_zero and not kind.on_partitions):
        machine.guesses[ON_PARTS.format(kind.name)] = None


def _precisions(job: Job) -> dict[str, str]:
    given = {"state_dtype": job.optimizer_state_dtype, "masters": job.master_weights}
    return {name: value for name, value in given.items() if value is not None}


def _make(
    kind: OptimizerKind, parameters: Sequence[Tensor], outer: Sequence[Tensor], linear: Sequence[Tensor],
    **precisions: str,
) -> Optimizer:  # fmt: skip
    groups = (linear,) if kind.projection else (outer,) if kind.spares_ends else ()
    return _class_of(kind)(parameters, *groups, **kind.steps, **precisions)


def _class_of(kind: OptimizerKind) -> type[Optimizer]:
    if not kind.paper:
        known = ", ".join(sorted(name for name, each in OPTIMIZERS.items() if each.paper))
        told = f"optimizer: the closed form does not know {kind.name}; it knows {known}"
        raise Unsupported(told, field="optimizer")
    module, _, name = kind.paper.partition(":")
    found: type[Optimizer] = getattr(import_module(f"{__name__}.{module}"), name)
    return found


def state_of(name: str, shape: Shape, dtype: str, part: str = "") -> tuple[State, ...]:
    """What the optimizer keeps of one parameter, in the order it makes it: read off the first step it takes on paper.

    `part`  "embedding", "head" or "linear", where some optimizers differ. The Trainer has bitsandbytes keep the state
            of every nn.Embedding in 32 bits (`create_optimizer`).
    """
    machine = Machine(Card(), detail=Detail(keeps_ops=False))
    parameter, other = (machine.tensor(shape, DTYPES[dtype]) for _ in range(2))
    parameter.grad = machine.tensor(shape, DTYPES[dtype])
    outer = [parameter] if part in ("embedding", "head") else []
    optimizer = _make(OPTIMIZERS[name], [parameter], outer, [parameter if part == "linear" else other])
    if part == "embedding":
        optimizer.wide = {id(parameter)}
    if parameter.after_gradient is not None:
        parameter.after_gradient(parameter)
    optimizer.step()
    freed = {~event for event in machine.events if isinstance(event, int) and event < 0}
    tables = {table.storage.block for table in optimizer.tables}
    return tuple(
        State(block.nbytes, optimizer.paged and block.stream == HOST, block.stream == HOST, number in tables)
        for number, block in enumerate(machine.blocks)
        if block.role is Role.OPTIMIZER and number not in freed
    )


def package_of(name: str) -> str:
    """Whose `load_state_dict` the optimizer has."""
    kind = OPTIMIZERS[name]
    return _class_of(kind).package if kind.paper else Optimizer.package
