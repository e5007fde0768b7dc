"""What a call that is skipped returns: tensors of the right shapes, without what the call would have done.

Of every traced call of a kind the outputs are remembered as a plan: where tensors stand, their shapes, and which of the
call's blocks they lie in. The plan of a skipped call has the same places, with sizes that follow those of its inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tunecast.records import NamedTuple
from tunecast.tape.sizes import comparable
from tunecast.tape.trace.values import known, set_known

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
REBUILT = ("transformers.",)
"""Packages whose own objects are made again with other tensors in them (caches)."""


NO_LABEL = -100
"""What transformers and TRL leave out of a loss."""
DERIVED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda known: known,
    "labels": lambda known: known != NO_LABEL,
    "next labels": lambda known: known[..., 1:] != NO_LABEL,
}
"""What models return of their inputs' values (trl/trainer/utils.py, `FusedCausalLMOutput.label_mask`)."""


class NotStubbed(Exception):
    """An output of a kind that cannot be made without the call."""


class TensorPlan(NamedTuple):
    shape: tuple[int, ...]
    order: tuple[int, ...]
    """Dimensions from the one that lies widest apart."""
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    source: tuple[str, int]
    """`survivor` or `input`, and which."""
    derived: frozenset[tuple[str, int]] | None = None
    """Where its values are known: from the values of which inputs they may be derived, and how."""


class OutputPlan(NamedTuple):
    skeleton: Any
    """The outputs, with the number of a tensor where it stands."""
    tensors: tuple[TensorPlan, ...]

    @property
    def form(self) -> tuple[Any, ...]:
        """All but sizes and values."""
        plain = [
            (len(t.shape), t.order, t.dtype, str(t.device), t.requires_grad, t.source, t.derived is None)
            for t in self.tensors
        ]
        return (description(self.skeleton), *plain)


class OutputPlace(NamedTuple):
    """Of a tensor in a skeleton."""

    number: int


def plan_outputs(
    result: Any, inputs: Sequence[torch.Tensor], survivor_of: Callable[[torch.Tensor], int | None]
) -> OutputPlan:
    """Raises `NotStubbed` where an output is not understood."""
    tensors: list[TensorPlan] = []
    by_input = {id(tensor): number for number, tensor in enumerate(inputs)}

    def plan(tensor: torch.Tensor) -> OutputPlace:
        derived = None
        if id(tensor) in by_input:
            source = ("input", by_input[id(tensor)])
        else:
            survivor = survivor_of(tensor)
            if survivor is None and tensor.device.type == "cuda":
                raise NotStubbed("an output lies in memory that the call did not make")
            if (value := known(tensor)) is not None:
                derived = ways_to(value, inputs)
                if not derived:
                    raise NotStubbed("the values of an output are known, and not those of an input")
            source = ("survivor", -1 if survivor is None else survivor)
        shape = tuple(map(int, tensor.shape))
        order = tuple(sorted(range(len(shape)), key=lambda d: (-tensor.stride(d), d)))
        if tensor.numel() and tensor.stride() != strides_of(shape, order) and source[0] != "input":
            raise NotStubbed("an output has gaps")
        tensors.append(TensorPlan(shape, order, tensor.dtype, tensor.device, tensor.requires_grad, source, derived))
        return OutputPlace(len(tensors) - 1)

    return OutputPlan(rebuilt(result, lambda v: isinstance(v, torch.Tensor), plan), tuple(tensors))


def ways_to(value: torch.Tensor, inputs: Sequence[torch.Tensor]) -> frozenset[tuple[str, int]]:
    """All that give it."""
    with _disable_current_modes():
        return frozenset(
            (name, number)
            for number, tensor in enumerate(inputs)
            if (given := known(tensor)) is not None and given.dim() == value.dim() > 0
            for name, derive in DERIVED.items()
            if (made := derive(given)).dtype == value.dtype and torch.equal(made, value)
        )


