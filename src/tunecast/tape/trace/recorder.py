"""Records the tape: a dispatch mode above `FakeTensorMode` that sees every operation.

Each operation runs on fake tensors (shapes, no bytes); a storage not seen before is an allocation, kept in the
`Ledger`. What CUDA kernels borrow inside one operation comes from `workspaces.py`; which module, phase and role a
block has comes from `scopes.py`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry

from tunecast.records import NamedTuple
from tunecast.tape.card import Card
from tunecast.tape.op import MANY, Op, Phase
from tunecast.tape.trace import workspaces
from tunecast.tape.trace.composites import linear
from tunecast.tape.trace.host_watch import HostWatch
from tunecast.tape.trace.ledger import Ledger
from tunecast.tape.trace.meter import MemoryMeter
from tunecast.tape.trace.scopes import Scopes
from tunecast.tape.trace.values import KnownValues

SOURCE_FROM_BYTES = 1 << 20
"""Blocks below this are not worth walking the stack for: nobody asks which line made them, or what they took."""

Emulation = Callable[..., Any]


class Operation(NamedTuple):
    """One call of an operator that touches the card, with its result."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    """Those on the card."""
    result: Any
    by_engine: bool = False
    """Whether the autograd engine made the call, with no Python between."""

    @property
    def card(self) -> int:
        """The number of the one it runs on: where its result is, else where its data are."""
        return card_of(next((x for x in (*self.outputs, *self.inputs) if x.device.type == "cuda"), None))

    @property
    def takes_many(self) -> bool:
        """Whether an argument is a list of tensors, as those of the foreach operators are."""
        return any(isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor) for a in self.args)

    def adds_gradients(self) -> bool:
        """Whether the engine sums up two gradients of one tensor."""
        return (
            self.name == "aten::add"
            and self.func._overloadname == "Tensor"
            and len(self.inputs) == 2
            and not self.kwargs
            and self.inputs[0].shape == self.inputs[1].shape
            and self.by_engine
        )


class Recorder(Ledger, TorchDispatchMode):
    def __init__(self, card: Card, scopes: Scopes) -> None:
        Ledger.__init__(self, scopes)
        TorchDispatchMode.__init__(self)
        self.card = card
        self.asked: set[str] = set()
        """Of the card, what a program asked besides what every kernel depends on: memory, name."""
        self.emulated: dict[str, Emulation] = {}
        """Operations run through their package's own CUDA-side Python instead of its shape-only kernel."""
        self.paused = 0
        """Above 0 nothing is recorded: torch is computing metadata, not training."""
        self.memory = MemoryMeter(self)
        self.values = KnownValues(self.assumptions)
        self.host_watch: HostWatch | None = None
        """Of a program whose time is asked for."""
        self.on_operation: list[Callable[[Operation, list[torch.Tensor]], None]] = []
        """Called with each operation that was recorded, and the tensors it made."""
        self.run_fake: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] = run_plainly
        """Runs an operation on fake tensors."""
        self._stand_in = ""
        self._turns = threading.RLock()
        """The engine has a thread a card, and a fake mode's state is no thread's own: one operation at a time."""
        self._at_work = 0
        """The thread whose turn it is; 0: none."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is DEVICE and isinstance(args[0], FakeTensor):  # asked by C++ time and again: twice an operation
            # the state is that of the thread at work: the engine looks at gradients while another one computes
            is_inside = args[0].fake_mode.in_kernel_invocation and self._at_work in (0, threading.get_ident())
            return torch.device("meta") if is_inside else args[0].fake_device
        with self._turns:
            before, self._at_work = self._at_work, threading.get_ident()
            try:
                return self._dispatch(func, types, args, kwargs or {})
            finally:
                self._at_work = before

    def _dispatch(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name: str = func._schema.name
        if name == "prim::device" or self.paused:
            return func(*args, **kwargs)
        for kind in types:
            if not issubclass(kind, FakeTensor) and hasattr(kind, "__tensor_flatten__"):
                return NotImplemented  # DTensor and other wrappers unwrap themselves; their parts come by here
        answer = ANSWERS.get(name)
        if answer is not None:
            return answer(self, args[0])
        emulation = self.emulated.get(name if func._overloadname in ("", "default") else f"{name}.{func._overloadname}")
        if emulation is not None:
            # as on a card: autograd is done with the operation, autocast still is what it was where it was called
            with torch._C._RestorePythonTLSSnapshot(), torch._C._AutoDispatchBelowAutograd(), self:
                return emulation(*args, **kwargs)
        if name in COME_WHOLE or (name == "aten::where" and len(args) == 1):
            with self:
                return linear(*args, **kwargs) if name == "aten::linear" else func.decompose(*args, **kwargs)
        return self._run(func, name, args, kwargs)

    def _run(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch._C._only_lift_cpu_tensors():
            # lists of numbers become tensors on the card without a card; the fake mode says so in its own thread only
            torch._C._set_only_lift_cpu_tensors(True)
        if self._pending:
            with self._lock:
                self._settle_accumulation(cards_in(args, kwargs))
        inputs = tensors_in((args, kwargs))
        known = self.values.evaluate(func, args, kwargs, inputs)
        on_card = any(x.device.type == "cuda" for x in inputs)
        if on_card and name == "aten::index" and any(i is not None and i.dtype in MASKS for i in args[1]):
            args = (args[0], self.values.indices_of_masks(args[1], self))
        try:
            with self._lock:  # fake tensors are made by one mode, which knows of no other thread
                out = self.run_fake(func, tuple(map(in_order, args)) if name in GIVES_IN_ORDER else args, kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            known = self._output_by_value(name, args, inputs, known)
            out = self.values.as_fake(known, inputs[0].device)
        outputs = [x for x in tensors_in(out) if isinstance(x, FakeTensor) and x.device.type == "cuda"]
        if on_card or outputs:
            with self._lock:
                self._record(Operation(func, name, args, kwargs, inputs, outputs, out, _called_by_engine()))
        if known is not None:
            self.values.remember(out, known)
        else:
            self.values.suppose(name, args, out)
        return out

    def _output_by_value(self, name: str, args: tuple[Any, ...], inputs: list[torch.Tensor], known: Any) -> Any:
        """The values of an output whose shape depends on its inputs' values: computed, or guessed."""
        if known is None:
            return self.values.guess_output(name, args, self)
        self.values.relied_on(inputs[0], self)
        self.values.gave_sizes += 1
        return known

    def _record(self, operation: Operation) -> None:
        new = [x for x in operation.outputs if self._is_new(x.untyped_storage())]
        if not new and not operation.func._schema.is_mutable and operation.name not in ALWAYS_WORK:
            return  # a view: no kernel, no memory
        self._announce()
        scope = self.scopes.current()
        module = scope if scope is not None else self._module_of_data(operation)
        if self.host_watch is not None:
            self._events += self.host_watch.take(module, len(operation.inputs) if module == MANY else 0)
        place = len(self._events)
        self._events.append(self._event(operation, new, module))
        self._allocate(operation, new, module, is_outside=scope is None)
        self._keep_for_life(operation)
        note = workspaces.convolution_note(operation.name, operation.args)
        if note is not None:
            (self.guesses if note[1] else self.assumptions)[note[0]] = 1
        for action in self.on_operation:
            action(operation, new)
        if operation.adds_gradients():
            self._note_sum(operation, new)
        if scope is None and not operation.takes_many:
            self._note_block(operation, new, place)

    def _module_of_data(self, operation: Operation) -> str:
        """Outside any module the data says whose work it is; a list of tensors is nobody's in particular."""
        if operation.takes_many:
            return MANY
        return next((module for module in map(self.module_of, operation.inputs) if module), "")

    def _event(self, operation: Operation, new: list[torch.Tensor], module: str) -> Op:
        func, name, args, inputs = operation.func, operation.name, operation.args, operation.inputs
        return Op(
            name.removeprefix("aten::"),
            module,
            flops(func, args, operation.kwargs, operation.result),
            sum(map(nbytes, inputs)),
            sum(map(nbytes, operation.outputs if new else inputs[:1])),
            workspaces.kernel_count(name, args, inputs),
            str((operation.outputs or inputs)[0].dtype).removeprefix("torch."),
            tuple(tuple(x.shape) for x in inputs[:3]),
            self.scopes.source() if is_worth_a_line(operation, new) else "",
            self.stream_on(operation.card),
            by_engine=self.scopes.computes_gradients(),
        )

    def _allocate(self, operation: Operation, new: list[torch.Tensor], module: str, *, is_outside: bool) -> None:
        """Outputs and what the kernels borrow, in the order of the real code."""
        tensors = tensors_in(operation.result)
        owners = self._owners(operation, module) if is_outside and len(new) > 1 else {}
        replaced = operation.inputs[0] if operation.adds_gradients() else None
        borrowed: list[int] = []
        for step in self._steps(operation, len(tensors)):
            if isinstance(step, workspaces.Make):
                old = operation.args[step.into] if step.into is not None else replaced
                self._make(tensors[step.output], step.nbytes, owners.get(step.output, module), old)
            elif isinstance(step, workspaces.Borrow):
                borrowed.append(self.allocate(step.nbytes, module, operation.card))
            else:
                self.free(borrowed[step.borrowed])
        for tensor in new:
            if self._is_new(tensor.untyped_storage()):  # the real kernel leaves it empty, or on the host
                self._watch(tensor.untyped_storage(), self.allocate(0, module, card_of(tensor)))

    def _owners(self, operation: Operation, module: str) -> dict[int, str]:
        """The modules of a foreach operator's outputs by their place: those of its inputs."""
        if not operation.name.startswith("aten::_foreach"):
            return {}
        return {place: self.module_of(tensor) or module for place, tensor in enumerate(operation.inputs)}

    def _steps(self, operation: Operation, count: int) -> tuple[workspaces.Step, ...]:
        name, by_engine = operation.name, operation.by_engine and operation.name in workspaces.IN_PLACE_IN_BACKWARD
        steps = workspaces.steps(name, operation.args, operation.kwargs, operation.result, self.card, by_engine)
        return tuple(map(workspaces.Make, range(count))) if steps is None else steps

    def _note_sum(self, operation: Operation, new: list[torch.Tensor]) -> None:
        sums = [block for block in map(self.block_of, new) if block is not None]
        if sums:
            parts = [block for block in map(self.block_of, operation.inputs) if block is not None]
            self._summed.update((part, sums[0]) for part in parts)

    def _note_block(self, operation: Operation, new: list[torch.Tensor], place: int) -> None:
        """Whose block an operation outside any module works on; while loading, what the others were copied into."""
        blocks = [block for block in map(self.block_of, (*new, *operation.inputs)) if block is not None]
        if blocks:
            self._op_of_block[place] = blocks[0]
        if new and self.scopes.phase is Phase.LOAD:
            self._became.update((block, blocks[0]) for block in blocks[len(new) :])

    def _make(self, tensor: torch.Tensor, nbytes: int, module: str, replaced: torch.Tensor | None) -> None:
        """An output comes to life, in the block of `replaced` if that dies with this operation."""
        storage = tensor.untyped_storage()
        if tensor.device.type != "cuda" or not self._is_new(storage):
            return
        old = self._replaced_in_place(replaced, storage) if replaced is not None else None
        if old is not None:
            self._defer(storage, old, module)
        else:
            self._watch(storage, self.allocate(nbytes or storage.nbytes(), module, card_of(tensor)))

    @contextlib.contextmanager
    def as_thread(self, name: str) -> Iterator[None]:
        """What runs inside stands for a thread of that name, with handles and workspaces of its own."""
        before, self._stand_in = self._stand_in, name
        try:
            yield
        finally:
            self._stand_in = before

    def _keep_for_life(self, operation: Operation) -> None:
        thread = self._stand_in or threading.get_ident()
        for kind, size in workspaces.kept_for_life(operation.name, operation.args, self.card, operation.kwargs):
            key = (kind, thread, self.pool_on(operation.card))
            if key not in self._workspaces:
                self._workspaces.add(key)
                self._events.append(Op(kind, kernels=0))
                self.allocate(size, kind, operation.card)

    def _replaced_in_place(self, old: torch.Tensor, storage: Any) -> int | None:
        whole = nbytes(old) == storage.nbytes() == old.untyped_storage().nbytes()
        return self.block_of(old) if whole and not old._is_view() else None


