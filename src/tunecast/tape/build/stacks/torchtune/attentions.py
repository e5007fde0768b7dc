"""Attention that a family of torchtune's has for itself (torchtune/models/gemma2 of 0.6.1, torchtune/models/qwen3 of
the repository after it), and what stands around Gemma 2's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import BOOL, FLOAT32
from tunecast.tape.build.flash import BlockMask
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.ops.scans import scale_part
from tunecast.tape.build.stacks.torchtune import modules
from tunecast.tape.build.tensor import Tensor


class Qwen3Attention(modules.MultiHeadAttention):
    """models/qwen3/_attention.py: queries and keys are normed head by head, then turned."""

    def __init__(
        self, machine: Machine, projections: Sequence[Module], heads: tuple[int, int], head_dim: int,
        pos_embeddings: modules.RotaryPositionalEmbeddings, norms: Sequence[modules.RMSNorm],
    ) -> None:  # fmt: skip
        super().__init__(machine, projections, heads, head_dim, pos_embeddings)
        self.q_norm, self.k_norm = norms

    def qkv(self, x: Tensor, y: Tensor, input_pos: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        b, s_x, _ = x.shape
        q = self.q_proj(x)
        q = q.view(b, s_x, self.num_heads, self.head_dim)
        q = q.transpose(1, 2)
        q = self.q_norm(q)
        q = q.transpose(1, 2)
        q = self.pos_embeddings(q, input_pos=input_pos)
        q = q.transpose(1, 2)
        k = self.k_proj(y)
        v = self.v_proj(y)
        k = k.view(b, s_x, -1, self.head_dim)
        v = v.view(b, s_x, -1, self.head_dim)
        k = k.transpose(1, 2)
        k = self.k_norm(k)
        k = k.transpose(1, 2)
        k = self.pos_embeddings(k, input_pos=input_pos)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        if self.num_heads != self.num_kv_heads:
            expand_shape = (b, self.num_kv_heads, self.num_heads // self.num_kv_heads, s_x, self.head_dim)
            k = k.unsqueeze(2).expand(*expand_shape).reshape(b, self.num_heads, s_x, self.head_dim)
            v = v.unsqueeze(2).expand(*expand_shape).reshape(b, self.num_heads, s_x, self.head_dim)
        return q, k, v


class Gemma2Attention(modules.MultiHeadAttention4):
    """models/gemma2/_attention.py: every score is written out, and a mask of every pair of tokens is added in fp32."""

    sliding_window_size: int | None = None
    """Of every other layer, from the first on."""

    def forward(self, x: Tensor, y: Tensor, mask: BlockMask | None = None, input_pos: Tensor | None = None) -> Tensor:
        if mask is not None:
            raise UsageError.at(
                "data.packing", "torchtune's Gemma 2 takes no masks of blocks. To fix: data.packing false"
            )
        b, s_x, _ = x.shape
        q, k, v = self.qkv(x, y, input_pos)
        q = heads_first(scale_part(heads_first(q), heads_first))  # in place, by the view
        output = F.matmul(q, k.transpose(2, 3))
        added, all_ones, sliding_mask = self.additive_mask(s_x)
        output = output / 50.0
        output = output.tanh()
        output = output * 50.0
        output = output + added
        output = F.softmax(output).to(q.dtype)
        output = F.matmul(output, v)
        output = output.transpose(1, 2).contiguous().view(b, s_x, -1)
        output = self.output_proj(output)
        del added, all_ones, sliding_mask  # names of the real function, which live as long as it runs
        return output

    def additive_mask(self, length: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The mask, and what else is held beside it."""
        machine, square = self.machine, (length, length)
        ones = machine.run("_to_copy", (), square, BOOL)
        mask = machine.run("tril", (ones,), square, BOOL)
        del ones
        mask = chosen(machine.run("logical_not", (mask,), square, BOOL), (), numbers=2)
        if self.sliding_window_size is None:
            return mask, None, None
        all_ones = machine.run("ones_like", (mask,), square, FLOAT32)
        within = [machine.run(name, (all_ones,), square, FLOAT32) for name in ("triu", "tril")]
        sliding_mask = within[0] * within[1]
        del within
        mask = chosen(sliding_mask.eq(1), (mask,), numbers=1)
        return mask, all_ones, sliding_mask


def heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def chosen(condition: Tensor, tensors: Sequence[Tensor], numbers: int) -> Tensor:
    """`torch.where` with numbers, each of which becomes a tensor on the card first."""
    machine = condition.machine
    scalars = [machine.run("scalar_tensor", (), (), FLOAT32) for _ in range(numbers)]
    return machine.run("where", (condition, *tensors, *scalars), condition.shape, FLOAT32)


class ScaledSelfAttentionLayer(modules.TransformerSelfAttentionLayer):
    """modules/transformer.py with `sa_scale` and `mlp_scale`, which are norms here."""

    def __init__(
        self, machine: Machine, attn: modules.MultiHeadAttention, mlp: modules.FeedForward,
        norms: Sequence[modules.RMSNorm], scales: Sequence[modules.RMSNorm],
    ) -> None:  # fmt: skip
        super().__init__(machine, attn, mlp, norms)
        self.sa_scale, self.mlp_scale = scales

    def forward(self, x: Tensor, mask: BlockMask | None = None, input_pos: Tensor | None = None) -> Tensor:
        h = self.sa_norm(x)
        attn_out = self.attn(h, h, mask=mask, input_pos=input_pos)
        h = self.sa_scale(attn_out) + x
        mlp_out = self.mlp(self.mlp_norm(h))
        out = h + self.mlp_scale(mlp_out)
        return out

    def after_attention(self, attn_out: Tensor, x: Tensor) -> Tensor:
        raise AssertionError("Gemma 2 has no packed rows, whose layers alone are compiled in parts")


class Gemma2FinalNorm(Module):
    """models/gemma2/_component_builders.py: the last hidden states are capped, not the logits."""

    def __init__(self, machine: Machine, rms_norm: modules.RMSNorm) -> None:
        super().__init__(machine)
        self.rms_norm = rms_norm
        self.logit_capping = TanhSoftCapping(machine)

    def forward(self, x: Tensor) -> Any:
        x = self.rms_norm(x)
        x = self.logit_capping(x)
        return x


class TanhSoftCapping(Module):
    def forward(self, attn_weights: Tensor) -> Tensor:
        attn_weights = attn_weights / 30.0
        attn_weights = attn_weights.tanh()
        attn_weights = attn_weights * 30.0
        return attn_weights
