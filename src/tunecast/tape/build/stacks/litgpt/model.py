"""litgpt's model on paper (litgpt/model.py): names, order of statements and the differences between releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tunecast.tape.build import ops
from tunecast.tape.build.attention import scaled_dot_product
from tunecast.tape.build.modules import Embedding, LayerNorm, Module, ModuleList
from tunecast.tape.build.stacks.litgpt.config import LitConfig, Release
from tunecast.tape.build.stacks.litgpt.linears import LitLinear, Lora, LoRALinear, LoRAQKVLinear
from tunecast.tape.build.tensor import BOOL, FLOAT32, Dtype, Machine, Tensor

CHUNK = 128
"""Positions whose logits are made together when adapters train, and rows of a chunk of the loss."""
Mask = Tensor | None


class RMSNorm(Module):
    def __init__(self, machine: Machine, width: int, unit_offset: bool, in_float: bool) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width)
        self.unit_offset, self.in_float = unit_offset, in_float

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = ops.to(x, FLOAT32)
        norm_x = ops.mean(ops.multiply(x, x), -1)
        x_normed = ops.multiply(x, ops.rsqrt(ops.shift(norm_x)))
        if not self.in_float:
            x_normed = ops.to(x_normed, dtype)
            return ops.multiply(x_normed, ops.shift(self.weight) if self.unit_offset else self.weight)
        weight = ops.shift(self.weight) if self.unit_offset else self.weight
        return ops.to(ops.multiply(x_normed, ops.to(weight, FLOAT32)), dtype)


class PlainNorm(Module):
    """LayerNorm without a weight."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, None, None)


class Identity(Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Parts:
    """Makes the modules of one configuration: linear layers with or without adapters, norms."""

    def __init__(self, machine: Machine, config: LitConfig, release: Release, lora: Lora | None) -> None:
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
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.machine)
        config = parts.config
        self.fc = parts.linear(config.n_embd, config.intermediate_size, config.bias, "mlp")
        self.proj = parts.linear(config.intermediate_size, config.n_embd, config.bias, "mlp")

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        x = ops.gelu(x)
        return self.proj(x)  # type: ignore[no-any-return]


class LLaMAMLP(Module):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.machine)
        config = parts.config
        self.fc_1 = parts.linear(config.n_embd, config.intermediate_size, config.bias, "mlp")
        self.fc_2 = parts.linear(config.n_embd, config.intermediate_size, config.bias, "mlp")
        self.proj = parts.linear(config.intermediate_size, config.n_embd, config.bias, "mlp")
        self.activation: Callable[[Tensor], Tensor] = ops.gelu if config.gemma else ops.silu

    def forward(self, x: Tensor) -> Tensor:
        x_fc_1 = self.fc_1(x)
        x_fc_2 = self.fc_2(x)
        x = ops.multiply(self.activation(x_fc_1), x_fc_2)
        return self.proj(x)  # type: ignore[no-any-return]


class Block(Module):
    def __init__(self, parts: Parts, index: int) -> None:
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
            return ops.add(ops.add(self.mlp(x_normed), attention_output), x)
        if self.parallel:
            if not self.shared:
                x_normed = self.norm_2(x)
            x = ops.add(attention_output, x)
        elif self.early_sum:
            x = ops.add(attention_output, x)
            x_normed = self.norm_2(x)
        else:
            x = ops.add(attention_output, x)
            return ops.add(self.post_mlp_norm(self.mlp(self.norm_2(x))), x)
        return ops.add(self.post_mlp_norm(self.mlp(x_normed)), x)


