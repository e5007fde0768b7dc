"""Seconds of one operation on a card, by what kind of work it is.

    products.py    matrix products: tiles in waves over the multiprocessors
    attention.py   fused attention: a kernel's rate at a length
    offload.py     copies to and from the host's memory, and an optimizer that runs there
    moving.py      everything else: the bytes that really move, at the share of the bandwidth such a kernel reaches
    rates.py       what a card's arithmetic reaches, by dtype

The host's part, launching, is `predict/host.py`; collectives are `predict/collectives.py`.
"""

from __future__ import annotations

from functools import lru_cache

from tunecast.hardware.spec import Gpu
from tunecast.predict.price.attention import attention_seconds, is_attention
from tunecast.predict.price.moving import is_only_bookkeeping, moved_bytes, moving_seconds, moving_terms
from tunecast.predict.price.offload import OFFLOADED, offload_seconds
from tunecast.predict.price.products import is_product, product_seconds
from tunecast.predict.price.rates import Rates, rates_of
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
