"""DeepSeek-V4's windows: so many tokens compressed to one key, and the indexer that chooses among those
(transformers/models/deepseek_v4/modeling_deepseek_v4.py)."""

from __future__ import annotations

from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.experts import top_k
from tunecast.tape.build.families.olmo import OlmoNorm
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module, RMSNorm
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"

NEEDS_AUTOCAST = (
    "the norms of deepseek_v4 stay in float32, and before transformers 5.20 their results too, which other weights then"
    " refuse. To fix: autocast, or transformers_version 5.20"
)


class V4Norm(OlmoNorm):
    """Since 5.20 its weight is multiplied in before the result takes its dtype."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.machine.era.deepseek_v4_norms_in_float32:
            return super().forward(hidden_states)
        if self.machine.autocast is None and self.weight.dtype != hidden_states.dtype:
            raise UsageError.at("autocast", NEEDS_AUTOCAST)
        return RMSNorm.forward(self, hidden_states)


class UnweightedNorm(Module):
    eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * F.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps).to(x.dtype)


# ----------------------------------------------------------------------------------------------------------- positions


class PairRotary(decoder.RotaryEmbedding):
    """One angle for two neighbours."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        freqs, _kept = self.angles(position_ids)
        cos = freqs.cos() * self.attention_scaling
        sin = freqs.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class TwoRotaries(Module):
    """Windows' positions have frequencies of their own; whoever turns something has both tables."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.main = PairRotary(machine, config)
        self.compress = PairRotary(machine, config)

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
        return self.children[layer_type].forward(x, position_ids)


def rotate_half(x: Tensor) -> Tensor:
    x1 = x[..., 0::2]
    x2 = x[..., 1::2]
    return F.stack((-x2, x1), -1).flatten(-2)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The last channels turn."""
    cos = cos.repeat_interleave(2, cos.dim() - 1).unsqueeze(1)
    sin = sin.repeat_interleave(2, sin.dim() - 1).unsqueeze(1)
    rope_dim = cos.shape[-1]
    nope, rope = x[..., :-rope_dim], x[..., -rope_dim:]
    rotated = ((rope.float() * cos) + (rotate_half(rope).float() * sin)).to(x.dtype)
    return F.cat((nope, rotated), -1)


# ------------------------------------------------------------------------------------------------------------- windows


class Compressor(Module):
    """One key for so many tokens."""

    series = 1

    def __init__(self, machine: Machine, config: Config, rate: int, width: int) -> None:
        super().__init__(machine)
        self.compress_rate, self.head_dim = rate, width
        self.kv_proj = Linear(machine, config["hidden_size"], self.series * width)
        self.gate_proj = Linear(machine, config["hidden_size"], self.series * width)
        self.position_bias = self.parameter(rate, self.series * width)
        self.kv_norm = V4Norm(machine, width)

    def window_positions(self, batch: int, n_windows: int) -> Tensor:
        positions = self.machine.run("arange", (), (n_windows,), INT64)
        positions = pointwise("mul", positions) + 0
        return positions.unsqueeze(0).expand(batch, n_windows)

    def thresholds(self, position_ids: Tensor) -> Tensor:
        """How many windows a query may see."""
        return (position_ids + 1) // self.compress_rate


