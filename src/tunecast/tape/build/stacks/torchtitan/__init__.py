"""torchtitan's pre-training loop on paper (torchtitan/train.py), by the month of its code.

    releases.py    what changed when        model.py, qwen3.py   the models, and the layers' wrappers
    selective.py   per-op selective activation checkpointing
    parallel.py    which ranks do what, and FSDP2's units      loop.py   the steps      pipeline.py   in stages

Weights are fp32; FSDP2 gathers them as bf16 and reduces gradients in fp32 (`mixed_precision_param`,
`mixed_precision_reduce`), `autocast: null` leaves both in fp32. Alone on a card, torch's autocast does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.tape.build.float8 import MULTIPLE
from tunecast.tape.build.float8 import forward as float8_forward
from tunecast.tape.build.modules import Linear
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.sharding.tensor import TensorParallel
from tunecast.tape.build.stacks.torchtitan.loop import Trainer
from tunecast.tape.build.stacks.torchtitan.model import Transformer
from tunecast.tape.build.stacks.torchtitan.parallel import ranks_of, scheme_of, split_layers, to_empty
from tunecast.tape.build.stacks.torchtitan.pipeline import Pipeline
from tunecast.tape.build.stacks.torchtitan.qwen3 import Qwen3Model
from tunecast.tape.build.stacks.torchtitan.releases import Release, release_of
from tunecast.tape.build.tensor import Machine
from tunecast.tape.card import Card

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
LAST_LAYERS = 2
"""The last layer's weights may stay between its two passes, which changes when the one before it is gathered."""
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
    for layer in model.layers():
        layer.attention.context = ranks.context
    parameters = scheme.parameters(model)
    optimizer = scheme.optimizer(parameters, (), ())
    trainer = Pipeline if ranks.pipeline > 1 else Trainer
    trainer(job, model, release, ranks, scheme, split, parameters, optimizer).train(lengths)


def load(
    job: Job, config: Mapping[str, Any], machine: Machine, release: Release, scheme: Scheme,
    split: TensorParallel | None,
) -> Transformer:  # fmt: skip
    family = FAMILIES.get(config["model_type"])
    if family is None:
        raise Unsupported(f"model: torchtitan's {config['model_type']!r} is not written down", field="model")
    if config.get("tie_word_embeddings"):
        if config["model_type"] != "llama":
            raise Unsupported("model: embedding and head are one weight, which is not written down", field="model")
        machine.assumptions["torchtitan's Llama keeps embedding and head apart, also where config.json ties them"] = (
            None
        )
    if job.weights_dtype == "float16" or job.autocast == "float16":
        raise UsageError("weights_dtype: torchtitan trains in bfloat16 and float32", field="weights_dtype")
    first = job.parallel.pipeline == 1 or machine.ends is None or machine.ends.embedding
    last = job.parallel.pipeline == 1 or not first
    model = family(machine, config, release, max(job.lengths or (job.seq_len,)), last, first)
    model.name_all()
    if job.matmul_dtype == "float8":
        to_float8(model)
    if split is not None:
        split_layers(model, split, release)
    for layer in model.layers():
        if job.gradient_checkpointing:
            layer.recompute = job.recompute or "selective"
        if job.compile:
            layer.compile(owns_weights=type(scheme) is Scheme)
    to_empty(model, scheme)
    machine.head_modules = {"output", "loss"}
    return model


def to_float8(model: Transformer) -> None:
    """components/quantization/float8.py: torchao's `Float8Linear`, one scale a tensor; the head stays as it is
    (`filter_fqns = ["output"]`)."""
    for layer in model.layers():
        for module in layer.modules():
            if isinstance(module, Linear) and not (module.inputs % MULTIPLE or module.outputs % MULTIPLE):
                object.__setattr__(module, "forward", MethodType(float8_forward, module))
