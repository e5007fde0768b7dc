"""Seconds of one operation on a card, by what kind of work it is; and the clocks of the host and of streams.

attention.py    Seconds of a fused attention: its FLOPs at the rate the kernel reaches at that length
clocks.py       A step as clocks: what its operations do to the host's and to each stream's, on many cards at once
collectives.py  Seconds of an operation between cards: `collective_seconds`
contention.py   What other cards cost the kernels of one: `slowdown`, by collectives that run beside them, and
                `slowest`, by waiting
host.py         The host's part of a step: the CPU time that work takes before the card has it, by kind of work
moving.py       Seconds of an operation that computes little: the bytes it really moves, at the rate such kernels
                move them
offload.py      Seconds of what crosses to the host's memory, of an optimizer that runs there, and of drives that
                stand in for it
pricing.py      A step's operations priced on many cards at once, and what its clocks show then: `priced`
products.py     Seconds of a matrix product: the fewest over tile shapes of whole waves of tiles, or what its
                bytes take
rates.py        What a card's arithmetic and memory reach, as opposed to what its data sheet prints
"""

from __future__ import annotations

from functools import lru_cache

from tunecast.hardware.spec import Gpu
from tunecast.prediction.price.attention import attention_seconds, is_attention
from tunecast.prediction.price.moving import is_only_bookkeeping, moved_bytes, moving_seconds, moving_terms
from tunecast.prediction.price.offload import OFFLOADED, offload_seconds
from tunecast.prediction.price.products import is_product, product_seconds
from tunecast.prediction.price.rates import Rates, rates_of
from tunecast.tape.op import COLLECTIVES, OF_THE_HOST, WAIT, Op

PRODUCTS, ATTENTION, MOVING, COMMUNICATION, NOTHING = "products", "attention", "moving", "communication", "nothing"
OFFLOAD = "offload"


@lru_cache(maxsize=10_000)
def kind_of(name: str) -> str:
    """What an operation of this name is priced as."""
    if name in COLLECTIVES:
        return COMMUNICATION
    if name in OFFLOADED:
        return OFFLOAD
    if name == WAIT or name in OF_THE_HOST or is_only_bookkeeping(name):
        return NOTHING
    if is_attention(name):
        return ATTENTION
    return PRODUCTS if is_product(name) else MOVING


def op_seconds(op: Op, gpu: Gpu) -> float:
    """On the device, without what launching it costs; of a collective, nothing."""
    return seconds(op, rates_of(gpu))


def seconds(op: Op, gpu: Rates, ranks: int = 1) -> float:
    """`ranks` cards of a machine share the host's memory."""
    kind = kind_of(op.name)
    if kind == MOVING:
        return moving_seconds(op, gpu)
    if kind == PRODUCTS:
        return product_seconds(op, gpu)
    if kind == ATTENTION:
        return attention_seconds(op, gpu)
    if kind == OFFLOAD:
        return offload_seconds(op, gpu.host, ranks)
    return 0.0


__all__ = [
    "ATTENTION",
    "COMMUNICATION",
    "MOVING",
    "NOTHING",
    "OFFLOAD",
    "PRODUCTS",
    "kind_of",
    "moved_bytes",
    "moving_terms",
    "op_seconds",
    "rates_of",
    "seconds",
]
