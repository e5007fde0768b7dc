"""What a stack's loop asks of the way its rank holds the model; see the package's docstring."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build.dtypes import DTYPES, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.optimizers import Optimizer, clip_gradients, make_optimizer
from tunecast.tape.build.standing import in_passes
from tunecast.tape.build.tensor import Tensor


def ranks_of(job: Job) -> int:
    """Ranks that get batches of their own: total_train_batch_size of the Trainer."""
    parts, cards = job.parallel, job.hardware.gpus * job.hardware.nodes
    return max(1, cards // (parts.layers * parts.tensor * parts.pipeline * parts.context))


def rows_per_step(job: Job) -> int:
    """Of one optimizer step on all cards: the global batch."""
    return job.micro_batch * job.grad_accum * ranks_of(job)


def splits_rows(job: Job) -> bool:
    """Whether ranks share a row's tokens as DeepSpeed has them do (`ulysses.Ulysses`)."""
    return job.parallel.context > 1 and job.parallel.context_kind == "ulysses"


class Scheme:
    """Alone on a card: nothing is sent and nothing is cut. The others say what they do otherwise."""

    groups_itself = False
    """Its optimizer is made for all groups of parameters at once."""
    loads_on_host = False
    """Weights are cut before they arrive."""
    casts = False
    """Itself: the loop has no autocast."""
    sequence: Any = None
    """Who splits rows over ranks (`ulysses.Ulysses`)."""

    def __init__(self, job: Job, machine: Machine) -> None:
        self.job, self.machine = job, machine

    @property
    def ranks(self) -> int:
        """That share the model: those of one row, too."""
        return ranks_of(self.job) * self.job.parallel.context

    def loading(self) -> contextlib.AbstractContextManager[None]:
        """Around loading and adapting: where weights are before `wrap`."""
        return self.machine.on_host() if self.loads_on_host else contextlib.nullcontext()

    def wrap(self, model: Any) -> None:
        """The model is complete; from here on its parameters are what this rank keeps."""

    def parameters(self, model: Any) -> list[Tensor]:
        """What an optimizer is given."""
        return [p for p in model.parameters() if p.requires_grad]

    @property
    def autocast(self) -> Dtype | None:
        """Of the loop."""
        return DTYPES[self.job.autocast] if self.job.autocast and not self.casts else None

    def optimizer(self, parameters: Sequence[Tensor], outer: Sequence[Tensor], linear: Sequence[Tensor]) -> Optimizer:
        return make_optimizer(self.job, parameters, outer, linear)

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around the forward and backward pass of a micro-batch (accelerate's `no_sync`)."""
        return contextlib.nullcontext()

    def reduces_after(self, last: bool) -> bool:
        """Whether gradients are summed over ranks after a micro-batch, or wait for more."""
        return last or self.job.parallel.sync_each_batch

    def tokens_of(self, length: int) -> int:
        """Of a row of so many, those this rank sees."""
        return length if self.sequence is None else self.sequence.part_of(length)

    def begin_forward(self) -> None:
        """Before the model is called."""
        if self.sequence is not None:
            self.sequence.begin_forward()

    def end_forward(self, outputs: Any) -> Any:
        """What the caller gets of the model's outputs, casts of the stack's own included."""
        return outputs if self.sequence is None else self.sequence.end_forward(outputs)

    def call(self, model: Any, forward: Callable[..., Any], *args: Any) -> Any:
        """The model, with another forward pass than its own."""
        self.begin_forward()
        return self.end_forward(self.ask(model, forward, *args))

    def ask(self, model: Any, forward: Callable[..., Any], *args: Any) -> Any:
        """The same of the model itself, not of what is around it (`self.model` of a trainer, not its wrapper)."""
        with self.machine.autocasting(self.autocast), self.machine.within(model.path):
            return self.run(model, forward, *args)

    def run(self, model: Any, forward: Callable[..., Any], *args: Any) -> Any:
        return forward(model, *args)

    def whole(self, weight: Tensor) -> Tensor:
        """A weight that is read outside of the module that has it."""
        return weight

    def read_by(self, reader: Any, weight: Tensor) -> Tensor:
        """The same, where it is read in the forward pass of a module that is not its own."""
        return weight

    def summed_over_ranks(self, count: Tensor) -> Tensor:
        """A number of this rank's rows as that of all (`average_tokens_across_devices`: gathered and summed)."""
        if self.ranks == 1:
            return count
        machine = self.machine
        every = machine.tensor((self.ranks,), count.dtype)
        machine.collective("all_gather", "data", self.ranks, count.dtype, count.nbytes, every.nbytes, 1)
        return machine.run("sum", (every,), (), count.dtype, args=(every,))

    def step_state(self) -> Hashable:
        """Micro-batches between a step's first and last do the same, and so do steps for which this is the same. Counts
        for the class that declares it, not for those derived from it, which may do otherwise."""
        return ()

    def end(self) -> None:
        """After the last step: what the next one would let go of first."""
        if self.sequence is not None:
            self.sequence.position_ids = None

    def clip(self, parameters: Sequence[Tensor]) -> Tensor | None:
        return clip_gradients(parameters)

    def end_step(self, parameters: Sequence[Tensor], optimizer: Optimizer) -> None:
        """What follows the last backward pass of a step."""
        if self.job.max_grad_norm:
            self.clip(parameters)
        optimizer.take_step()
        optimizer.zero_grad()


def repeats_as(scheme: Scheme) -> Hashable | None:
    """What a step depends on of those before; None: its steps are not known to repeat."""
    declared = vars(type(scheme)).get("step_state")
    return None if declared is None or scheme.sequence is not None else declared(scheme)


def in_whole_model(machine: Machine, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, layer by layer, of the model a short one stands for: layers that repeat come as often as they do."""
    if machine.standing is None:
        return list(tensors)
    return [tensor for _, tensor in in_passes(machine.by_layer(tensors), machine.standing.whole)]
