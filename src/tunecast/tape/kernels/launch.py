"""The buffers a CUDA reduction borrows when several thread blocks work on one result.

`sum`, `mean`, norms, maxima and variances share one launcher (aten/src/ATen/native/cuda/Reduce.cuh,
`setReduceConfig`, `gpu_reduce_kernel`). Where there are few results and long inputs it spreads an input over several
blocks (CTAs), which meet in a buffer; when results lie side by side in memory the buffer has a lane a thread, and
the sum of a bias gradient over 8,192 tokens borrows 128 MiB. The file follows that launcher, and before it the
iterator that orders and merges dimensions (aten/src/ATen/TensorIterator.cpp). `rule` is what an operation that is
one such launch does.

Names  inputs: elements a result is made of; outputs: results; a step: how many of them one pass of a block takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod

from tunecast.records import NamedTuple, dataclass, replace
from tunecast.tape.card import Card
from tunecast.tape.kernels.shapes import HALF, Shaped, SizedDtype, name_of
from tunecast.tape.kernels.steps import KernelCall, Rule, Script, ceil_div
from tunecast.tape.symbols import ask, compute

MOST_THREADS = 512
WARP = 32
FEWEST_VALUES_A_THREAD, MOST_VALUES_A_THREAD = 16, 256
MOST_INDEXED_BYTES = 2**31 - 1

RunningBytes = Callable[[SizedDtype], int]


class ReductionBuffers(NamedTuple):
    staging_bytes: int
    semaphore_bytes: int


@dataclass(frozen=True)
class ReductionKernel:
    """What the reduction's template fixes: bytes it reads an element, bytes of its running value, elements a load."""

    element_bytes: int
    running_bytes: int
    vector: int = 4


@dataclass(frozen=True)
class Extent:
    """Dimensions as the kernel sees them: merged, the reduced ones first. Strides count elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    out_strides: tuple[int, ...]
    offset: int

    @property
    def reduced(self) -> int:
        return sum(stride == 0 for stride in self.out_strides)

    @property
    def elements(self) -> int:
        return prod(self.sizes)


def extent(sizes: Sequence[int], strides: Sequence[int], reduced: Sequence[int], offset: int = 0) -> Extent:
    """Order and merge dimensions as TensorIterator does (`reorder_dimensions`, `coalesce_dimensions`)."""
    out_strides, step = [0] * len(sizes), 1
    for dim in reversed(range(len(sizes))):
        if dim not in reduced:
            out_strides[dim] = step
            step *= sizes[dim]
    order = _sorted_dimensions(sizes, strides, out_strides)
    merged: list[tuple[int, int, int]] = []
    for dim in order:
        size, stride, out_stride = sizes[dim], strides[dim], out_strides[dim]
        if not merged:
            merged.append((size, stride, out_stride))
            continue
        last_size, last_stride, last_out = merged[-1]
        if size == 1 or last_size == 1 or (last_size * last_stride == stride and last_size * last_out == out_stride):
            kept = (stride, out_stride) if last_size == 1 else (last_stride, last_out)
            merged[-1] = (last_size * size, *kept)
        else:
            merged.append((size, stride, out_stride))
    columns = tuple(tuple(row[column] for row in merged) for column in range(3))
    return Extent(columns[0], columns[1], columns[2], offset)


def _sorted_dimensions(sizes: Sequence[int], strides: Sequence[int], out_strides: Sequence[int]) -> list[int]:
    def out_of_order(first: int, second: int) -> int:
        if (out_strides[first] == 0) != (out_strides[second] == 0):
            return 1 if out_strides[second] == 0 else -1
        for operand in (out_strides, strides):
            if operand[first] == 0 or operand[second] == 0:
                continue
            if operand[first] != operand[second]:
                return -1 if operand[first] < operand[second] else 1
            if sizes[first] > sizes[second]:
                return 1
        return 0

    order = list(reversed(range(len(sizes))))
    for i in range(1, len(order)):
        moving = i
        for before in reversed(range(i)):
            verdict = out_of_order(order[before], order[moving])
            if verdict > 0:
                order[before], order[moving] = order[moving], order[before]
                moving = before
            elif verdict < 0:
                break
    return order


MOST_COMPUTED = 16
"""Parts whose sizes are computed one by one; of more it is asked how they came about."""


class Multiprocessors(NamedTuple):
    """The card's multiprocessors, and the threads of each."""

    sms: int
    threads: int


