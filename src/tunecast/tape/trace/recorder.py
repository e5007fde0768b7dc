"""Records the tape: a dispatch mode above `FakeTensorMode` that sees every operation.

Each operation runs on fake tensors (shapes, no bytes); a storage not seen before is an allocation, kept in the
`Ledger`. What CUDA kernels borrow inside one operation comes from `workspaces.py`; which module, phase and role a
block has comes from `scopes.py`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

from tunecast.tape.card import Card
from tunecast.tape.op import MANY, Op, Phase
from tunecast.tape.trace import workspaces
from tunecast.tape.trace.composites import linear
from tunecast.tape.trace.ledger import Ledger
from tunecast.tape.trace.scopes import Scopes
from tunecast.tape.trace.values import KnownValues

SOURCE_FROM_BYTES = 1 << 20
"""Blocks below this are not worth walking the stack for: nobody asks which line made them."""

Emulation = Callable[..., Any]


class Recorder(Ledger, TorchDispatchMode):
    def __init__(self, card: Card, scopes: Scopes) -> None:
        Ledger.__init__(self, scopes)
        TorchDispatchMode.__init__(self)
        self.card = card
        self.emulated: dict[str, Emulation] = {}
        """Operations run through their package's own CUDA-side Python instead of its shape-only kernel."""
        self.paused = 0
        """Above 0 nothing is recorded: torch is computing metadata, not training."""
        self.values = KnownValues(self.assumptions)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name: str = func._schema.name
        if name == "prim::device" or self.paused:
            return func(*args, **kwargs)
        for kind in types:
            if not issubclass(kind, FakeTensor) and hasattr(kind, "__tensor_flatten__"):
                return NotImplemented  # DTensor and other wrappers unwrap themselves; their parts come by here
        if name == "aten::_local_scalar_dense":
            return self.values.item(args[0], self)
        if name == "aten::is_nonzero":
            return bool(self.values.item(args[0], self))
        if name == "aten::is_pinned":
            return False
        if name in ("aten::_pin_memory", "aten::pin_memory"):
            return args[0]
        emulation = self.emulated.get(name if func._overloadname in ("", "default") else f"{name}.{func._overloadname}")
        if emulation is not None:
            # as on a card: autograd is done with the operation, autocast still is what it was where it was called
            with torch._C._RestorePythonTLSSnapshot(), torch._C._AutoDispatchBelowAutograd(), self:
                return emulation(*args, **kwargs)
        if name in ("aten::linear", "aten::matmul"):  # below autograd they come whole
            with self:
                return linear(*args, **kwargs) if name == "aten::linear" else func.decompose(*args, **kwargs)
        return self._run(func, name, args, kwargs)

    def _run(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch._C._only_lift_cpu_tensors():
            # lists of numbers become tensors on the card without a card; the fake mode says so in its own thread only
            torch._C._set_only_lift_cpu_tensors(True)
        if self._pending is not None:
            with self._lock:
                self._settle_accumulation()
        inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        known = self.values.evaluate(func, args, kwargs, inputs)
        on_card = any(x.device.type == "cuda" for x in inputs)
        if on_card and name == "aten::index" and any(i is not None and i.dtype in MASKS for i in args[1]):
            args = (args[0], self.values.indices_of_masks(args[1], self))
        try:
            out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            if known is None:
                known = self.values.guess_output(name, args, self)
            else:
                self.values.relied_on(inputs[0], self)
            out = self.values.as_fake(known, inputs[0].device)
        outputs = (
            [out] if isinstance(out, torch.Tensor) else [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)]
        )
        outputs_on_card = [x for x in outputs if isinstance(x, FakeTensor) and x.device.type == "cuda"]
        if on_card or outputs_on_card:
            with self._lock:
                self._record(func, name, args, kwargs, inputs, outputs_on_card, out)
        if known is not None:
            self.values.remember(out, known)
        else:
            self.values.suppose(name, args, out)
        return out

    def _record(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        out: Any,
    ) -> None:
        new = [x for x in outputs if self._is_new(x.untyped_storage())]
        if not new and not func._schema.is_mutable and name not in ALWAYS_WORK:
            return  # a view: no kernel, no memory
        self._announce()
        scope = self.scopes.current()
        of_many = any(isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor) for a in args)
        if scope is not None:
            module = scope
        else:  # outside any module the data says whose work it is; a list of tensors is nobody's in particular
            module = MANY if of_many else next((m for m in map(self.module_of, inputs) if m), "")
        place = len(self._events)
        written = sum(map(nbytes, outputs)) if new else sum(nbytes(x) for x in inputs[:1])
        source = self.scopes.source() if new and max(map(nbytes, new)) >= SOURCE_FROM_BYTES else ""
        self._events.append(
            Op(
                name.removeprefix("aten::"),
                module,
                flops(func, args, kwargs, out),
                sum(map(nbytes, inputs)),
                written,
                workspaces.kernel_count(name, args, inputs),
                str((outputs or inputs)[0].dtype).removeprefix("torch."),
                tuple(tuple(x.shape) for x in inputs[:3]),
                source,
                self.stream_of_thread.get(threading.get_ident(), 0),
                by_engine=self.scopes.phase is Phase.BACKWARD and _called_by_engine(),
            )
        )
        accumulates = self._is_engine_addition(func, name, kwargs, inputs)
        by_engine = name in workspaces.IN_PLACE_IN_BACKWARD and _called_by_engine()
        every = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)]
        steps = workspaces.steps(name, args, kwargs, out, self.card, by_engine)
        if steps is None:
            steps = tuple(workspaces.Make(place) for place in range(len(every)))
        foreach = scope is None and len(new) > 1 and name.startswith("aten::_foreach")
        borrowed: list[int] = []
        for step in steps:
            if isinstance(step, workspaces.Make):
                owner = module
                if foreach and step.output < len(inputs):
                    owner = self.module_of(inputs[step.output]) or module
                replaced = args[step.into] if step.into is not None else inputs[0] if accumulates else None
                self._make(every[step.output], step.nbytes, owner, replaced)
            elif isinstance(step, workspaces.Borrow):
                borrowed.append(self.allocate(step.nbytes, module))
            else:
                self.free(borrowed[step.borrowed])
        for tensor in new:
            if self._is_new(tensor.untyped_storage()):  # the real kernel leaves it empty, or on the host
                self._watch(tensor.untyped_storage(), self.allocate(0, module))
        self._keep_for_life(name, args, kwargs)
        if accumulates:
            sums = [b for b in map(self.block_of, new) if b is not None]
            self._summed.update((b, sums[0]) for b in map(self.block_of, inputs) if b is not None and sums)
        if scope is None and not of_many:
            worked_on = [b for b in map(self.block_of, (*new, *inputs)) if b is not None]
            if worked_on:
                self._op_of_block[place] = worked_on[0]
            if new and self.scopes.phase is Phase.LOAD:
                self._became.update((b, worked_on[0]) for b in worked_on[len(new) :])

    def _make(self, tensor: torch.Tensor, nbytes: int, module: str, replaced: torch.Tensor | None) -> None:
        """An output comes to life, in the block of `replaced` if that dies with this operation."""
        storage = tensor.untyped_storage()
        if tensor.device.type != "cuda" or not self._is_new(storage):
            return
        old = self._replaced_in_place(replaced, storage) if replaced is not None else None
        if old is not None:
            self._defer(storage, old, module)
        else:
            self._watch(storage, self.allocate(nbytes or storage.nbytes(), module))

    def _keep_for_life(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for kind, size in workspaces.kept_for_life(name, args, self.card, kwargs):
            thread = threading.get_ident()
            key = (kind, thread, self.stream_of_thread.get(thread, 0))
            if key not in self._workspaces:
                self._workspaces.add(key)
                self._events.append(Op(kind, kernels=0))
                self.allocate(size, kind)

    def _is_engine_addition(self, func: Any, name: str, kwargs: Any, inputs: list[torch.Tensor]) -> bool:
        return (
            name == "aten::add"
            and func._overloadname == "Tensor"
            and len(inputs) == 2
            and not kwargs
            and inputs[0].shape == inputs[1].shape
            and _called_by_engine()
        )

    def _replaced_in_place(self, old: torch.Tensor, storage: Any) -> int | None:
        whole = nbytes(old) == storage.nbytes() == old.untyped_storage().nbytes()
        return self.block_of(old) if whole and not old._is_view() else None


BETWEEN_ENGINE_AND_US = {
    "_called_by_engine",
    "_is_engine_addition",
    "_record",
    "_run",
    "__torch_dispatch__",  # this file
    "inner",
    "_fn",
    "wrapper",  # torch's own wrapping of dispatch modes
}
MASKS = (torch.bool, torch.uint8)
ALWAYS_WORK = {"aten::copy_", "aten::_foreach_copy_"}


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """torch's own formulas; grouped-query attention, which they refuse, is counted by query heads."""
    name = func._schema.name
    if "scaled_dot_product" in name:
        backward = name.endswith("backward")
        query, key, value = args[1:4] if backward else args[:3]
        batch, heads, length, width = query.shape
        forward = 2 * batch * heads * length * key.shape[2] * (width + value.shape[3])
        return forward * 5 // 2 if backward else forward
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0
    try:
        return int(formula(*args, **kwargs, out_val=out))
    except (AssertionError, TypeError, ValueError):
        return 0


def _called_by_engine() -> bool:
    """True when no Python frame stands between the autograd engine and this dispatch."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in BETWEEN_ENGINE_AND_US:
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


def without_modes(action: Callable[[], Any]) -> Any:
    with _disable_current_modes(), torch.no_grad():
        return action()
