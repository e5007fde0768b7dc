"""Records the tape: sees every operation on fake tensors, and the birth and death of every storage.

A dispatch mode sits above `FakeTensorMode`. Each operation runs on fake tensors (shapes, no bytes); a storage not
seen before is an allocation; a weak reference on it tells when its last holder (a Python name, a saved tensor, a
gradient buffer) lets go. What CUDA kernels borrow inside one operation comes from `workspaces.py`; which module,
phase and role a block has comes from `scopes.py`.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry

from tunecast.tape.op import MANY, Alloc, Begin, EmptyCache, Event, Free, Op, Phase, Role, Tape, with_frees_in_order
from tunecast.tape.trace import workspaces
from tunecast.tape.trace.card import Card
from tunecast.tape.trace.scopes import Scopes
from tunecast.tape.trace.values import KnownValues

SOURCE_FROM_BYTES = 1 << 20
"""Blocks below this are not worth walking the stack for: nobody asks which line made them."""

Emulation = Callable[..., Any]


class Block:
    """What is known of one allocation while the trace runs; `Alloc` is made of it at the end."""

    __slots__ = ("born_forward", "died_backward", "module", "nbytes", "phase", "role", "stream")

    def __init__(self, nbytes: int, module: str, phase: Phase, born_forward: bool, stream: int) -> None:
        self.nbytes, self.module, self.phase, self.stream = nbytes, module, phase, stream
        self.born_forward, self.died_backward = born_forward, False
        self.role: Role | None = None


class Recorder(TorchDispatchMode):
    def __init__(self, card: Card, scopes: Scopes) -> None:
        super().__init__()
        self.card = card
        self.scopes = scopes
        self.emulated: dict[str, Emulation] = {}
        """Operations run through their package's own CUDA-side Python instead of its shape-only kernel."""
        self.paused = 0
        """Above 0 nothing is recorded: torch is computing metadata, not training."""
        self.guesses: Counter[str] = Counter()
        self.assumptions: Counter[str] = Counter()
        self.untraced: Counter[str] = Counter()
        self.values = KnownValues(self.assumptions)
        self.allocated_bytes = self.peak_bytes = 0
        self.stream_of_thread: dict[int, int] = {}
        self._events: list[Event | int] = []  # an int is the allocation of that block
        self._blocks: dict[int, Block] = {}
        self._storages: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._renamed: dict[int, int] = {}
        self._pending: tuple[int, int] | None = None
        self._workspaces: set[tuple[str, int, int]] = set()
        self._announced: Begin | None = None
        self._op_of_block: dict[int, int] = {}
        """Operations outside any module (loading, optimizer), by their place in the events: whose block they work on.
        A parameter learns its module's name only when the model first runs, so this is looked up at the end."""
        self._became: dict[int, int] = {}
        """While loading: which block an unnamed one was copied into; it takes that one's module."""
        self._summed: dict[int, int] = {}
        """Which block the engine added this one into: a part of a gradient is a gradient."""
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ events

    def tape(self, versions: dict[str, str]) -> Tape:
        self._settle_accumulation()
        for number, copy in reversed(self._became.items()):
            self._blocks[number].module = self._blocks[number].module or self._blocks[copy].module
        for number, total in self._summed.items():
            if self._blocks[total].role is Role.GRADIENTS:
                self._blocks[number].role = Role.GRADIENTS
        events: list[Event] = []
        for place, event in enumerate(self._events):
            if isinstance(event, Op) and place in self._op_of_block:
                events.append(event._replace(module=self._blocks[self._op_of_block[place]].module))
            elif isinstance(event, int):
                block = self._blocks[event]
                role = block.role or self._role_by_life(block)
                events.append(Alloc(event, block.nbytes, role, block.module, block.stream))
            else:
                events.append(event)
        events = with_frees_in_order(name_clip_phases(events))
        return Tape(tuple(events), counted(self.guesses), counted(self.assumptions), versions)

    def forget_all(self) -> None:
        """Start from an empty card; nothing traced so far may be alive."""
        for values in (self._events, self._blocks, self._storages, self._renamed, self._workspaces, self._op_of_block, self._became, self._summed):
            values.clear()
        self.guesses.clear()
        self.assumptions.clear()
        self.untraced.clear()
        self.allocated_bytes = self.peak_bytes = 0
        self._announced = None
        self.scopes.restart()

    def _role_by_life(self, block: Block) -> Role:
        if self.scopes.is_head(block.module) and block.phase in (Phase.FORWARD, Phase.BACKWARD):
            return Role.LOGITS_AND_LOSS
        return Role.ACTIVATIONS if block.born_forward and block.died_backward else Role.TEMPORARIES

    def _announce(self) -> None:
        now = Begin(self.scopes.phase, self.scopes.step)
        if now != self._announced:
            self._announced = now
            self._events.append(now)

    def empty_cache(self) -> None:
        with self._lock:
            self._settle_accumulation()
            self._announce()
            self._events.append(EmptyCache())

    def allocate(self, nbytes: int, module: str) -> int:
        """A new block on this thread's stream; the caller frees it."""
        self._announce()
        number = len(self._blocks)
        stream = self.stream_of_thread.get(threading.get_ident(), 0)
        in_forward = self.scopes.in_forward()
        self._blocks[number] = Block(nbytes, module, self.scopes.phase, in_forward, stream)
        self._events.append(number)
        self._grow(nbytes)
        return number

    def free(self, number: int) -> None:
        self._announce()
        block = self._blocks[number]
        block.died_backward = self.scopes.phase is Phase.BACKWARD and not self.scopes.in_forward()
        self._events.append(Free(number))
        self.allocated_bytes -= block.nbytes

    def _grow(self, nbytes: int) -> None:
        self.allocated_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)

    def launched(self, op: Op) -> None:
        """A kernel that is not an operator of torch."""
        with self._lock:
            self._settle_accumulation()
            self._announce()
            self._events.append(op._replace(module=self.scopes.current() or ""))

    # ------------------------------------------------------------------ storages

    def block_of(self, tensor: torch.Tensor) -> int | None:
        entry = self._storages.get(tensor.untyped_storage()._cdata)
        if entry is None or entry[1]() is None:
            return None
        return self._renamed.get(entry[0], entry[0])

    def set_role(self, tensor: torch.Tensor, role: Role, module: str | None = None) -> None:
        number = self.block_of(tensor)
        if number is None or self._blocks[number].role is role:
            return  # shared by several modules (tied weights, a table of codes): the first keeps it
        self._blocks[number].role = role
        if module is not None:
            self._blocks[number].module = module

    def module_of(self, tensor: torch.Tensor) -> str:
        number = self.block_of(tensor)
        return "" if number is None else self._blocks[number].module

    def _watch(self, storage: Any, number: int) -> None:
        key = storage._cdata

        def died(reference: weakref.ref[Any]) -> None:
            self._storage_died(key, number, reference)

        self._storages[key] = (number, weakref.ref(storage, died))

    def _is_new(self, storage: Any) -> bool:
        entry = self._storages.get(storage._cdata)
        return entry is None or entry[1]() is None

    def _storage_died(self, key: int, number: int, reference: weakref.ref[Any]) -> None:
        with self._lock:
            current = self._storages.get(key)
            if current is not None and current[1] is reference:
                del self._storages[key]
            number = self._renamed.pop(number, number)
            if self._pending is not None:
                old, new = self._pending
                if number == old:  # the sum went into the old gradient: no new block was needed
                    self._renamed[new] = old
                    self._pending = None
                    return
                if number == new:
                    self._pending = None
                    return
            self.free(number)

    def resized(self, storage: Any, nbytes: int) -> None:
        """`storage.resize_`: FSDP frees and refills gathered parameters this way."""
        with self._lock:
            entry = self._storages.get(storage._cdata)
            if entry is None or entry[1]() is None:
                return
            old = self._renamed.pop(entry[0], entry[0])
            module = self._blocks[old].module
            role = self._blocks[old].role
            new = self.allocate(nbytes, module) if nbytes else self._empty_block(module)
            if self._blocks[old].nbytes:  # after: contents are copied over (aten/src/ATen/native/cuda/Resize.cpp)
                self.free(old)
            self._blocks[new].role = role
            self._watch(storage, new)

    def _empty_block(self, module: str) -> int:
        """A storage resized to nothing still lives; its death must free nothing."""
        return self.allocate(0, module)

    # Gradient accumulation. The engine adds a second gradient into the first one in place when nothing else holds
    # it (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`), but never for tensor subclasses such as
    # fake tensors. So an addition made by the engine waits: if the old gradient dies before the next operation,
    # the real engine would have added in place, and the new block is the old one.

    def _settle_accumulation(self) -> None:
        if self._pending is not None:
            _, new = self._pending
            self._pending = None
            self._events.append(new)
            self._grow(self._blocks[new].nbytes)

    def _defer(self, storage: Any, old: int, module: str) -> None:
        self._announce()
        number = len(self._blocks)
        stream = self._blocks[old].stream
        self._blocks[number] = Block(storage.nbytes(), module, self.scopes.phase, False, stream)
        self._pending = (old, number)
        self._watch(storage, number)

    # ------------------------------------------------------------------ operations

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
            with self:
                return emulation(*args, **kwargs)
        return self._run(func, name, args, kwargs)

    def _run(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._pending is not None:
            with self._lock:
                self._settle_accumulation()
        inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        known = self.values.evaluate(func, args, kwargs, inputs)
        on_card = any(x.device.type == "cuda" for x in inputs)
        if on_card and name == "aten::index":
            if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
                args = (args[0], self.values.indices_of_masks(args[1], self))
        try:
            out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            if known is None:
                known = self.values.guess_output(name, args, self)
            else:
                self.values.relied_on(inputs[0], self)
            out = self.values.as_fake(known, inputs[0].device)
        outputs = [out] if isinstance(out, torch.Tensor) else [
            x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)
        ]
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
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any],
        inputs: list[torch.Tensor], outputs: list[torch.Tensor], out: Any,
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
                name.removeprefix("aten::"), module, flops(func, args, kwargs, out),
                sum(map(nbytes, inputs)), written, workspaces.kernel_count(name, args, inputs),
                str((outputs or inputs)[0].dtype).removeprefix("torch."),
                tuple(tuple(x.shape) for x in inputs[:3]), source,
                self.stream_of_thread.get(threading.get_ident(), 0),
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
            name == "aten::add" and func._overloadname == "Tensor" and len(inputs) == 2 and not kwargs
            and inputs[0].shape == inputs[1].shape and _called_by_engine()
        )

    def _replaced_in_place(self, old: torch.Tensor, storage: Any) -> int | None:
        whole = nbytes(old) == storage.nbytes() == old.untyped_storage().nbytes()
        return self.block_of(old) if whole and not old._is_view() else None


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
    own = {"_called_by_engine", "_is_engine_addition", "_record", "_run", "__torch_dispatch__", "inner", "_fn", "wrapper"}
    while frame is not None and frame.f_code.co_name in own:
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


def counted(sentences: Counter[str]) -> tuple[str, ...]:
    return tuple(f"{text} ({count} times)" if count > 1 else text for text, count in sentences.items())


def name_clip_phases(events: list[Event]) -> list[Event]:
    """What runs between the backward pass and the optimizer is the clipping of gradients."""
    begins = [i for i, event in enumerate(events) if isinstance(event, Begin)]
    for before, here, after in zip(begins, begins[1:], begins[2:], strict=False):
        phases = [events[i].phase for i in (before, here, after)]  # type: ignore[union-attr]
        if phases == [Phase.BACKWARD, Phase.OTHER, Phase.OPTIMIZER]:
            events[here] = Begin(Phase.CLIP, events[here].step)  # type: ignore[union-attr]
    return events


def without_modes(action: Callable[[], Any]) -> Any:
    with _disable_current_modes(), torch.no_grad():
        return action()


__all__ = ["Recorder", "nbytes", "tree_map", "without_modes"]
