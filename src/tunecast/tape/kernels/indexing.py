"""Gathers, scatters, sorts and scans: most sort their indices first, with CUB.

Letters: n indices, V rows of a table, H its width.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tunecast.tape.kernels import cub
from tunecast.tape.kernels.shapes import Shaped, name_of
from tunecast.tape.kernels.steps import KernelCall, Rule, Script, ceil_div, nbytes, up

MASKS = ("bool", "uint8")
INDEX_BYTES = 8
MOST_INDICES_IN_ONE_KERNEL = 3072
ROWS_A_PARTIAL_SUM = 10
MOST_THREADS = 1024
SORTED_IN_ONE_BLOCK = 4096
SEGMENTS_SORTED_TOGETHER = 128


def embedding_backward(call: KernelCall, script: Script) -> None:
    """Above 3,072 tokens: ids are sorted, equal ones form segments, and each ten rows of a segment are summed in fp32
    before the sums meet in the gradient (aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu). Where
    segments are few and long the sums meet by atomics in an fp32 copy of the gradient instead. Sizes follow from
    n and V; which ids they are does not matter."""
    gradient, indices, rows = call.args[:3]
    tokens, width = indices.numel(), gradient.shape[-1]
    for tensor in (indices, gradient):
        if not tensor.is_contiguous():
            script.borrow(nbytes(tensor))
    if tokens <= MOST_INDICES_IN_ONE_KERNEL:
        script.make(0)
        return
    each = indices.element_size()
    script.borrow(tokens * each)  # sorted
    script.borrow(tokens * each)  # where each was
    positions = script.borrow(tokens * each)
    script.touch(cub.sort_pairs(tokens, each, each))
    script.give_back(positions)
    script.make(0)
    script.borrow(tokens * each)  # where segments start
    script.borrow(8)  # how many there are
    keys = script.borrow(tokens * each)
    script.touch(cub.unique_by_key(tokens))
    script.give_back(keys)
    segments = min(tokens, rows)
    script.borrow(segments * each)
    script.borrow(segments * each)
    script.touch(cub.scan(segments, each))
    script.borrow(8)
    partials = tokens // ROWS_A_PARTIAL_SUM + segments
    script.borrow(partials * each)
    sum_bytes = max(4, gradient.element_size())
    threads = min(up(width, 32), MOST_THREADS)
    blocks = ceil_div(segments * up(width, 32), threads)
    if blocks < call.card.sm_count * 4 and partials > blocks * 4:
        script.borrow(partials * each)
        script.borrow(rows * width * sum_bytes if gradient.element_size() == 2 else 0)
    else:
        script.borrow(partials * width * sum_bytes)


def nonzero(call: KernelCall, script: Script) -> None:
    """A count, then a selection (aten/src/ATen/native/cuda/Nonzero.cu)."""
    tensor = call.args[0]
    copy = script.borrow(0 if tensor.is_contiguous() else nbytes(tensor))
    count = script.borrow(4)
    script.touch(cub.reduce_to_int(tensor.numel(), call.card))
    script.make(0)
    script.touch(cub.select(tensor.numel()))
    script.give_back(count, copy)


def scatter_of_gradient(call: KernelCall, script: Script) -> None:
    """A gather's gradient is scattered into fresh zeros, in place on plain tensors, out of place on subclasses such as
    the fake ones (torch/csrc/autograd/FunctionsManual.cpp, `areAnyTensorSubclassLike`)."""
    if call.by_engine:
        script.make_into(0, argument=0)
    else:
        script.make(*range(len(call.outputs)))


def joined_flags(call: KernelCall, script: Script) -> None:
    """The same of flags that say what `clamp` left as it was: the first of them are written over, and stay until all is
    done (torch/csrc/autograd/FunctionsManual.cpp, `clamp_backward`)."""
    if not call.by_engine:
        script.make(0)


def index_put(call: KernelCall, script: Script) -> None:
    """What is added up is a gather's gradient. The gradient of what was put into a tensor is copied, and zeros put into
    the copy (tools/autograd/derivatives.yaml, `index_put`)."""
    if call.argument(3, "accumulate", False):
        scatter_of_gradient(call, script)
    else:
        script.make(0)
    index_put_in_place(call, script)


def index_put_in_place(call: KernelCall, script: Script) -> None:
    """Without accumulation the kernel only scatters. With it indices are checked (not in a backward pass), folded into
    one number each and sorted (aten/src/ATen/native/cuda/Indexing.cu, `index_put_with_sort_kernel`)."""
    tensor, indices, values = call.args[:3]
    accumulates = call.argument(3, "accumulate", False)
    if not accumulates and values.numel() == 1 and values.device.type == "cpu":
        return  # runs as masked_fill_
    masks = [(i, place) for place, i in enumerate(indices) if i is not None and name_of(i.dtype) in MASKS]
    positions = [_positions_of_mask(mask, _count_of(values, place), call, script) for mask, place in masks]
    if accumulates:
        _accumulate(tensor, indices, values, positions, script, checks=not call.by_engine)
    else:
        script.give_back(*positions)


def _count_of(values: Shaped, place: int) -> int:
    """How many elements a mask selects is seen in the values it selects, where the masked dimensions stood."""
    return values.shape[place] if place < values.dim() else 1


def _positions_of_mask(mask: Shaped, found: int, call: KernelCall, script: Script) -> int:
    count = script.borrow(4)
    script.touch(cub.reduce_to_int(mask.numel(), call.card))
    positions = script.borrow(found * mask.dim() * INDEX_BYTES)
    script.touch(cub.select(mask.numel()))
    script.give_back(count)
    return positions


def _accumulate(
    tensor: Shaped, indices: Sequence[Shaped | None], values: Shaped, positions: Sequence[int],
    script: Script, checks: bool,
) -> None:  # fmt: skip
    places: list[tuple[int, int]] = []  # the dimensions indexed, and how many indices each has
    dim = 0
    for place, index in enumerate(indices):
        if index is None:
            dim += 1
        elif name_of(index.dtype) in MASKS:
            places += [(d, _count_of(values, place)) for d in range(dim, dim + index.dim())]
            dim += index.dim()
        else:
            places.append((dim, index.numel()))
            dim += 1
    count = max((n for _, n in places), default=0)
    folded = -1
    for number, (_, n) in enumerate(places):
        for _ in range(2 if checks else 0):  # the smallest and the largest index
            bound = script.borrow(INDEX_BYTES)
            script.give_back(script.borrow(1), bound)
        wrapped = script.borrow(n * INDEX_BYTES)
        scaled = script.borrow(n * INDEX_BYTES)
        script.give_back(wrapped)
        if number == 0:
            folded = scaled
        else:
            script.give_back(scaled)
    script.give_back(*positions)
    copies = [script.borrow(0 if values.is_contiguous() else nbytes(values))]
    dims = [place for place, _ in places]
    if dims and dims[-1] - dims[0] >= len(dims):  # a dimension between them: moved to the front, which is a copy
        copies.append(script.borrow(nbytes(tensor)))
        slice_elements = prod(size for d, size in enumerate(tensor.shape) if d not in dims)
    else:
        slice_elements = prod(tensor.shape[dims[-1] + 1 :]) if dims else 1
    largest = (tensor.numel() - 1) // max(1, slice_elements)
    buffers = [script.borrow(count * INDEX_BYTES) for _ in range(3)]  # sorted, where each was, positions
    script.touch(cub.sort_pairs(count, INDEX_BYTES, bits=max(1, largest.bit_length())))
    script.give_back(*reversed(buffers), *reversed(copies), folded)


def sort(call: KernelCall, script: Script) -> None:
    """aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu: up to 4,096 elements one block sorts a row in place; above,
    CUB sorts a row, or all rows by value and then by row, or many rows each by itself."""
    tensor = call.args[0]
    script.make(0, 1)
    if tensor.dim() == 0 or tensor.numel() == 0:
        return
    dim = call.kwargs.get("dim", -1)
    if len(call.args) > 1 and not isinstance(call.args[1], bool):
        dim = call.args[1]
    length, elements, each = tensor.shape[dim], tensor.numel(), tensor.element_size()
    if length <= SORTED_IN_ONE_BLOCK:
        script.borrow(length * INDEX_BYTES)
        return
    script.borrow(elements * INDEX_BYTES)
    rows = elements // length
    if rows == 1:
        script.touch(cub.sort_pairs(elements, each))
    elif rows < SEGMENTS_SORTED_TOGETHER:
        script.borrow(elements * INDEX_BYTES)
        keys = script.borrow(nbytes(tensor))
        script.touch(cub.sort_pairs(elements, each))
        script.give_back(keys)
        script.touch(cub.sort_pairs(elements, 8, 4, bits=max(1, (rows - 1).bit_length())))
    else:
        script.touch(cub.segmented_sort_pairs(elements, each))


def top_k(call: KernelCall, script: Script) -> None:
    """Long rows are searched by many blocks (aten/src/ATen/native/cuda/TensorTopK.cu, namespace mbtopk): the k-th
    value, two words and a histogram a row; digit counts and two counters a block."""
    tensor = call.args[0]
    script.make(0, 1)
    dim = call.argument(2, "dim", -1)
    length = tensor.shape[dim] if tensor.dim() else 1
    rows = tensor.numel() // max(1, length)
    if not _searched_by_many_blocks(rows, length):
        return
    blocks_at_once = call.card.sm_count * (65536 // (40 * 256))
    items = max(4, min(64, ceil_div(rows * length, blocks_at_once * 256)))
    blocks = ceil_div(length, items * 256)
    sizes = (rows * tensor.element_size(), rows * 8, rows * 8, rows * blocks * 512, rows * 1024)
    for size in (*sizes, rows * blocks * 4, rows * blocks * 4):
        script.borrow(size)
    for _ in range(2):
        script.touch(cub.scan_by_key(rows * blocks))


def _searched_by_many_blocks(rows: int, length: int) -> bool:
    """TensorTopK.cu, `should_use_multiblock`: thresholds its authors measured."""
    for most_rows, shortest in ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800)):
        if rows <= most_rows:
            return length >= shortest
    return length >= 400


def cumulative_sum(call: KernelCall, script: Script) -> None:
    """Another type is converted first; one whole row goes through CUB (aten/src/ATen/native/cuda/ScanUtils.cuh)."""
    tensor, out = call.args[0], call.outputs[0]
    script.make(0)
    if tensor.dtype != out.dtype:
        script.borrow(nbytes(out))
    dim = call.argument(1, "dim", 0)
    if tensor.dim() and tensor.shape[dim] == tensor.numel() > 0:
        script.touch(cub.scan(tensor.numel(), max(4, out.element_size())))  # 16-bit numbers are summed in fp32


def masked_scatter(call: KernelCall, script: Script) -> None:
    """Positions of the source by a scan of the mask, which is copied to the tensor's own shape where it has another
    (aten/src/ATen/native/cuda/IndexKernel.cpp, `masked_scatter__cuda`; IndexKernel.cu,
    `launch_masked_scatter_kernel`)."""
    tensor, mask = call.args[:2]
    scatter_of_gradient(call, script)
    script.borrow(tensor.numel() * INDEX_BYTES)
    script.borrow(0 if _covers(mask, tensor) else tensor.numel())
    script.touch(cub.scan(tensor.numel(), INDEX_BYTES))


def masked_scatter_backward(call: KernelCall, script: Script) -> None:
    """What the mask selects of the gradient: an index by the positions of all that it covers, one number for each
    dimension (aten/src/ATen/native/TensorAdvancedIndexing.cpp, `masked_scatter_backward_symint`; cuda/IndexKernel.cpp,
    `masked_select_out_cuda_impl`)."""
    gradient, mask = call.args[:2]
    copy = script.borrow(0 if _covers(mask, gradient) else gradient.numel())
    count = script.borrow(4)
    script.touch(cub.reduce_to_int(gradient.numel(), call.card))
    positions = script.borrow(call.outputs[0].numel() * gradient.dim() * INDEX_BYTES)
    script.touch(cub.select(gradient.numel()))
    script.give_back(count, copy)
    script.make(0)
    script.give_back(positions)


def _covers(mask: Shaped, tensor: Shaped) -> bool:
    """One flag for each element, in order."""
    return mask.is_contiguous() and mask.dim() == tensor.dim() and mask.numel() == tensor.numel()


RULES: dict[str, Rule] = {
    "aten::embedding_dense_backward": embedding_backward, "aten::nonzero": nonzero,
    "aten::index_put": index_put, "aten::index_put_": index_put_in_place, "aten::_index_put_impl_": index_put_in_place,
    "aten::scatter": scatter_of_gradient, "aten::scatter_add": scatter_of_gradient,
    "aten::index_add": scatter_of_gradient, "aten::logical_and": joined_flags,
    "aten::sort": sort, "aten::topk": top_k, "aten::cumsum": cumulative_sum,
    "aten::masked_scatter": masked_scatter, "aten::masked_scatter_backward": masked_scatter_backward,
}  # fmt: skip
IN_PLACE_IN_BACKWARD = frozenset({
    "aten::index_put", "aten::scatter", "aten::scatter_add", "aten::index_add", "aten::masked_scatter",
    "aten::logical_and",
})  # fmt: skip
