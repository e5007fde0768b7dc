"""An operation that was run before on tensors of the same shapes makes outputs of the same shapes.

A model of many layers runs the same few hundred operations over and over. `FakeTensorMode` works out the shapes of the
outputs each time, or finds them in a cache whose keys take 90 us an operation to make. Here the outputs of ordinary
operations (fake tensors of one mode in, new tensors or views of the arguments out) are made from what the first of
their kind made, in 20 us; everything else runs as ever.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tunecast.records import NamedTuple

MOST_KNOWN = 1 << 16
"""Operations that are remembered; then it begins anew. A step of a large model has some hundred."""
PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.layout, torch.memory_format, torch.device})
NOT_ALIKE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
"""Of which a value decides, or which change their argument (as `FakeTensorMode._validate_cache_key` has it)."""

Key: TypeAlias = "tuple[Any, ...]"


class OutputOf(NamedTuple):
    """One output: a new tensor, or a view of an argument."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    argument: int
    """Of the tensors among the arguments, the one whose storage it has; -1: it has its own."""
    offset: int


class Repeats:
    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[Key, tuple[type | None, tuple[Any, ...]] | None] = {}
        self._ordinary: dict[Any, bool] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `func(*args, **kwargs)` returns."""
        if not self._is_ordinary(func) or torch.is_inference_mode_enabled():
            return func(*args, **kwargs)
        parts: list[Any] = [func, torch.get_default_dtype()]
        tensors: list[FakeTensor] = []
        if not self._describe(args, parts, tensors) or not tensors:
            return func(*args, **kwargs)
        if kwargs:
            parts += kwargs
            if not self._describe(kwargs.values(), parts, tensors):
                return func(*args, **kwargs)
        key = tuple(parts)
        if key in self._known:
            plan = self._known[key]
            return func(*args, **kwargs) if plan is None else self._make(plan, tensors)
        out = func(*args, **kwargs)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key] = self._plan(out, tensors)
        return out

    def _is_ordinary(self, func: Any) -> bool:
        """Neither writes into its arguments nor draws anything."""
        found = self._ordinary.get(func)
        if found is None:
            found = self._ordinary[func] = (
                isinstance(func, torch._ops.OpOverload)
                and func.namespace == "aten"
                and not func._schema.is_mutable
                and not any(tag in func.tags for tag in NOT_ALIKE)
                and not func._schema.name.startswith("aten::lift")
            )
        return found

    def _describe(self, values: Any, parts: list[Any], tensors: list[FakeTensor]) -> bool:
        """All that the shapes of outputs depend on; False where a value is of another kind."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if (
                    value.fake_mode is not self._mode or value.constant is not None or value.layout is not torch.strided
                    or value.is_conj() or value.is_neg() or value.is_inference()
                ):  # fmt: skip
                    return False
                parts += (
                    value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device,
                    value.requires_grad, value.untyped_storage().nbytes(),
                )  # fmt: skip
                tensors.append(value)
            elif kind is list or kind is tuple:
                parts.append(len(value))
                if not self._describe(value, parts, tensors):
                    return False
            elif kind in PLAIN:
                parts += (kind, value)
            else:
                return False
        return True

    def _plan(self, out: Any, tensors: list[FakeTensor]) -> tuple[type | None, tuple[Any, ...]] | None:
        """The type of a sequence of outputs, and each; None where they are not understood."""
        if type(out) in (tuple, list):
            kind, outputs = type(out), tuple(out)
        else:
            kind, outputs = None, (out,)
        storages = {tensor.untyped_storage()._cdata: place for place, tensor in reversed(list(enumerate(tensors)))}
        made: set[int] = set()
        plans: list[Any] = []
        for each in outputs:
            if type(each) in PLAIN:
                plans.append(each)
                continue
            if type(each) is not FakeTensor or any(each is tensor for tensor in tensors):
                return None
            storage = each.untyped_storage()
            place = storages.get(storage._cdata, -1)
            if (
                each.fake_mode is not self._mode or each.constant is not None or each.layout is not torch.strided
                or each.requires_grad or each.is_conj() or each.is_neg() or storage._cdata in made
                or (place >= 0 and each.dtype is not tensors[place].dtype)
            ):  # fmt: skip
                return None
            if place < 0:
                made.add(storage._cdata)
                if each.storage_offset() or storage.nbytes() != _bytes_of(each):
                    return None
            plans.append(
                OutputOf(each.shape, each.stride(), each.dtype, each.fake_device, place, each.storage_offset())
            )
        return kind, tuple(plans)

    def _make(self, plan: tuple[type | None, tuple[Any, ...]], tensors: list[FakeTensor]) -> Any:
        kind, plans = plan
        outputs = []
        with torch._C._DisableTorchDispatch():
            for each in plans:
                if type(each) is not OutputOf:
                    outputs.append(each)
                    continue
                shape, strides, dtype, device, place, offset = each
                if place < 0:
                    bare = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
                else:
                    bare = torch.empty(0, dtype=dtype, device="meta")
                    bare.set_(tensors[place].untyped_storage(), offset, shape, strides)
                outputs.append(FakeTensor(self._mode, bare, device))
        return outputs[0] if kind is None else kind(outputs)


def _bytes_of(tensor: torch.Tensor) -> int:
    """Of the storage that a new tensor of its shape and strides gets."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
