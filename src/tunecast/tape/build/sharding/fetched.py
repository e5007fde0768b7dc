"""Weights of ZeRO-3: who fetches them and when, and when they are let go.

After DeepSpeed 0.19.8 (runtime/zero/parameter_offload.py, partitioned_param_coordinator.py, partition_parameters.py,
linear.py, leaf_module_config.py); what it does to memory is told in zero3.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Leaf, Node, before_gradient_of, finish, start
from tunecast.tape.build.dtypes import INT64, Dtype
from tunecast.tape.build.experts import SparseMoe
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.nested import tensors_in, watched
from tunecast.tape.build.sharding.shards import Resizable
from tunecast.tape.build.sharding.zero import Zero
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import FROM_HOST, FROM_NVME, Phase, Role

WHOLE_BLOCKS = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Of these the blocks of experts are fetched as one (leaf_module_config.py, `DEFAULT_LEAF_MODULE_CLASSES`)."""


class Cut:
    """A parameter: `whole`, whose memory comes and goes, and how large this rank's part is."""

    def __init__(self, parameter: Tensor, ranks: int, dtype: Dtype, stays: bool) -> None:
        machine = parameter.machine
        self.numel, self.part_numel = parameter.numel(), -(-parameter.numel() // ranks)
        self.trains, self.stays = parameter.requires_grad, stays
        block = parameter.block
        self.module, self.role = block.module, block.role or Role.WEIGHTS
        self.padded_bytes = self.part_numel * ranks * dtype.itemsize
        self.whole = Tensor(machine, Resizable(machine, self.padded_bytes), parameter.shape, dtype)
        self.whole.requires_grad = self.trains
        self.active: set[int] = set()
        """Modules, by id, that have fetched it and not let it go (`ds_active_sub_modules`)."""
        self.on_nvme = False

    @property
    def is_there(self) -> bool:
        """Also where a layer gave it other data, as bitsandbytes casts a bias in its forward pass."""
        storage = self.whole.storage
        return not isinstance(storage, Resizable) or storage.is_there

    def take(self, nbytes: int | None = None) -> None:
        """Padded, unless so many bytes are wanted."""
        self.whole.storage.nbytes = nbytes or self.padded_bytes  # type: ignore[attr-defined]
        self.whole.storage.take(Role.WEIGHTS)  # type: ignore[attr-defined]

    def let_go(self) -> None:
        """`free_param` gives it other data. What a recomputation saved of it holds the memory until it is used."""
        self.whole.storage = Resizable(self.whole.machine, self.padded_bytes)


class Fetch:
    """Parameters that are gathered together (`AllGatherCoalescedHandle`)."""

    def __init__(self, cuts: Sequence[Cut], buffer: Tensor | None) -> None:
        self.cuts, self.buffer = cuts, buffer
        self.arrived = False


class FetchedWeights(Zero):
    all: list[Cut]
    cuts: dict[int, Cut]
    """By the id of the whole."""
    places: dict[int, int]
    """In the order of the model, by the same."""
    gathering: int
    """The stream."""

    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.parts_on_host = job.parallel.offload == "parameters"
        self.trace: list[Module] = []
        self.known = False
        self.turn = 0
        self.queue: deque[tuple[int, Cut]] = deque()
        self.last_fetched_for: dict[int, int] = {}
        self.live = 0
        """Elements of parameters that are whole or on their way."""
        self.owned: dict[int, list[Cut]] = {}
        self.in_backward: dict[int, Module] = {}
        """Modules whose backward pass has begun and not ended, by id (`active_backward_submodules`)."""
        self.recomputed: dict[int, list[Cut]] = {}
        """Frozen parameters fetched for a recomputation, by the module in whose backward pass that ran."""
        self.under_way: dict[int, Fetch] = {}
        """Parameters that nobody has asked for since they were fetched, by id (`InflightParamRegistry`)."""
        self.hooked: list[Any] = []
        self.in_block: set[int] = set()
        """Parameters of blocks that are fetched as one, by id."""

    def begin_forward(self) -> None:
        """`reset_step`: what was written down in the first pass holds from the second on."""
        super().begin_forward()
        if self.trace and not self.known:
            self.known = True
            numel = sum(len(self.own(module)) for module in self.trace)
            for each in (len(self.trace), numel, numel):  # `assert_ints_same_as_other_ranks`
                self.machine.run("_to_copy", (), (each,), INT64)
                self.machine.collective_of("broadcast", "data", self.ranks, INT64, each)
        self.turn = self.live = 0
        self.last_fetched_for.clear()
        self.queue = deque((turn, cut) for turn, module in enumerate(self.trace) for cut in self.own(module))

    def own(self, module: Module) -> list[Cut]:
        found = self.owned.get(id(module))
        if found is None:
            cuts = {id(t): self.cuts[id(t)] for t in module.own.values() if id(t) in self.cuts}
            found = self.owned[id(module)] = list(cuts.values())
        return found

    def watch_all(self, module: Module, whole_blocks: bool) -> None:
        """Those without parameters too: each fetches ahead. A block of experts is fetched and let go as one."""
        is_block = whole_blocks and isinstance(module, SparseMoe)
        if is_block:
            self.owned[id(module)] = [self.cuts[id(tensor)] for tensor in module.parameters()]
            self.in_block |= {id(cut.whole) for cut in self.owned[id(module)]}
            self.reduce_behind(module)
        for child in () if is_block else module.children.values():
            self.watch_all(child, whole_blocks)
        self.watch(module)

    def reduce_behind(self, module: Module) -> None:
        """`reduce_leaf_module_grads`: a full backward hook, which holds the gradients that came in until those of the
        inputs are there."""
        forward: Callable[..., Any] = module.forward
        held: list[Any] = []

        def keep(node: Node, gradients: Gradients) -> Gradients:
            held.extend(gradients)
            return gradients

        def done(node: Node, gradients: Gradients) -> Gradients:
            held.clear()
            for cut in self.owned[id(module)]:
                if cut.trains:
                    self.ready(cut.whole)
            return gradients

        def run(*args: Any, **kwargs: Any) -> Any:
            return watched(self.machine, forward(*watched(self.machine, args, done), **kwargs), keep)

        object.__setattr__(module, "forward", run)

    def watch(self, module: Module, around: Module | None = None) -> None:
        """Or one around it, which hands on what it is called with."""
        forward: Callable[..., Any] = module.forward
        runs = around or module

        def run(*args: Any, **kwargs: Any) -> Any:
            self.fetch(runs, in_forward=True)
            args = self.watched_inputs(runs, args)
            output = forward(*args, **kwargs)
            self.release(runs, in_forward=True)
            if self.machine.grad_enabled:
                for tensor in tensors_in(output):
                    if tensor.requires_grad:
                        node = before_gradient_of(tensor, lambda: self.fetch(runs, in_forward=False))
                        node.before = (*node.before[-1:], *node.before[:-1])  # who gives another's result begins first
                        if isinstance(node, Leaf):
                            self.hooked.append(node)
            return output

        object.__setattr__(module, "forward", run)

    def watched_inputs(self, module: Module, args: tuple[Any, ...]) -> Any:
        """`PostBackwardFunctionModule`: once the gradients of its inputs are there, the module is done."""

        def done(node: Node, gradients: Gradients) -> Gradients:
            self.release(module, in_forward=False)
            return gradients

        return watched(self.machine, args, done)

    def read_before(self, following: Module, reader: Module, cut: Cut) -> None:
        """PEFT asks for the dtype of `lora_A.weight` where that is not at work: who asks is given the parameter whole,
        and has it among its own from then on (`ZeROOrderedDict.__getitem__`, `register_external_parameter`)."""
        forward: Callable[..., Any] = following.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            self.read_by(reader, cut.whole)
            return forward(*args, **kwargs)

        object.__setattr__(following, "forward", run)

    def read_by(self, reader: Module, weight: Tensor) -> Tensor:
        cut = self.cuts[id(weight)]
        if not cut.is_there and id(cut) not in self.under_way:
            own = self.own(reader)
            if cut not in own:
                own.append(cut)
            self.gather_here([cut])
        return weight

    def gather_here(self, cuts: Sequence[Cut]) -> None:
        """`Parameter.all_gather`: on the stream at hand, at once. Of several, all parts are on the card first."""
        parts = self.bring_parts(cuts) if len(cuts) > 1 else []
        for cut in cuts:
            cut.take()
        parts = parts or self.bring_parts(cuts)
        for cut in cuts:
            self.machine.collective_of("all_gather", "data", self.ranks, self.dtype, cut.part_numel)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`LinearFunctionForZeroStage3`, in the place of torch's: it saves both factors, whoever is trained."""
        machine = self.machine

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            gradient, (x, weight) = gradients[0], (node.take(0), node.take(1))
            of_input = of_weight = of_bias = None
            flat = gradient.reshape(-1, gradient.shape[-1])
            if node.needs[0]:
                of_input = F.mm(flat, weight).alias(x.shape, None)
                of_input.is_view = False  # `_unsafe_view`
            if node.needs[1]:
                of_weight = F.mm(flat.t(), x.reshape(-1, x.shape[-1]))
            if node.needs[2]:
                of_bias = gradient.sum(range(gradient.dim() - 1))
            return of_input, of_weight, of_bias

        node = start(machine, (x, weight, bias), back)
        with machine.no_grad():
            if x.dim() == 2 and bias is not None:
                out = F.addmm(bias, x, weight.t())
            else:
                out = F.matmul(x, weight.t())
                if bias is not None:
                    machine.launch("add_", (out, bias), out.dtype, out.nbytes)
        return finish(node, out, x, weight)

    def fetch(self, module: Module, in_forward: bool) -> None:
        """`_fetch_sub_module_impl`."""
        own = self.own(module)
        if not in_forward:
            self.in_backward.setdefault(id(module), module)
        with self.machine.within(module.path):
            self.gather([cut for cut in own if not cut.is_there and id(cut) not in self.under_way])
            for cut in own:
                cut.active.add(id(module))
                if in_forward and self.machine.phase is Phase.BACKWARD and self.in_backward and not cut.trains:
                    under = next(reversed(self.in_backward))
                    self.recomputed.setdefault(under, []).append(cut)
                    cut.active.add(under)
                self.arrive(cut)
            if not self.known:
                self.trace.append(module)
            else:
                self.prefetch()
        self.turn += 1

    def prefetch(self) -> None:
        while self.queue and self.queue[0][0] <= self.turn:
            turn, cut = self.queue.popleft()
            self.last_fetched_for[id(cut)] = max(turn, self.last_fetched_for.get(id(cut), -1))
        most = min(self.settings.max_live_parameters - self.live, self.settings.prefetch_bucket_size)
        ahead: list[Cut] = []
        numel = 0
        while self.queue and numel < most:
            turn, cut = self.queue.popleft()
            self.last_fetched_for[id(cut)] = max(turn, self.last_fetched_for.get(id(cut), -1))
            if not cut.is_there and id(cut) not in self.under_way and cut not in ahead:
                ahead.append(cut)
                numel += cut.numel
        self.gather(ahead)

    def gather(self, cuts: Sequence[Cut]) -> None:
        """`all_gather_coalesced`: one parameter is gathered where it will be, several through a buffer."""
        if not cuts:
            return
        machine = self.machine
        cuts = sorted(cuts, key=lambda cut: self.places[id(cut.whole)])
        numel = sum(cut.part_numel for cut in cuts)
        with machine.on_stream(self.gathering):
            machine.wait(0)
            if any(cut.on_nvme for cut in cuts):
                read = sum(cut.part_numel for cut in cuts if cut.on_nvme)
                machine.launch(FROM_NVME, (), self.dtype, read * self.dtype.itemsize, kernels=0)
            buffer = None
            if len(cuts) > 1:
                buffer = machine.run("empty", (), (numel * self.ranks,), self.dtype).as_role(Role.TEMPORARIES)
            else:
                cuts[0].take()
            parts = self.bring_parts(cuts)
            machine.collective_of("all_gather", "data", self.ranks, self.dtype, numel)
            del parts
        fetch = Fetch(cuts, buffer)
        for cut in cuts:
            self.under_way[id(cut)] = fetch
            self.live += cut.numel

    def bring_parts(self, cuts: Sequence[Cut]) -> list[Tensor]:
        """From host memory, where they are there."""
        if not self.parts_on_host:
            return []
        return [self.machine.run(FROM_HOST, (), (cut.part_numel,), self.dtype) for cut in cuts]

    def arrive(self, cut: Cut) -> None:
        """`AllGatherCoalescedHandle.wait`: all that travelled with it is copied out, without padding. The buffer lives
        until the last of them has been asked for."""
        fetch = self.under_way.pop(id(cut), None)
        if fetch is None or fetch.arrived:
            return
        machine = self.machine
        fetch.arrived = True
        if fetch.buffer is not None:
            with machine.on_stream(self.gathering):
                for each in fetch.cuts:
                    machine.launch("cat", (fetch.buffer,), self.dtype, each.whole.nbytes)
                    each.take(each.whole.nbytes)
        machine.wait(self.gathering)

    def release(self, module: Module, in_forward: bool) -> None:
        """`release_sub_module`, `__params_to_release`. What stays does once the order is known."""
        own = self.own(module)
        candidates = {id(cut): cut for cut in own if not (self.known and cut.stays)}
        if self.known:
            for number in list(candidates):
                if self.last_fetched_for.get(number, -1) >= self.turn:
                    del candidates[number]
            traversed = 0
            for turn in range(self.turn, len(self.trace)):  # a slice would copy what is mostly never looked at
                if traversed >= self.settings.max_reuse_distance or not candidates:
                    break
                for cut in self.own(self.trace[turn]):
                    candidates.pop(id(cut), None)
                    traversed += cut.numel
        if not in_forward:
            again = self.recomputed.pop(id(module), [])
            candidates |= {id(cut): cut for cut in again if not cut.stays}
            own = [*own, *again]
            self.in_backward.pop(id(module), None)
        for cut in own:
            cut.active.discard(id(module))
        for cut in candidates.values():
            self.let_go(cut)

    def let_go(self, cut: Cut) -> None:
        if cut.is_there and not cut.active:
            cut.let_go()
            self.live -= cut.numel

    def whole(self, weight: Tensor) -> Tensor:
        """TRL's `maybe_gather_lm_head_ctx`."""
        cut = self.cuts[id(weight)]
        if not cut.is_there and id(cut) not in self.under_way:
            self.gather([cut])
        self.arrive(cut)
        return weight

    def ready(self, whole: Tensor) -> None:
        """Its gradient is."""
        raise NotImplementedError
