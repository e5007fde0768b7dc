"""llm-foundry's training of MPT with Composer (llm-foundry 0.4, mosaicml 0.17): `scripts/train/train.py`.

Composer splits a batch into micro-batches, runs forward and loss under autocast and clips what its FSDP summed.
Weights are float32; under FSDP they are gathered in autocast's dtype (`mixed_precision: DEFAULT` or `PURE`).

Composer's FSDP on paper (composer/trainer/dist_strategy.py of mosaicml 0.17.1): torch's FSDP 1, a unit a block.

`mixed_precision: DEFAULT` gathers weights in autocast's dtype and sums gradients in float32; `PURE` sums them low
too. Parameters keep their own shapes (`use_orig_params`).

flash-attn 1 on paper (flash_attn_interface.py and csrc/flash_attn/fmha_api.cpp of 1.0.9).

It goes over blocks of keys and adds up its result in float32 where there is more than one block, so it borrows a
float32 copy of the result forward, and of the query's gradient back.

MPT as llm-foundry 0.4 writes it (llmfoundry/models/mpt/modeling_mpt.py, layers/blocks.py, attention.py, ffn.py).

Not transformers' MPT: attention is flash-attn's on sequences it packs anew in every layer (`flash_attn_fn`), norms run
in the precision of autocast (`LPLayerNorm`), positions may be learned, the head is the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, backward, finish, start
from tunecast.tape.build.dtypes import BOOL, DTYPES, FLOAT32, INT32, INT64
from tunecast.tape.build.eras import numbers
from tunecast.tape.build.flash import attend_2
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, LayerNorm, Linear, Module, ModuleList, bring_all
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.optimizers import Optimizer, make_optimizer
from tunecast.tape.build.recompute import checkpoint
from tunecast.tape.build.sharding import Scheme, ranks_of
from tunecast.tape.build.sharding.fsdp1 import FlatScheme, Flattened, Options
from tunecast.tape.build.stacks import Refusals, leaves_out, no_such_model
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels.flash import FlashCall
from tunecast.tape.op import Phase

# --------------------------------------------------------------------------------------------------------- flash-attn 1


WIDEST_BLOCK = 256
"""Keys a block has at most (`blocksize_c`): 128 on heads of 128, 256 on smaller ones where the card has room."""


def attend_1(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Of [batch, length, heads, width]; causal."""
    machine = query.machine
    batch, length, heads, width = query.shape
    flops = 4 * batch * heads * length * length * width

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, v = (node.take(place) for place in range(3))
        made = [pointwise("empty_like", x) for x in (q, k, v)]
        machine.launch("flash_attn_1::bwd", (gradients[0], q, k, v), q.dtype, 3 * q.nbytes, flops * 5 // 2)
        sums = machine.tensor(q.shape, FLOAT32) if length > WIDEST_BLOCK else None
        dots = machine.tensor((batch, heads, length), FLOAT32)
        del sums, dots
        return made

    node = start(machine, (query, key, value), back)
    machine.launch("flash_attn_1::fwd", (query, key, value), query.dtype, query.nbytes, flops)
    out = machine.tensor(query.shape, query.dtype)
    sums = machine.tensor(query.shape, FLOAT32) if length > WIDEST_BLOCK else None
    lse = machine.tensor((batch, heads, length), FLOAT32)
    del sums
    return finish(node, out, query, key, value, out.detach(), lse)


# ------------------------------------------------------------------------------------------------------------------ MPT


DEFAULTS: Mapping[str, Any] = {
    "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4, "max_seq_len": 2048, "vocab_size": 50368,
    "no_bias": False, "learned_pos_emb": True, "attn_config": None, "tie_word_embeddings": True,
}  # fmt: skip
"""configuration_mpt.py."""
USUAL_NAMES = {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}


def mpt_config(config: Mapping[str, Any]) -> dict[str, Any] | None:
    if config.get("model_type") != "mpt":
        return None
    renamed = {USUAL_NAMES.get(name, name): value for name, value in config.items()}
    return {**DEFAULTS, **renamed}


class LPLayerNorm(LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        dtype, machine = self.machine.autocast, self.machine
        if dtype is None:
            return F.layer_norm(x, self.weight, self.bias)
        downcast_x, downcast_weight = x.to(dtype), self.weight.to(dtype)
        downcast_bias = None if self.bias is None else self.bias.to(dtype)
        before, machine.autocast = machine.autocast, None
        out = F.layer_norm(downcast_x, downcast_weight, downcast_bias)
        machine.autocast = before
        return out


class Unpadding:
    """flash_attn/bert_padding.py, `unpad_input`: which rows are no padding. Both the nonzero and the longest length
    are read by the host, which waits for them."""

    def __init__(self, mask: Tensor) -> None:
        machine, (batch, length) = mask.machine, mask.shape
        seqlens = mask.sum(1, dtype=INT32)
        self.indices = machine.run("nonzero", (mask,), (batch * length, 1), INT64)
        machine.run("max", (seqlens,), (), INT32)
        machine.launch("_local_scalar_dense", (), INT32, 0)
        sums = machine.run("cumsum", (seqlens,), (batch,), INT32)
        self.cu_seqlens = machine.run("constant_pad_nd", (sums,), (batch + 1,), INT32)


def take_rows(x: Tensor, rows: Unpadding) -> Tensor:
    """`index_first_axis`: torch.gather of whole rows; back, they are scattered into zeros."""
    batch, length, width = x.shape
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("zeros", (), (batch * length, width), gradients[0].dtype)
        machine.launch("scatter_", (gradients[0],), zeros.dtype, zeros.nbytes)
        return (zeros.view(batch, length, width),)

    node = start(machine, (x,), back, (rows.indices,))
    return finish(node, machine.run("gather", (x,), (batch * length, width), x.dtype))


def put_back(x: Tensor, rows: Unpadding, batch: int, length: int) -> Tensor:
    """`index_put_first_axis`."""
    machine, (count, width) = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        flat = gradients[0].view(count, width)
        return (machine.run("index", (flat,), (count, width), flat.dtype),)

    node = start(machine, (x,), back, (rows.indices,))
    out = machine.run("zeros", (), (batch, length, width), x.dtype)
    machine.launch("index_put_", (x, rows.indices), x.dtype, x.nbytes)
    return finish(node, out)


class Attention(Module):
    """`GroupedQueryAttention`, with as many key heads as the config says."""

    def __init__(self, machine: Machine, config: Mapping[str, Any]) -> None:
        super().__init__(machine)
        options = config["attn_config"] or {}
        self.heads, self.width = config["n_heads"], config["d_model"]
        self.key_heads = options.get("kv_n_heads") or self.heads
        self.clip_qkv = options.get("clip_qkv")
        self.first_generation = False
        """Of flash-attn: releases before 0.4 have 1.0."""
        bias, head = not config["no_bias"], self.width // self.heads
        self.key_width = self.key_heads * head
        self.Wqkv = Linear(machine, self.width, self.width + 2 * self.key_width, bias)
        self.out_proj = Linear(machine, self.width, self.width, bias)

    def forward(self, x: Tensor) -> Tensor:
        machine, (batch, length, width) = self.machine, x.shape
        qkv = self.Wqkv(x)
        if self.clip_qkv:
            qkv = qkv.clamp()
        query, key, value = qkv.split([width, self.key_width, self.key_width], 2)
        mask = machine.run("ones_like", (key,), (batch, length), BOOL)
        query_rows = Unpadding(mask)
        query_unpad = self.by_head(take_rows(query, query_rows), batch, length, self.heads)
        key_unpad = self.by_head(take_rows(key, Unpadding(mask)), batch, length, self.key_heads)
        value_unpad = self.by_head(take_rows(value, Unpadding(mask)), batch, length, self.key_heads)
        if self.first_generation:
            output_unpad = attend_1(query_unpad, key_unpad, value_unpad)
        else:
            output_unpad = attend_2(query_unpad, key_unpad, value_unpad, FlashCall(True, (-1, -1), 0.0, 0.0))
        context = put_back(output_unpad.view(batch * length, width), query_rows, batch, length)
        return self.out_proj(context)

    @staticmethod
    def by_head(rows: Tensor, batch: int, length: int, heads: int) -> Tensor:
        """[rows, width] by head. Full rows of one length: the packed kernel does what the plain one does on them."""
        return rows.view(batch, length, heads, rows.shape[1] // heads)


class MptMLP(Module):
    def __init__(self, machine: Machine, config: Mapping[str, Any]) -> None:
        super().__init__(machine)
        width, bias = config["d_model"], not config["no_bias"]
        self.up_proj = Linear(machine, width, config["expansion_ratio"] * width, bias)
        self.down_proj = Linear(machine, config["expansion_ratio"] * width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.up_proj(x)))


class Block(Module):
    def __init__(self, machine: Machine, config: Mapping[str, Any]) -> None:
        super().__init__(machine)
        self.norm_1 = LPLayerNorm(machine, config["d_model"])
        self.attn = Attention(machine, config)
        self.norm_2 = LPLayerNorm(machine, config["d_model"])
        self.ffn = MptMLP(machine, config)
        self.checkpoint = False

    def __call__(self, x: Tensor) -> Any:
        if not self.checkpoint:
            return super().__call__(x)
        return checkpoint(self.machine, super().__call__, x)

    def forward(self, x: Tensor) -> Tensor:
        a = self.norm_1(x)
        b = self.attn(a)
        x = x + b
        m = self.norm_2(x)
        n = self.ffn(m)
        x = x + n
        return x


class MPT(Module):
    """`MPTForCausalLM`; the logits."""

    def __init__(self, machine: Machine, config: Mapping[str, Any]) -> None:
        super().__init__(machine)
        width = config["d_model"]
        self.longest = config["max_seq_len"]
        self.wte = Embedding(machine, config["vocab_size"], width)
        self.wpe: Any = Embedding(machine, self.longest, width) if config["learned_pos_emb"] else None
        self.blocks = ModuleList(machine, [Block(machine, config) for _ in range(config["n_layers"])])
        self.norm_f = LPLayerNorm(machine, width)
        tied = config["tie_word_embeddings"]
        self.lm_head: Any = None if tied else Linear(machine, width, config["vocab_size"])

    def layers(self) -> list[Module]:
        return list(self.blocks)

    def forward(self, input_ids: Tensor) -> Tensor:
        machine, length = self.machine, input_ids.shape[1]
        if length > self.longest:
            raise UsageError.at("seq_len", f"this MPT has {self.longest} positions, not {length}")
        x = self.wte(input_ids)
        if self.wpe is not None:
            pos = machine.run("arange", (), (1, length), INT64)
            x = x + self.wpe(pos)
        for block in self.blocks:
            x = block(x)
        x = self.norm_f(x)
        with machine.within("lm_head"):
            return F.linear(x, self.wte.weight) if self.lm_head is None else self.lm_head(x)


# ---------------------------------------------------------------------------------------------------------- the program


def scheme_of(job: Job, machine: Machine) -> Scheme:
    return Scheme(job, machine) if ranks_of(job) == 1 else ComposerFsdp(job, machine)


class ComposerFsdp(FlatScheme):
    def wrap(self, model: Any) -> None:
        job = self.job
        low = self.autocast
        reduce = DTYPES[job.parallel.reduce_dtype] if job.parallel.reduce_dtype else FLOAT32
        options = Options(
            ranks_of(job), low, reduce if low is not None else None, low, use_orig_params=True,
            reshard_after_forward=job.parallel.reshard_after_forward,
        )  # fmt: skip

        def is_block(module: Module) -> bool:
            return isinstance(module, Block)

        self.flat = Flattened(model, options, is_block)


REFUSES: Refusals = {
    "method": lambda job: job.method != "full",
    **leaves_out("compile", "matmul_dtype", "kernels", "loss", "optimizer_in_backward", "offload_activations"),
    **leaves_out("transformers_version"),
}
NEWEST = FLASH_2 = (0, 4)
"""The release written down, and the first to take flash-attn 2 (setup.py); those before differ in nothing else here."""
UNTRACED = "llm-foundry's MPT follows its source; none of it was traced"
ATTENTION = "attention: llm-foundry's flash is taken"


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    known = mpt_config(config)
    return None if known is None else MPT(machine, known)


def scheme(job: Job, machine: Machine) -> Scheme:
    return scheme_of(job, machine)


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    machine.guesses[UNTRACED] = None
    if job.attention != "flash_attention_2":
        machine.assumptions[ATTENTION] = None
    scheme = machine.scheme
    with scheme.loading():
        mpt = load(job, config, machine)
    scheme.wrap(mpt)
    parameters = scheme.parameters(mpt)
    optimizer = optimizer_of(job, parameters)
    take_steps(job, mpt, parameters, optimizer, lengths)
    machine.end()


def optimizer_of(job: Job, parameters: Sequence[Tensor]) -> Optimizer:
    """AdamW is Composer's own (`decoupled_adamw`)."""
    if job.optimizer.startswith("adamw_torch"):
        return DecoupledAdamW(parameters)
    return make_optimizer(job, parameters)


def load(job: Job, config: Mapping[str, Any], machine: Machine) -> MPT:
    known = mpt_config(config)
    release = NEWEST if job.stack_version is None else numbers(job.stack_version, "stack_version", "0.4")
    if known is None:
        raise no_such_model(job.stack, config.get("model_type"))
    longest = max(job.lengths or (job.seq_len,))
    mpt = MPT(machine, {**known, "max_seq_len": max(known["max_seq_len"], longest)})
    mpt.name_all()
    machine.name_head(mpt.path, "lm_head")
    bring_all(mpt)
    for block in mpt.blocks:
        assert isinstance(block, Block)
        block.checkpoint = job.gradient_checkpointing
        block.attn.first_generation = release < FLASH_2
    return mpt


def take_steps(job: Job, mpt: MPT, parameters: Sequence[Tensor], optimizer: Optimizer, lengths: Sequence[int]) -> None:
    """composer/trainer/trainer.py, `_train_microbatches` and `_train_microbatch`."""
    machine, scheme = mpt.machine, mpt.machine.scheme
    for length in machine.steps(lengths):
        for number in range(job.grad_accum):
            machine.take_turn(number)
            batch = machine.run("_to_copy", (), (job.micro_batch, length), INT64)
            machine.phase, machine.in_forward = Phase.FORWARD, True
            with machine.autocasting(scheme.autocast):
                logits = mpt(batch)
                targets = machine.run("roll", (batch,), batch.shape, INT64)
                machine.launch("fill_", (), INT64, job.micro_batch * INT64.itemsize)
                loss = fused_cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
            del logits
            loss = loss * (1 / job.grad_accum)
            backward(loss)
        scheme.end_step(parameters, optimizer)
        del loss, batch, targets


def fused_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """flash_attn.losses.cross_entropy of 2.3, `inplace_backward=True`: the gradient takes the logits' place."""
    machine, rows = logits.machine, logits.shape[0]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        logits = node.take(0)
        machine.launch("cross_entropy_bwd", (logits, gradients[0]), logits.dtype, logits.nbytes)
        return (logits,)

    node = start(machine, (logits,), back)
    machine.launch("cross_entropy_fwd", (logits, labels), logits.dtype, 2 * rows * FLOAT32.itemsize)
    losses = machine.tensor((rows,), FLOAT32)
    lse = machine.tensor((rows,), FLOAT32)
    losses = finish(node, losses, logits, lse, labels)
    del lse
    counted = machine.run("ne", (labels,), labels.shape, BOOL).sum(0, dtype=INT64)
    return losses.sum() / counted


class DecoupledAdamW(Optimizer):
    """composer/optim/decoupled_weight_decay.py: one parameter at a time, one operation at a time. The count of steps
    is on the card, and the host waits to read it."""

    def step(self) -> None:
        machine = self.machine
        for p in self.trained():
            if id(p) not in self.state:
                like = (p.shape, p.dtype)
                self.state[id(p)] = self.made(p, ((), FLOAT32), like, like)
            machine.module = self.module_of(p)
            machine.launch("add_", (self.state[id(p)][0],), FLOAT32, FLOAT32.itemsize)
        for p in self.trained():
            machine.module = self.module_of(p)
            _, exp_avg, exp_avg_sq = self.state[id(p)]
            grad = p.grad
            assert grad is not None
            machine.launch("_local_scalar_dense", (), FLOAT32, 0)
            machine.launch("mul_", (p,), p.dtype, p.nbytes)
            machine.launch("mul_", (exp_avg,), p.dtype, p.nbytes)
            machine.launch("add_", (exp_avg, grad), p.dtype, p.nbytes)
            machine.launch("mul_", (exp_avg_sq,), p.dtype, p.nbytes)
            machine.launch("addcmul_", (exp_avg_sq, grad, grad), p.dtype, p.nbytes)
            root = exp_avg_sq.sqrt()
            denom = root / 1.0  # the root of the second moment's correction
            del root
            machine.launch("add_", (denom,), p.dtype, p.nbytes)
            machine.launch("addcdiv_", (p, exp_avg, denom), p.dtype, p.nbytes)
            del denom
        machine.module = ""
