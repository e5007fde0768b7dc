"""litgpt's fine-tuning: Fabric's precision, the loop and the loss (litgpt/finetune/lora.py and full.py).

config.py   what litgpt calls the things of a config.json: its own attributes, from the Hub's
linears.py  litgpt's linear layers on paper: plain, quantised by Fabric, and with adapters
model.py    litgpt's model on paper: names, order of statements and the differences between releases

`stack_version` says which release. Left out: validation, the example it generates, the few bytes of its running loss.
One card never recomputes: checkpointing is an option of litgpt's FSDP strategy only.

litgpt on several cards: Fabric's FSDPStrategy, which its fine-tuning takes whenever there are more than one, and its
DDPStrategy, which its pretraining may.

FSDP: a unit a block and one around the model, original parameters kept (`use_orig_params`), every block recomputed
inside its unit (pretraining recomputes none). Adapters lie in the flat parameter of their block among frozen weights; a
flat parameter trains whole or not at all, so frozen weights get gradients too, which FSDP puts together, sums and drops
in the end. Until the last micro-batch of a step they are whole on every card (`no_backward_sync`): most of what LoRA
takes.

Source   litgpt/finetune/{lora,full}.py; lightning 2.6.6, fabric/strategies/fsdp.py, fabric/plugins/precision/fsdp.py.
Ignored  the checkpoint's weights arrive unit by unit (`fabric.load_raw`), which stays below the training's peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.records import replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.dtypes import DTYPES, FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import LayerNorm, Linear, Module, bring, bring_all
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.optimizers import Optimizer, make_optimizer
from tunecast.tape.build.optimizers.blockwise import Blockwise
from tunecast.tape.build.quantized import kept, made
from tunecast.tape.build.recompute import checkpoint
from tunecast.tape.build.sharding.ddp import Replicas
from tunecast.tape.build.sharding.fsdp1 import FlatScheme, Flattened, Options
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of
from tunecast.tape.build.stacks import Refusals, leaves_out, no_such_model
from tunecast.tape.build.stacks.litgpt.config import NEWEST, LitConfig, LitRelease, lit_config, release_of
from tunecast.tape.build.stacks.litgpt.linears import FourBitLinear, LitLinear, LitLora
from tunecast.tape.build.stacks.litgpt.model import CHUNK, GPT
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase, Role

# -------------------------------------------------------------------------------------------------------- several cards


PRETRAINS = "gradient_checkpointing: litgpt's fine-tuning recomputes every block it shards; its pretraining, none"
ONLY_SHARDED = "gradient_checkpointing: litgpt recomputes only what it shards; nothing is recomputed"


def scheme_of(job: Job, machine: Machine) -> Scheme:
    if ranks_of(job) == 1:
        return Scheme(job, machine)
    if job.method == "qlora":
        raise UsageError.at(
            "quantization.format", "litgpt refuses quantised weights on several cards. To fix: hardware.gpus 1"
        )
    if sharding_of(job).is_replicated:
        machine.assumptions.update(dict.fromkeys([ONLY_SHARDED] if job.gradient_checkpointing else []))
        return FabricDdp(job, machine)
    machine.assumptions.update(dict.fromkeys([] if job.gradient_checkpointing else [PRETRAINS]))
    return FabricFsdp(job, machine)


class FabricDdp(Replicas):
    """fabric/strategies/ddp.py: torch's defaults."""

    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.finds_unused = False

    def wrap(self, model: Any) -> None:
        model.gives_logits = True  # they are all that a model of litgpt's gives
        super().wrap(model)


class RecomputedModule(Module):
    """`checkpoint_wrapper(block)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.machine, super().__call__, *args, **kwargs)


class FabricFsdp(FlatScheme):
    """fabric/strategies/fsdp.py. The model is on the meta device; FSDP makes each unit's weights on the card."""

    def wrap(self, model: Any) -> None:
        job, blocks = self.job, {id(block) for block in model.layers()}
        for block in model.layers() if job.gradient_checkpointing else ():
            block.__class__ = type(type(block).__name__, (RecomputedModule, type(block)), {})
        low = DTYPES[job.autocast or job.weights_dtype]
        options = Options(self.ranks, low, low, low, use_orig_params=True)
        self.flat = Flattened(model, options, lambda module: id(module) in blocks)


