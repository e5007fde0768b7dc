"""Kernels that take lists of tensors (`_foreach`, `_fused`): what they move, and how many launches they are.

One launch takes so many tensors and so many blocks of 65,536 elements (aten/src/ATen/native/cuda/MultiTensorApply.cuh,
`depth_to_max_tensors`, `depth_to_max_blocks`). torch.optim calls them with a list of parameters, gradients or moments,
each as large as the others; what counts is how many lists are read and written.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.records import NamedTuple
from tunecast.tape.symbols import compute, listed

CHUNK = 65536
BLOCKS = 320
TENSORS = (110, 64, 48, 36, 30)
"""The most in one launch, by how many lists it works on."""


class Lists(NamedTuple):
    read: int
    written: int
    given: int
    """How many lists the kernel addresses."""


ONE_IN_PLACE = Lists(1, 1, 1)
LISTS = {
    "_foreach_norm": Lists(1, 0, 1),
    "_foreach_mul_": ONE_IN_PLACE,
    "_foreach_div_": ONE_IN_PLACE,
    "_foreach_add_": ONE_IN_PLACE,
    "_foreach_sub_": Lists(2, 1, 2),
    "_foreach_sqrt_": ONE_IN_PLACE,
    "_foreach_lerp_": Lists(2, 1, 2),
    "_foreach_addcmul_": Lists(2, 1, 3),
    "_foreach_addcdiv_": Lists(3, 1, 3),
    "_foreach_sqrt": Lists(1, 1, 2),
    "_foreach_mul": Lists(1, 1, 2),
    "_foreach_div": Lists(1, 1, 2),
    "_fused_adamw_": Lists(4, 3, 4),
}
"""As torch/optim calls them. `addcmul_` squares the gradients: the second time they are in the cache."""


def list_launches(sizes: Sequence[int], lists: int) -> int:
    """Of tensors with so many elements each."""
    if all([type(size) is int for size in sizes]):
        return _launches(sizes, lists)
    order, distinct = listed(sizes)
    launches: int = compute(_launches_in_order, (order, lists), distinct)
    return launches


def _launches_in_order(about: tuple[tuple[int, ...], int], *sizes: int) -> int:
    order, lists = about
    return _launches([sizes[place] for place in order], lists)


def _launches(sizes: Sequence[int], lists: int) -> int:
    most = TENSORS[min(lists, len(TENSORS)) - 1]
    launches = tensors = blocks = 0
    for size in sizes:
        tensors += 1
        blocks += -(-size // CHUNK)
        if tensors == most or blocks >= BLOCKS:
            launches += max(1, blocks // BLOCKS)
            tensors, blocks = 0, blocks % BLOCKS
    return launches + (1 if tensors or blocks else 0)