def threads_per_sm(card: Card) -> int:
    """CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""
    if type(card.capability) is tuple:
        return _threads_per_sm(None, card.capability)
    made: int = compute(_threads_per_sm, None, [card.capability])
    return made


def _threads_per_sm(_: None, capability: tuple[int, int]) -> int:
    return 1536 if capability in ((8, 6), (8, 7), (8, 9)) or capability[0] == 12 else 2048


def borrowed(whole: Extent, kernel: ReductionKernel, out_element_bytes: int, card: Card) -> Iterable[ReductionBuffers]:
    """Those of `buffers` that are any."""
    room = Multiprocessors(card.sm_count, threads_per_sm(card))
    numbers = (*whole.sizes, *whole.strides, *whole.out_strides, whole.offset, *room)
    if all([type(number) is int for number in numbers]):
        return _borrowed(whole, kernel, out_element_bytes, room)
    about = len(whole.sizes), kernel, out_element_bytes
    given: tuple[tuple[bool, bool], ...] = ask(_any, about, numbers)
    if len(given) > MOST_COMPUTED:
        return (pair for pair in buffers(whole, kernel, out_element_bytes, room) if any(pair))
    return [
        ReductionBuffers(
            *(compute(_one, (*about, part, place), numbers) if each else 0 for place, each in enumerate(pair))
        )
        for part, pair in enumerate(given)
    ]


def _any(about: tuple[int, ReductionKernel, int], *numbers: int) -> tuple[tuple[bool, bool], ...]:
    return tuple([(bool(staging), bool(semaphores)) for staging, semaphores in _of_numbers(about, numbers)])


def _one(about: tuple[int, ReductionKernel, int, int, int], *numbers: int) -> int:
    return _of_numbers(about[:3], numbers)[about[3]][about[4]]


def _of_numbers(about: tuple[int, ReductionKernel, int], numbers: tuple[int, ...]) -> tuple[ReductionBuffers, ...]:
    dims, kernel, out_element_bytes = about
    whole = Extent(numbers[:dims], numbers[dims : 2 * dims], numbers[2 * dims : 3 * dims], numbers[3 * dims])
    return _borrowed(whole, kernel, out_element_bytes, Multiprocessors(*numbers[3 * dims + 1 :]))


@lru_cache(maxsize=4096)
def _borrowed(
    whole: Extent, kernel: ReductionKernel, out_element_bytes: int, room: Multiprocessors
) -> tuple[ReductionBuffers, ...]:
    """Kept, because a million tokens' attention scores fall into 32,768 parts."""
    return tuple(pair for pair in buffers(whole, kernel, out_element_bytes, room) if any(pair))


def buffers(
    whole: Extent, kernel: ReductionKernel, out_element_bytes: int, room: Multiprocessors
) -> tuple[ReductionBuffers, ...]:
    """One for each part that 32-bit indices can reach; a tensor above 2 GiB is halved until they can."""
    if _reachable(whole, kernel.element_bytes, out_element_bytes):
        return (_buffers_of_part(whole, kernel, room),)
    dim = max(range(len(whole.sizes)), key=lambda d: _span(whole, d, kernel.element_bytes, out_element_bytes))
    half = whole.sizes[dim] // 2
    parts = (
        replace(whole, sizes=(*whole.sizes[:dim], size, *whole.sizes[dim + 1 :]))
        for size in (half, whole.sizes[dim] - half)
    )
    return tuple(pair for part in parts for pair in buffers(part, kernel, out_element_bytes, room))