REFUSES: Refusals = {
    **leaves_out("compile", "matmul_dtype", "kernels", "optimizer_in_backward", "offload_activations"),
    **leaves_out("transformers_version"),
    "quantization": lambda job: job.quantization.format not in (None, "nf4", "fp4"),
    "loss": lambda job: job.loss == ("chunked" if job.method == "full" else "full"),
    "stack_version": lambda job: release_of(job.stack_version) is None,
}
UNCLIPPED = "max_grad_norm: litgpt's fine-tuning does not clip gradients; none is clipped"
NOT_RECOMPUTED = "gradient_checkpointing: on one card litgpt never recomputes; nothing is recomputed"
TORCHS_ATTENTION = "attention: litgpt calls torch's scaled_dot_product_attention; sdpa is taken"
NOT_MIXED = "autocast: Fabric's mixed precision has float32 weights, none of them quantised; left out"
ADAPTER_DTYPE = "lora.adapter_dtype: litgpt makes adapters in the dtype of the weights"
KINDS: Mapping[str, tuple[str, ...]] = {
    "query": ("q_proj", "qkv_proj", "query_key_value"),
    "key": ("k_proj", "qkv_proj", "query_key_value"),
    "value": ("v_proj", "qkv_proj", "query_key_value"),
    "projection": ("o_proj", "dense"),
    "mlp": ("gate_proj", "up_proj", "down_proj", "fc1", "fc2", "gate_up_proj", "dense_h_to_4h", "dense_4h_to_h"),
    "head": ("lm_head",),
}
"""litgpt's switches, by the names PEFT's users give the layers."""
WHOLE_MLPS = ({"gate_proj", "up_proj", "down_proj"}, {"fc1", "fc2"}, {"gate_up_proj", "down_proj"})


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    lit = lit_config(config.get("text_config", config))
    return None if lit is None else GPT(machine, lit, NEWEST, None)


def scheme(job: Job, machine: Machine) -> Scheme:
    return scheme_of(with_own_autocast(job), machine)


def with_own_autocast(job: Job) -> Job:
    """The job with autocast only where litgpt has it."""
    return job if mixed(job) else replace_unchecked(job, autocast=None)


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    release = release_of(job.stack_version) or NEWEST
    lit = known_config(config, release)
    check(job)
    machine.assumptions.update(dict.fromkeys(done_otherwise(job)))
    job, scheme = with_own_autocast(job), machine.scheme
    with scheme.loading():
        gpt = load(job, lit, release, machine)
    scheme.wrap(gpt)
    parameters = scheme.parameters(gpt)
    optimizer = optimizer_of(job, parameters)
    old_embedding = gpt.transformer.wte
    if job.method == "qlora" and release.stable_embedding:
        gpt.transformer.wte = StableEmbedding(old_embedding)
    make_ropes(gpt, job, max(job.lengths or (job.seq_len,)))
    fit(job, gpt, optimizer, lengths)
    machine.end()


def known_config(config: Mapping[str, Any], release: LitRelease) -> LitConfig:
    text = config.get("text_config", config)
    lit = lit_config(text, release)
    if lit is None:
        raise no_such_model("litgpt", text.get("model_type"))
    return lit


def check(job: Job) -> None:
    """What litgpt itself would not run."""
    if job.method != "full" and job.lora.dora:
        told = "lora.dora: litgpt has no weight-decomposed adapters. To fix: lora.dora: false"
        raise UsageError(told, field="lora.dora")
    if min(job.lengths or (job.seq_len,)) < 2:  # logits[:, :-1] against targets[:, 1:]
        told = "got rows of 1 token; litgpt has each token predict the next of its row: allowed: 2 tokens or more"
        raise UsageError.at("seq_len", told)


