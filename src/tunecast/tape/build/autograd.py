"""Autograd on paper: nodes with saved tensors, calls that save none, and the engine that runs nodes backward.

The engine follows torch/csrc/autograd: the ready node made last goes first, gradients of one tensor are summed in
place when nobody else holds the first (input_buffer.cpp), a leaf takes a gradient over when it can
(functions/accumulate_grad.h), saved tensors go as soon as their node has run. Leaves all have the same number, so which
of several goes first is for the heap to say. torch's is C++'s `std::priority_queue` (torch/csrc/autograd/engine.h,
`ReadyQueue`), whose moves are written down here (libstdc++, bits/stl_heap.h, `__push_heap` and `__adjust_heap`: of two
equal children the second rises).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tunecast.tape.op import Phase, Role

if TYPE_CHECKING:
    from tunecast.tape.build.dtypes import Dtype, Shape
    from tunecast.tape.build.machine import Machine
    from tunecast.tape.build.tensor import Tensor

Gradients = list[Any]
"""One of each output, or of each input; None where none is wanted. Formulas know which are there."""
Backward = Callable[["Node", Gradients], Sequence[Any]]
Inputs: TypeAlias = "Sequence[Tensor | None]"
Edge: TypeAlias = "tuple[Node | Leaf, int, Shape, Dtype | None]"
"""Who takes a gradient, as which of its outputs, and the shape and dtype it is to have; None: as the leaf's tensor says
when it comes."""
FIRST = 1 << 62
"""The sequence number of a leaf's node: it runs as soon as its gradient is there."""


class Node:
    __slots__ = ("backward", "before", "edges", "hooks", "module", "needs", "outputs", "saved", "sequence", "taken")

    def __init__(self, machine: Machine, backward: Backward, inputs: Inputs, saved: Inputs) -> None:
        self.backward = backward
        self.edges = [edge_of(t) for t in inputs]
        self.needs = [edge is not None for edge in self.edges]
        self.saved: Any = []
        self.taken: Any = ()
        if saved:
            self.keep(machine, saved)
        self.module = machine.module
        self.sequence = machine.sequence
        self.outputs = 1
        self.hooks: tuple[Callable[[], None], ...] = ()
        """Run once its gradients are there and checked (`Node.register_hook`)."""
        self.before: tuple[Callable[[], None], ...] = ()
        """Run before it is (`Tensor.register_hook` of its result)."""
        machine.sequence += 1

    def keep(self, machine: Machine, saved: Inputs) -> None:
        hooks = machine.pack_hooks
        self.saved += [hooks[-1](t) if t is not None else t for t in saved] if hooks else saved

    def take(self, place: int) -> Any:
        return self.taken[place]

    def run(self, gradients: Gradients) -> Gradients:
        """All that was saved is unpacked first and held until the formula is done; what must be recomputed is."""
        self.taken = [kept.tensor() if isinstance(kept, Holder) else kept for kept in self.saved]
        results = list(self.backward(self, gradients))
        self.taken = ()
        return results


class Holder:
    """Stands for a saved tensor that will be computed again."""

    __slots__ = ("__weakref__", "frame", "place")

    def __init__(self, frame: CheckpointFrame, place: int) -> None:
        self.frame, self.place = frame, place

    def tensor(self) -> Tensor:
        self.frame.machine.hook()
        if not self.frame.is_recomputed:
            self.frame.recompute()
        return self.frame.found.pop(self.place)


class Recomputed(Exception):
    """All that was missing has been computed; the rest of the forward is not needed."""


