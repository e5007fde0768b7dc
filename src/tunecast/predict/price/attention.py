"""Seconds of a fused attention: its FLOPs at the rate the kernel reaches at that length.

The published rates of every kernel follow `most * length / (length + half)`: tiles on the diagonal are computed whole,
and short rows leave multiprocessors waiting. `half` is the length at which half of the most is reached.

Source   benchmarks' curves of FlashAttention 2 and 3 (A100, H100; assets of the flash-attention repository, and the
         FlashAttention-3 figures, which show cuDNN too).
"""

from __future__ import annotations

from typing import NamedTuple

from tunecast.predict.price.rates import Rates

from tunecast.tape.op import Op

START_S = 3e-6


class Kernel(NamedTuple):
    """`most`: of the card's best matrix product, in the forward and the backward pass; `half` a length in tokens."""

    forward: float
    backward: float
    half: float
    causal: bool = True
    """Whether it leaves out what the causal mask does."""


CUDNN = Kernel(0.70, 0.60, 350)
FLASH_2_HOPPER = Kernel(0.43, 0.41, 500)
FLASH_2 = Kernel(0.75, 0.70, 500)
FLASH_3 = Kernel(0.80, 0.62, 500)
EFFICIENT = Kernel(0.45, 0.35, 300, causal=False)
NARROW = 0.85
"""Of the rate, with heads of 64: the softmax takes as long for half the products."""
HOPPER = (9, 0)


def is_attention(name: str) -> bool:
    return "attention" in name or name.startswith(("flash_attn", "xformers"))


def kernel_of(name: str, rates: Rates) -> Kernel:
    if "cudnn" in name:
        return CUDNN
    if "flash_attn_3" in name:
        return FLASH_3
    if "efficient" in name or "flex" in name or "xformers" in name:
        return EFFICIENT
    return FLASH_2_HOPPER if rates.compute_capability >= HOPPER else FLASH_2


def attention_seconds(op: Op, rates: Rates) -> float:
    kernel = kernel_of(op.name, rates)
    backward = "backward" in op.name or op.name.endswith("bwd")
    query = op.shapes[1] if backward and len(op.shapes) > 1 else op.shapes[0] if op.shapes else (1, 1, 1024, 128)
    length, width = (query[-2], query[-1]) if len(query) >= 3 else (1024, 128)
    if op.name.startswith("flash_attn") and len(query) == 4:  # theirs is (batch, length, heads, width)
        length = query[1]
    most = rates.flop_per_s(op.dtype) * (kernel.backward if backward else kernel.forward)
    if width <= 64:
        most *= NARROW
    flops = op.flops / 2 if kernel.causal else op.flops
    compute = flops / (most * length / (length + kernel.half))
    return max(compute, (op.read_bytes + op.written_bytes) / rates.bytes_per_s) + START_S
