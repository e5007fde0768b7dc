"""DeepSpeed's ZeRO-3 on paper: weights too are cut, and come whole when a module runs.

After DeepSpeed 0.19.8 (runtime/zero/stage3.py, parameter_offload.py, partitioned_param_coordinator.py,
partition_parameters.py, linear.py), with the sizes of zero.py. A parameter is cut as one row of numbers, padded; a
rank's parts are all in one buffer.

    fetched    when its module runs, in both passes: gathered into a buffer; where several travel together, each is then
               copied out of it, and the buffer stays until the last of them has been asked for
    ahead      the first pass writes down who runs when; later ones fetch what comes next (`prefetch_bucket_size`)
               beyond each module, as long as fewer than `max_live_parameters` are there
    released   after its module, unless it is needed again within `max_reuse_distance`: at the turn from forward to
               backward much stays. A recomputed layer holds what it saved of its weights
    small      parameters up to `param_persistence_threshold` are whole from the first step's end on, and gathered anew
               after each step
    linear     `torch.nn.functional.linear` is DeepSpeed's own: it saves input and weight, whoever is trained
    gradients  into a bucket (`reduce_bucket_size`) that is always there; a full one is interleaved in a copy,
               scattered, and this rank's part kept (`grad_partitions_flat_buffer`)
    offload    a part goes to the host, comes back to be added up, and goes once more in float32; on the way to drives
               (ZeRO-Infinity) all of a bucket is on the card in float32
    drives     a part is read before it is copied to the card; a sub-group's masters, state and gradients are read,
               stepped on the host and written, one after the other (`pipeline_read`, `pipeline_write` false)
Ignored  that parts still on a drive end what is fetched ahead, so that a card holds a little less; gradients' writes
         that backward hides where there are several sub-groups; that NCCL holds a part that came from the host until
         somebody waits for what is gathered
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapters import LoraLinear
from tunecast.tape.build.autograd import Gradients, Leaf, Node, before_gradient_of, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT16, FLOAT32, INT64, Dtype
from tunecast.tape.build.event_log import HOST
from tunecast.tape.build.experts import SparseMoe
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer, Module
from tunecast.tape.build.nested import tensors_in, watched
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.sharding.accelerate import STORED
from tunecast.tape.build.sharding.host import HostOptimizer
from tunecast.tape.build.sharding.shards import Resizable
from tunecast.tape.build.sharding.zero import FLOAT64, MILLION, MIN_AIO_BYTES, Zero, kept_in_memory, sub_groups
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import FROM_HOST, FROM_NVME, MANY, TO_HOST, TO_NVME, Phase, Role

OVERLAPPING = 1, 2
"""The streams `__allgather_stream` and `reduce_and_partition_stream`, where these are not the default one."""
WHOLE_BLOCKS = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Of these the blocks of experts are fetched as one (leaf_module_config.py, `DEFAULT_LEAF_MODULE_CLASSES`)."""
NORM_PIECE = 250 * MILLION
"""`_constant_buffered_norm2`."""


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
        return self.whole.storage.is_there  # type: ignore[attr-defined]

    def take(self, nbytes: int | None = None) -> None:
        """Padded, unless so many bytes are wanted."""
        self.whole.storage.nbytes = nbytes or self.padded_bytes  # type: ignore[attr-defined]
        self.whole.storage.take(Role.WEIGHTS)  # type: ignore[attr-defined]

    def let_go(self) -> None:
        """`free_param` gives it other data. What a recomputation saved of it holds the memory until it is used."""
        self.whole.storage = Resizable(self.whole.machine, self.padded_bytes)