class CausalSelfAttention(Module):
    def __init__(self, parts: Parts, index: int) -> None:
        super().__init__(parts.machine)
        config = parts.config
        self.qkv = parts.qkv()
        self.proj = parts.linear(config.head_size * config.n_head, config.n_embd, config.bias, "projection")
        self.n_head, self.groups, self.head_size = config.n_head, config.n_query_groups, config.head_size
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
        q_roped = apply_rope(ops.slice_(q, -1, 0, n), cos, sin)
        k_roped = apply_rope(ops.slice_(k, -1, 0, n), cos, sin)
        q = ops.cat((q_roped, ops.slice_(q, -1, n, self.head_size)), -1)
        k = ops.cat((k_roped, ops.slice_(k, -1, n, self.head_size)), -1)
        if self.whole_heads and self.groups != self.n_head:
            q_per_kv = self.n_head // self.groups
            k = ops.repeat_interleave(k, q_per_kv, 1)
            v = ops.repeat_interleave(v, q_per_kv, 1)
        mask = sliding_window_bias = None
        if self.windowed:
            mask, sliding_window_bias = self.window_masks(T, q.dtype)
        y = self.attend(q, k, v, mask)
        y = ops.reshape(y, B, T, self.head_size * self.n_head)
        y = self.proj(y)
        del sliding_window_bias  # until here, as in the real one
        return y  # type: ignore[no-any-return]

    def split_by_kind(self, qkv: Tensor, B: int, T: int) -> tuple[Tensor, Tensor, Tensor]:
        key_size = self.groups * self.head_size
        q, k, v = ops.split(qkv, (self.n_head * self.head_size, key_size, key_size), -1)
        if self.norm_qk == "olmo2":
            q = self.norm_q(q)
            k = self.norm_k(k)
        q = ops.transpose(ops.view(q, B, T, self.n_head, self.head_size), 1, 2)
        k = ops.transpose(ops.view(k, B, T, self.groups, self.head_size), 1, 2)
        v = ops.transpose(ops.view(v, B, T, self.groups, self.head_size), 1, 2)
        if self.norm_qk == "default":
            q = self.norm_q(q)
            k = self.norm_k(k)
        return q, k, v

    def split_by_group(self, qkv: Tensor, B: int, T: int) -> tuple[Tensor, Tensor, Tensor]:
        """Before 0.5: keys and values are copied for every query head before they are placed."""
        q_per_kv = self.n_head // self.groups
        qkv = ops.view(qkv, B, T, self.groups, q_per_kv + 2, self.head_size)
        qkv = ops.permute(qkv, 0, 2, 3, 1, 4)
        q, k, v = ops.split(qkv, (q_per_kv, 1, 1), 2)
        if self.groups != self.n_head:
            k = ops.expand(k, B, self.groups, q_per_kv, T, self.head_size)
            v = ops.expand(v, B, self.groups, q_per_kv, T, self.head_size)
        q = ops.reshape(q, B, -1, T, self.head_size)
        k = ops.reshape(k, B, -1, T, self.head_size)
        v = ops.reshape(v, B, -1, T, self.head_size)
        return q, k, v

    def window_masks(self, T: int, dtype: Dtype) -> tuple[Tensor, Tensor]:
        """What attention gets, and what lives beside it."""
        mask = low_above_diagonal(self.machine, T, dtype)
        if self.whole_heads:
            sliding_window_mask = self.machine.run("full", (), (T, T), dtype)
            return ops.view(sliding_window_mask, 1, 1, T, T), sliding_window_mask
        sliding_window_bias = ops.map_("tril", ops.map_("ones_like", mask))
        fill_where(sliding_window_bias)
        self.machine.launch("add_", (mask, sliding_window_bias), dtype, mask.nbytes)
        return mask, sliding_window_bias

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        if not self.capped:
            y = scaled_dot_product(q, k, v, mask, 0.0, mask is None)
            return ops.transpose(y, 1, 2)
        scores = ops.scale(ops.matmul(q, ops.transpose(k, -2, -1)))
        scores = capped(scores)
        if mask is None:
            mask = low_above_diagonal(self.machine, q.shape[2], q.dtype)
        scores = ops.add(scores, mask)
        scores = ops.to(ops.softmax(scores, FLOAT32), q.dtype)
        y = ops.matmul(scores, v)
        return ops.transpose(y, 1, 2)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    x1 = ops.slice_(x, -1, 0, half)
    x2 = ops.slice_(x, -1, half, x.shape[-1])
    rotated = ops.cat((ops.negative(x2), x1), -1)
    roped = ops.add(ops.multiply(x, cos), ops.multiply(rotated, sin))
    return ops.to(roped, x.dtype)


def capped(x: Tensor) -> Tensor:
    """tanh(x / thresh) * thresh."""
    return ops.scale(ops.tanh(ops.scale(x, "div")))


def low_above_diagonal(machine: Machine, T: int, dtype: Dtype) -> Tensor:
    mask = ops.map_("triu", machine.run("ones", (), (T, T), dtype))
    fill_where(mask)
    return mask


def fill_where(mask: Tensor) -> None:
    """mask.masked_fill_(mask.bool(), low)."""
    where = ops.map_("_to_copy", mask, BOOL)
    mask.machine.launch("masked_fill_", (mask, where), mask.dtype, mask.nbytes)


class Transformer(Module):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.machine)
        config = parts.config
        self.wte: Any = Embedding(parts.machine, config.padded_vocab_size, config.n_embd)
        self.h = ModuleList(parts.machine)
        for index in range(config.n_layer):
            self.h.append(Block(parts, index))
        self.ln_f = parts.norm()


class GPT(Module):
    def __init__(self, machine: Machine, config: LitConfig, release: Release, lora: Lora | None) -> None:
        super().__init__(machine)
        parts = Parts(machine, config, release, lora)
        self.lit, self.caps_chunks = config, release.whole_heads
        self.lm_head = parts.linear(config.n_embd, config.padded_vocab_size, config.lm_head_bias, "head")
        self.transformer = Transformer(parts)
        self.ropes: list[Tensor] = []
        """Cosines and sines, once the longest row is known."""

    def layers(self) -> Iterator[Any]:
        return iter(self.transformer.h)

    def forward(self, idx: Tensor, lm_head_chunk_size: int = 0) -> Any:
        T = idx.shape[1]
        cos, sin = [ops.unsqueeze(ops.slice_(table, 0, 0, T), 0) for table in self.ropes]
        x = self.transformer.wte(idx)
        if self.lit.gemma:
            x = ops.scale(x)
        for index, block in enumerate(self.transformer.h):
            x = block(x, self.placed(cos, index), self.placed(sin, index))
        x = self.transformer.ln_f(x)
        caps = self.lit.logit_cap and (self.caps_chunks or not lm_head_chunk_size)
        clamp_head = capped if caps else (lambda logits: logits)
        if lm_head_chunk_size:
            sizes = [min(lm_head_chunk_size, T - start) for start in range(0, T, lm_head_chunk_size)]
            return [clamp_head(self.lm_head(x_i)) for x_i in ops.split(x, sizes, 1)]
        return clamp_head(self.lm_head(x))

    def placed(self, table: Tensor, index: int) -> Tensor:
        """[1, 1, T, n]; of two tables beside each other the layer's."""
        one = ops.select(table, -1, int(self.lit.has_window(index))) if self.lit.two_ropes else table
        return ops.unsqueeze(one, 1)
