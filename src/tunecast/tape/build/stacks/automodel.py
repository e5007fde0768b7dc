"""NVIDIA's NeMo Automodel on paper: its fine-tuning recipe under FSDP 2, of transformers' models and three of its own.

Weights stay in the dtype they were loaded in; FSDP 2 gathers them as bf16 and sums gradients in fp32. Alone on a card
nothing is wrapped and nothing cast. Llama, Qwen 2 and Qwen 3 are its own modules: norms are one compiled kernel, and
checkpointing is of attention, MLP and norms each. Of other models checkpointing is of whole layers.

Source   NVIDIA-NeMo/Automodel at 36044ad3 (0.5.0, August 2026): recipes/llm/train_ft.py, `_forward_backward_step`,
         `_run_train_optim_step`; components/distributed/config.py, `FSDP2Config`; parallelizer.py,
         `DefaultParallelizationStrategy`, `apply_fsdp2_sharding_recursively`; activation_checkpointing.py;
         components/loss/masked_ce.py; models/llama, qwen2, qwen3.
Checked  tests/golden/stacks/automodel: its modules, traced alone and as one rank of eight, event for event; of weights
         in 4 bits nothing. Two published steps of LoRA on an H100, run with more fused kernels, are told 12 and 18 %
         slower than they were.
Ignored  Liger's kernels, which it puts into transformers' models where the package is installed; Transformer Engine's
         rotary kernel, which replaces torch's where that is.

Automodel's adapters (components/_peft/lora.py, `LinearLoRA`): made in the weights' dtype, run without conversions.

What lies between the two matrices is not kept but computed again (`LoRATritonFunction` without its kernels,
`use_memory_efficient_lora`, on by default), and the layer's result is added to in place. An MLP of three adapted layers
is one function, which makes the activation and what enters the last layer again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.shardings import SHARDED, sharding_of
from tunecast.tape.build import attention
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapters import targets
from tunecast.tape.build.autograd import Gradients, Node, backward, finish, start
from tunecast.tape.build.decoder import SelfAttention
from tunecast.tape.build.dtypes import BFLOAT16, DTYPES, FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Linear, Module, RMSNorm, bring
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.recompute import checkpoint
from tunecast.tape.build.repeats import micro_batches
from tunecast.tape.build.sharding.accelerate import AccelerateFsdp2, store_as_floats
from tunecast.tape.build.sharding.fsdp2 import FullyShard, Mesh, MixedPrecisionPolicy
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of
from tunecast.tape.build.sharding.unit import mesh_of_ranks
from tunecast.tape.build.stacks import Refusals, leaves_out, no_such_model, transformers
from tunecast.tape.build.stacks.torchtune.modules import fused_rms_norm
from tunecast.tape.build.stacks.transformers import load, model
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase, Role

# ------------------------------------------------------------------------------------------------------------- adapters


def insert_adapters(job: Job, model: Any) -> None:
    """`apply_lora_to_linear_modules`."""
    if job.lora.dora:
        raise Unsupported.at("lora.dora", "Automodel's DoRA is not written down; allowed: false")
    for parameter in model.parameters():
        parameter.requires_grad = False
    for parent, name, base in list(targets(job, model)):
        adapted = LinearLoRA(base, job.lora.rank, job.lora.dropout_fraction)
        adapted.name_all(base.path)
        dtype = base.compute_dtype if isinstance(base, Linear4bit) else base.weight.dtype
        for part in (adapted.lora_A, adapted.lora_B):
            bring(part.weight, part.path, Role.ADAPTERS, dtype)
        setattr(parent, name, adapted)
    for module in list(model.modules()):
        if is_fusible(module):
            object.__setattr__(module, "forward", MethodType(fused_mlp, module))


class LinearLoRA(Module):
    def __init__(self, base: Linear, rank: int, dropout: float) -> None:
        super().__init__(base.machine)
        self.lora_A = Linear(base.machine, base.inputs, rank)
        self.lora_B = Linear(base.machine, rank, base.outputs)
        self.base_layer = base  # last, as FSDP 2 finds a module's own weight after its children's
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        res = self.base_layer(x)
        weights = (self.lora_A.weight, self.lora_B.weight)
        if not self.dropout:
            return memory_efficient(x, *weights, res).reshape(*res.shape)
        lora_res = F.dropout(memory_efficient(x, *weights).reshape(*res.shape), self.dropout)
        return lora_res.add_(res)


def memory_efficient(x: Tensor, lora_A: Tensor, lora_B: Tensor, res: Tensor | None = None) -> Tensor:
    """`LoRATritonFunction`: the input and both matrices are saved."""
    machine, shape = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept, first, second = (node.take(place) for place in range(3))
        d_y = gradients[0]
        flat = kept.reshape(-1, shape[-1])
        d_y_lora_B = F.linear(d_y, second.t())
        d_x = None
        if node.needs[0]:
            d_x = pointwise("empty_like", flat)
            add_product(d_x, d_y_lora_B, first)
        d_lora_A = times(F.matmul(d_y_lora_B.t(), flat))
        d_lora_B = pointwise("empty_like", second)
        add_product(d_lora_B, d_y.t(), F.linear(flat, first))
        d_x = None if d_x is None else d_x.view(*shape)
        return [d_x, d_lora_A, d_lora_B] + ([] if res_shape is None else [d_y.reshape(*res_shape)])

    res_shape = None if res is None else res.shape
    inputs = (x, lora_A, lora_B) if res is None else (x, lora_A, lora_B, res)
    node = start(machine, inputs, back)
    with machine.no_grad():
        flat = x.detach().reshape(-1, shape[-1])
        between = times(F.linear(flat, lora_A.detach()))
        out = F.linear(between, lora_B.detach())
        del between
        if res is not None:
            machine.launch("add_", (out, res), out.dtype, out.nbytes)
    return finish(node, out, x, lora_A, lora_B)


# -------------------------------------------------------------------------------- all of an MLP (_peft/lora_mlp.py)

MLP_LAYERS = ("gate_proj", "up_proj", "down_proj")


def is_fusible(module: Module) -> bool:
    """`install_fused_lora_mlp`, `_fusible`: adapters without dropout on all three, over plain weights, and SwiGLU."""
    parts = [module.children.get(name) for name in MLP_LAYERS]
    act_fn = module.children.get("act_fn")
    swiglu = isinstance(act_fn, Activation) and act_fn.function is F.silu
    return swiglu and all(
        isinstance(part, LinearLoRA) and not part.dropout and type(part.base_layer) is Linear for part in parts
    )


def fused_mlp(mlp: Any, x: Tensor) -> Tensor:
    """`LoRASwiGLUMLPFunction`: of what is as wide as the MLP, what gate and up give is kept."""
    machine, shape = x.machine, x.shape
    parts = [mlp.children[name] for name in MLP_LAYERS]
    (gW, uW, dW), firsts, seconds = (
        [part.base_layer.weight for part in parts], [part.lora_A.weight for part in parts],
        [part.lora_B.weight for part in parts],
    )  # fmt: skip

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        x, e, g, gA, gB, uA, uB, dA, dB = (node.take(place) for place in range(9))
        dY = gradients[0].reshape(-1, gradients[0].shape[-1])
        d_P = times(F.matmul(dY, dB))
        d_h = F.addmm(F.matmul(dY, dW.detach()), d_P, dA)
        machine.launch("triton::_swiglu_bwd_kernel", (d_h, e, g), e.dtype, 3 * e.nbytes)
        P = F.linear(d_h, dA)
        d_dB = times(F.matmul(dY.t(), P))
        d_dA = F.matmul(d_P.t(), d_h)
        Q = F.linear(x, uA)
        d_uB = times(F.matmul(e.t(), Q))
        d_Q = times(F.matmul(e, uB))
        d_uA = F.matmul(d_Q.t(), x)
        R = F.linear(x, gA)
        d_gB = times(F.matmul(g.t(), R))
        d_R = times(F.matmul(g, gB))
        d_gA = F.matmul(d_R.t(), x)
        d_x = None
        if node.needs[0]:
            d_x = F.addmm(F.matmul(g, gW.detach()), d_R, gA)
            add_product(d_x, e, uW.detach())
            add_product(d_x, d_Q, uA)
            d_x = d_x.view(*shape)
        return d_x, d_gA, d_gB, d_uA, d_uB, d_dA, d_dB

    (gA, uA, dA), (gB, uB, dB) = firsts, seconds
    node = start(machine, (x, gA, gB, uA, uB, dA, dB), back)
    with machine.no_grad():
        x2 = x.detach().reshape(-1, shape[-1])
        e, g = (adapted(x2, *of) for of in ((gW, gA, gB), (uW, uA, uB)))
        h = machine.run("empty_like", (e,), e.shape, e.dtype)
        machine.launch("triton::_swiglu_fwd_kernel", (e, g), e.dtype, e.nbytes)
        out = adapted(h, dW, dA, dB).view(*shape[:-1], -1)
        del h
    return finish(node, out, x2, e, g, gA, gB, uA, uB, dA, dB)


def adapted(x: Tensor, weight: Tensor, lora_A: Tensor, lora_B: Tensor) -> Tensor:
    out = F.linear(x, weight.detach())
    add_product(out, times(F.linear(x, lora_A.detach())), lora_B.detach().t())
    return out


def times(x: Tensor) -> Tensor:
    """Times alpha / rank."""
    scale = 1.0
    return x * scale


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """`addmm_`."""
    total.machine.launch("addmm_", (total, a, b), total.dtype, total.nbytes, 2 * a.numel() * b.shape[1])


# ---------------------------------------------------------------------------------------------------------- the program


__all__ = ["REFUSES", "model", "train"]

REFUSES: Refusals = {
    **transformers.REFUSES,
    **leaves_out("compile", "kernels", "loss", "matmul_dtype", "autocast", "checkpoint_reentrant"),
    **leaves_out("optimizer_in_backward"),
}
LAST_LAYERS = 2
"""The last layer's weights stay between its two passes, which changes when the one before it is gathered."""
OWN_MODELS = ("llama", "qwen2", "qwen3")
OWN_EXPERTS = ("qwen3_moe", "deepseek_v3", "gpt_oss")
"""Models with experts of its own code, which is not written down (_transformers/registry.py)."""
READ = "NeMo Automodel: its modules were traced, but nobody measured the memory of a run"
NO_LIGER = "Liger's kernels, which Automodel uses where the package is installed, are left out"
WRAPPED = ("mlp", "self_attn", "input_layernorm", "post_attention_layernorm")
"""`apply_submodule_checkpointing`, in its order."""


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    kind = config.get("text_config", config)["model_type"]
    if kind in OWN_EXPERTS:
        raise no_such_model(job.stack, kind)
    machine.guesses[READ] = None
    if kind not in OWN_MODELS:
        machine.assumptions[NO_LIGER] = None
    machine.run("zeros", (), (1,), FLOAT32)
    scheme = machine.scheme
    with scheme.loading():
        model = load(job, config, machine)
        if kind in OWN_MODELS:
            make_own(model, kind)
        if job.method != "full":
            insert_adapters(job, model)
    vars(model)["output"] = lambda logits, labels: logits  # the loss is the recipe's
    if job.gradient_checkpointing:
        switch_on_checkpointing(model, whole_layers=kind not in OWN_MODELS)
        model.input_embedding().gives_gradient = kind not in OWN_MODELS and type(scheme) is Scheme  # transformers' own
    scheme.wrap(model)
    machine.empty_cache()
    parameters = scheme.parameters(model)
    take_steps(job, model, parameters, scheme.optimizer(parameters, (), ()), lengths)
    machine.end()