class HeavyCompressor(Compressor):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config, config["compress_rates"][HEAVY], config["head_dim"])
        self.rotary_emb = TwoRotaries(machine, config)

    def forward(self, hidden_states: Tensor, q_residual: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        machine, (batch, seq_len, _) = self.machine, hidden_states.shape
        kv = self.kv_proj(hidden_states)
        gate = self.gate_proj(hidden_states)
        n_windows = seq_len // self.compress_rate
        usable = n_windows * self.compress_rate
        chunk_kv, chunk_gate = kv[:, :usable], gate[:, :usable]
        if not n_windows:
            return machine.run("new_zeros", (), (batch, 0, self.head_dim), chunk_kv.dtype).unsqueeze(1), None
        chunk_kv = chunk_kv.view(batch, n_windows, self.compress_rate, -1)
        chunk_gate = chunk_gate.view(batch, n_windows, self.compress_rate, -1) + self.position_bias
        compressed = self.kv_norm((chunk_kv * F.softmax(chunk_gate, FLOAT32).to(chunk_kv.dtype)).sum(2))
        positions = self.window_positions(batch, n_windows)
        cos, sin = self.rotary_emb(compressed, position_ids=positions, layer_type="compress")
        compressed = apply_rotary(compressed.unsqueeze(1), cos, sin).squeeze(1)
        compressed_kv = compressed.unsqueeze(1)
        entry_indices = machine.run("arange", (), (n_windows,), INT64)
        causal_threshold = self.thresholds(position_ids)
        block_bias = machine.run("new_zeros", (), (batch, 1, seq_len, n_windows), compressed_kv.dtype)
        block_bias = block_bias.masked_fill(
            entry_indices.view(1, 1, 1, -1).ge(causal_threshold.unsqueeze(1).unsqueeze(-1)), float("-inf")
        )
        return compressed_kv, block_bias


class OverlappingCompressor(Compressor):
    """Each window is compressed with the one before, of which it has other channels."""

    series = 2
    rotary_emb: TwoRotaries

    def compress(self, hidden_states: Tensor) -> tuple[Tensor, Any]:
        """And what the caller holds until it returns."""
        machine, (batch, seq_len, _) = self.machine, hidden_states.shape
        ratio, width = self.compress_rate, self.head_dim
        kv = self.kv_proj(hidden_states)
        gate = self.gate_proj(hidden_states)
        n_windows = seq_len // ratio
        chunk_kv, chunk_gate = kv[:, : n_windows * ratio], gate[:, : n_windows * ratio]
        chunk_kv = chunk_kv.view(batch, n_windows, ratio, -1)
        chunk_gate = chunk_gate.view(batch, n_windows, ratio, -1) + self.position_bias
        shape = (batch, n_windows, 2 * ratio, width)
        new_kv = machine.run("new_zeros", (), shape, chunk_kv.dtype)
        new_gate = machine.run("new_full", (), shape, chunk_gate.dtype)
        new_kv = F.assign(new_kv, lambda whole: whole[:, :, ratio:], chunk_kv[..., width:])
        new_gate = F.assign(new_gate, lambda whole: whole[:, :, ratio:], chunk_gate[..., width:])
        if n_windows > 1:
            new_kv = F.assign(new_kv, lambda whole: whole[:, 1:, :ratio], chunk_kv[:, :-1, :, :width])
            new_gate = F.assign(new_gate, lambda whole: whole[:, 1:, :ratio], chunk_gate[:, :-1, :, :width])
        compressed = self.kv_norm((new_kv * F.softmax(new_gate, FLOAT32).to(new_kv.dtype)).sum(2))
        positions = self.window_positions(batch, n_windows)
        cos, sin = self.rotary_emb(compressed, position_ids=positions, layer_type="compress")
        compressed = apply_rotary(compressed.unsqueeze(1), cos, sin).squeeze(1)
        return compressed, (kv, gate, chunk_gate, new_kv, new_gate, positions, cos, sin)


class IndexScorer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.weights_proj = Linear(machine, config["hidden_size"], config["index_n_heads"])
        self.scale = 1.0

    def forward(self, q: Tensor, compressed_kv: Tensor, hidden_states: Tensor) -> Tensor:
        q_float, kv_float = q.float(), compressed_kv.transpose(-1, -2).float().unsqueeze(1)
        scores = F.matmul(q_float, kv_float)
        del q_float, kv_float
        scores = F.relu(scores) * self.scale
        weights = self.weights_proj(hidden_states).float() * self.scale
        return (scores * weights.unsqueeze(-1)).sum(2)


class WindowIndexer(OverlappingCompressor):
    """Chooses windows for each query; no gradient comes back through it."""

    def __init__(self, machine: Machine, config: Config) -> None:
        width = config["index_head_dim"]
        super().__init__(machine, config, config["compress_rates"][SPARSE], width)
        self.most = config["index_topk"]
        self.q_b_proj = Linear(machine, config["q_lora_rank"], config["index_n_heads"] * width)
        self.rotary_emb = TwoRotaries(machine, config)
        self.scorer = IndexScorer(machine, config)

    def forward(self, hidden_states: Tensor, q_residual: Tensor, position_ids: Tensor) -> Tensor:
        machine, (batch, seq_len, _) = self.machine, hidden_states.shape
        compressed_kv, _held = self.compress(hidden_states)
        cos_q, sin_q = self.rotary_emb(hidden_states, position_ids=position_ids, layer_type="compress")
        q = self.q_b_proj(q_residual).view(batch, seq_len, -1, self.head_dim).transpose(1, 2)
        q = apply_rotary(q, cos_q, sin_q).transpose(1, 2)
        index_scores = self.scorer(q, compressed_kv, hidden_states)
        compressed_len = compressed_kv.shape[1]
        causal_threshold = self.thresholds(position_ids)
        entry_indices = machine.run("arange", (), (compressed_len,), INT64)
        future_mask = entry_indices.view(1, 1, -1).ge(causal_threshold.unsqueeze(-1))
        index_scores = index_scores.masked_fill(future_mask, float("-inf"))
        top_k_indices = top_k(index_scores, min(self.most, compressed_len))[1]
        invalid = top_k_indices.ge(causal_threshold.unsqueeze(-1))
        return F.where(invalid, pointwise("full_like", top_k_indices), top_k_indices)


class SparseCompressor(OverlappingCompressor):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config, config["compress_rates"][SPARSE], config["head_dim"])
        self.rotary_emb = TwoRotaries(machine, config)
        self.indexer = WindowIndexer(machine, config)

    def forward(self, hidden_states: Tensor, q_residual: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine, (batch, seq_len, _) = self.machine, hidden_states.shape
        compressed, _held = self.compress(hidden_states)
        compressed_kv = compressed.unsqueeze(1)
        top_k_indices = self.indexer(hidden_states, q_residual, position_ids)
        compressed_len = compressed_kv.shape[2]
        valid = top_k_indices.ge(0)
        safe_indices = F.where(valid, top_k_indices, pointwise("full_like", top_k_indices))
        block_bias = machine.run("new_full", (), (batch, 1, seq_len, compressed_len + 1), compressed_kv.dtype)
        machine.launch("scatter_", (block_bias, safe_indices), block_bias.dtype, block_bias.nbytes)
        return compressed_kv, block_bias[..., :compressed_len]
