"""MPT as llm-foundry 0.4 writes it (llmfoundry/models/mpt/modeling_mpt.py, layers/blocks.py, attention.py, ffn.py).

Not transformers' MPT: attention is flash-attn's on sequences it packs anew in every layer (`flash_attn_fn`), norms run
in the precision of autocast (`LPLayerNorm`), positions may be learned, the head is the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, INT32, INT64
from tunecast.tape.build.flash import attend_2
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.recompute import checkpoint
from tunecast.tape.build.stacks.foundry.flash1 import attend_1
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels.flash import FlashCall

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


class MLP(Module):
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
        self.ffn = MLP(machine, config)
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
            raise UsageError(f"seq_len: this MPT has {self.longest} positions, not {length}", field="seq_len")
        x = self.wte(input_ids)
        if self.wpe is not None:
            pos = machine.run("arange", (), (1, length), INT64)
            x = x + self.wpe(pos)
        for block in self.blocks:
            x = block(x)
        x = self.norm_f(x)
        with machine.within("lm_head"):
            return F.linear(x, self.wte.weight) if self.lm_head is None else self.lm_head(x)