def defaults(job: Job) -> dict[str, Any]:
    """components/distributed/config.py, `FSDP2Config`; components/_peft/lora.py, `PeftConfig`; the optimizer of its
    examples, torch.optim.AdamW as it is."""
    ways: dict[str, Any] = {"autocast": None, "gradient_checkpointing": False, "optimizer": "adamw_torch"}
    if job.hardware.gpus * job.hardware.nodes > 1 and sharding_of(job).is_replicated:
        ways["parallel.data"] = SHARDED
    if job.method != "full":
        ways |= {"lora.adapter_dtype": job.weights_dtype, "lora.rank": 8}
    if job.method == "qlora":
        ways["quantization.prepare_kbit"] = False
    return ways


# ------------------------------------------------------------------------------------------------------- the model


def make_own(model: Any, kind: str) -> None:
    """What its modules do otherwise than transformers', from which Qwen 3's derive but for the positions.
    components/models/common/utils.py, `Float32RMSNorm`, is compiled: one kernel of what it reads and writes."""
    decoder = model.base()
    replace_method(decoder, "position_ids", position_ids)
    replace_method(decoder.rotary_emb, "forward", looked_up)
    for module in model.modules() if kind != "qwen3" else ():
        if isinstance(module, RMSNorm):
            replace_method(module, "forward", normed)
        elif isinstance(module, SelfAttention):
            replace_method(module, "forward", attended)


