"""Seconds of a fused attention: its FLOPs at the rate the kernel reaches at that length.

The published rates of every kernel follow `most * length / (length + half)`: tiles on the diagonal are computed whole,
and short rows leave multiprocessors waiting. `half` is the length at which half of the most is reached.

    FlashAttention 2, causal, heads of 128, TFLOP/s    512   1k   2k   4k   8k  16k tokens
    A100   published                                    99  133  155  173  182  189
           195 * n / (n + 500)                          99  131  157  174  184  189
    H100   published                                   163  221  265  294  308  328
           330 * n / (n + 500)                         167  222  265  294  311  320

Source   figures of the flash-attention repository (FlashAttention 2 on A100 and H100) and of the FlashAttention-3 paper
         (3 and cuDNN, forward); backward of cuDNN: steps of 8,192 and 16,384 tokens on an H200
Ignored  sliding windows; key and value heads that are fewer
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tunecast.prediction.price.rates import AMD, Rates
from tunecast.records import NamedTuple
from tunecast.tape.op import Op

START_S = 3e-6


class AttentionKernel(NamedTuple):
    """The most it reaches with heads of 128, as a share of a card's matrix products; `half` a length in tokens."""

    forward: float
    backward: float
    half: float
    work: float = 0.5
    """Of the FLOPs without a mask, what it does: causal kernels leave half out."""
    narrow: float = 0.85
    """Of the rate, with heads of 64: the softmax takes as long for half the products (A100 0.90, H100 0.86)."""


CUDNN = AttentionKernel(0.84, 0.72, 350)
"""560 TFLOP/s forward on an H100."""
FLASH_2 = AttentionKernel(0.80, 0.76, 500)
"""195 TFLOP/s, forward and backward together, on an A100."""
FLASH_2_ON_HOPPER = AttentionKernel(0.51, 0.49, 500)
"""330 TFLOP/s on an H100: written for the instructions before."""
FLASH_2_ON_BLACKWELL = AttentionKernel(0.25, 0.24, 500)
"""The same kernel again on cards with twice the products; nobody is known to have published it."""
FLASH_2_AT_HALF_RATE = AttentionKernel(1.0, 0.90, 500)
"""162 TFLOP/s forward on an RTX 4090 (SageAttention, arXiv 2410.02367: its 340 are 2.1 times as many), whose products
have 163: where sums in float32 halve those, the softmax is done beside them. Backward: not published."""
HALF_RATE = 3.0
"""Products of int8 to those of bfloat16, from which on a card sums the latter at half its rate: twice otherwise."""
FUSED_ON_CDNA = AttentionKernel(0.80, 0.76, 500)
"""TransformerEngine's on AMD's cards (aiter, written in assembly): nobody is known to have published it; taken as an
A100's FlashAttention 2, with which 12 steps of MLPerf's LoRA on MI300X and MI325X are 2 to 8 % off."""
FLASH_2_ON_CDNA = AttentionKernel(0.70, 0.41, 500)
"""355 TFLOP/s forward and 205 backward on an MI300X at 16,384 tokens (ROCm/flash-attention#142, 2025; torch's SDPA runs
the same Triton kernels). In 2024 its backward was ten times slower (pytorch/pytorch#135431)."""
FLASH_1 = AttentionKernel(0.50, 0.376, 500, narrow=1.0)
FLASH_1_ON_HOPPER = AttentionKernel(0.32, 0.242, 500, narrow=1.0)
"""Of an A100's peak 30 to 50 % forward and 25 to 35 % backward: the middle of both, 125 and 94 TFLOP/s
(FlashAttention-2 paper, section 1), and no slower with heads of 64 (its figure 5). On an H100 as much of that as its
successor has."""
FLASH_3 = AttentionKernel(0.97, 0.75, 500)
"""640 TFLOP/s forward on an H100."""
EFFICIENT = AttentionKernel(0.50, 0.40, 300, work=1.0)
"""xformers' kernel, with a mask it is given as numbers: nothing is left out."""
FLEX = AttentionKernel(0.60, 0.50, 500)
DOCUMENT = 384
"""Positions a token of a packed row looks back on in flex attention, whose mask keeps samples apart: those of
instruction data are a few hundred tokens long, and blocks of 128 are computed whole."""
TILE_WIDTH = 128
"""cuDNN's tiles: heads between 64 and this take as long as this."""
ADA, HOPPER, BLACKWELL = (8, 9), (9, 0), (10, 11)
"""Compute capabilities; those of GeForce Blackwell (12) are fed as Ampere is."""
FLASH = frozenset({"fwd", "bwd", "varlen_fwd", "varlen_bwd"})


