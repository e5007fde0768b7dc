"""transformers' Trainer on paper (trainer.py of 5.17.0, accelerate 1.15), the loop under TRL, Axolotl, LLaMA-Factory.

Beyond the plain loop of stacks/transformers.py: all batches of a step are on the card before its first forward pass
(`get_batch_samples`), the loss is a sum over the tokens of them all, autocast is around the model alone, and
accelerate gives its outputs back in fp32 (`convert_outputs_to_fp32`), a copy of the logits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.job.optimizers import optimizer_of
from tunecast.job.stacks import stack_of
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.modules import Embedding
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.optimizers.blockwise import Blockwise
from tunecast.tape.build.repeats import micro_batches
from tunecast.tape.build.stacks import Refusals, leaves_out, transformers
from tunecast.tape.build.stacks.transformers import evaluation_loop, model, prepared, scheme
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in
from tunecast.tape.op import PASS, Phase

__all__ = ["REFUSES", "evaluate", "model", "scheme", "setup", "train"]

REFUSES: Refusals = {
    **transformers.REFUSES,
    **leaves_out("compile", "optimizer_in_backward"),
    "matmul_dtype": lambda job: job.matmul_dtype is not None and ("foak" in job.kernels or job.lora.dora),
    "offload_activations": lambda job: job.offload_activations and not stack_of(job).offloads_activations,
}
Batch = tuple[Tensor, ...]
"""Tokens, mask, labels, and what else a collator makes; tokens and mask alone where there are no labels."""
LABELS = 2
"""Their place in it."""
ComputeLoss = Callable[[Job, Any, Batch, Any], Tensor]
"""Of a job, its model, a batch and the number of labels of all batches of the step, where they have any."""
Collated = Callable[[Job, Machine, int], Batch]
NUM_PROCESSES = 1
"""The loss is multiplied by it; factors move no memory, so any number does."""
TAKEN = "{stack} is taken to train as transformers' Trainer does with the same settings; what it patches is left out"


FLOAT8_BESIDE = "matmul_dtype {}: layers beside {} are taken to run as by themselves; nobody traced them together"
OFFLOADED = (
    "offload_activations: TRL's OffloadActivations is taken as torchtune's, which it descends from; nobody traced it "
    "under the Trainer"
)


def setup(job: Job, given: Setup) -> Setup:
    """What of the machine is the stack's own: the kind of checkpointing. Layers whose inputs leave are wrapped by
    torch's checkpoint_wrapper (axolotl/core/trainers/mixins/activation_checkpointing.py, `ac_wrap_hf_model`)."""
    own = False if job.offload_activations else job.checkpoint_reentrant
    return given._replace(reentrant=stack_of(job).reentrant if own is None else own)


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    """For stacks of which nothing but the Trainer is written down, and that is said."""
    model, parameters, optimizer = prepared(job, config, machine, in_trainer=True)
    machine.guesses[TAKEN.format(stack=job.stack)] = None
    if job.matmul_dtype is not None and job.kernels:
        machine.guesses[FLOAT8_BESIDE.format(job.matmul_dtype, ", ".join(job.kernels))] = None
    with loss_function(job, model) as compute_loss:
        take_steps(job, model, parameters, optimizer, lengths, compute_loss)
    machine.end()


@contextlib.contextmanager
def loss_function(job: Job, model: Any) -> Iterator[ComputeLoss]:
    """The model's own; what its forward pass saves waits in host memory, where the job says so."""
    if not job.offload_activations:
        yield models_loss
        return
    from tunecast.tape.build.offload import Offload  # few jobs ask for it

    model.machine.guesses[OFFLOADED] = None
    offload = Offload(model.machine, list(model.parameters()))

    def compute_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor | None) -> Tensor:
        with offload.active():
            return models_loss(job, model, inputs, num_items_in_batch)

    yield compute_loss
    offload.node = None  # it lives until the next backward pass, and none comes


