"""litgpt's model on paper (litgpt/model.py): names, order of statements and the differences between releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import scaled_dot_product
from tunecast.tape.build.dtypes import BOOL, FLOAT32, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, LayerNorm, Module, ModuleList
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.stacks.litgpt.config import LitConfig, LitRelease
from tunecast.tape.build.stacks.litgpt.linears import LitLinear, LitLora, LoRALinear, LoRAQKVLinear
from tunecast.tape.build.tensor import Tensor

CHUNK = 128
"""Positions whose logits are made together when adapters train, and rows of a chunk of the loss."""
Mask = Tensor | None


class RMSNorm(Module):
    eps = 1e-6

    def __init__(self, machine: Machine, width: int, unit_offset: bool, in_float: bool) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width)
        self.unit_offset, self.in_float = unit_offset, in_float

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.float()
        norm_x = (x * x).mean(-1, keepdim=True)
        x_normed = x * F.rsqrt(norm_x + self.eps)
        if not self.in_float:
            x_normed = x_normed.to(dtype)
            return x_normed * (self.weight + 1 if self.unit_offset else self.weight)
        weight = self.weight + 1 if self.unit_offset else self.weight
        return (x_normed * weight.float()).to(dtype)


class PlainNorm(Module):
    """LayerNorm without a weight."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, None, None)


