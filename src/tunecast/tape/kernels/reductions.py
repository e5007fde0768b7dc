"""Operations that reduce: what each does around the launch of `launch.py`, and the copies it makes."""

from __future__ import annotations

from math import prod

from tunecast.tape.kernels.launch import (
    Read,
    extremum,
    of,
    opmath_bytes,
    own_bytes,
    pair_bytes,
    reduce,
    reduced_dims,
    row_of,
    rule,
)
from tunecast.tape.kernels.steps import KernelCall, Rule, Script, ceil_div, nbytes
from tunecast.tape.symbols import compute, listed

FOREACH_CHUNK = 65536


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


_SUM, _OWN, _PAIR = rule(opmath_bytes, casts=True), rule(own_bytes), rule(pair_bytes, vector=2)


def multinomial(call: KernelCall, script: Script) -> None:
    """One draw a row (aten/src/ATen/native/Distributions.cpp, `multinomial_out`): weights are checked by three
    reductions, each read by the host, then divided by numbers drawn for each of them, of which the largest counts."""
    weights = call.args[0]
    every, words = range(weights.dim()), weights.shape[-1]
    script.make(0)
    checked = []
    for _ in ("max", "min"):
        checked.append(script.borrow(weights.element_size()))
        reduce(script, call.card, of(weights), tuple(every), own_bytes(weights.dtype), weights.element_size())
        checked.append(script.borrow(1))
    script.give_back(script.borrow(1), *reversed(checked))
    rows = weights.numel() // words
    sums = script.borrow(rows * weights.element_size())
    reduce(script, call.card, of(weights), (weights.dim() - 1,), opmath_bytes(weights.dtype), weights.element_size())
    flags, count = script.borrow(rows), script.borrow(8)
    script.give_back(script.borrow(rows * 8), count, flags, sums)
    script.borrow(nbytes(weights))
    reduce(script, call.card, of(weights), (weights.dim() - 1,), pair_bytes(weights.dtype), 8)


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
    "aten::multinomial": multinomial,
}  # fmt: skip
