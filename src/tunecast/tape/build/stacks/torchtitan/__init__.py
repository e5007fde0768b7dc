"""torchtitan's pre-training loop on paper (torchtitan/train.py), by the month of its code.

decoder.py    torchtitan 0.3's decoder on paper (torchtitan/models/common: decoder.py, `Decoder`; attention.py,
              `FusedQKVLinear`, `GQAttention`, `FlexAttention`; rope.py, `ComplexRoPE`, `CosSinRoPE`), as Llama 3 and
              dense Qwen 3 have it
experts.py    torchtitan's mixture of experts on paper, its experts on one rank or on several
llama4.py     torchtitan's Llama 4 on paper
loop.py       `Trainer.train_step` and `forward_backward_step`, without a pipeline and with one
model.py      torchtitan's Llama 3, Qwen 3 and DeepSeek V3 on paper
parallel.py   how torchtitan spreads a model: which ranks do what, FSDP2's units
releases.py   what changed in torchtitan, and when
selective.py  selective activation checkpointing, per operation
step.py       torchtitan 0.3's step on paper (torchtitan/trainer.py, `Trainer.train_step`, `_forward_backward_body`;
              torchtitan/components/loss.py, `ChunkedLossWrapper`, `GradAccumulator`)

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
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.sharding.tensor import TensorParallel
from tunecast.tape.build.stacks import Refusals, leaves_out, no_such_model
from tunecast.tape.build.stacks.torchtitan import decoder
from tunecast.tape.build.stacks.torchtitan.experts import MoE
from tunecast.tape.build.stacks.torchtitan.llama4 import Llama4Model
from tunecast.tape.build.stacks.torchtitan.loop import Pipeline, Trainer
from tunecast.tape.build.stacks.torchtitan.model import DeepSeekModel, Qwen3Model, Qwen3MoeModel, Transformer
from tunecast.tape.build.stacks.torchtitan.parallel import ranks_of, scheme_of, split_layers, to_empty
from tunecast.tape.build.stacks.torchtitan.releases import TitanRelease, guesses_of, release_of
from tunecast.tape.build.stacks.torchtitan.step import ChunkedTrainer
from tunecast.tape.card import Card

REFUSES: Refusals = {
    "method": lambda job: job.method != "full",
    **leaves_out("kernels", "attention", "checkpoint_reentrant", "transformers_version", "offload_activations"),
    **leaves_out("optimizer_in_backward", "loss"),
    "matmul_dtype": lambda job: job.matmul_dtype not in (None, "float8"),
}
LAST_LAYERS = 2
"""The last layer's weights may stay between its two passes, which changes when the one before it is gathered."""
FAMILIES: Mapping[str, type[Transformer]] = {
    "llama": Transformer,
    "qwen3": Qwen3Model,
    "qwen3_moe": Qwen3MoeModel,
    "deepseek_v3": DeepSeekModel,
    "deepseek_v2": DeepSeekModel,
    "llama4_text": Llama4Model,
}
TIED = "torchtitan ties embedding and head, of which two are counted here"
REWRITTEN: Mapping[str, type[Transformer]] = {"llama": decoder.Llama3Model, "qwen3": decoder.Qwen3Model}
"""As 0.3 has them."""


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    config = config.get("text_config", config)
    family = FAMILIES.get(config["model_type"])
    return None if family is None else family(machine, config, release_of(None, Card().capability), 1)


NORMS = "torch 2.15 widens gradients of norms that all ranks of a tensor-parallel group have; taken as 2.13 sums them"


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    if job.parallel.tensor > 1 and machine.torch >= (2, 15):
        machine.guesses[NORMS] = None
    release = followed_release(job, config, machine)
    ranks = ranks_of(job)
    scheme = scheme_of(job, machine, release, ranks)
    split = TensorParallel(machine, ranks.tensor) if ranks.tensor > 1 else None
    model = load(job, config, machine, release, scheme, split)
    for layer in model.layers():
        layer.attention.context = ranks.context
    parameters = scheme.parameters(model)
    optimizer = scheme.optimizer(parameters, (), ())
    trainer = ChunkedTrainer if release.is_rewritten else Pipeline if ranks.pipeline > 1 else Trainer
    trainer(job, model, release, ranks, scheme, split, parameters, optimizer).train(lengths)


