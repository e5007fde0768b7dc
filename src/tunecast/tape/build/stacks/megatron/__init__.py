"""Megatron Core and NeMo (which runs it): one rank's training program on paper.

    linears.py   TransformerEngine's layers, split      model.py   attention, MLP, the stage, the loss
    experts.py   mixtures of experts                    data.py    what data-parallel ranks exchange
    optimizer.py the distributed optimizer

Weights are 16 bits, their gradients one float32 buffer, and the optimizer's master weights and moments are sharded over
the data-parallel ranks (`--use-distributed-optimizer`, as in every published recipe). NeMo overlaps the collectives of
tensor parallelism with the products they feed; plain Megatron waits for them.
A pipeline is its first stage or its last (`sharding/layers.py` has cut the model and says which).
Nothing of it was traced: TransformerEngine needs a card. The tape says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.modules import bring
from tunecast.tape.build.stacks import no_such_model
from tunecast.tape.build.stacks.megatron.data import DataExchange
from tunecast.tape.build.stacks.megatron.linears import Parts
from tunecast.tape.build.stacks.megatron.model import GPT, LORA_TARGETS, shape_of
from tunecast.tape.build.stacks.megatron.optimizer import DistributedOptimizer
from tunecast.tape.build.tensor import INT64, Dtype, Machine, Tensor
from tunecast.tape.op import Phase, Role

REFUSES: Mapping[str, Callable[[Job], bool]] = {
    "method": lambda job: job.method == "qlora",
    "compile": lambda job: job.compile,
    "kernels": lambda job: bool(job.kernels),
    "loss": lambda job: job.loss == "chunked",
    "optimizer": lambda job: not job.optimizer.startswith("adamw_torch"),
    "optimizer_in_backward": lambda job: job.optimizer_in_backward,
    "offload_activations": lambda job: job.offload_activations,
    "transformers_version": lambda job: job.transformers_version is not None,
    "stack_version": lambda job: job.stack_version is not None,
}
UNTRACED = "Megatron Core and TransformerEngine follow their source; none of it was traced or measured for memory"
LOW: Mapping[str, Dtype] = {"float8": Dtype("float8", 1), "float4": Dtype("float4", 1)}
"""What a kernel keeps of a number: float4 codes come twice, by row and by column, at half a byte each."""


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    shape = shape_of(config)
    return None if shape is None else GPT(machine, shape, Parts(), {})


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    machine.guesses[UNTRACED] = None
    gpt = load(job, config, machine)
    trained = [p for p in gpt.parameters() if p.requires_grad]
    layers = sum(layer.trained_numel() for layer in gpt.layers())  # type: ignore[attr-defined]
    gpt.exchange = DataExchange(machine, data_ranks(job), machine.weights_dtype)
    optimizer = DistributedOptimizer(trained, data_ranks(job), layers)
    for step, length in enumerate(lengths):
        machine.step, machine.phase, machine.module = step, Phase.OTHER, ""
        take_step(job, gpt, length)
        optimizer.reduce_rest()
        gpt.exchange.settle()
        machine.phase = Phase.OPTIMIZER
        optimizer.step(bool(job.max_grad_norm))
        machine.phase, machine.module = Phase.OTHER, ""
    machine.step = len(lengths)
    machine.end()


def data_ranks(job: Job) -> int:
    """That share an optimizer: those that see other rows, and those that see other parts of the same ones."""
    split = job.parallel.tensor * job.parallel.pipeline
    whole = split * job.parallel.context
    cards = job.hardware.gpus * job.hardware.nodes
    if cards % whole:
        told = f"{cards} cards do not divide into tensor x pipeline x context = {whole}"
        raise UsageError(f"parallel: {told}", field="parallel")
    return cards // split


def parts_of(job: Job) -> Parts:
    parallel = job.parallel
    low = LOW[job.matmul_dtype] if job.matmul_dtype else None
    return Parts(parallel.tensor, parallel.context, parallel.expert, job.stack == "nemo", low)


def load(job: Job, config: Mapping[str, Any], machine: Machine) -> GPT:
    shape = shape_of(config)
    if shape is None:
        raise no_such_model(job.stack, config.get("model_type"))
    ranks = {} if job.method == "full" else adapters_of(job)
    first = is_first(job, machine)
    last = job.parallel.pipeline == 1 or not first
    gpt = GPT(machine, shape, parts_of(job), ranks, job.gradient_checkpointing, first, last)
    gpt.name_all()
    machine.head_modules = {"output_layer"}
    for module in gpt.modules():
        for name, tensor in module.own.items():
            adapter = name.startswith("lora_")
            bring(tensor, module.path, Role.ADAPTERS if adapter else Role.WEIGHTS)
            tensor.requires_grad = job.method == "full" or adapter
    return gpt


def adapters_of(job: Job) -> dict[str, int]:
    given = job.lora.targets
    assert given is not None, "targets follow from the stack: fill_in comes first"
    if given == "attention":
        names = {"linear_qkv", "linear_proj"}
    elif given == "all-linear":
        names = set(LORA_TARGETS)
    else:
        names = {name for name, usual in LORA_TARGETS.items() if name in given or set(usual) & set(given)}
    return dict.fromkeys(names, job.lora.rank)


def is_first(job: Job, machine: Machine) -> bool:
    return job.parallel.pipeline == 1 or machine.ends is None or machine.ends.embedding


def take_step(job: Job, gpt: GPT, length: int) -> None:
    """1F1B: as many forward passes ahead as there are stages behind this one, all others of the first and none of the
    last (megatron/core/pipeline_parallel/schedules.py)."""
    ahead = min(job.parallel.pipeline - 1, job.grad_accum - 1) if gpt.first else 0
    waiting = [forward(job, gpt, length, number) for number in range(ahead)]
    for number in range(job.grad_accum):
        if number + ahead < job.grad_accum:
            waiting.append(forward(job, gpt, length, number + ahead))
        given, out = waiting.pop(0)
        backward(out)
        if given is not None:
            given.grad = None  # sent to the stage before
        del given, out


def forward(job: Job, gpt: GPT, length: int, number: int) -> tuple[Tensor | None, Tensor]:
    """What a later stage is given by the one before, and what the stage makes of it."""
    machine = gpt.machine
    gpt.exchange.gathers, gpt.exchange.reduces = number == 0, number == job.grad_accum - 1
    machine.phase, machine.module, machine.in_forward = Phase.OTHER, "", False
    tokens = length // job.parallel.context
    if gpt.first:
        given = machine.run("_to_copy", (), (tokens, job.micro_batch), INT64)
    else:  # p2p_communication.py: tokens are in parts where tensors are
        part = (tokens // job.parallel.tensor, job.micro_batch, gpt.shape.width)
        given = machine.run("empty", (), part, machine.weights_dtype)
        given.requires_grad = True
    labels = machine.run("_to_copy", (), (tokens, job.micro_batch), INT64) if gpt.last else None
    machine.phase, machine.in_forward = Phase.FORWARD, True
    return None if gpt.first else given, gpt(given, labels)
