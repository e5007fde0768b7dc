"""flash-attn 1 on paper (flash_attn_interface.py and csrc/flash_attn/fmha_api.cpp of 1.0.9).

It goes over blocks of keys and adds up its result in float32 where there is more than one block, so it borrows a
float32 copy of the result forward, and of the query's gradient back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

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
