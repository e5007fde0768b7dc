"""torchtitan's pre-training loop on paper (torchtitan/train.py), by the month of its code.

    releases.py    what changed when        model.py, qwen3.py   the models, and the layers' wrappers
    selective.py   per-op selective activation checkpointing
    parallel.py    which ranks do what, and FSDP2's units

Weights are fp32; FSDP2 gathers them as bf16 and reduces gradients in fp32 (`mixed_precision_param`,
`mixed_precision_reduce`), `autocast: null` leaves both in fp32. Alone on a card, torch's autocast does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.tape.build import ops
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.compiled import Region
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.float8 import MULTIPLE
from tunecast.tape.build.float8 import forward as float8_forward
from tunecast.tape.build.modules import Linear
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.sharding.tensor import TensorParallel
from tunecast.tape.build.stacks.torchtitan.model import Transformer
from tunecast.tape.build.stacks.torchtitan.parallel import Shared, ranks_of, scheme_of, split_layers, to_empty
from tunecast.tape.build.stacks.torchtitan.qwen3 import Qwen3Model
from tunecast.tape.build.stacks.torchtitan.releases import Release, release_of
from tunecast.tape.build.tensor import FLOAT32, INT64, Machine, Tensor
from tunecast.tape.card import Card
from tunecast.tape.op import Phase

REFUSES: Mapping[str, Callable[[Job], bool]] = {
    "method": lambda job: job.method != "full",
    "kernels": lambda job: bool(job.kernels),
    "attention": lambda job: job.attention != "sdpa",
    "checkpoint_reentrant": lambda job: bool(job.checkpoint_reentrant),
    "transformers_version": lambda job: job.transformers_version is not None,
    "offload_activations": lambda job: job.offload_activations,
    "optimizer_in_backward": lambda job: job.optimizer_in_backward,
    "loss": lambda job: job.loss == "chunked",
    "matmul_dtype": lambda job: job.matmul_dtype not in (None, "float8"),
}


FAMILIES: Mapping[str, type[Transformer]] = {"llama": Transformer, "qwen3": Qwen3Model}


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    family = FAMILIES.get(config["model_type"])
    return None if family is None else family(machine, config, release_of(None, Card().capability), 1)


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    release = release_of(job.stack_version, machine.card.capability)
    ranks = ranks_of(job)
    scheme = scheme_of(job, machine, release, ranks)
    split = TensorParallel(machine, ranks.tensor) if ranks.tensor > 1 else None
    model = load(job, config, machine, release, scheme, split)
    parameters = list(model.parameters())
    optimizer = scheme.optimizer(parameters, (), ())
    Trainer(job, model, release, scheme, split, parameters, optimizer).train(lengths)


def load(
    job: Job, config: Mapping[str, Any], machine: Machine, release: Release, scheme: Scheme,
    split: TensorParallel | None,
) -> Transformer:  # fmt: skip
    family = FAMILIES.get(config["model_type"])
    if family is None:
        raise Unsupported(f"model: torchtitan's {config['model_type']!r} is not written down", field="model")
    if job.weights_dtype == "float16" or job.autocast == "float16":
        raise UsageError("weights_dtype: torchtitan trains in bfloat16 and float32", field="weights_dtype")
    model = family(machine, config, release, max(job.lengths or (job.seq_len,)))
    model.name_all()
    if job.matmul_dtype == "float8":
        to_float8(model)
    if split is not None:
        split_layers(model, split, release)
    for layer in model.layers():
        if job.gradient_checkpointing:
            layer.recompute = job.recompute or "selective"
        if job.compile:
            layer.compile(owns_weights=not isinstance(scheme, Shared))
    scheme.wrap(model)
    to_empty(model, isinstance(scheme, Shared))
    machine.head_modules = {"output", "loss"}
    return model


def to_float8(model: Transformer) -> None:
    """components/quantization/float8.py: torchao's `Float8Linear`, one scale a tensor; the head stays as it is
    (`filter_fqns = ["output"]`)."""
    for layer in model.layers():
        for module in layer.modules():
            if isinstance(module, Linear) and not (module.inputs % MULTIPLE or module.outputs % MULTIPLE):
                object.__setattr__(module, "forward", MethodType(float8_forward, module))


def loss_of(split: TensorParallel | None) -> Callable[[Tensor, Tensor], Tensor]:
    cross_entropy = ops.cross_entropy if split is None else split.cross_entropy

    def cross_entropy_loss(pred: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(ops.to(ops.reshape(pred, -1, pred.shape[-1]), FLOAT32), ops.reshape(labels, -1))

    return cross_entropy_loss


class Trainer:
    """`Trainer.train_step` and `forward_backward_step`: names that outlive a step here do so there."""

    def __init__(
        self, job: Job, model: Transformer, release: Release, scheme: Scheme, split: TensorParallel | None,
        parameters: Sequence[Tensor], optimizer: Optimizer,
    ) -> None:  # fmt: skip
        self.job, self.model, self.release, self.scheme = job, model, release, scheme
        self.parameters, self.optimizer, self.machine = parameters, optimizer, model.machine
        self.logits: Tensor | None = None
        self.loss_fn: Any = loss_of(split if release.splits_loss else None)
        if job.compile and release.compiles_loss:
            self.loss_fn = Region(self.machine, self.loss_fn)

    def train(self, lengths: Sequence[int]) -> None:
        machine = self.machine
        for step, length in enumerate(lengths):
            machine.step, machine.phase, machine.module = step, Phase.OTHER, ""
            self.optimizer.zero_grad()
            losses = [self.forward_backward_step(length) for _ in range(self.job.grad_accum)]
            if self.job.max_grad_norm:
                self.scheme.clip(self.parameters)
            machine.phase = Phase.OPTIMIZER
            self.optimizer.step()
            machine.phase, machine.module = Phase.OTHER, ""
        machine.step, machine.phase = len(lengths), Phase.OTHER
        del losses
        self.logits = None
        machine.end()

    def forward_backward_step(self, length: int) -> Tensor:
        machine, job = self.machine, self.job
        inputs, labels = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(2)]
        machine.phase, machine.in_forward = Phase.FORWARD, True
        with machine.autocasting(self.scheme.autocast):
            pred = self.model(inputs)
            if self.release.keeps_logits:
                pred = self.logits = ops.to(pred, FLOAT32)
            with machine.within("loss"):
                loss = self.loss_fn(pred, labels)
        del pred
        backward(loss)
        return loss.detached()  # type: ignore[no-any-return]