NOT_REWRITTEN: Mapping[str, Callable[[Job], bool]] = {
    "compile": lambda job: job.compile,
    "matmul_dtype": lambda job: job.matmul_dtype is not None,
    "parallel.tensor": lambda job: job.parallel.tensor > 1,
    "parallel.context": lambda job: job.parallel.context > 1,
    "parallel.pipeline": lambda job: job.parallel.pipeline > 1,
    "parallel.expert": lambda job: job.parallel.expert > 1,
    "parallel.fsdp_version": lambda job: job.parallel.fsdp_version == 1,
    "parallel.offload": lambda job: job.parallel.offload != "none",
}
"""What is not written down of 0.3."""


def followed_release(job: Job, config: Mapping[str, Any], machine: Machine) -> TitanRelease:
    """0.3's where what the job asks of it is written down, else 0.2.2's in its place, which is said."""
    capability = machine.card.capability
    release = release_of(job.stack_version, capability)
    machine.guesses.update(dict.fromkeys(guesses_of(job.stack_version)))
    missing = [field for field, asks in NOT_REWRITTEN.items() if asks(job)]
    if config["model_type"] not in REWRITTEN:
        missing.append(f"model_type {config['model_type']}")
    if config.get("tie_word_embeddings"):  # with FSDP two weights again, which share a part
        missing.append("weight of embedding and head")
    if not release.is_rewritten or not missing:
        return release
    machine.guesses[f"torchtitan 0.3's {missing[0]} is not written down; 0.2.2's code is taken"] = None
    return release_of(None, capability)


def load(
    job: Job, config: Mapping[str, Any], machine: Machine, release: TitanRelease, scheme: Scheme,
    split: TensorParallel | None,
) -> Transformer:  # fmt: skip
    config = config.get("text_config", config)
    family = (REWRITTEN if release.is_rewritten else FAMILIES).get(config["model_type"])
    if family is None:
        raise no_such_model(job.stack, config["model_type"])
    if config.get("tie_word_embeddings"):
        if config["model_type"] == "llama":
            own = "torchtitan's Llama keeps embedding and head apart, also where config.json ties them"
            machine.assumptions[own] = None
        else:
            machine.guesses[TIED] = None
    if job.weights_dtype == "float16" or job.autocast == "float16":
        raise UsageError.at("weights_dtype", "torchtitan trains in bfloat16 and float32")
    first = job.parallel.pipeline == 1 or machine.ends is None or machine.ends.embedding
    last = job.parallel.pipeline == 1 or not first
    model = family(machine, config, release, max(job.lengths or (job.seq_len,)), last, first)
    spread_experts(job, config, model, release)
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
    machine.name_head("output", "loss")
    return model


def to_float8(model: Transformer) -> None:
    """components/quantization/float8.py: torchao's `Float8Linear`, one scale a tensor; the head stays as it is
    (`filter_fqns = ["output"]`)."""
    for layer in model.layers():
        for module in layer.modules():
            if isinstance(module, Linear) and not (module.inputs % MULTIPLE or module.outputs % MULTIPLE):
                object.__setattr__(module, "forward", MethodType(float8_forward, module))


WITHOUT_EXPERTS: Mapping[str, Callable[[Job], bool]] = {
    "compile": lambda job: job.compile,
    "matmul_dtype": lambda job: job.matmul_dtype is not None,
    "parallel.tensor": lambda job: job.parallel.tensor > 1,
    "parallel.context": lambda job: job.parallel.context > 1,
    "parallel.pipeline": lambda job: job.parallel.pipeline > 1,
    "parallel.fsdp_version": lambda job: job.parallel.fsdp_version == 1,
    "parallel.offload": lambda job: job.parallel.offload != "none",
}
"""What is not written down of models with experts."""
SDPA = "attention is torch's own (attn_type sdpa), also where torchtitan's flavours of DeepSeek say flex"


def spread_experts(job: Job, config: Mapping[str, Any], model: Transformer, release: TitanRelease) -> None:
    """`apply_moe_ep_tp`. Before weights are brought to the card."""
    ranks = job.parallel.expert
    sparse = [module for module in model.modules() if isinstance(module, MoE)]
    if not sparse:
        if ranks > 1:
            raise UsageError.at("parallel.expert", f"got {ranks}, of a model without experts; allowed: 1")
        return
    refused = [field for field, asks in WITHOUT_EXPERTS.items() if asks(job)]
    if refused:
        raise Unsupported(f"{refused[0]}: torchtitan's experts are not written down with it", field=refused[0])
    if release.old_experts:
        raise UsageError.at("stack_version", "torchtitan's experts are written down from 2026.2 on")
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise Unsupported.at("model", "torchtitan's Qwen 3 has experts in every layer")
    if isinstance(model, DeepSeekModel):
        model.machine.assumptions[SDPA] = None
    for moe in sparse if ranks > 1 else ():
        moe.experts.spread(ranks)
