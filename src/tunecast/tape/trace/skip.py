"""Most calls of the model are skipped, so that a script of thousands of steps runs to its end in seconds.

Data loaders, collators, schedulers, callbacks and evaluation loops are the script's own and run as they are. A call of
the model, its backward pass, clipping and the optimizer's step are units (tape/units.py): traced while their kind is
not known well enough, else skipped, and written in later. What a skipped call returns has the right shapes (stubs.py);
gradients stay away, so all that works on gradients is skipped with it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten

from tunecast.records import NamedTuple
from tunecast.tape.build.event_log import Block
from tunecast.tape.op import Phase, Unit
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.stubs import PLAIN, NotStubbed, OutputPlans, make_outputs, plan_outputs
from tunecast.tape.trace.values import INTEGERS, known
from tunecast.tape.units import (
    BACKWARD,
    CALL,
    GAP,
    BlockOrigin,
    Origins,
    Placed,
    Samples,
    Shape,
    UnitOrder,
    shape_of,
)

STEPS_BEFORE = 3
"""Optimizer steps that are traced whatever comes."""
MOST_CALLS = 8
"""Of modules before one backward pass: a script that calls parts of its model one by one is traced as it is."""


class CallKey(NamedTuple):
    plain_kind: tuple[str, ...]
    kind: tuple[str, ...]
    """With what of its inputs' contents counts."""
    sizes: tuple[int, ...]
    inputs: list[torch.Tensor]
    understood: bool