def done_otherwise(job: Job) -> list[str]:
    """What the job says, and litgpt has no setting for on one card."""
    adapted = job.method != "full"
    asked = {
        UNCLIPPED: bool(job.max_grad_norm),
        ADAPTER_DTYPE: adapted and job.lora.adapter_dtype != job.weights_dtype,
        NOT_RECOMPUTED: job.gradient_checkpointing and ranks_of(job) == 1,
        TORCHS_ATTENTION: job.attention != "sdpa",
        NOT_MIXED: job.autocast is not None and not mixed(job),
    }
    return [told for told, is_so in asked.items() if is_so]


def mixed(job: Job) -> bool:
    """Fabric's `bf16-mixed`; other dtypes of the weights are `bf16-true` and the like."""
    return job.autocast is not None and job.weights_dtype == "float32" and job.method != "qlora"


# --------------------------------------------------------------------------------------------------------- loading


def load(job: Job, lit: LitConfig, release: LitRelease, machine: Machine) -> GPT:
    """`fabric.init_module`: every tensor is made on the card, in the precision it has there."""
    gpt = GPT(machine, lit, release, None if job.method == "full" else lora_of(job))
    gpt.name_all()
    machine.name_head(gpt.path, "lm_head", "lm_head.linear")
    if job.method == "qlora":
        tables: list[Tensor] = []
        for parent, name, linear in list(linears(gpt)):
            with machine.within(linear.path):
                new = FourBitLinear(linear, job.quantization.double_quant, tables, release.keeps_inputs)
            new.path = linear.path
            setattr(parent, name, new)
    for module in gpt.modules():
        for name, tensor in module.own.items():
            adapter = name.startswith("lora_")
            if tensor.storage is None:
                bring(tensor, module.path, Role.ADAPTERS if adapter else Role.WEIGHTS)
            if job.method != "full" and not adapter:
                tensor.requires_grad = False
    return gpt


def linears(module: Module) -> Iterator[tuple[Module, str, Linear]]:
    for name, child in module.children.items():
        if isinstance(child, LitLinear):
            yield module, name, child
        else:
            yield from linears(child)


def make_ropes(gpt: GPT, job: Job, longest: int) -> None:
    """`max_seq_length = longest` makes the tables anew, in fp32; those of the model's own length were cast with it."""
    lit, machine = gpt.lit, gpt.machine
    cast = longest == lit.block_size and job.method != "qlora"
    shape = (longest, lit.rope_n_elem, 2) if lit.two_ropes else (longest, lit.rope_n_elem)
    dtype = machine.weights_dtype if cast else FLOAT32
    with machine.within(gpt.path):
        gpt.ropes = [kept(made(machine, name, shape, dtype)) for name in ("cos", "sin")]


def lora_of(job: Job) -> LitLora:
    given = job.lora.targets
    assert given is not None, "targets follow from the stack: fill_in comes first"
    if given == "all-linear":
        kinds = set(KINDS) - {"head"}
    elif given == "attention":
        kinds = {"query", "key", "value", "projection"}
    else:
        kinds = {kind for kind, names in KINDS.items() if set(names) & set(given)}
        unknown = sorted(set(given) - {name for names in KINDS.values() for name in names})
        if unknown:
            raise UsageError.at("lora.targets", f"litgpt adapts no {', '.join(unknown)}")
        named = set(given) & set(KINDS["mlp"])
        if named and not any(whole <= named for whole in WHOLE_MLPS) and not named & {"dense_h_to_4h", "dense_4h_to_h"}:
            raise UsageError.at(
                "lora.targets", f"litgpt adapts an MLP's layers together, got only {', '.join(sorted(named))}"
            )
    return LitLora(job.lora.rank, job.lora.dropout_fraction, **{kind: kind in kinds for kind in KINDS})


def optimizer_of(job: Job, parameters: Sequence[Tensor]) -> Optimizer:
    """litgpt/utils.py, `instantiate_bnb_optimizer`: with quantised weights AdamW is bitsandbytes' paged one."""
    if job.method != "qlora":
        return make_optimizer(job, parameters)
    if "adamw" not in job.optimizer:
        raise UsageError.at("optimizer", f"got {job.optimizer}; litgpt trains quantised models with AdamW only")
    return Blockwise(parameters, bits=32, paged=True)