def evaluate(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    """Trainer.evaluate: the model's own loss, whatever that of training is."""
    model, _, _ = prepared(job, config, machine, in_trainer=True)

    def loss_of(inputs: Sequence[Tensor]) -> Tensor:
        return outputs_of(job, model, tuple(inputs), None)[0]

    evaluation_loop(job, model, lengths, loss_of)
    machine.end()


def take_steps(
    job: Job, model: Any, parameters: Sequence[Tensor], optimizer: Optimizer, lengths: Sequence[int],
    compute_loss: ComputeLoss, collated: Collated | None = None, *, counts_labels: bool = True, shifts: bool = True,
    begins: bool = True, prepare_inputs: Callable[[int], Batch] | None = None, repeats: bool = True,
) -> None:  # fmt: skip
    """`_run_epoch`. The last loss and the last norm live until the next ones take their names. `counts_labels`: batches
    have labels under that name, and the loss is a sum over those of them all. `shifts`: a label is the token that
    follows. `begins`: the forward pass begins with the loss; else `compute_loss` says when (`begin_pass`).
    `prepare_inputs` makes the batch of each micro-batch when its turn comes (`_prepare_inputs`), `repeats`: it does the
    same for all but the first."""
    machine = model.machine
    kind = optimizer_of(job)
    if not (kind.projection or kind.spares_ends or machine.scheme.groups_itself):
        optimizer = Grouped(parameters, embeddings(model))
    tr_loss = machine.run("_to_copy", (), (), FLOAT32)
    tr_loss_step = grad_norm = None
    for length in machine.steps(lengths):
        if prepare_inputs is None:
            found = batches(job, machine, length, collated or rows)  # those before are there until labels are counted
            has_labels = counts_labels and model.counts_labels and len(found[0]) > LABELS
            count = labels_in(machine, found, shifts) if has_labels else None
            batch_samples, num_items_in_batch = found, count
            del found, count
        else:
            batch_samples, num_items_in_batch = [()] * job.grad_accum, None
        for number in micro_batches(machine, job.grad_accum, repeats):
            machine.take_turn(number)
            inputs = batch_samples[number] if prepare_inputs is None else prepare_inputs(number)
            with machine.scheme.micro_batch(last=number == job.grad_accum - 1):
                tr_loss_step = training_step(job, model, inputs, num_items_in_batch, compute_loss, begins=begins)
            machine.run("isnan", (tr_loss_step,), (), BOOL)
            machine.run("isinf", (tr_loss_step,), (), BOOL)
            if machine.era.release < (5, 0):
                tr_loss = machine.run("add", (tr_loss, tr_loss_step), (), FLOAT32)
            else:
                machine.launch("add_", (tr_loss, tr_loss_step), FLOAT32, 4)
        inputs = batch_samples[-1]  # which it is where the last ones were not run
        grad_norm = None
        if job.max_grad_norm:
            grad_norm = machine.scheme.clip(parameters)
        optimizer.take_step()
        optimizer.zero_grad()
    machine.scheme.end()
    del tr_loss, tr_loss_step, grad_norm


class Grouped(Optimizer):
    """`create_optimizer`: weights that decay are a group, biases and norms another that steps after it. bitsandbytes is
    told to keep the state of every nn.Embedding in 32 bits, a tied head's with it."""

    def __init__(self, parameters: Sequence[Tensor], wide: Collection[int]) -> None:
        super().__init__(parameters)
        decay = [decays(p) for p in parameters]
        groups = [[p for p, does in zip(parameters, decay, strict=True) if does is kind] for kind in (True, False)]
        make = self.machine.scheme.optimizer
        self.groups = [make(group, (), ()) for group in groups if group]
        for group in self.groups:
            if isinstance(group, Blockwise):
                group.wide = wide

    def step(self) -> None:
        for group in self.groups:
            group.step()


def decays(parameter: Tensor) -> bool:
    """transformers/trainer.py, `get_decay_parameter_names`: all but biases and norms, which have one dimension. So have
    DoRA's magnitudes, which decay, and pieces of a flat parameter, which know what they are pieces of."""
    own: bool | None = getattr(parameter, "decays", None)
    if own is not None:
        return own
    return parameter.dim() > 1 or parameter.block.module.endswith("lora_magnitude_vector")


def embeddings(model: Any) -> set[int]:
    """Ids of the weights of every nn.Embedding."""
    return {id(module.weight) for module in model.modules() if isinstance(module, Embedding)}


def batches(job: Job, machine: Machine, length: int, collated: Collated) -> list[Batch]:
    """`get_batch_samples`: every micro-batch of a step."""
    found: list[Batch] = []
    for number in range(job.grad_accum):
        machine.take_turn(number)
        found.append(collated(job, machine, machine.scheme.tokens_of(length)))
    return found


def labels_in(machine: Machine, found: Sequence[Batch], shifts: bool = True) -> Tensor:
    """`_get_num_items_in_batch`: how many labels count."""
    total: Any = None
    for number, batch in enumerate(found):
        machine.take_turn(number)
        *outer, tokens = batch[LABELS].shape
        counted = (*outer, tokens - (shifts and machine.era.release >= (5, 0)))
        count = machine.run("ne", (batch[LABELS],), counted, BOOL).sum(range(len(counted)), dtype=INT64)
        total = machine.run("add", (count,), (), INT64)
        del count
    return machine.scheme.summed_over_ranks(total)


def rows(job: Job, machine: Machine, length: int) -> Batch:
    ids, mask = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(2)]
    images = image_tensors(machine, job.micro_batch, length)
    return ids, mask, machine.run("_to_copy", (), (job.micro_batch, length), INT64), *images


def training_step(
    job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor | None, compute_loss: ComputeLoss,
    *, begins: bool = True,
) -> Tensor:  # fmt: skip
    if begins:
        begin_pass(model.machine)
    loss = compute_loss(job, model, inputs, num_items_in_batch)
    if num_items_in_batch is None:
        loss = loss / job.grad_accum
    backward(loss / job.grad_accum)
    return loss.detach()


def begin_pass(machine: Machine) -> None:
    """The forward pass that the loss is computed of."""
    machine.phase, machine.in_forward = Phase.FORWARD, True
    machine.of_host(PASS)


def models_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor | None) -> Tensor:
    """`compute_loss`: the model's own, over the number of labels. The logits go with the other outputs."""
    loss, _ = outputs_of(job, model, inputs, num_items_in_batch)
    return loss if num_items_in_batch is None else loss.mul_(NUM_PROCESSES)


def outputs_of(job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Loss and logits (none with kernels that make none), widened where autocast was on."""
    scheme = model.machine.scheme
    model.gives_logits, vars(model)["num_items_in_batch"] = True, num_items_in_batch
    scheme.begin_forward()
    with model.machine.autocasting(scheme.autocast):
        outputs = model(*inputs[:3], **images_in(model.machine, inputs[3:]))
    vars(model)["num_items_in_batch"] = None
    if not isinstance(outputs, tuple):
        return scheme.end_forward(outputs), None
    loss, *others = outputs
    del outputs
    if scheme.autocast is not None:
        others = [output.float() for output in others]
    logits = others[0]
    loss, logits = scheme.end_forward((loss, logits))
    return loss, logits