class Skipper:
    def __init__(
        self, recorder: Recorder, before_call: Callable[[], None] = lambda: None, traced_steps: Set[int] = frozenset()
    ) -> None:
        self.recorder, self.scopes, self._before_call = recorder, recorder.scopes, before_call
        self.traced_steps = traced_steps
        """Of which nothing is skipped."""
        self.units: list[Unit] = []
        self.not_shown: Counter[str] = Counter()
        """Why something was skipped though the traced units do not show what it does."""
        self.enabled = True
        self.why_not = ""
        """Why nothing is skipped, where that is so."""
        self._order, self._origins = UnitOrder(), Origins()
        self._samples: dict[str, Samples] = {}
        self._plans: dict[tuple[str, int], OutputPlans] = {}
        self._call_kinds: dict[tuple[Any, ...], int] = {}
        self._by_content: set[tuple[str, ...]] = set()
        """Kinds of calls in which the contents of inputs decided sizes."""
        self._graph_calls = 0
        self._group_is_traced = self._group_is_skipped = False
        self._gap_start, self._last_group = 0, "start"
        self._inside = self._step_is_empty = False
        self._thread = threading.get_ident()

    @property
    def skipped(self) -> int:
        return sum(not unit.traced for unit in self.units)

    @property
    def skips(self) -> bool:
        return any(not unit.traced for unit in self.units)

    # ------------------------------------------------------------------ hooks into torch

    def install(self) -> None:
        self._install_calls()
        self._install_backward()
        optimizer, scaler, utils = torch.optim.Optimizer, torch.amp.GradScaler, torch.nn.utils
        self._install_steps(optimizer)
        for owner, name, unit in (
            (optimizer, "zero_grad", "zero_grad"),
            (torch.nn.Module, "zero_grad", "zero_grad"),
            (scaler, "unscale_", "unscale"),
            (scaler, "update", "update_scale"),
            (utils, "clip_grad_norm_", "clip"),
            (utils, "clip_grad_value_", "clip"),
        ):
            function = getattr(owner, name)
            wrapped = self._around(unit, function)
            setattr(owner, name, wrapped)
            if owner is utils:
                setattr(utils.clip_grad, name, wrapped)
        step = scaler.step

        @functools.wraps(step)
        def scaled_step(this: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return self._run("scaled_step", step, this, optimizer, *args, **kwargs)

        scaler.step = scaled_step  # type: ignore[method-assign]

    def _install_calls(self) -> None:
        call = torch.nn.Module.__call__
        Module: Any = torch.nn.Module

        @functools.wraps(call)
        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._takes_calls():
                return call(module, *args, **kwargs)
            self._before_call()
            if self.enabled and self._order.traced_backwards and torch.is_grad_enabled() and _lost_gradients(module):
                self.refuse("the script lets go of gradients in another way than zero_grad")
            key = self._key(module, args, kwargs)

            def run() -> Any:
                Module.__call__ = call  # inside, modules call each other as ever
                try:
                    return call(module, *args, **kwargs)
                finally:
                    Module.__call__ = __call__

            return self._call(key, run)

        Module.__call__ = __call__

    def _install_backward(self) -> None:
        import torch.autograd.graph as graph

        run_backward = graph._engine_run_backward

        @functools.wraps(run_backward)
        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            if self._inside or self.scopes._backward_callers or not self._is_ours():
                return run_backward(*args, **kwargs)
            if self._group_is_skipped:
                # what the script did after the call has a graph of its own, which lets go of its tensors here
                return self._skip_backward(lambda: self.scopes.run_backward(*args, **kwargs))
            return self._trace(BACKWARD, 0, (), lambda: run_backward(*args, **kwargs))

        for module in (graph, torch.autograd):
            module._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]

    def _install_steps(self, optimizer: Any) -> None:
        hook = optimizer.profile_hook_step

        def profile_hook_step(function: Any) -> Any:
            step = hook(function)

            @functools.wraps(step)
            def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
                if self._step_is_empty:
                    return None
                if (args and args[0] is not None) or kwargs.get("closure") is not None:
                    self.refuse("the optimizer is given a closure")
                    return step(this, *args, **kwargs)
                return self._run("step", step, this, *args, **kwargs)

            wrapper.hooked = True  # type: ignore[attr-defined]
            return wrapper

        optimizer.profile_hook_step = staticmethod(profile_hook_step)

    def _around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return self._run(name, function, *args, **kwargs)

        return wrapper

    def refuse(self, reason: str) -> None:
        """From here on everything is traced."""
        if self.enabled:
            self.enabled, self.why_not = False, reason

    # ------------------------------------------------------------------ units

    def _is_ours(self) -> bool:
        return threading.get_ident() == self._thread and not self.recorder.paused

    def _takes_calls(self) -> bool:
        scopes = self.scopes
        return (
            not self._inside
            and not scopes._backward_callers
            and scopes.phase is not Phase.GENERATE
            and self._is_ours()
            and not scopes._thread().running
        )

    def _call(self, key: CallKey, run: Callable[[], Any]) -> Any:
        detail = self._call_kinds.setdefault(key.kind, len(self._call_kinds))
        keeps_graph = torch.is_grad_enabled()
        if keeps_graph:
            self._graph_calls += 1
            if self._graph_calls > MOST_CALLS:
                self.refuse(f"the script calls more than {MOST_CALLS} modules before one backward pass")
        placed = Placed(f"{CALL} {detail}", f"{CALL} {detail}", key.sizes)
        if not key.understood or not self._may_skip(placed, keeps_graph):
            self._group_is_traced |= keeps_graph
            before = self.recorder.values.gave_sizes
            result = self._trace(CALL, detail, key.sizes, run, inputs=key.inputs, keeps_graph=keeps_graph)
            if self.recorder.values.gave_sizes > before:
                self._by_content.add(key.plain_kind)
            return result
        self._group_is_skipped |= keeps_graph
        structure = self._samples[placed.kind].structure_at(key.sizes)
        assert structure is not None
        return self._skip(CALL, detail, placed, structure, key.inputs, keeps_graph)

    def _run(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A function that works on gradients: skipped where these are not there, since backward passes were skipped."""
        if self._inside or self.scopes._backward_callers or not self._is_ours():
            return function(*args, **kwargs)
        if self._order.traced_backwards or not self._order.backwards:
            return self._trace(name, 0, (), lambda: function(*args, **kwargs))
        placed = self._order.place(Unit(name, 0, 0, 0, False), as_traced=False)
        structure = self._structure(placed)
        made = self._skip(name, 0, placed, structure, [], keeps_graph=False)
        if name == "scaled_step":
            self._tell_of_step(args[1])
        if name in ("step", "scaled_step"):
            self.scopes.steps_done += 1
            self.scopes.phase = Phase.OTHER
        return made

    def _tell_of_step(self, optimizer: Any) -> None:
        """A scaler calls the optimizer's step, around which others count whether it did (accelerate, schedulers)."""
        self._step_is_empty = True
        try:
            optimizer.step()
        finally:
            self._step_is_empty = False

    def _skip_backward(self, release: Callable[[], Any]) -> Any:
        with self._unit():
            placed = self._order.place(Unit(BACKWARD, 0, 0, 0, False), as_traced=False)
            structure = self._structure(placed)
            with self._paused():
                made = release()
            self._note(BACKWARD, 0, placed, structure, traced=False)
        self._end_group()
        self.scopes.phase = Phase.OTHER
        return made

    def _structure(self, placed: Placed) -> int:
        """-1 where the samples do not show what it does: the answer then is an estimate."""
        samples = self._samples.get(placed.kind)
        found = None if samples is None else samples.sizes_at(placed.sizes)
        if found is None:
            self.not_shown[placed.group] += 1
            return -1
        return found[0]

    def _end_group(self) -> None:
        self._graph_calls = 0
        self._group_is_traced = self._group_is_skipped = False

    def _trace(
        self, name: str, detail: int, sizes: tuple[int, ...], run: Callable[[], Any], *,
        inputs: Sequence[torch.Tensor] = (), keeps_graph: bool = False,
    ) -> Any:  # fmt: skip
        with self._unit():
            result = run()
            self._settle()
            unit = Unit(name, detail, self._unit_start, len(self.recorder._events), True, sizes, keeps_graph)
            placed = self._order.place(unit, as_traced=True)
            ordinal = self._origins.begin(placed.group)
            shape = self._shape(unit.start, unit.end)
            self._origins.add(placed.group, ordinal, shape.survivors)
            structure = self._samples.setdefault(placed.kind, Samples()).add(placed.sizes, shape)
            self._plan(placed, structure, shape, result, inputs)
            self._order.go_past(unit, placed, structure)
            self.units.append(unit)
            self._last_group = placed.group
        if name == BACKWARD:
            self._end_group()
        return result

    def _skip(
        self, name: str, detail: int, placed: Placed, structure: int, inputs: Sequence[torch.Tensor], keeps_graph: bool
    ) -> Any:
        with self._unit():
            plan = self._plans[placed.kind, structure].at(placed.sizes) if structure >= 0 else None
            made: Any = None
            outputs: list[tuple[int, torch.Tensor]] = []
            if plan is not None:
                with self._paused():
                    made, outputs = make_outputs(plan, inputs)
            if name == CALL and keeps_graph and self.scopes.phase is not Phase.FORWARD:
                self.scopes.phase = Phase.FORWARD
                self.scopes.step = self.scopes.steps_done
            self._note(name, detail, placed, structure, False, keeps_graph, outputs)
        return made

    def _note(
        self, name: str, detail: int, placed: Placed, structure: int, traced: bool, keeps_graph: bool = False,
        outputs: Sequence[tuple[int, torch.Tensor]] = (),
    ) -> None:  # fmt: skip
        """A skipped unit; its outputs are blocks that live until the script lets go of them."""
        ledger = self.recorder
        ordinal = self._origins.begin(placed.group)
        with ledger._lock:
            for survivor, tensor in outputs:
                storage = tensor.untyped_storage()
                number = len(ledger._blocks)
                ledger._blocks[number] = Block(storage.nbytes(), "", self.scopes.phase, True, 0)
                ledger._events.append(number)
                ledger._watch(storage, number)
                self._origins.of[number] = BlockOrigin(placed.group, ordinal, survivor)
        own = placed.sizes if name == CALL else ()
        survivors = tuple(survivor for survivor, _ in outputs)
        unit = Unit(name, detail, self._unit_start, len(ledger._events), traced, own, keeps_graph, survivors)
        self._order.go_past(unit, placed, structure)
        self.units.append(unit)
        self._last_group = placed.group

    @contextlib.contextmanager
    def _unit(self) -> Iterator[None]:
        """What stood before it is a gap."""
        self._settle()
        events = self.recorder._events
        group = f"{GAP} {self._last_group}"
        ordinal = self._origins.begin(group)
        gap = self._shape(self._gap_start, len(events))
        self._origins.add(group, ordinal, gap.survivors)
        self._order.gap_survivors = len(gap.survivors)
        self._unit_start = len(events)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._gap_start = len(events)

    def _settle(self) -> None:
        with self.recorder._lock:
            self.recorder._settle_accumulation()

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        self.recorder.paused += 1
        try:
            yield
        finally:
            self.recorder.paused -= 1

    def _shape(self, start: int, end: int) -> Shape:
        blocks = self.recorder._blocks

        def events() -> Iterator[Any]:
            for event in self.recorder._events[start:end]:
                yield (event, blocks[event].nbytes, blocks[event].stream) if type(event) is int else event

        return shape_of(events(), self._origins)

    def _plan(self, placed: Placed, structure: int, shape: Shape, result: Any, inputs: Sequence[torch.Tensor]) -> None:
        numbers = {block: number for number, block in enumerate(shape.survivors)}

        def survivor_of(tensor: torch.Tensor) -> int | None:
            block = self.recorder.block_of(tensor)
            return None if block is None else numbers.get(block)

        plans = self._plans.setdefault((placed.kind, structure), OutputPlans())
        try:
            plans.add(placed.sizes, plan_outputs(result, inputs, survivor_of))
        except NotStubbed:
            plans.add(placed.sizes, None)

    # ------------------------------------------------------------------ whether a call may be skipped

    def _may_skip(self, placed: Placed, keeps_graph: bool) -> bool:
        done = self.scopes.steps_done
        if not self.enabled or (keeps_graph and (done < STEPS_BEFORE or done in self.traced_steps)):
            return False
        if keeps_graph and self._group_is_traced:
            return False
        samples = self._samples.get(placed.kind)
        found = None if samples is None else samples.sizes_at(placed.sizes)
        if found is None or self._plans[placed.kind, found[0]].at(placed.sizes) is None:
            return False
        return not keeps_graph or self._graph_calls > 1 or self._rest_is_shown(placed, found[0])

    def _rest_is_shown(self, placed: Placed, structure: int) -> bool:
        """The backward pass of this call, and all that is done with gradients."""
        begins = f"{placed.kind}/{structure}"
        first = not self._order.backwards
        passes: dict[str, list[Samples]] = {"first": [], "again": []}
        for kind, samples in self._samples.items():
            name, _, rest = kind.partition(" of ")
            if name.startswith(BACKWARD) and (rest + " ").startswith(begins + " "):
                passes[name.partition(" ")[2]].append(samples)
            elif not kind.startswith((CALL, BACKWARD)) and not kind.endswith("of nothing"):
                found = samples.sizes_at(())
                if found is None or self._plans[kind, found[0]].at(()) is None:
                    return False
        # a script that lets go of gradients between the call and its backward pass never adds to any
        wanted = passes["first"] if first or not passes["again"] else passes["again"]
        others = passes["again"] if first else []
        return (
            bool(wanted)
            and any(_shows(samples, placed.sizes) for samples in wanted)
            and (not others or any(_shows(samples, placed.sizes) for samples in others))
        )

    def _key(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> CallKey:
        leaves, tree = tree_flatten((args, kwargs))
        kind: list[Any] = [
            id(module), torch.is_grad_enabled(), module.training, str(tree), torch.is_autocast_enabled("cuda"),
            str(torch.get_autocast_dtype("cuda")), _state(module),
        ]  # fmt: skip
        sizes: list[int] = []
        counts: list[int] = []
        inputs: list[torch.Tensor] = []
        understood = True
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                inputs.append(leaf)
                flags, counted = _content(leaf)
                sizes += map(int, leaf.shape)
                counts += counted
                kind.append((str(leaf.dtype), leaf.dim(), leaf.device.type, leaf.requires_grad, flags))
            elif isinstance(leaf, float):
                kind.append("float")
            elif isinstance(leaf, PLAIN):
                kind.append(leaf)
            else:
                kind.append(type(leaf).__qualname__)
                understood = False
        plain = tuple(map(str, kind))
        if plain not in self._by_content:
            return CallKey(plain, plain, tuple(sizes), inputs, understood)
        return CallKey(plain, (*plain, str(len(counts))), (*sizes, *counts), inputs, understood)


def _state(module: torch.nn.Module) -> int:
    """What a script may change between two calls: layers that are frozen, converted, or left out of training."""
    kept: list[Any] = []
    seen = {id(module)}
    waiting = [module]
    while waiting:  # as `module.modules()`, which also makes names: some thousand of a large model, call after call
        part = waiting.pop()
        kept.append(part.training)
        for each in part._parameters.values():
            if each is not None:
                kept += each.requires_grad, each.dtype, getattr(each, "fake_device", None) or each.device
        for inner in part._modules.values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
    return hash(tuple(kept))


def _lost_gradients(module: torch.nn.Module) -> bool:
    trained = [each for each in module.parameters() if each.requires_grad]
    return bool(trained) and all(each.grad is None for each in trained)


def _shows(samples: Samples, sizes: tuple[int, ...]) -> bool:
    """Of a backward pass of several calls only the sizes of the first are known before."""
    return samples.of_first(len(sizes)).sizes_at(sizes) is not None


def _content(tensor: torch.Tensor) -> tuple[str, list[int]]:
    """What a model makes sizes of beside shapes. Of a mask whether it hides anything, since models leave it away where
    it does not, and how many it leaves. Of others how many are not below 0 after the first of a row: labels below 0 are
    none (-100), and some losses drop their places before they multiply (trl/trainer/utils.py, `add_fused_lm_head`)."""
    if tensor.dtype not in INTEGERS or not tensor.dim():
        return "", []
    with _disable_current_modes():
        value = known(tensor) if hasattr(tensor, "fake_mode") else tensor
        if value is None or not value.numel() or value.device.type != "cpu":
            return "", []
        low, high = int(value.min()), int(value.max())
        if low in (0, 1) and high in (0, 1):
            return f"{low}{high}", [int(value.sum())]
        return "", [int((value[:, 1:] >= 0).sum())] if value.dim() > 1 else []
