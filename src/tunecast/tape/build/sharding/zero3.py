"""DeepSpeed's ZeRO-3 on paper: weights too are cut, and come whole when a module runs.

After DeepSpeed 0.19.8 (runtime/zero/stage3.py, parameter_offload.py, partitioned_param_coordinator.py,
partition_parameters.py, linear.py), with the sizes of zero_sizes.py. A parameter is cut as one row of numbers, padded;
a rank's parts are all in one buffer.

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
from collections.abc import Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.tape.build.adapters import LoraLinear
from tunecast.tape.build.dtypes import BOOL, FLOAT16, FLOAT32, Dtype
from tunecast.tape.build.event_log import HOST
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer, Module
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.sharding.accelerate import STORED
from tunecast.tape.build.sharding.fetched import WHOLE_BLOCKS, Cut, FetchedWeights
from tunecast.tape.build.sharding.host import HostOptimizer
from tunecast.tape.build.sharding.zero import FLOAT64
from tunecast.tape.build.sharding.zero_sizes import MILLION, MIN_AIO_BYTES, kept_in_memory, sub_groups
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import FROM_HOST, FROM_NVME, MANY, TO_HOST, TO_NVME, Role

OVERLAPPING = 1, 2
"""The streams `__allgather_stream` and `reduce_and_partition_stream`, where these are not the default one."""
NORM_PIECE = 250 * MILLION
"""`_constant_buffered_norm2`."""


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


class Zero3(FetchedWeights):
    checked_dtypes = (FLOAT16,)
    sums_norms_in = FLOAT64

    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.loads_on_host = job.quantization.format is None  # zero.Init is for others: modeling_utils.py
        self.on_nvme = job.parallel.offload_device == "nvme"
        self.in_bucket: list[Tensor] = []
        self.first = self.last = True
        self.stepped: list[list[int]] = []
        """Elements of the parts in each master."""

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
        self.cut_all(model)
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
                self.watch(model, Module(self.machine))
            for module in model.modules():
                if isinstance(module, LoraLinear):
                    self.read_before(module.lora_dropout, module, self.cuts[id(module.lora_A.weight)])
        for cut in trained:
            if id(cut.whole) not in self.in_block:
                cut.whole.after_gradient = self.ready

    def cut_all(self, model: Any) -> None:
        """Parameters become such that come and go."""
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

    def role(self) -> Role:
        return Role.ADAPTERS if self.job.method != "full" else Role.WEIGHTS

    def made(self, numel: int, dtype: Dtype, role: Role, on_host: bool) -> Tensor:
        machine = self.machine
        with machine.on_stream(HOST if on_host else machine.stream), machine.within(MANY):
            return machine.run("empty", (), (numel,), dtype).as_role(role)

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Any:
        self.last = last
        self.machine.after_backward.append(self.epilogue)
        yield
        self.first = last

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

    def end(self) -> None:
        """The next step would let go of what is whole."""
        super().end()
        for cut in self.all:
            cut.active.clear()
            self.let_go(cut)

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


class AskedZero3(Zero3):
    """An engine without an optimizer (trl/models/utils.py, `prepare_deepspeed`): parts, and nothing to train them."""

    def wrap(self, model: Any) -> None:
        self.begin(model)
        self.gathering, self.scattering = (0, 0) if self.settings.overlap_comm is False else OVERLAPPING
        self.cut_all(model)
        self.frozen = [self.made(cut.part_numel, self.dtype, cut.role, self.parts_on_host) for cut in self.all]
        self.machine.own_linear = self.linear
        self.watch_all(model, model.model_type in WHOLE_BLOCKS)