class StableEmbedding(Module):
    """bitsandbytes/nn/modules.py. It comes after the other weights are frozen and the optimizer has its list: it takes
    gradients that nobody uses, or ever drops."""

    def __init__(self, old: Any) -> None:
        super().__init__(old.machine)
        self.weight = self.parameter(*old.weight.shape)
        self.norm = LayerNorm(old.machine, old.weight.shape[1])
        self.name_all(old.path)
        bring_all(self)

    def forward(self, input: Tensor) -> Tensor:
        emb = F.embedding(self.weight, input)
        return self.norm(emb)


# -------------------------------------------------------------------------------------------------------- training


def fit(job: Job, gpt: GPT, optimizer: Optimizer, lengths: Sequence[int]) -> None:
    """`logits`, and with them the graph, live until the next forward pass has returned; `loss` becomes a number."""
    machine, scheme = gpt.machine, gpt.machine.scheme
    loss: Any
    for length in machine.steps(lengths):
        for micro in range(job.grad_accum):
            machine.take_turn(micro)
            input_ids = machine.run("randint", (), (job.micro_batch, length), INT64)
            targets = machine.run("ones_like", (input_ids,), input_ids.shape, INT64)
            machine.phase, machine.in_forward = Phase.FORWARD, True
            with scheme.micro_batch(last=micro == job.grad_accum - 1):
                if job.method == "full":
                    logits = fabric_forward(job, gpt, input_ids)
                    loss = chunked_cross_entropy(without_last(logits), targets[..., 1:length])
                else:
                    logits = fabric_forward(job, gpt, input_ids, CHUNK)
                    logits[-1] = without_last(logits[-1])
                    loss = chunked_cross_entropy(logits, targets[..., 1:length])
                backward(loss / job.grad_accum)
            loss = None
        optimizer.take_step()
        optimizer.zero_grad()
    scheme.end()


def fabric_forward(job: Job, gpt: GPT, idx: Tensor, chunk: int = 0) -> Any:
    """lightning/fabric/wrappers.py, `_FabricModule.forward`; `convert_output` gives fp32 in every precision."""
    machine = gpt.machine
    machine.scheme.begin_forward()
    with machine.autocasting(DTYPES[job.autocast] if job.autocast else None):
        output = machine.scheme.end_forward(gpt(idx, chunk))
    with machine.within(gpt.path):
        output = [part.float() for part in output] if chunk else output.float()
    return output


def without_last(logits: Tensor) -> Tensor:
    return logits[:, : logits.shape[1] - 1]


def chunked_cross_entropy(logits: Any, targets: Tensor) -> Tensor:
    """litgpt/utils.py: by the chunks the head was made in, else by rows."""
    if isinstance(logits, list):
        length = targets.shape[1]
        logit_chunks = [chunk.reshape(-1, chunk.shape[-1]) for chunk in logits]
        pieces = targets.split([min(CHUNK, length - start) for start in range(0, length, CHUNK)], 1)
        target_chunks = [piece.reshape(-1) for piece in pieces]
        del pieces
    else:
        logits = logits.reshape(-1, logits.shape[-1])
        targets = targets.reshape(-1)
        rows = [min(CHUNK, targets.shape[0] - start) for start in range(0, targets.shape[0], CHUNK)]
        logit_chunks = logits.split(rows, 0)
        target_chunks = targets.split(rows, 0)
    loss_chunks = [cross_entropies(*pair) for pair in zip(logit_chunks, target_chunks, strict=False)]
    non_masked_elems = targets.ne(-100).sum()
    total = F.cat(loss_chunks, 0).sum()
    return total / at_least_one(non_masked_elems)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """One loss a row."""
    return F.negative_log_likelihood(logits, labels, result=logits.shape[:1])


def at_least_one(count: Tensor) -> Tensor:
    ones = pointwise("ones_like", count)
    return count.machine.run("maximum", (count, ones), (), INT64)