def replace_method(of: Any, name: str, function: Callable[..., Any]) -> None:
    object.__setattr__(of, name, MethodType(function, of))


def normed(norm: Any, x: Tensor) -> Tensor:
    return fused_rms_norm(x, norm.weight)


def attended(self: Any, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any) -> Any:
    """models/llama/model.py, `LlamaAttention.forward`, whose q, k and v live as long as it runs."""
    batch, length, _ = hidden_states.shape
    q = self.q_proj(hidden_states)
    k = self.k_proj(hidden_states)
    v = self.v_proj(hidden_states)
    query_states, key_states, value_states = (
        x.view(batch, length, -1, self.head_dim).transpose(1, 2) for x in (q, k, v)
    )
    query_states, key_states = self.apply_rotary(query_states, key_states, position_embeddings)
    attn_output, attn_weights = attention.attend(
        query_states, key_states, value_states, attention_mask, self.groups, self.dropout, position_ids=position_ids
    )
    attn_output = attn_output.reshape(batch, length, -1).contiguous()
    attn_output = self.o_proj(attn_output)
    return attn_output, attn_weights


def position_ids(decoder: Any, length: int) -> Tensor:
    return decoder.machine.run("arange", (), (length,), INT64).unsqueeze(0)


def looked_up(rotary: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """models/llama/rope_utils.py: tables of all positions, made once and again where rows get longer."""
    machine, (batch, length) = rotary.machine, position_ids.shape
    machine.run("max", (position_ids,), (), INT64, args=(position_ids,))
    tables = vars(rotary).get("tables")
    if tables is None or length > tables[0].shape[0]:
        tables = vars(rotary)["tables"] = made_tables(rotary, length)
    shape = (batch, length, rotary.width)
    cos, sin = (machine.run("index", (table, position_ids), shape, table.dtype) for table in tables)
    return cos, sin


def made_tables(rotary: Any, length: int) -> tuple[Tensor, Tensor]:
    machine, width = rotary.machine, rotary.width
    positions = machine.run("arange", (), (length,), FLOAT32)
    freqs = machine.run("mul", (positions, rotary.inv_freq), (length, width // 2), FLOAT32)
    emb = machine.run("cat", (freqs, freqs), (length, width), FLOAT32)
    cos = (emb.cos() * rotary.attention_scaling).to(machine.weights_dtype)
    return cos, (emb.sin() * rotary.attention_scaling).to(machine.weights_dtype)


def switch_on_checkpointing(model: Any, whole_layers: bool) -> None:
    """Both kinds are torch's without reentrance. Alone on a card, of whole layers, transformers' own is switched on,
    which wants gradients of the embeddings."""
    for layer in model.layers():
        if whole_layers:
            layer.checkpoint = True
            continue
        for name in WRAPPED:
            if name in layer.children:
                setattr(layer, name, Checkpointed(layer.children[name]))


class Checkpointed(Module):
    """torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py, `CheckpointWrapper`."""

    def __init__(self, module: Module) -> None:
        super().__init__(module.machine)
        self.path = module.path
        self._checkpoint_wrapped_module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def again(*args: Any) -> Any:
            return self._checkpoint_wrapped_module(*args, **kwargs)

        return checkpoint(self.machine, again, *args)


# ----------------------------------------------------------------------------------------------------- the sharding


def scheme(job: Job, machine: Machine) -> Scheme:
    ranks = ranks_of(job)
    if ranks == 1:
        return Scheme(job, machine)
    return AutomodelFsdp(job, machine, mesh_of_ranks(job, ranks))


class AutomodelFsdp(AccelerateFsdp2):
    """`FSDP2Config`: a unit a layer, of which the last is not given back, and the model with what is left."""

    def __init__(self, job: Job, machine: Machine, mesh: Mesh) -> None:
        super().__init__(job, machine, mesh)
        reduce = job.parallel.reduce_dtype
        policy = MixedPrecisionPolicy(BFLOAT16, DTYPES[reduce] if reduce else FLOAT32, BFLOAT16)
        self.sharder = FullyShard(machine, mesh, policy, on_host=self.sharder.on_host)

    def wrap(self, model: Any) -> None:
        sharder = self.sharder
        if self.job.quantization.format is not None:
            store_as_floats(sharder, model)
        layers = list(model.layers())
        for layer in layers:
            sharder.shard([layer], self.job.parallel.reshard_after_forward and layer is not layers[-1])
        sharder.shard_root(model)


# ---------------------------------------------------------------------------------------------------------- the loop


def take_steps(
    job: Job, model: Any, parameters: Sequence[Tensor], optimizer: Optimizer, lengths: Sequence[int]
) -> None:
    """`_run_train_optim_step`. A step's losses live until the next step's are there."""
    machine, scheme = model.machine, model.machine.scheme
    loss_buffer: list[Tensor] = []
    for length in machine.steps(lengths):
        loss_buffer = []
        for number in micro_batches(machine, job.grad_accum):
            with scheme.micro_batch(last=number == job.grad_accum - 1):
                loss_buffer.append(forward_backward_step(job, model, length))
        scheme.end_step(parameters, optimizer)
    scheme.end()
    loss_buffer.clear()


def forward_backward_step(job: Job, model: Any, length: int) -> Tensor:
    """The batch and the logits live as long as it runs."""
    machine, dp_group_size = model.machine, 1
    batch = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(3)]
    machine.phase, machine.in_forward = Phase.FORWARD, True
    logits = model(*batch)
    local_loss = masked_cross_entropy(logits, batch[2])
    kept: Tensor = local_loss.detach().clone()
    backward(local_loss * dp_group_size)
    del logits
    return kept


def masked_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """`MaskedCrossEntropy`: logits in fp32, and a sum over the labels of all ranks. They were shifted before."""
    with logits.machine.within("loss"):
        num_label_tokens = 1  # of all ranks; on the host
        flat = logits.view(-1, logits.shape[-1])
        return F.cross_entropy(flat.float(), labels.view(-1)) / num_label_tokens
