"""Operations that reduce: which launcher each uses, and the copies made around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tunecast.records import NamedTuple
from tunecast.tape.card import Card
from tunecast.tape.kernels.launch import ReductionKernel, accumulation_bytes, borrowed, extent
from tunecast.tape.kernels.shapes import HALF, Shaped, SizedDtype, name_of
from tunecast.tape.kernels.steps import KernelCall, Rule, Script, ceil_div, nbytes
from tunecast.tape.symbols import compute, listed

FOREACH_CHUNK = 65536

RunningBytes = Callable[[SizedDtype], int]


class Read(NamedTuple):
    """What a reduction reads."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    element_bytes: int


def of(tensor: Shaped) -> Read:
    return Read(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.element_size())


def row_of(elements: int, element_bytes: int) -> Read:
    return Read((elements,), (1,), 0, element_bytes)


def reduce(
    script: Script, card: Card, read: Read, dims: Sequence[int], running_bytes: int, out_bytes: int, vector: int = 4
) -> None:
    """The buffers of one launch, borrowed and given back."""
    if 0 in read.sizes:
        return
    whole = extent(read.sizes, read.strides, dims, read.offset)
    kernel = ReductionKernel(read.element_bytes, running_bytes, vector)
    sums = script.borrow(accumulation_bytes(whole, kernel, out_bytes))
    for staging_bytes, semaphore_bytes in borrowed(whole, kernel, out_bytes, card):
        staging = script.borrow(staging_bytes)
        script.give_back(script.borrow(semaphore_bytes), staging)
    script.give_back(sums)


def reduced_dims(call: KernelCall, place: int = 1) -> tuple[int, ...]:
    tensor, dims = call.args[0], call.argument(place, "dim")
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(tensor.dim()))
    dims = (dims,) if isinstance(dims, int) else dims
    return tuple(d % tensor.dim() for d in dims) if tensor.dim() else ()


def opmath_bytes(dtype: SizedDtype) -> int:
    """Sums of 16-bit numbers run in fp32 (aten/src/ATen/OpMathType.h)."""
    return max(4, dtype.itemsize)


def own_bytes(dtype: SizedDtype) -> int:
    return dtype.itemsize


def pair_bytes(dtype: SizedDtype) -> int:
    """A value with its place, or Welford's mean, spread and two counts (SharedReduceOps.h): 16 bytes for up to fp32."""
    return 16 if dtype.itemsize <= 4 else 32


def rule(running: RunningBytes, dims_place: int = 1, vector: int = 4, casts: bool = False) -> Rule:
    """`casts`: a type that differs from the result's is converted first, except 16-bit floats to fp32, which the
    kernel converts as it reads (aten/src/ATen/native/ReduceOpsUtils.h, `make_reduction`)."""

    def write(call: KernelCall, script: Script) -> None:
        tensor, out = call.args[0], call.outputs[0].dtype
        script.make(*range(len(call.outputs)))
        read, dtype = of(tensor), tensor.dtype
        if casts and dtype != out and not (name_of(dtype) in HALF and name_of(out) == "float32"):
            script.borrow(tensor.numel() * out.itemsize)
            read, dtype = read._replace(offset=0, element_bytes=out.itemsize), out
        reduce(script, call.card, read, reduced_dims(call, dims_place), running(dtype), out.itemsize, vector)

    return write


def vector_norm(call: KernelCall, script: Script) -> None:
    """aten/src/ATen/native/cuda/ReduceNormKernel.cu."""
    script.make(0)
    tensor = call.args[0]
    running = opmath_bytes(tensor.dtype)
    reduce(script, call.card, of(tensor), reduced_dims(call, 2), running, call.outputs[0].element_size())


def foreach_norm(call: KernelCall, script: Script) -> None:
    """A partial norm a chunk, for as many chunks as the largest tensor has
    (aten/src/ATen/native/cuda/ForeachReduceOp.cu, `foreach_tensor_norm_cuda`); 16-bit ones in fp32."""
    tensors = call.args[0]
    largest = compute(_largest, None, listed([t.numel() for t in tensors])[1])
    chunks = ceil_div(largest, FOREACH_CHUNK)
    partial = script.borrow(len(tensors) * chunks * opmath_bytes(tensors[0].dtype)) if tensors else -1
    script.make(*range(len(call.outputs)))
    script.give_back(partial)


def _largest(_: None, *numbers: int) -> int:
    return max(numbers, default=0)


