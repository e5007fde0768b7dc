"""torchtune's single-device recipes, recipes/{full,lora}_finetune_single_device.py of 0.6.1, on paper.

attentions.py  attention that a family has for itself: Gemma 2, Qwen 3
builders.py    from a config.json to torchtune's builders
dora.py        torchtune's DoRA on paper
first.py       what torchtune 0.1.0 did otherwise
modules.py     torchtune's modules on paper, and what 0.4.0 does otherwise
newer.py       what the repository does otherwise after 0.6.1, the last release
nf4.py         torchao's NF4 weights on paper

Weights and adapters are in one dtype, nothing is cast on the way (`dtype: bf16`). A release from 0.3 to 0.4 is 0.4.0,
0.7 is the repository's main branch, others are 0.6.1 (`stack_version`).

torchtune's distributed recipes on paper (0.6.1, recipes/full_finetune_distributed.py): FSDP2 without a policy.

Weights stay in their dtype, gradients are summed in it, after every micro-batch. A unit a layer; the files for full
training of Llama 3 and later also name the embedding and the head (`custom_sharded_layers`). The model itself, with
what is left, is given back after the forward pass like the others, and since 0.7 kept (`shard_model`). A head that is
called chunk by chunk is gathered for each, in both passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.releases import minor
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.flash import document_mask
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module, bring
from tunecast.tape.build.offload import Offload
from tunecast.tape.build.optimizers import Optimizer, make_optimizer
from tunecast.tape.build.optimizers.state import InBackward, require_one_gradient
from tunecast.tape.build.sharding.accelerate import AccelerateFsdp2
from tunecast.tape.build.sharding.fsdp2 import FullyShard, Mesh
from tunecast.tape.build.sharding.host import is_on_host
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of
from tunecast.tape.build.stacks import Refusals, leaves_out, no_such_model
from tunecast.tape.build.stacks.torchtune import first, modules
from tunecast.tape.build.stacks.torchtune.builders import FIRST, NEWEST, UNRELEASED, Adapters, Release, build
from tunecast.tape.build.stacks.torchtune.newer import LinearCrossEntropyLoss
from tunecast.tape.build.stacks.torchtune.nf4 import FrozenNF4Linear
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase, Role

# -------------------------------------------------------------------------------------------------------- several cards


Rule = Callable[[Job], bool]
REFUSED_TOGETHER: Refusals = {
    "quantization": lambda job: job.quantization.format is not None,
    **leaves_out("optimizer_in_backward", "offload_activations"),
    "optimizer": lambda job: job.optimizer not in ("adamw_torch", "adamw_torch_fused", "sgd"),
}
"""What is not known of several cards."""


def on_several(rule: Rule) -> Rule:
    return lambda job: ranks_of(job) > 1 and rule(job)


class Wrapped(Module):
    """Recomputation wraps a compiled layer, and FSDP takes the wrapper: its hooks are outside of both."""

    def __init__(self, layer: Module) -> None:
        super().__init__(layer.machine)
        self.layer = layer
        self.path = layer.path

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)


class TuneFsdp(AccelerateFsdp2):
    def __init__(self, job: Job, machine: Machine) -> None:
        Scheme.__init__(self, job, machine)
        self.sharder = FullyShard(machine, Mesh(ranks_of(job)), on_host=job.parallel.offload == "parameters")

    def wrap(self, model: Any) -> None:
        sharder, reshards = self.sharder, self.job.parallel.reshard_after_forward
        for name, layer in list(model.layer_list.children.items()):
            wrapped = Wrapped(layer)
            setattr(model.layer_list, name, wrapped)
            sharder.shard([wrapped], reshards)
        apart = self.job.parallel.shard_ends
        if self.job.method == "full" if apart is None else apart:
            for end in (model.output, model.tok_embeddings):
                if end.own:  # a head that is the embedding has none
                    sharder.shard([end], reshards)
        sharder.shard_root(model)
        assert sharder.root is not None
        sharder.root.reshards = reshards and release_of(self.job) < UNRELEASED

    def micro_batch(self, last: bool) -> Any:
        return Scheme.micro_batch(self, last)


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
"""recipes/configs/*/*_lora_single_device.yaml."""

OLDEST = (0, 3)

REFUSES: Refusals = {
    **leaves_out("matmul_dtype", "kernels", "attention", "checkpoint_reentrant", "transformers_version"),
    **{field: on_several(rule) for field, rule in REFUSED_TOGETHER.items()},
    "quantization": lambda job: job.quantization.format not in ((None,) if ranks_of(job) > 1 else (None, "nf4")),
}


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    return build(machine, config)


def scheme(job: Job, machine: Machine) -> Scheme:
    return TuneFsdp(job, machine) if ranks_of(job) > 1 else Scheme(job, machine)


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    if job.autocast is not None:
        machine.assumptions["autocast: torchtune has none; left out"] = None
    if job.weights_dtype == "float16":
        raise UsageError.at("weights_dtype", "torchtune's recipes refuse float16; allowed: bfloat16, float32")
    require_one_gradient(job)
    with machine.scheme.loading():
        model = load(job, config, machine)
    loss_fn = loss_of(job, model)
    loss_fn.name_all("loss")
    if job.compile and release_of(job) != FIRST:
        loss_fn.compile()
        for layer in model.layers():
            layer.compile()
    machine.scheme.wrap(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: Optimizer
    if job.optimizer_in_backward:
        optimizer = InBackward(parameters, lambda own: make_optimizer(job, own))
    else:
        optimizer = machine.scheme.optimizer(parameters, (), ())
    if release_of(job) == FIRST:
        train_first(job, model, optimizer, lengths)
        return
    machine.name_head("output", "loss")
    if release_of(job) == UNRELEASED:
        model.skip_output_layer = job.loss != "full"
    elif job.loss != "full":
        model.num_output_chunks = modules.OUTPUT_CHUNKS
    ignore_labels = None
    if release_of(job) < UNRELEASED:
        ignore_labels = machine.run("full", (), (job.micro_batch, 1), INT64)
    clean_up(job, machine)
    offload = None
    if job.offload_activations:
        if release_of(job) == UNRELEASED:
            machine.guesses["torchtune 0.7 offloads activations as 0.6.1 does"] = None
        offload = model.offload = Offload(machine, list(model.parameters()))
    TuneRecipe(job, model, loss_fn, parameters, optimizer, ignore_labels, offload).train(lengths)


def clean_up(job: Job, machine: Machine) -> None:
    """torchtune/training/memory.py, `cleanup_before_training`: recipes/*_distributed.py call it before they train,
    those for one card do not (0.1.1, 0.3.0 to 0.6.1), so that what quantizing held while loading stays reserved."""
    if ranks_of(job) > 1:
        machine.empty_cache()


def loss_of(job: Job, model: modules.TransformerDecoder) -> modules.CrossEntropy:
    if job.loss == "full":
        return modules.CrossEntropy(model.machine)
    if release_of(job) == UNRELEASED:
        return LinearCrossEntropyLoss(model.machine, model.output)
    return modules.CEWithChunkedOutputLoss(model.machine)


def train_first(job: Job, model: modules.TransformerDecoder, optimizer: Optimizer, lengths: Sequence[int]) -> None:
    named = {
        "loss": job.loss == "chunked", "compile": job.compile, "data.packing": job.data.packing,
        "optimizer_in_backward": job.optimizer_in_backward, "offload_activations": job.offload_activations,
        "max_grad_norm": bool(job.max_grad_norm),
    }  # fmt: skip
    for field, asked in named.items():
        if asked:
            raise UsageError.at(field, "torchtune 0.1 has none. To fix: stack_version 0.4 or later")
    model.machine.name_head("output", "loss")
    clean_up(job, model.machine)
    first.train(model, optimizer, lengths, job.micro_batch, job.grad_accum)


def load(job: Job, config: Mapping[str, Any], machine: Machine) -> modules.TransformerDecoder:
    adapters = Adapters()
    if job.method != "full":
        quantized = job.quantization.format == "nf4"
        adapters = Adapters(targets(job), job.lora.rank, job.lora.dropout_fraction, quantized, job.lora.dora)
    model = build(machine, config, adapters, release_of(job))
    if model is None:
        raise no_such_model(job.stack, config["model_type"])
    positions = model.layer_list.children["0"].attn.pos_embeddings.cache.shape[0]  # type: ignore[attr-defined]
    if max(job.lengths or (job.seq_len,)) > positions:
        raise UsageError.at("seq_len", f"torchtune's model has {positions} positions")
    if job.method != "full" and job.lora.adapter_dtype != job.weights_dtype:
        machine.assumptions[f"torchtune keeps adapters in the weights' dtype, {job.weights_dtype}"] = None
    model.name_all()
    for part in (model.layer_list, model.tok_embeddings, model.output, model.norm):
        for module in part.modules():
            if isinstance(module, FrozenNF4Linear):
                module.quantize()
                module.weight.requires_grad = False
            for name, tensor in module.own.items():
                if tensor.storage is None:
                    adapter = ".lora_" in module.path or name == "magnitude"
                    bring(tensor, module.path, Role.ADAPTERS if adapter else Role.WEIGHTS)
                    tensor.requires_grad = tensor.requires_grad and (job.method == "full" or adapter)
    for layer in model.layers():
        layer.checkpoint = job.gradient_checkpointing
    return model


def release_of(job: Job) -> Release:
    if job.stack_version is None:
        return NEWEST
    release = minor(job.stack_version)
    if release != FIRST and not OLDEST <= release <= UNRELEASED:
        raise UsageError.at(
            "stack_version", f"got {job.stack_version}; torchtune's 0.1 and 0.3 to 0.7 are written down"
        )
    return release


def targets(job: Job) -> Collection[str]:
    given = job.lora.targets
    if job.lora.dora and job.quantization.format is not None:
        raise Unsupported.at("lora.dora", "torchtune's DoRALinear over NF4 weights is not written down")
    assert given is not None, "targets follow from the stack: fill_in comes first"
    if given == "attention":
        return ATTENTION
    if given == "all-linear":
        return (*ATTENTION, *MLP)
    unknown = set(given) - {*ATTENTION, *MLP, "lm_head"}
    if unknown or 0 < len(set(given) & set(MLP)) < len(MLP):
        raise UsageError.at(
            "lora.targets",
            f"torchtune adapts any of {', '.join(ATTENTION)}, all of {', '.join(MLP)} or none of them, and lm_head",
        )
    return given


class TuneRecipe:
    """`FullFinetuneRecipeSingleDevice`: names that outlive a step here do so there."""

    def __init__(
        self, job: Job, model: modules.TransformerDecoder, loss_fn: Any, parameters: Sequence[Tensor],
        optimizer: Optimizer, ignore_labels: Tensor | None, offload: Offload | None,
    ) -> None:  # fmt: skip
        self.job, self.model, self.loss_fn = job, model, loss_fn
        self.parameters, self.optimizer, self.ignore_labels = parameters, optimizer, ignore_labels
        self.machine, self.offload = model.machine, offload
        self.newer = ignore_labels is None
        self.grad_norm: Tensor | None = None
        """Of the last step: since 0.7 a name holds it."""

    def train(self, lengths: Sequence[int]) -> None:
        machine, job = self.machine, self.job
        running_loss: Any = None
        num_tokens: Any = None
        loss_factor: Any = None
        loss_to_log: Any = None
        for length in machine.steps(lengths):
            for number in range(job.grad_accum):
                machine.take_turn(number)
                mask = document_mask(machine, job.micro_batch, length) if job.data.packing else None
                batch: dict[str, Any] = {"mask": mask}
                del mask
                for name in ("tokens", "labels", "input_pos")[: 3 if job.data.packing else 2]:
                    batch[name] = machine.run("_to_copy", (), (job.micro_batch, length), INT64)
                current_num_tokens = batch["labels"].ne(modules.CrossEntropy.ignore_index).sum()
                if num_tokens is None:
                    num_tokens = current_num_tokens + 0
                if self.newer:
                    loss_factor = 1.0 if job.optimizer_in_backward else current_num_tokens
                    current_loss = self.loss_step(batch) * loss_factor
                    with machine.no_grad():
                        running_loss = current_loss + 0 if running_loss is None else running_loss.add_(current_loss)
                else:
                    current_loss = self.loss_step(batch) * current_num_tokens
                    running_loss = current_loss + 0 if running_loss is None else running_loss.add_(current_loss)
                backward(current_loss)
            if not job.optimizer_in_backward:
                self.take_step(num_tokens)
            if self.newer:
                running_loss / num_tokens  # read, and gone
            else:
                loss_to_log = 1 / num_tokens
            running_loss = num_tokens = None
        del batch, current_num_tokens, loss_factor, current_loss, loss_to_log  # as the next step would
        if self.offload is not None:
            self.offload.node = None
        machine.end()

    def loss_step(self, batch: dict[str, Any]) -> Tensor:
        machine = self.machine
        labels = batch.pop("labels")
        machine.phase, machine.in_forward = Phase.FORWARD, True
        with contextlib.nullcontext() if self.offload is None else self.offload.active():
            logits = self.model(**batch)
        if self.ignore_labels is not None:
            labels = machine.run("cat", (labels, self.ignore_labels), labels.shape, INT64)
        if self.job.loss == "full":
            labels = labels.reshape(-1)
            logits = logits.reshape(-1, logits.shape[-1])
        loss = self.loss_fn(logits, labels)
        del logits
        return loss

    def take_step(self, num_tokens: Tensor) -> None:
        machine, job = self.machine, self.job
        self.grad_norm = None
        scaler = 1 / num_tokens
        scaled = [p.grad for p in self.parameters if p.grad is not None and not is_on_host(p)]
        if self.newer:
            machine.launch("_foreach_mul_", (*scaled, scaler), scaled[0].dtype if scaled else INT64, 0)
        else:
            for gradient in scaled:
                machine.launch("mul_", (gradient, scaler), gradient.dtype, gradient.nbytes)
        del scaler, scaled
        norm = machine.scheme.clip(self.parameters) if job.max_grad_norm else None
        if self.newer:
            self.grad_norm = norm
        del norm
        self.optimizer.take_step()
        self.optimizer.zero_grad()