def store_as_floats(model: Any, dtype: Dtype) -> None:
    """`bnb_4bit_quant_storage`: packed weights under the dtype of the others, so that they are gathered with them."""
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.machine.assumptions[STORED] = None
            packed = module.weight
            packed.shape, packed.dtype = (packed.numel() // dtype.itemsize, 1), dtype


HANDED_ON = (
    "ZeRO-3 hands weights and gradients to another stream (record_stream): they are taken as free again at once, where "
    "a card waits for that stream, and what is reserved can be more"
)
ADAPTERS_CAST = (
    "ZeRO-3 is taken to train adapters in the dtype of the weights; where a model is loaded under zero.Init, as the "
    "Trainer does, they stay in float32"
)


class Fetch:
    """Parameters that are gathered together (`AllGatherCoalescedHandle`)."""

    def __init__(self, cuts: Sequence[Cut], buffer: Tensor | None) -> None:
        self.cuts, self.buffer = cuts, buffer
        self.arrived = False


class Zero3(Zero):
    checked_dtypes = (FLOAT16,)
    sums_norms_in = FLOAT64

    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.parts_on_host = job.parallel.offload == "parameters"
        self.on_nvme = job.parallel.offload_device == "nvme"
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
        self.in_bucket: list[Tensor] = []
        self.first = self.last = True
        self.hooked: list[Any] = []
        self.stepped: list[list[int]] = []
        """Elements of the parts in each master."""
        self.in_block: set[int] = set()
        """Parameters of blocks that are fetched as one, by id."""

    def untraced(self) -> list[str]:
        return super().untraced() + (["DoRA"] if self.job.lora.dora and self.job.method != "full" else [])

    # -------------------------------------------------------------------------------------------------- loading

    def wrap(self, model: Any) -> None:
        wide = self.job.method != "full" and self.job.lora.adapter_dtype == "float32" != self.dtype.name
        if wide and not stack_of(self.job).is_plain_loop:
            self.machine.guesses[ADAPTERS_CAST] = None
        self.begin(model)
        self.gathering, self.scattering = (0, 0) if self.settings.overlap_comm is False else OVERLAPPING
        if self.gathering:
            self.machine.guesses[HANDED_ON] = None
        store_as_floats(model, self.dtype)
        threshold = self.settings.param_persistence_threshold
        given = list(model.parameters())  # held: an id is a tensor's own as long as it lives
        made = {id(tensor): Cut(tensor, self.ranks, self.dtype, tensor.numel() <= threshold) for tensor in given}
        for module in model.modules():
            for name, tensor in list(module.own.items()):
                if not isinstance(tensor, Buffer):
                    module.own[name] = made[id(tensor)].whole
                    object.__setattr__(module, name, made[id(tensor)].whole)
                    if isinstance(module, Linear4bit) and name == "weight":
                        module.state.packed = made[id(tensor)].whole
        self.all = list(made.values())
        self.cuts = {id(cut.whole): cut for cut in self.all}
        self.places = {number: place for place, number in enumerate(self.cuts)}
        del given
        trained = [cut for cut in self.all if cut.trains]
        total = sum(cut.part_numel for cut in trained)
        self.parts = self.made(total, self.dtype, self.role(), self.parts_on_host)
        frozen = [cut for cut in self.all if not cut.trains]
        self.frozen = [self.made(cut.part_numel, self.dtype, cut.role, self.parts_on_host) for cut in frozen]
        numels = [cut.part_numel for cut in trained]
        for group in self.groups([cut.whole for cut in trained]):
            for parts in sub_groups([self.cuts[id(whole)].part_numel for whole in group], self.settings.sub_group_size):
                self.masters.append(self.master(sum(parts)))
                self.stepped.append(parts)
        if self.on_nvme and self.parts_on_host:
            kept = dict(zip(map(id, trained), kept_in_memory(numels, self.settings.sub_group_size), strict=True))
            for cut in self.all:
                large = cut.part_numel * self.dtype.itemsize >= MIN_AIO_BYTES
                cut.on_nvme = large and not kept.get(id(cut), False)
        self.bucket = self.made(self.settings.reduce_bucket_size, self.dtype, Role.GRADIENTS, False)
        self.kept = self.made(total, self.dtype, Role.GRADIENTS, self.on_host)
        self.machine.own_linear = self.linear
        self.watch_all(model, model.model_type in WHOLE_BLOCKS)
        if self.job.method != "full":
            for _ in range(2):  # PEFT's model and its tuner are around it
                self.watch(model)
            for module in model.modules():
                if isinstance(module, LoraLinear):
                    self.read_before(module.lora_dropout, module, self.cuts[id(module.lora_A.weight)])
        for cut in trained:
            if id(cut.whole) not in self.in_block:
                cut.whole.after_gradient = self.ready

    def role(self) -> Role:
        return Role.ADAPTERS if self.job.method != "full" else Role.WEIGHTS

    def made(self, numel: int, dtype: Dtype, role: Role, on_host: bool) -> Tensor:
        machine = self.machine
        with machine.on_stream(HOST if on_host else machine.stream), machine.within(MANY):
            return machine.run("empty", (), (numel,), dtype).as_role(role)

    # -------------------------------------------------------------------------------------------------- weights

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

    def watch(self, module: Module) -> None:
        forward: Callable[..., Any] = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            self.fetch(module, in_forward=True)
            args = self.watched_inputs(module, args)
            output = forward(*args, **kwargs)
            self.release(module, in_forward=True)
            if self.machine.grad_enabled:
                for tensor in tensors_in(output):
                    if tensor.requires_grad:
                        node = before_gradient_of(tensor, lambda: self.fetch(module, in_forward=False))
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
            if not cut.is_there and id(cut) not in self.under_way:
                own = self.own(reader)
                if cut not in own:
                    own.append(cut)
                self.gather_here([cut])
            return forward(*args, **kwargs)

        object.__setattr__(following, "forward", run)

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
            for later in self.trace[self.turn :]:
                if traversed >= self.settings.max_reuse_distance or not candidates:
                    break
                for cut in self.own(later):
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

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Any:
        self.last = last
        self.machine.after_backward.append(self.epilogue)
        yield
        self.first = last

    def whole(self, weight: Tensor) -> Tensor:
        """TRL's `maybe_gather_lm_head_ctx`."""
        cut = self.cuts[id(weight)]
        if not cut.is_there and id(cut) not in self.under_way:
            self.gather([cut])
        self.arrive(cut)
        return weight

    # ------------------------------------------------------------------------------------------------ gradients

    def ready(self, whole: Tensor) -> None:
        """`__add_grad_to_ipg_bucket`."""
        machine = self.machine
        if self.in_bucket and sum(t.numel() for t in self.in_bucket) + whole.numel() > self.settings.reduce_bucket_size:
            self.reduce()
        assert whole.grad is not None
        if whole.numel() <= self.settings.reduce_bucket_size:
            with machine.on_stream(self.scattering):
                machine.wait(0)
                machine.launch("copy_", (whole.grad,), whole.dtype, whole.nbytes)
            whole.grad = self.bucket.alias(whole.shape, None)
        self.in_bucket.append(whole)

    def reduce(self) -> None:
        """`reduce_scatter_coalesced` and `partition_grads`."""
        machine, bucket = self.machine, self.in_bucket
        if not bucket:
            return
        numel = sum(self.cuts[id(whole)].part_numel for whole in bucket)
        nbytes = numel * self.dtype.itemsize
        with machine.on_stream(self.scattering), machine.within(MANY):
            alone = len(bucket) == 1 and bucket[0].numel() % self.ranks == 0
            flat = None if alone else machine.run("cat", (), (numel * self.ranks,), self.dtype)
            machine.collective_of("reduce_scatter", "data", self.ranks, self.dtype, numel * self.ranks)
            if self.on_host:
                self.send_to_host([self.cuts[id(whole)].part_numel for whole in sorted(bucket, key=self.place_of)])
            else:
                machine.launch("copy_", (), self.dtype, nbytes)
            del flat
        for whole in bucket:
            whole.grad = None
        bucket.clear()

    def place_of(self, whole: Tensor) -> int:
        return self.places[id(whole)]

    def send_to_host(self, numels: Sequence[int]) -> None:
        """`partition_grads`: what has been added up is on the card again, and of the last micro-batch its norm is taken
        of a wider copy; it leaves in float32 one by one or, where it goes on to drives, all at once
        (`_swap_out_offload_fp32_gradients`)."""
        machine = self.machine
        waiting: list[Tensor] = []
        earlier: Tensor | None = None
        for numel in numels:
            machine.launch(TO_HOST, (self.bucket.alias((numel,), None),), self.dtype, 0)
            part = machine.run(FROM_HOST, (), (numel,), self.dtype)
            earlier = part if not self.first else None  # its name is `cuda_grad_buffer`, which the next one takes over
            if self.last:
                for piece in range(0, numel, NORM_PIECE):
                    self.norm_of(part.alias((min(NORM_PIECE, numel - piece),), None))
                wide = machine.run("_to_copy", (part,), (numel,), FLOAT32) if self.dtype != FLOAT32 else part
                machine.launch(TO_HOST, (wide,), FLOAT32, 0)
                waiting += [wide] if self.on_nvme else []
                del wide
            del part
        del earlier

    def look_for_overflow(self) -> None:
        """A flag of each number."""
        machine = self.machine
        with machine.on_stream(self.scattering):
            for name in ("isinf", "isnan"):
                machine.run(name, (self.kept,), self.kept.shape, BOOL)

    def epilogue(self) -> None:
        self.reduce()
        self.machine.wait(self.scattering)
        self.hooked.clear()
        while self.in_backward:  # `release_backward_leftovers`: modules whose inputs wanted no gradient
            number, module = self.in_backward.popitem()
            for cut in [*self.own(module), *self.recomputed.pop(number, [])]:
                cut.active.discard(number)
                if not cut.stays:
                    self.let_go(cut)
        self.under_way.clear()

    def kept_gradients(self) -> list[list[Tensor]]:
        return [[self.kept.alias((numel,), None) for numel in parts] for parts in self.stepped]

    def step(self, optimizer: Optimizer) -> None:
        """A sub-group of masters at a time. Before, all that is whole is let go (`_partition_all_parameters`); after it
        what stays is gathered (`_post_step`)."""
        machine = self.machine
        for cut in self.all:
            cut.active.clear()
            self.let_go(cut)
        self.take_norm()
        self.update(optimizer)
        machine.module = MANY
        self.gather_here([cut for cut in self.all if cut.stays])

    def update(self, optimizer: Optimizer) -> None:
        machine = self.machine
        if self.on_host:
            with machine.on_host():
                for master in self.masters:
                    master.grad = machine.tensor(master.shape, FLOAT32)
            stepped = HostOptimizer(optimizer, fused=True)
            stepped.step()
            if self.on_nvme:
                self.swap(stepped.states())
            for master in self.masters:
                master.grad = None
            machine.module = MANY
            if not self.parts_on_host:
                machine.launch(FROM_HOST, (), self.dtype, self.parts.nbytes)
            return
        for master in self.masters:
            machine.module = MANY
            master.grad = machine.run("cat", (self.kept,), master.shape, self.dtype)
            if self.dtype != FLOAT32:
                master.grad = machine.run("_to_copy", (master.grad,), master.shape, FLOAT32)
            master.grad.block.role = Role.GRADIENTS
            machine.launch("mul_", (master.grad,), FLOAT32, master.grad.nbytes)
            optimizer.step()
            machine.launch("copy_", (master,), self.dtype, master.numel() * self.dtype.itemsize)
            master.grad = None

    def swap(self, states: Sequence[Tensor]) -> None:
        """`swap_in_optimizer_state` and `swap_out_optimizer_state` of every sub-group, and gradients written before;
        weights that live on drives are written anew (`_partitioned_params_swap_out`)."""
        machine = self.machine
        gradients = [master for master in self.masters if master.nbytes >= MIN_AIO_BYTES]
        both = [*gradients, *(state for state in states if state.nbytes >= MIN_AIO_BYTES)]
        narrow = [cut.whole.alias((cut.part_numel,), None) for cut in self.all if cut.trains and cut.on_nvme]
        machine.module = MANY
        machine.launch(FROM_NVME, (), FLOAT32, sum(t.nbytes for t in [*both, *gradients]), kernels=0)
        machine.launch(TO_NVME, [*both, *gradients, *narrow], FLOAT32, 0, kernels=0)

    def forget_gradients(self) -> None:
        """Their buffer stays."""