def strides_of(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(1, shape[dimension])
    return tuple(strides)


def rebuilt(value: Any, is_leaf: Callable[[Any], bool], replace: Callable[[Any], Any]) -> Any:
    """The same containers and objects with other leaves."""
    if is_leaf(value):
        return replace(value)
    if isinstance(value, (*PLAIN, OutputPlace)):
        return value
    if isinstance(value, dict):
        made = copy.copy(value)
        for key in list(made):
            made[key] = rebuilt(value[key], is_leaf, replace)
        return made
    if isinstance(value, (list, tuple)):
        parts = [rebuilt(each, is_leaf, replace) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    kind = type(value)
    if isinstance(value, type) or (callable(value) and not hasattr(value, "__dict__")):
        return value
    if kind.__module__.startswith(REBUILT) or hasattr(kind, "__dataclass_fields__"):
        if isinstance(value, torch.nn.Module) or kind.__module__.startswith("transformers.configuration"):
            return value
        made = copy.copy(value)
        for name, each in vars(value).items():
            object.__setattr__(made, name, rebuilt(each, is_leaf, replace))
        return made
    raise NotStubbed(f"an output is a {kind.__module__}.{kind.__qualname__}")


def description(value: Any) -> Any:
    """Types and places: equal for skeletons that are alike."""
    if isinstance(value, (*PLAIN, OutputPlace)):
        return repr(value)
    if isinstance(value, dict):
        return (type(value).__qualname__, tuple((str(k), description(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value).__qualname__, tuple(map(description, value)))
    inner = vars(value) if hasattr(value, "__dict__") and type(value).__module__.startswith(REBUILT) else {}
    return (type(value).__qualname__, tuple((k, description(v)) for k, v in inner.items()))


class OutputPlans:
    """Of the traced calls of one kind and structure."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], OutputPlan | None] = {}

    def add(self, sizes: tuple[int, ...], plan: OutputPlan | None) -> None:
        self._seen[sizes] = plan

    def at(self, sizes: tuple[int, ...]) -> OutputPlan | None:
        """The plan of a call whose inputs have these sizes; None where the traced ones do not show it."""
        every = list(self._seen)
        plans = [(every[n], plan) for n in comparable(sizes, every) if (plan := self._seen[every[n]]) is not None]
        if not plans or None in self._seen.values() or len({str(plan.form) for _, plan in plans}) > 1:
            return None
        own = self._seen.get(sizes)
        if own is not None:
            return own
        last = plans[-1][1]
        made = []
        for number, tensor in enumerate(last.tensors):
            shape = []
            for dimension in range(len(tensor.shape)):
                values = _values([(s, plan.tensors[number].shape[dimension]) for s, plan in plans], sizes)
                if len(values) != 1:
                    return None
                shape.append(values.pop())
            derived = tensor.derived
            if derived is not None:
                derived = derived.intersection(*(plan.tensors[number].derived or () for _, plan in plans))
                if not derived:
                    return None
            made.append(tensor._replace(shape=tuple(shape), derived=derived))
        return last._replace(tensors=tuple(made))


def _values(seen: Sequence[tuple[tuple[int, ...], int]], sizes: tuple[int, ...]) -> set[int]:
    """A dimension is always the same, or one of the varying sizes and so many more."""
    found = set()
    if len({value for _, value in seen}) == 1:
        return {seen[0][1]}
    for column, size in enumerate(sizes):
        more = {value - each[column] for each, value in seen}
        if len(more) == 1:
            found.add(size + more.pop())
    return found


class _Stub(torch.autograd.Function):
    """Makes outputs that have a place in a graph; what was before them is nowhere."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, make: Callable[[], tuple[torch.Tensor, ...]]) -> Any:
        return make()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None


def make_outputs(plan: OutputPlan, inputs: Sequence[torch.Tensor]) -> tuple[Any, list[tuple[int, torch.Tensor]]]:
    """The outputs, and the survivors of the call that they lie in. Nothing may record this."""
    made: dict[int, torch.Tensor] = {}
    bases: dict[int, torch.Tensor] = {}
    bound: list[tuple[int, torch.Tensor]] = []

    def empty(tensor: TensorPlan) -> torch.Tensor:
        strides = strides_of(tensor.shape, tensor.order)
        base = bases.get(tensor.source[1]) if tensor.source[1] >= 0 else None
        if base is not None:
            return base.as_strided(tensor.shape, strides)
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)

    def keep(number: int, tensor: torch.Tensor) -> None:
        survivor = plan.tensors[number].source[1]
        made[number] = tensor
        if survivor >= 0 and survivor not in bases:
            bases[survivor] = tensor
            bound.append((survivor, tensor))

    wanted = [n for n, t in enumerate(plan.tensors) if t.requires_grad and t.source[0] == "survivor"]
    if wanted:
        anchor = torch.empty((), device=plan.tensors[wanted[0]].device, requires_grad=True)
        with torch.enable_grad():
            results = _Stub.apply(anchor, lambda: tuple(empty(plan.tensors[n]) for n in wanted))
        for number, tensor in zip(wanted, results, strict=True):
            keep(number, tensor)
    with torch.no_grad():
        for number, tensor in enumerate(plan.tensors):
            if number in made:
                continue
            if tensor.source[0] == "input":
                made[number] = inputs[tensor.source[1]]
            else:
                keep(number, empty(tensor))
    for number, tensor in enumerate(plan.tensors):
        if tensor.derived is not None:
            name, source = min(tensor.derived)
            given = known(inputs[source])
            with _disable_current_modes():
                set_known(made[number], None if given is None else DERIVED[name](given))
    return rebuilt(plan.skeleton, lambda v: isinstance(v, OutputPlace), lambda place: made[place.number]), bound