def accumulation_bytes(whole: Extent, kernel: ReductionKernel, out_element_bytes: int) -> int:
    """Halves of a large 16-bit tensor cannot meet in a 16-bit result; they meet in a buffer of running values."""
    if out_element_bytes >= kernel.running_bytes or kernel.element_bytes != 2 or out_element_bytes != 2:
        return 0
    if _reachable(whole, kernel.element_bytes, out_element_bytes):
        return 0
    return max(1, *(n * s for n, s in zip(whole.sizes, whole.out_strides, strict=True))) * kernel.running_bytes


def _span(part: Extent, dim: int, element_bytes: int, out_element_bytes: int) -> int:
    return (part.sizes[dim] - 1) * max(part.strides[dim] * element_bytes, part.out_strides[dim] * out_element_bytes)


def _reachable(part: Extent, element_bytes: int, out_element_bytes: int) -> bool:
    def last_byte(strides: tuple[int, ...], nbytes: int) -> int:
        return 1 + sum((n - 1) * s * nbytes for n, s in zip(part.sizes, strides, strict=True))

    return part.elements <= MOST_INDEXED_BYTES and all(
        last_byte(strides, nbytes) <= MOST_INDEXED_BYTES
        for strides, nbytes in ((part.strides, element_bytes), (part.out_strides, out_element_bytes))
    )


def _buffers_of_part(part: Extent, kernel: ReductionKernel, room: Multiprocessors) -> ReductionBuffers:
    if not part.sizes:
        return ReductionBuffers(0, 0)
    outputs = prod(part.sizes[part.reduced :])
    inputs = part.elements // outputs
    along_input = part.reduced == len(part.sizes) or part.strides[0] < part.strides[part.reduced]
    width, height = (inputs, outputs) if along_input else (outputs, inputs)
    fastest = part.strides[0] if along_input else part.strides[part.reduced]
    out_vector = 1
    if fastest == 1 and along_input and width >= 128 and part.reduced == 1:
        width //= kernel.vector
    elif fastest == 1 and not along_input:
        out_vector = _output_vector(part)
        width //= out_vector
    block_width, block_height = _block(width, height, MOST_THREADS // out_vector)

    input_step, output_step = (block_width, 1) if along_input else (1, block_width)
    across_warps = ceil_div(inputs, input_step) >= min(block_height * 16, MOST_VALUES_A_THREAD)
    if across_warps:
        input_step *= block_height
    else:
        output_step *= block_height
    values = ceil_div(inputs, input_step)
    most_blocks = room.sms * (room.threads // (block_width * block_height))
    grid = ceil_div(outputs // out_vector, output_step)
    if not across_warps or values < MOST_VALUES_A_THREAD or grid > most_blocks:
        return ReductionBuffers(0, 0)
    enough, fewest = ceil_div(values, FEWEST_VALUES_A_THREAD), ceil_div(values, MOST_VALUES_A_THREAD)
    blocks = max(min(ceil_div(most_blocks, grid), enough), fewest)
    if blocks == 1:
        return ReductionBuffers(0, 0)
    lanes = 1 if along_input else block_width * out_vector
    return ReductionBuffers(kernel.running_bytes * outputs * blocks * lanes, 4 * grid)


def _output_vector(part: Extent) -> int:
    """Results a load may serve: 4, 2 or 1, as the address, the row and the other strides allow."""
    row = part.reduced
    numbers = [part.offset, part.sizes[row], *(s for d, s in enumerate(part.strides) if d != row)]
    return next(vector for vector in (4, 2, 1) if all(n % vector == 0 for n in numbers))


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    rounded_width = _last_power(width) if width < most else most
    rounded_height = _last_power(height) if height < most else most
    block_width = min(rounded_width, WARP)
    block_height = min(rounded_height, most // block_width)
    return min(rounded_width, most // block_height), block_height


def _last_power(n: int) -> int:
    return 1 << (max(1, n).bit_length() - 1)


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


def extremum(call: KernelCall, script: Script) -> None:
    """Over a dimension the place comes with the value (aten/src/ATen/native/cuda/ReduceMinValuesKernel.cu)."""
    running = own_bytes if len(call.outputs) == 1 else pair_bytes
    rule(running)(call, script)