class CheckpointFrame:
    """One checkpointed call (torch/utils/checkpoint.py, `_CheckpointFrame`, use_reentrant=False)."""

    stops_early = True
    """`early_stop`: recomputation ends with the last thing that was saved, not with the function."""

    def __init__(self, machine: Machine, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.machine, self.function = machine, function
        hooks = machine.pack_hooks  # the inputs are saved as any tensor outside is
        self.args = [hooks[-1](given) if hooks and _is_tensor(given) else given for given in args]
        self.histories = [(t.requires_grad, t.node, t.number) if _is_tensor(t) else None for t in args]
        self.autocast = machine.autocast
        self.module = machine.module
        self.holders: list[Any] = []
        self.found: dict[int, Tensor] = {}
        self.is_recomputed = False

    def pack(self, tensor: Tensor) -> Holder:
        self.machine.hook()
        holder = Holder(self, len(self.holders))
        self.holders.append(weakref.ref(holder))
        return holder

    def recompute(self) -> None:
        self.is_recomputed = True
        machine, count = self.machine, 0
        args = [given.tensor() if isinstance(given, Holder) else given for given in self.args]
        for given, history in zip(args, self.histories, strict=True):
            if history is not None:
                given.requires_grad, given.node, given.number = history

        def keep(tensor: Tensor) -> Tensor:
            nonlocal count
            machine.hook()
            kept = tensor.detach() if tensor.requires_grad else tensor
            if self.holders[count]() is not None:
                self.found[count] = kept
            count += 1
            if count == len(self.holders) and self.stops_early:
                raise Recomputed
            return kept

        before = machine.module, machine.in_forward, machine.grad_enabled
        machine.module, machine.in_forward, machine.grad_enabled = self.module, True, True
        machine.redone += 1
        machine.pack_hooks.append(keep)
        try:
            with machine.autocasting(self.autocast):
                self.function(*args)
        except Recomputed:
            pass
        finally:
            machine.pack_hooks.pop()
            machine.module, machine.in_forward, machine.grad_enabled = before


class Leaf:
    """Accumulates into `tensor.grad`. It holds the tensor, the tensor only knows of it."""

    __slots__ = ("__weakref__", "before", "hooks", "module", "outputs", "sequence", "tensor")
    edges: Sequence[Edge | None] = ()

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.sequence, self.outputs, self.module = tensor, FIRST, 1, ""
        self.before: tuple[Callable[[], None], ...] = ()
        self.hooks: tuple[Callable[[], None], ...] = ()

    def accumulate(self, gradient: Gradients) -> None:
        tensor = self.tensor
        machine = tensor.machine
        if gradient[0] is None:  # a function that computes none for this input
            return
        if tensor.grad is not None:
            machine.launch("add_", (tensor.grad, gradient[0]), tensor.grad.dtype, tensor.grad.nbytes)
            return
        unshared = sys.getrefcount(gradient[0]) <= 2
        if unshared and same_layout(gradient[0], tensor):
            tensor.grad = gradient[0]
        else:
            tensor.grad = machine.run("clone", gradient, tensor.shape, gradient[0].dtype)
        assert tensor.grad is not None
        if tensor.is_view:  # an input of a recomputed layer: it is handed on
            return
        block = tensor.grad.block
        block.role = Role.GRADIENTS
        block.module = tensor.block.module


def _is_tensor(given: Any) -> bool:
    return hasattr(given, "requires_grad")


def same_layout(gradient: Tensor, variable: Tensor) -> bool:
    """torch/csrc/autograd/utils/grad_layout_contract.h: of a variable with gaps the gradient is to be contiguous."""
    if gradient.strides == variable.strides or gradient.stride() == variable.stride():
        return True
    return gradient.is_contiguous() and not variable.is_dense()


def edge_of(tensor: Tensor | None) -> Edge | None:
    if tensor is None or not tensor.requires_grad:
        return None
    if tensor.machine.graph is not None:
        return tensor.machine.graph.edge_of(tensor)
    if tensor.node is not None:
        return tensor.node, tensor.number, tensor.shape, tensor.dtype
    leaf = tensor.leaf() if tensor.leaf is not None else None
    if leaf is None:
        leaf = Leaf(tensor)
        tensor.leaf = weakref.ref(leaf)
    return leaf, 0, tensor.shape, tensor.dtype if tensor.fixes_gradients else None


def start(machine: Machine, inputs: Inputs, backward: Backward, saved: Inputs = ()) -> Node | None:
    """The node of an operation about to run, if it has one. Inputs are saved before the kernel runs, as in torch's
    generated code; that is why recomputation may stop without running the last operation."""
    if machine.grad_enabled:
        for tensor in inputs:
            if tensor is not None and tensor.requires_grad:
                return Node(machine, backward, inputs, saved)
    return None


def finish(node: Node | None, out: Tensor, *saved: Tensor) -> Tensor:
    """Give a result its history, and save what only the kernel made. A result saves itself without its history."""
    if node is not None:
        if saved:
            node.keep(out.machine, saved)
        out.node, out.requires_grad = node, True
    return out


def record(out: Tensor, inputs: Inputs, backward: Backward) -> Tensor:
    """Give a result its history; nothing is saved."""
    return finish(start(out.machine, inputs, backward), out)


def before_gradient_of(tensor: Tensor, hook: Callable[[], None]) -> Node | Leaf:
    """`tensor.register_hook`: called when its gradient is complete. Who asks keeps what is returned as long."""
    edge = edge_of(tensor)
    assert edge is not None, "a tensor without a gradient"
    node = edge[0]
    node.before += (hook,)
    return node


def wants(machine: Machine, *inputs: Tensor | None) -> bool:
    return machine.grad_enabled and any([t is not None and t.requires_grad for t in inputs])


class ReadyQueue:
    __slots__ = ("_heap",)

    def __init__(self, first: Node | Leaf) -> None:
        self._heap = [first]

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, node: Node | Leaf) -> None:
        self._heap.append(node)
        self._rise(len(self._heap) - 1, node)

    def _rise(self, hole: int, node: Node | Leaf) -> None:
        heap = self._heap
        while hole:
            parent = (hole - 1) // 2
            if heap[parent].sequence >= node.sequence:
                break
            heap[hole] = heap[parent]
            hole = parent
        heap[hole] = node

    def pop(self) -> Node | Leaf:
        heap = self._heap
        last = heap.pop()
        if not heap:
            return last
        first, length, hole = heap[0], len(heap), 0
        while 2 * hole + 2 < length:
            second = 2 * hole + 2
            if heap[second].sequence < heap[second - 1].sequence:
                second -= 1
            heap[hole] = heap[second]
            hole = second
        if 2 * hole + 2 == length:
            heap[hole] = heap[length - 1]
            hole = length - 1
        self._rise(hole, last)
        return first


