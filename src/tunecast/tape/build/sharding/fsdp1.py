"""FSDP 1 on paper: torch.distributed.fsdp.FullyShardedDataParallel, weights of a module flattened into one tensor.

    flat parameter   a unit's weights end to end; each rank holds a part, all parts equally long
    unshard          all parts are gathered into `full`, memory that comes and goes under tensors that stay
    views            the module's weights while it runs: pieces of `full`, their history ending in the flat parameter
    gradient         whole when the last weight's has come (`cat`), then summed over ranks; each keeps its part

A unit is gathered before its forward pass, again before its backward pass (and the unit before it, beforehand), and let
go after each; the outermost one stays from forward to backward. With mixed precision a rank's part is cast to the low
precision first, and only that is gathered; gradients are summed in the reduce dtype and cast back.

    flat_parts.py    settings, lengths, pieces      flat_unit.py    one unit      here: the model, and clipping

Source  torch 2.13, torch/distributed/fsdp: _flat_param.py (`FlatParamHandle`), _runtime_utils.py, _exec_order_utils.py,
        fully_sharded_data_parallel.py (`clip_grad_norm_`). Names of steps below are theirs.
        _limiter_utils.py (`_FreeEventQueue`)
Ignored Reentrant recomputation inside a unit: nodes are numbered by thread, so in the first step the `cat` of the last
        layers comes before the end of their own backward pass; from then on after it, as here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer, Module, bring
from tunecast.tape.build.optimizers import clip_gradients
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.sharding import flat_unit
from tunecast.tape.build.sharding.flat_parts import GROUP, Options, Weight, on_host
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import HOST_WAIT, MANY, WAIT, Op, Role

__all__ = ["Flattened", "Options"]


class Flattened:
    """A model in FSDP's hands: its units, and what they share."""

    def __init__(
        self, model: Any, options: Options, chosen: Callable[[Module], bool], ignored: frozenset[int] = frozenset(),
        words: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        """`ignored` are parameters left alone, by identity; `words` buffers that are treated as parameters."""
        self.options, self.model = options, model
        self.machine: Machine = model.machine
        self.post_forward_order: list[flat_unit.FlatParamHandle] = []
        self.upcast: list[flat_unit.FlatParamHandle] = []
        self.adapts = any(not parameter.requires_grad for parameter in model.parameters())
        self.sync = True
        """Gradients are summed over the ranks after this backward pass; not in `no_sync`."""
        self.queued = self.started = False
        self.let_go = 0
        """Units whose events nobody waited for yet (`_FreeEventQueue`)."""
        self.zero: Tensor | None = None
        self.words = frozenset(id(tensor) for tensor in words)
        packed = [module for module in model.modules() if isinstance(module, Linear4bit)]
        self.scales = {id(module.weight): module.state.tensors() for module in packed}
        made: dict[int, flat_unit.FlatParamHandle] = {}
        self._wrap(model, chosen, set(ignored), made, True)
        self.units = [made[id(module)] for module in model.modules() if id(module) in made]
        for module in model.modules():
            for tensor in module.own.values():
                if isinstance(tensor, Buffer) and on_host(tensor):
                    bring(tensor, module.path)
        for unit in self.units:
            if unit in self.upcast:
                unit.widen()
        managed = {id(weight.tensor) for unit in self.units for weight in unit.weights}
        self.others = [p for p in model.parameters() if p.requires_grad and id(p) not in managed]
        """Trained, and not FSDP's."""
        for parameter in self.others:
            if on_host(parameter):
                bring(parameter, parameter.block.module, Role.ADAPTERS)
        self.packs = any(not w.tensor.dtype.floating for unit in self.units for w in unit.weights)
        """bitsandbytes registers views of packed weights as parameters, which then look like nobody's
        (nn/modules.py, `fix_4bit_weight_quant_state_from_module`)."""
        self.order = [id(p) for p in model.parameters()]

    def _wrap(
        self,
        module: Module,
        chosen: Callable[[Module], bool],
        taken: set[int],
        made: dict[int, flat_unit.FlatParamHandle],
        root: bool,
    ) -> None:
        """`_recursive_wrap`: what is inside first."""
        for child in module.children.values():
            self._wrap(child, chosen, taken, made, False)
        if not root and not chosen(module):
            return
        weights = weights_of(module, taken, self.words)
        if not weights:
            return
        taken.update(id(weight.tensor) for weight in weights)
        unit = made[id(module)] = flat_unit.FlatParamHandle(self, module, weights, root)
        put_around(module, unit, self.options.inside_checkpoint)

    def parameters(self) -> list[Tensor]:
        """What an optimizer is given: flat parameters, or the pieces of the original ones in the model's order."""
        found: dict[int, Tensor] = {id(p): p for p in self.others}
        if not self.options.use_orig_params:
            return [*[unit.shard for unit in self.units if unit.trains], *self.others]
        for unit in self.units:
            trained = [w.tensor for w in unit.weights if w.tensor.requires_grad]
            found |= {id(t): piece for t, piece in zip(trained, unit.pieces, strict=False)}
        return [found[key] for key in self.order if key in found]

    # ------------------------------------------------------------------------------------------ a pass

    def before_forward(self) -> None:
        """`_root_pre_forward`, with `_lazy_init` the first time."""
        machine = self.machine
        with machine.within(self.model.path):
            if not self.started:
                self.started = True
                self._cast_buffers()
                for unit in self.units:
                    with machine.within(unit.module.path):
                        unit.init_attributes()
            for stream in (flat_unit.UNSHARD, flat_unit.PRE_UNSHARD):
                with machine.on_stream(stream):
                    machine.wait(0)
            self.drop_gradients()

    def _cast_buffers(self) -> None:
        dtype = self.options.buffer_dtype
        if dtype is None:
            return
        for module in self.model.modules():
            for buffer in module.own.values():
                if isinstance(buffer, Buffer) and buffer.dtype.floating and buffer.dtype != dtype:
                    cast = self.machine.run("_to_copy", (buffer,), buffer.shape, dtype).as_role(Role.WEIGHTS)
                    buffer.storage, buffer.dtype = cast.storage, dtype

    def drop_gradients(self) -> None:
        """`_reset_flat_param_grad_info_if_needed`: where no original parameter has a gradient, the flat one goes."""
        for unit in self.units:
            if unit.pieces and all(piece.grad is None for piece in unit.pieces):
                unit.gradient = None

    def note_free(self) -> None:
        """`_reshard`: an event where the card is done with a unit; those before it are one older each."""
        pairs = zip((self.machine.stream, *flat_unit.FREED), flat_unit.FREED, strict=False)
        where = self.machine.module
        marks = [Op(WAIT, where, kernels=0, shapes=((newer,),), stream=event) for newer, event in pairs]
        self.machine.mark(*reversed(marks))
        self.let_go = min(self.let_go + 1, len(flat_unit.FREED))

    def limit(self) -> None:
        """`limit_all_gathers`: before a gather, the host waits for the oldest event of two or more. Every unit counts,
        so with one an adapter's weight the host is never more than two of them ahead of the card."""
        if self.let_go >= flat_unit.IN_FLIGHT:
            self.machine.mark(Op(HOST_WAIT, self.machine.module, kernels=0, stream=flat_unit.FREED[self.let_go - 1]))
            self.let_go -= 1

    def frees_in_backward(self) -> bool:
        return self.sync or self.options.reshard_after_forward

    def after_backward(self) -> None:
        """`_post_backward_final_callback`."""
        with self.machine.within(self.model.path):
            if self.sync:
                self.machine.wait(flat_unit.POST_BACKWARD)
                if self.options.replicas > 1:
                    self.machine.wait(flat_unit.ALL_REDUCE)
            self.post_forward_order.clear()
            for unit in self.units:
                unit.finish_backward()
        self.queued = False

    def clip(self) -> Tensor | None:
        """`clip_grad_norm_`: norms one by one, in fp32; the sum of squares over the ranks."""
        machine = self.machine
        machine.module = MANY
        if self.zero is None:
            self.zero = machine.run("_to_copy", (), (), FLOAT32)
        sharded: list[Tensor] = []
        for unit in self.units:
            sharded += (unit.pieces or [unit.shard]) if unit.trains else []
        if not self.options.shards:
            return clip_gradients([*sharded, *self.others])
        local = self.norm(sharded)
        total = machine.run("pow", (local,), (), FLOAT32)
        machine.collective("all_reduce", GROUP, self.options.ranks, FLOAT32, 4, 4, 1)
        if self.others or (self.packs and not self.options.use_orig_params):
            machine.run("pow", (self.norm(self.others),), (), FLOAT32)
        total = machine.run("pow", (total,), (), FLOAT32)
        with self.where():
            total = self.scaled([p.grad for p in (*sharded, *self.others) if p.grad is not None], total)
        machine.module = ""
        return total

    def where(self) -> contextlib.AbstractContextManager[None]:
        """Where a rank's parts and their gradients are."""
        return self.machine.on_host() if self.options.on_host else contextlib.nullcontext()

    def scaled(self, gradients: Sequence[Tensor], total: Tensor) -> Tensor:
        machine = self.machine
        shifted = machine.run("add", (total,), (), FLOAT32)
        coefficient = machine.run("mul", (machine.run("reciprocal", (shifted,), (), FLOAT32),), (), FLOAT32)
        del shifted
        clamped = machine.run("clamp", (coefficient,), (), FLOAT32)
        for gradient in gradients:
            factor = clamped.to(gradient.dtype)
            machine.launch("mul_", (gradient, factor), gradient.dtype, gradient.nbytes)
            del factor
        if not gradients:  # a rank without any takes float32 (`FullyShardedDataParallel.clip_grad_norm_`)
            return total
        return total.to(FLOAT32 if any(g.dtype == FLOAT32 for g in gradients) else gradients[0].dtype)

    def norm(self, parameters: Sequence[Tensor]) -> Tensor:
        """`_get_grad_norm`."""
        machine = self.machine
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            assert self.zero is not None
            return self.zero
        norms = []
        with self.where():
            for gradient in gradients:
                with machine.within(gradient.block.module):
                    norm = machine.run("linalg_vector_norm", (gradient,), (), FLOAT32, args=(gradient, 2.0, None))
                norms.append(norm)
            stacked = machine.run("stack", norms, (len(machine.repeated(gradients)),), FLOAT32)
            del norms, norm
            total = machine.run("linalg_vector_norm", (stacked,), (), FLOAT32, args=(stacked, 2.0, None))
        return machine.run("_to_copy", (total,), (), FLOAT32) if self.options.on_host else total


class Around(Module):
    """A module whose calls go through its unit, recomputation and all."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["fsdp"].call(super().__call__, *args, **kwargs)


def put_around(module: Module, unit: flat_unit.FlatParamHandle, inside_checkpoint: bool) -> None:
    if inside_checkpoint:
        inner = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return unit.call(inner, *args, **kwargs)

        vars(module)["forward"] = forward
        return
    vars(module)["fsdp"] = unit
    kind = type(module)
    module.__class__ = type(kind.__name__, (Around, kind), {})


def weights_of(module: Module, taken: set[int], words: frozenset[int]) -> list[Weight]:
    """Of the module and what is in it, but for what inner units took."""
    found: dict[int, Weight] = {}
    for inner in module.modules():
        for name, tensor in inner.own.items():
            if id(tensor) not in taken and (id(tensor) in words or not isinstance(tensor, Buffer)):
                found.setdefault(id(tensor), Weight(tensor)).places.append((inner, name))
    return list(found.values())


class FlatScheme(Scheme):
    """A model in FSDP 1's hands, whoever put it there: `wrap` makes `flat`."""

    flat: Flattened
    loads_on_host = True

    def parameters(self, model: Any) -> list[Tensor]:
        return self.flat.parameters()

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self.flat.sync = self.reduces_after(last)
        try:
            yield
        finally:
            self.flat.sync = True

    def end(self) -> None:
        self.flat.drop_gradients()

    def clip(self, parameters: Sequence[Tensor]) -> Tensor | None:
        return self.flat.clip()