class Identity(Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class LitModules:
    """Makes the modules of one configuration: linear layers with or without adapters, norms."""

    def __init__(self, machine: Machine, config: LitConfig, release: LitRelease, lora: LitLora | None) -> None:
        self.machine, self.config, self.release, self.lora = machine, config, release, lora

    def linear(self, inputs: int, outputs: int, bias: bool, adapted: str) -> Module:
        if self.lora is None:
            return LitLinear(self.machine, inputs, outputs, bias)
        r = self.lora.r if getattr(self.lora, adapted) else 0
        return LoRALinear(self.machine, inputs, outputs, bias, r, self.lora.dropout)

    def qkv(self) -> Module:
        config = self.config
        size, bias = config.head_size, config.bias or config.attn_bias
        sizes = (config.n_head * size, config.n_query_groups * size, config.n_query_groups * size)
        if self.lora is None:
            return LitLinear(self.machine, config.n_embd, sum(sizes), bias)
        return LoRAQKVLinear(self.machine, config.n_embd, sizes, bias, self.lora, self.release.whole_heads)

    def norm(self, width: int | None = None) -> Module:
        config = self.config
        width = width or config.n_embd
        if config.model_type == "olmo":
            return PlainNorm(self.machine)
        if not config.rms_norm:
            return LayerNorm(self.machine, width)
        return RMSNorm(self.machine, width, config.gemma, self.release.norm_in_float)

    def norm_if(self, wanted: bool) -> Module:
        return self.norm() if wanted else Identity(self.machine)


class GptNeoxMLP(Module):
    def __init__(self, parts: LitModules) -> None:
        super().__init__(parts.machine)
        config = parts.config
        self.fc = parts.linear(config.n_embd, config.intermediate_size, config.bias, "mlp")
        self.proj = parts.linear(config.intermediate_size, config.n_embd, config.bias, "mlp")

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        x = F.gelu(x)
        return self.proj(x)


class LLaMAMLP(Module):
    def __init__(self, parts: LitModules) -> None:
        super().__init__(parts.machine)
        config = parts.config
        self.fc_1 = parts.linear(config.n_embd, config.intermediate_size, config.bias, "mlp")
        self.fc_2 = parts.linear(config.n_embd, config.intermediate_size, config.bias, "mlp")
        self.proj = parts.linear(config.intermediate_size, config.n_embd, config.bias, "mlp")
        self.activation: Callable[[Tensor], Tensor] = F.gelu if config.gemma else F.silu

    def forward(self, x: Tensor) -> Tensor:
        x_fc_1 = self.fc_1(x)
        x_fc_2 = self.fc_2(x)
        x = self.activation(x_fc_1) * x_fc_2
        return self.proj(x)


class Block(Module):
    def __init__(self, parts: LitModules, index: int) -> None:
        super().__init__(parts.machine)
        config = parts.config
        self.norm_1 = parts.norm_if(config.norms_before)
        self.attn = CausalSelfAttention(parts, index)
        self.post_attention_norm = parts.norm_if(config.norms_after)
        self.norm_2: Any = None if config.shared_attention_norm else parts.norm_if(config.norms_before)
        self.mlp = LLaMAMLP(parts) if config.gated else GptNeoxMLP(parts)
        self.post_mlp_norm = parts.norm_if(config.norms_after)
        self.parallel, self.shared = config.parallel_residual, config.shared_attention_norm
        self.early_sum = parts.release.whole_heads
        """From 0.5 on the residual is added before the MLP runs, and the norm's result has a name."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x_normed = self.norm_1(x)
        attention_output = self.attn(x_normed, cos, sin)
        attention_output = self.post_attention_norm(attention_output)
        if self.parallel and not self.early_sum:
            x_normed = x_normed if self.shared else self.norm_2(x)
            return self.mlp(x_normed) + attention_output + x
        if self.parallel:
            if not self.shared:
                x_normed = self.norm_2(x)
            x = attention_output + x
        elif self.early_sum:
            x = attention_output + x
            x_normed = self.norm_2(x)
        else:
            x = attention_output + x
            return self.post_mlp_norm(self.mlp(self.norm_2(x))) + x
        return self.post_mlp_norm(self.mlp(x_normed)) + x


class CausalSelfAttention(Module):
    def __init__(self, parts: LitModules, index: int) -> None:
        super().__init__(parts.machine)
        config = parts.config
        self.qkv = parts.qkv()
        self.proj = parts.linear(config.head_size * config.n_head, config.n_embd, config.bias, "projection")
        self.n_head, self.groups, self.head_size = config.n_head, config.n_query_groups, config.head_size
        self.scale = config.head_size**-0.5
        self.rope_n_elem, self.whole_heads = config.rope_n_elem, parts.release.whole_heads
        self.windowed, self.capped = config.has_window(index), config.score_cap
        self.norm_qk = config.norm_qk
        if config.norm_qk:
            whole = config.norm_qk == "olmo2"
            self.norm_q = parts.norm(config.head_size * (config.n_head if whole else 1))
            self.norm_k = parts.norm(config.head_size * (config.n_query_groups if whole else 1))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, _ = x.shape
        qkv = self.qkv(x)
        q, k, v = self.split_by_kind(qkv, B, T) if self.whole_heads else self.split_by_group(qkv, B, T)
        n = self.rope_n_elem
        q_roped = apply_rope(q[..., :n], cos, sin)
        k_roped = apply_rope(k[..., :n], cos, sin)
        q = F.cat((q_roped, q[..., n : self.head_size]), -1)
        k = F.cat((k_roped, k[..., n : self.head_size]), -1)
        if self.whole_heads and self.groups != self.n_head:
            q_per_kv = self.n_head // self.groups
            k = k.repeat_interleave(q_per_kv, 1)
            v = v.repeat_interleave(q_per_kv, 1)
        mask = sliding_window_bias = None
        if self.windowed:
            mask, sliding_window_bias = self.window_masks(T, q.dtype)
        y = self.attend(q, k, v, mask)
        y = y.reshape(B, T, self.head_size * self.n_head)
        y = self.proj(y)
        del sliding_window_bias  # until here, as in the real one
        return y

    def split_by_kind(self, qkv: Tensor, B: int, T: int) -> tuple[Tensor, Tensor, Tensor]:
        key_size = self.groups * self.head_size
        q, k, v = qkv.split((self.n_head * self.head_size, key_size, key_size), -1)
        if self.norm_qk == "olmo2":
            q = self.norm_q(q)
            k = self.norm_k(k)
        q = q.view(B, T, self.n_head, self.head_size).transpose(1, 2)
        k = k.view(B, T, self.groups, self.head_size).transpose(1, 2)
        v = v.view(B, T, self.groups, self.head_size).transpose(1, 2)
        if self.norm_qk == "default":
            q = self.norm_q(q)
            k = self.norm_k(k)
        return q, k, v

    def split_by_group(self, qkv: Tensor, B: int, T: int) -> tuple[Tensor, Tensor, Tensor]:
        """Before 0.5: keys and values are copied for every query head before they are placed."""
        q_per_kv = self.n_head // self.groups
        qkv = qkv.view(B, T, self.groups, q_per_kv + 2, self.head_size)
        qkv = qkv.permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((q_per_kv, 1, 1), 2)
        if self.groups != self.n_head:
            k = k.expand(B, self.groups, q_per_kv, T, self.head_size)
            v = v.expand(B, self.groups, q_per_kv, T, self.head_size)
        q = q.reshape(B, -1, T, self.head_size)
        k = k.reshape(B, -1, T, self.head_size)
        v = v.reshape(B, -1, T, self.head_size)
        return q, k, v

    def window_masks(self, T: int, dtype: Dtype) -> tuple[Tensor, Tensor]:
        """What attention gets, and what lives beside it."""
        mask = low_above_diagonal(self.machine, T, dtype)
        if self.whole_heads:
            sliding_window_mask = self.machine.run("full", (), (T, T), dtype)
            return sliding_window_mask.view(1, 1, T, T), sliding_window_mask
        sliding_window_bias = pointwise("tril", pointwise("ones_like", mask))
        fill_where(sliding_window_bias)
        self.machine.launch("add_", (mask, sliding_window_bias), dtype, mask.nbytes)
        return mask, sliding_window_bias

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        if not self.capped:
            y = scaled_dot_product(q, k, v, mask, 0.0, mask is None)
            return y.transpose(1, 2)
        scores = F.matmul(q, k.transpose(-2, -1)) * self.scale
        scores = cap(scores)
        if mask is None:
            mask = low_above_diagonal(self.machine, q.shape[2], q.dtype)
        scores = scores + mask
        scores = F.softmax(scores, FLOAT32).to(q.dtype)
        y = F.matmul(scores, v)
        return y.transpose(1, 2)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    x1 = x[..., :half]
    x2 = x[..., half:]
    rotated = F.cat((-x2, x1), -1)
    roped = x * cos + rotated * sin
    return roped.to(x.dtype)


def cap(x: Tensor, thresh: float = 30.0) -> Tensor:
    return (x / thresh).tanh() * thresh


def low_above_diagonal(machine: Machine, T: int, dtype: Dtype) -> Tensor:
    mask = pointwise("triu", machine.run("ones", (), (T, T), dtype))
    fill_where(mask)
    return mask


def fill_where(mask: Tensor) -> None:
    """mask.masked_fill_(mask.bool(), low)."""
    where = mask.to(BOOL)
    mask.machine.launch("masked_fill_", (mask, where), mask.dtype, mask.nbytes)


class Transformer(Module):
    def __init__(self, parts: LitModules) -> None:
        super().__init__(parts.machine)
        config = parts.config
        self.wte: Any = Embedding(parts.machine, config.padded_vocab_size, config.n_embd)
        self.h = ModuleList(parts.machine, [Block(parts, index) for index in range(config.n_layer)])
        self.ln_f = parts.norm()


class GPT(Module):
    def __init__(self, machine: Machine, config: LitConfig, release: LitRelease, lora: LitLora | None) -> None:
        super().__init__(machine)
        parts = LitModules(machine, config, release, lora)
        self.lit, self.caps_chunks = config, release.whole_heads
        self.lm_head = parts.linear(config.n_embd, config.padded_vocab_size, config.lm_head_bias, "head")
        self.transformer = Transformer(parts)
        self.ropes: list[Tensor] = []
        """Cosines and sines, once the longest row is known."""

    def layers(self) -> Iterator[Any]:
        return iter(self.transformer.h)

    def forward(self, idx: Tensor, lm_head_chunk_size: int = 0) -> Any:
        T = idx.shape[1]
        cos, sin = [table[:T].unsqueeze(0) for table in self.ropes]
        x = self.transformer.wte(idx)
        if self.lit.gemma:
            x = x * self.lit.n_embd**0.5
        for index, block in enumerate(self.transformer.h):
            x = block(x, self.layer_table(cos, index), self.layer_table(sin, index))
        x = self.transformer.ln_f(x)
        caps = self.lit.logit_cap and (self.caps_chunks or not lm_head_chunk_size)
        clamp_head = cap if caps else (lambda logits: logits)
        if lm_head_chunk_size:
            sizes = [min(lm_head_chunk_size, T - start) for start in range(0, T, lm_head_chunk_size)]
            return [clamp_head(self.lm_head(x_i)) for x_i in x.split(sizes, 1)]
        return clamp_head(self.lm_head(x))

    def layer_table(self, table: Tensor, index: int) -> Tensor:
        """[1, 1, T, n]; of two tables beside each other the layer's."""
        one = table[..., int(self.lit.has_window(index))] if self.lit.two_ropes else table
        return one.unsqueeze(1)