def log_sum_exp(call: KernelCall, script: Script) -> None:
    """maxima, their absolute values compared with infinity, then exp(x - maximum) summed
    (aten/src/ATen/native/ReduceOps.cpp, `logsumexp_out_impl`)."""
    tensor, out = call.args[0], call.outputs[0]
    dims = reduced_dims(call)
    maxima = script.borrow(nbytes(out))
    reduce(script, call.card, of(tensor), dims, tensor.element_size(), tensor.element_size())
    absolute = script.borrow(nbytes(out))
    infinite = script.borrow(out.numel())
    script.give_back(infinite, absolute)
    shifted = script.borrow(nbytes(tensor))
    script.make(0)
    reduce(script, call.card, of(tensor), dims, opmath_bytes(tensor.dtype), out.element_size())
    script.give_back(shifted, maxima)


def layer_norm(call: KernelCall, script: Script) -> None:
    """aten/src/ATen/native/cuda/layer_norm_kernel.cu: an input that is not contiguous is copied."""
    copy = script.borrow(0 if call.args[0].is_contiguous() else nbytes(call.args[0]))
    script.make(*range(len(call.outputs)))
    script.give_back(copy)


def layer_norm_backward(call: KernelCall, script: Script) -> None:
    """Many short rows (M > 65,536): the gradients of weight and bias are first summed over 32 rows each, then by `sum`,
    whose results replace the ones made (layer_norm_kernel.cu, `LaunchGammaBetaBackwardCUDAKernel`)."""
    gradient, tensor, normalized = call.args[:3]
    for read in (gradient, tensor):
        if not read.is_contiguous():
            script.borrow(nbytes(read))
    width = prod(normalized)
    rows, columns = tensor.numel() // width, ceil_div(width, 32)
    if rows <= 65536 or width // 32 >= call.card.sm_count // 2:
        script.make(*range(len(call.outputs)))
        return
    wanted = call.args[-1]
    first = 1 if wanted[0] else 0
    script.make(*range(first))
    blocks = min(32768 // columns, ceil_div(rows, 32))
    results = call.outputs[first:]
    replaced = [script.borrow(nbytes(out)) for out in results]
    partial = [script.borrow(blocks * nbytes(out)) for out in results]
    for number, out in enumerate(results):
        script.make(first + number)
        read = Read((blocks, width), (width, 1), 0, out.element_size())
        reduce(script, call.card, read, (0,), opmath_bytes(out.dtype), out.element_size())
        script.give_back(replaced[number])
    script.give_back(*reversed(partial))


def count_nonzero(call: KernelCall, script: Script) -> None:
    """A comparison, then the sum of flags, which converts them (aten/src/ATen/native/TensorAdvancedIndexing.cpp)."""
    tensor = call.args[0]
    flags = script.borrow(tensor.numel())
    script.make(0)
    numbers = script.borrow(tensor.numel() * 8)
    reduce(script, call.card, row_of(tensor.numel(), 8), (0,), 8, 8)
    script.give_back(numbers, flags)


def mean_squared_error(call: KernelCall, script: Script) -> None:
    """The result is made as large as the input and shrunk after; the squares are a second buffer
    (aten/src/ATen/native/Loss.cpp, `mse_loss_out`)."""
    tensor = call.args[0]
    if call.argument(2, "reduction", 1) == 0:
        script.make(0)
        return
    script.make_of(0, nbytes(tensor))
    script.borrow(nbytes(tensor))
    row = row_of(tensor.numel(), tensor.element_size())
    reduce(script, call.card, row, (0,), opmath_bytes(tensor.dtype), tensor.element_size())


def extremum(call: KernelCall, script: Script) -> None:
    """Over a dimension the place comes with the value (aten/src/ATen/native/cuda/ReduceMinValuesKernel.cu)."""
    running = own_bytes if len(call.outputs) == 1 else pair_bytes
    rule(running)(call, script)


_SUM, _OWN, _PAIR = rule(opmath_bytes, casts=True), rule(own_bytes), rule(pair_bytes, vector=2)

RULES: dict[str, Rule] = {
    "aten::sum": _SUM, "aten::mean": _SUM, "aten::prod": _SUM, "aten::nansum": _SUM,
    "aten::amax": _OWN, "aten::amin": _OWN, "aten::any": _OWN, "aten::all": _OWN,
    "aten::max": extremum, "aten::min": extremum,
    "aten::argmax": rule(pair_bytes), "aten::argmin": rule(pair_bytes),
    "aten::var": _PAIR, "aten::std": _PAIR, "aten::var_mean": _PAIR, "aten::std_mean": _PAIR,
    "aten::linalg_vector_norm": vector_norm, "aten::_foreach_norm": foreach_norm,
    "aten::native_layer_norm": layer_norm, "aten::native_layer_norm_backward": layer_norm_backward,
    "aten::_fused_rms_norm": layer_norm, "aten::_fused_rms_norm_backward": layer_norm_backward,
    "aten::logsumexp": log_sum_exp, "aten::count_nonzero": count_nonzero, "aten::mse_loss": mean_squared_error,
}  # fmt: skip