# ---------------------------------------------------------------------------------------------------- the engine


def backward(loss: Tensor) -> None:
    backward_from(loss, loss.machine.run("ones_like", (loss,), loss.shape, loss.dtype))


def backward_from(out: Tensor, gradient: Tensor) -> None:
    """`torch.autograd.backward(out, gradient)`."""
    machine = out.machine
    outer_module = machine.module
    machine.phase, machine.in_backward, machine.grad_enabled = Phase.BACKWARD, True, False
    machine.in_forward = False
    run_engine(out.node, gradient)
    machine.node = None  # else it would hold the graph
    for callback in machine.after_backward:
        callback()
    machine.after_backward.clear()
    machine.phase, machine.in_backward, machine.grad_enabled = Phase.OTHER, False, True
    machine.module = outer_module


def run_engine(root: Node | None, gradient: Tensor) -> None:
    assert root is not None, "what has no history has no backward pass"
    machine = gradient.machine
    waiting = _dependencies(root)
    buffers: dict[Node | Leaf, Gradients] = {root: [gradient]}
    del gradient
    ready = ReadyQueue(root)
    while ready:
        node: Any = ready.pop()  # a leaf by its number: a compiler puts its own in the place of `Leaf`
        gradients = buffers.pop(node)
        for hook in node.before:
            hook()
        if node.sequence == FIRST:
            node.accumulate(gradients)
            for hook in node.hooks:  # which see, and so hold, what came
                hook()
            del gradients  # from here on it is the tensor's alone
            if node.tensor.after_gradient is not None:
                node.tensor.after_gradient(node.tensor)
            continue
        machine.module = node.module
        if gradients.count(None) == len(gradients):
            results: list[Any] = [None] * len(node.edges)
        else:
            machine.node = node
            machine.nodes += 1
            results = node.run(gradients)
            _validate(node, results)
            for hook in node.hooks:
                hook()
        node.saved = ()
        del gradients
        for place, edge in enumerate(node.edges):
            if edge is None:  # what nobody wanted goes with the rest
                continue
            target, number = edge[:2]
            buffer = buffers.get(target)
            if buffer is None:
                buffer = buffers[target] = [None] * target.outputs
            if results[place] is not None:
                if buffer[number] is None:
                    buffer[number] = results[place]
                    results[place] = None
                else:  # what is added, not moved, lives until all results are handed on
                    _sum_into(buffer, number, results[place])
            waiting[target] -= 1
            if not waiting[target]:
                ready.push(target)
            del buffer  # else it would hold a gradient a leaf has added to its own and let go
        del results


def _validate(node: Node, results: Gradients) -> None:
    """Bring each gradient to its tensor's shape and dtype, while what was saved still lives (engine.cpp,
    `validate_outputs`)."""
    for place, edge in enumerate(node.edges):
        gradient = results[place]
        if edge is None or gradient is None:
            continue
        if gradient.shape != edge[2] or gradient.dtype != edge[3]:
            results[place] = None
            gradient = gradient.sum_to_size(edge[2])
            dtype = edge[3]
            if dtype is None:
                leaf: Any = edge[0]
                dtype = leaf.tensor.grad_dtype
            results[place] = gradient if dtype is None else gradient.to(dtype)


def _sum_into(buffer: Gradients, number: int, gradient: Tensor) -> None:
    old = buffer[number]
    machine = old.machine
    if not old.is_view and sys.getrefcount(old) <= 3 and sys.getrefcount(old.storage) <= 2:
        machine.launch("add", (old, gradient), old.dtype, old.nbytes)
        return
    total = machine.run("add", (old, gradient), old.shape, old.dtype, strides=result_strides(old, gradient))
    buffer[number] = total


def result_strides(first: Tensor, second: Tensor) -> Shape | None:
    """An element-wise result is laid out as its inputs are, where they agree and are dense."""
    if first.strides is None and second.strides is None:
        return None
    for tensor in (first, second):
        if tensor.strides is not None and first.shape == tensor.shape and tensor.is_dense():
            return tensor.strides
    return None


def _dependencies(root: Node) -> dict[Node | Leaf, int]:
    count: dict[Node | Leaf, int] = {}
    seen: set[Node | Leaf] = {root}
    stack: list[Node | Leaf] = [root]
    while stack:
        for edge in stack.pop().edges:
            if edge is not None:
                target = edge[0]
                count[target] = count.get(target, 0) + 1
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
    return count