def is_attention(name: str) -> bool:
    space, _, leaf = name.rpartition("::")
    return "attention" in leaf or "fused_attn" in leaf or (space.startswith("flash_attn") and leaf in FLASH)


@lru_cache(maxsize=1000)
def kernel_of(name: str, rates: Rates) -> AttentionKernel:
    if rates.vendor == AMD and "efficient" not in name and "flex" not in name:
        return FUSED_ON_CDNA if "fused_attn" in name else FLASH_2_ON_CDNA
    if "cudnn" in name or "fused_attn" in name:
        return CUDNN if rates.compute_capability >= HOPPER else FLASH_2
    if "flash_attn_3" in name:
        return FLASH_3
    if "flex" in name:
        return FLEX
    if "efficient" in name:
        return EFFICIENT
    if "flash_attn_1" in name:
        return FLASH_1_ON_HOPPER if rates.compute_capability >= HOPPER else FLASH_1
    if rates.compute_capability[0] in BLACKWELL:
        return FLASH_2_ON_BLACKWELL
    if rates.compute_capability == ADA and rates.flop_per_s("int8") >= HALF_RATE * rates.flop_per_s("bfloat16"):
        return FLASH_2_AT_HALF_RATE
    return FLASH_2_ON_HOPPER if rates.compute_capability[0] == HOPPER[0] else FLASH_2


def computed_flops(op: Op) -> int:
    """Of an operation's FLOPs, those a kernel computes: a causal one leaves what the mask hides out, whatever the card.

    The tape has them without the mask, as torch counts them (utils/flop_counter.py, `sdpa_flop_count`).
    """
    if not is_attention(op.name):
        return op.flops
    length, _ = _length_and_width(op, "backward" in op.name or op.name.endswith("bwd"))
    work = EFFICIENT.work if "efficient" in op.name else FLEX.work
    return round(op.flops * (min(work, DOCUMENT / length) if "flex" in op.name else work))


def attention_seconds(op: Op, rates: Rates) -> float:
    return attention_column(op, [rates])[0]


def attention_column(op: Op, cards: Iterable[Rates]) -> list[float]:
    """On each card."""
    backward = "backward" in op.name or op.name.endswith("bwd")
    length, width = _length_and_width(op, backward)
    nbytes, start_s = op.read_bytes + op.written_bytes, START_S * op.kernels
    by_kernel: dict[AttentionKernel, tuple[float, float]] = {}
    made = []
    for rates in cards:
        kernel = kernel_of(op.name, rates)
        if kernel not in by_kernel:
            by_kernel[kernel] = _share_and_work(kernel, backward, length, width)
        share, work = by_kernel[kernel]
        compute = op.flops * work / (rates.flop_per_s(op.dtype) * share * length / (length + kernel.half))
        made.append(max(compute, nbytes / rates.bytes_per_s) + start_s)
    return made


def _share_and_work(kernel: AttentionKernel, backward: bool, length: int, width: int) -> tuple[float, float]:
    """Of a card's rate what it reaches at most, and of the FLOPs without a mask what it does."""
    share = kernel.backward if backward else kernel.forward
    if width <= 64:
        share *= kernel.narrow
    elif kernel is CUDNN and width < TILE_WIDTH:
        share *= width / TILE_WIDTH
    return share, min(kernel.work, DOCUMENT / length) if kernel is FLEX else kernel.work


def _length_and_width(op: Op, backward: bool) -> tuple[int, int]:
    """Of the queries: (batch, heads, length, width), or with heads and length the other way round."""
    query = op.shapes[1] if backward and len(op.shapes) > 1 else op.shapes[0] if op.shapes else ()
    if len(query) < 3:
        return 2048, 128
    flash = "::" in op.name and len(query) == 4
    return max(1, query[1] if flash else query[-2]), query[-1]