BETWEEN_ENGINE_AND_US = {
    "_called_by_engine",
    "_run",
    "_dispatch",
    "__torch_dispatch__",  # this file
    "inner",
    "_fn",
    "wrapper",  # torch's own wrapping of dispatch modes
}
DEVICE = torch.ops.prim.device.default
COME_WHOLE = frozenset({"aten::linear", "aten::matmul", "aten::to", "aten::nonzero_numpy"})
"""Below autograd, where inference mode is: operations made of others."""
MASKS = (torch.bool, torch.uint8)
ALWAYS_WORK = {"aten::copy_", "aten::_foreach_copy_"}
GIVES_IN_ORDER = frozenset({"aten::native_layer_norm_backward"})
"""Kernels that copy what is not contiguous and make contiguous results, where a shape-only kernel lays them out as what
it was given (aten/src/ATen/native/cuda/layer_norm_kernel.cu, `layer_norm_backward_cuda`)."""
ANSWERS: Mapping[str, Callable[[Recorder, Any], Any]] = {
    "aten::_local_scalar_dense": lambda recorder, tensor: recorder.values.item(tensor, recorder),
    "aten::item": lambda recorder, tensor: recorder.values.item(tensor, recorder),
    "aten::is_nonzero": lambda recorder, tensor: bool(recorder.values.item(tensor, recorder)),
    "aten::is_pinned": lambda recorder, tensor: False,
    "aten::_pin_memory": lambda recorder, tensor: tensor,
    "aten::pin_memory": lambda recorder, tensor: tensor,
}
"""Operations that run no kernel: their answer, of the first argument."""


def is_worth_a_line(operation: Operation, new: Sequence[torch.Tensor]) -> bool:
    """Of what takes memory or time: large blocks, made or written again, products and attention, lists of tensors."""
    if operation.takes_many or operation.func._overloadpacket in flop_registry or "attention" in operation.name:
        return True
    return max(map(nbytes, new or operation.outputs or operation.inputs[:1]), default=0) >= SOURCE_FROM_BYTES


def run_plainly(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def in_order(value: Any) -> Any:
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Those among the arguments or results of an operator, which are lists of tensors at most."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, (tuple, list, dict)) and each:
            found += tensors_in(each)
    return found


def card_of(tensor: torch.Tensor | None) -> int:
    """The number of the card it is on; 0 of one without."""
    device = None if tensor is None else tensor.device
    return 0 if device is None or device.type != "cuda" else device.index or 0


def cards_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
    """Those an operation works on; none of one that has no data yet and does not say where its result will be."""
    devices = [x.device for x in tensors_in((args, kwargs))] or [torch.device(kwargs.get("device") or "cpu")]
    return {device.index or 0 for device in devices if device.type == "cuda"}


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
