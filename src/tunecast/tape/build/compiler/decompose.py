"""Operations Inductor takes apart, as it takes them apart (torch/_decomp/decompositions.py, torch/_refs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.compiler.graph import EXTERN, FUSED_ONLY, POINT, POINTWISE, REDUCTIONS, LibraryCall, Ref
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Dtype, Shape

if TYPE_CHECKING:
    from tunecast.tape.build.compiler.record import Tracer

Outs = Sequence[tuple[Shape, Dtype]]
Rule = Callable[["Tracer", Sequence[int], Outs, Any], list[int]]


def is_inductors_own(name: str) -> bool:
    """Whether Inductor writes the kernel itself."""
    return name in POINTWISE or name in REDUCTIONS or name in FUSED_ONLY


class Sheet:
    """A shape and layout to write operations of one result in."""

    def __init__(self, tracer: Tracer, shape: Shape, strides: Any) -> None:
        self.tracer, self.shape, self.strides = tracer, shape, strides

    def __call__(self, op: str, *inputs: int, dtype: Dtype = FLOAT32, key: Any = None, shape: Any = None) -> int:
        strides = self.strides if shape is None else None
        return self.tracer.write(op, inputs, self.shape if shape is None else shape, dtype, strides, key=key)

    def cast(self, number: int, dtype: Dtype = FLOAT32) -> int:
        value = self.tracer.graph.values[number]
        return self.tracer.write("_to_copy", (number,), value.shape, dtype, value.strides)


def silu(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    write = Sheet(tracer, outs[0][0], strides)
    x = write.cast(numbers[0])
    below = write("add", write("exp", write("neg", x)), key=1)
    return [write.cast(write("div", x, below), outs[0][1])]


def silu_backward(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    write = Sheet(tracer, outs[0][0], strides)
    gradient, x = write.cast(numbers[0]), write.cast(numbers[1])
    below = write("add", write("exp", write("neg", x)), key=1)
    sigmoid = write("mul", write("reciprocal", below), key=1)
    first = write("mul", gradient, sigmoid)
    rest = write("add", write("mul", x, write("sub", sigmoid, key=1)), key=1)
    return [write.cast(write("mul", first, rest), outs[0][1])]


def gelu(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    write = Sheet(tracer, outs[0][0], strides)
    x = write.cast(numbers[0])
    inner = write("add", write("erf", write("mul", x, key="root")), key=1)
    return [write.cast(write("mul", write("mul", x, key="half"), inner), outs[0][1])]


def gelu_backward(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    write = Sheet(tracer, outs[0][0], strides)
    gradient, x = write.cast(numbers[0]), write.cast(numbers[1])
    inner = write("mul", write("add", write("erf", write("mul", x, key="root")), key=1), key="half")
    density = write("mul", write("exp", write("mul", write("mul", x, x), key="half")), key="scale")
    return [write.cast(write("mul", gradient, write("add", inner, write("mul", x, density))), outs[0][1])]


def by_result(op: str) -> Rule:
    """tanh, sigmoid, relu: a few operations on the gradient and the result."""

    def rule(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
        write = Sheet(tracer, outs[0][0], strides)
        kept = numbers[1]
        slope = write("sub", write("mul", kept, kept, dtype=outs[0][1]), key=op, dtype=outs[0][1])
        return [write("mul", numbers[0], slope, dtype=outs[0][1])]

    return rule


def softmax(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    shape, dtype = outs[0]
    write = Sheet(tracer, shape, strides)
    x = write.cast(numbers[0])
    rows = (*shape[:-1], 1)
    powers = write("exp", write("sub", x, write("amax", x, key=0, shape=rows)))
    return [write.cast(write("div", powers, write("sum", powers, key=0, shape=rows)), dtype)]


def softmax_backward(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    shape, dtype = outs[0]
    write = Sheet(tracer, shape, strides)
    product = write("mul", numbers[0], numbers[1])
    total = write("sum", product, key=0, shape=(*shape[:-1], 1))
    return [write.cast(write("fma", total, numbers[1], product), dtype)]


def log_softmax(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    shape, dtype = outs[0]
    write = Sheet(tracer, shape, strides)
    x = write.cast(numbers[0])
    rows = (*shape[:-1], 1)
    shifted = write("sub", x, write("amax", x, key=0, shape=rows))
    log = write("log", write("sum", write("exp", shifted), key=0, shape=rows), shape=rows)
    return [write.cast(write("sub", shifted, log), dtype)]


def log_softmax_backward(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    shape, dtype = outs[0]
    write = Sheet(tracer, shape, strides)
    total = write("sum", numbers[0], key=0, shape=(*shape[:-1], 1))
    return [write.cast(write("sub", numbers[0], write("mul", write("exp", numbers[1]), total)), dtype)]


def nll_loss(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    log, labels = numbers[:2]
    dtype, rows = outs[0][1], tracer.graph.values[labels].shape
    write = Sheet(tracer, rows, None)
    counted = write("ne", labels, key=0, dtype=BOOL)
    chosen = write("where", counted, labels, write("full", key="label", dtype=INT64, shape=()), dtype=INT64)
    chosen = write("gather", log, write("view", chosen, key=0, dtype=INT64, shape=(*rows, 1)), shape=(*rows, 1))
    losses = write("neg", write("view", chosen, key=0, dtype=dtype), dtype=dtype)
    losses = write("where", counted, losses, write("full", key="loss", dtype=dtype, shape=()), dtype=dtype)
    count = _count(tracer, labels, dtype)
    return [write("div", write("sum", losses, key=0, dtype=dtype, shape=()), count, dtype=dtype, shape=()), count]


def _count(tracer: Tracer, labels: int, dtype: Dtype) -> int:
    """How many labels count."""
    write = Sheet(tracer, tracer.graph.values[labels].shape, None)
    return write.cast(write("sum", write("ne", labels, key=0, dtype=BOOL), key=0, dtype=INT64, shape=()), dtype)


def nll_loss_backward(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    """A comparison in the place of a scatter (fx_passes/joint_graph.py, `scatter_upon_const_tensor`)."""
    shape, dtype = outs[0]
    gradient, _, labels = numbers[:3]
    write = Sheet(tracer, shape, strides)
    rows = (*shape[:-1], 1)
    count = _count(tracer, labels, dtype)
    counted = write("ne", labels, key="rows", dtype=BOOL, shape=rows)
    each = write("div", gradient, count, dtype=dtype, shape=())
    chosen = write("eq", labels, dtype=BOOL, key="classes")
    return [write("mul", write("where", chosen, dtype=dtype, key=0),
                  write("where", counted, each, dtype=dtype, shape=rows), dtype=dtype)]  # fmt: skip


def embedding_backward(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    """Added up in fp32, then cast (torch/_inductor/decomposition.py, `embedding_dense_backward`)."""
    shape, dtype = outs[0]
    write = Sheet(tracer, shape, None)
    zeros = write("full")  # its own, as it is added to
    return [write.cast(write("scatter_add", zeros, write.cast(numbers[0]), numbers[1]), dtype)]


def slice_backward(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    shape, dtype = outs[0]
    write = Sheet(tracer, shape, None)
    return [write("slice_scatter", write("full", key=0, dtype=dtype), numbers[0], dtype=dtype)]


def dropout(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    """Random numbers are compared and gone; the comparison is the mask (fx_passes/replace_random.py)."""
    shape, dtype = outs[0]
    write = Sheet(tracer, shape, None)
    if tracer.seeds is None:
        inside, tracer.checkpoint = tracer.checkpoint, 0
        tracer.seeds = tracer.write("inductor_seeds", (), (1,), INT64, kind=EXTERN)
        tracer.checkpoint = inside
    elif tracer.exact:  # one more
        seeds = tracer.graph.values[tracer.seeds]
        seeds.shape = (seeds.shape[0] + 1,)
    seed = tracer.write("inductor_lookup_seed", (tracer.seeds,), (), INT64, kind=POINT if tracer.exact else EXTERN)
    mask = write("gt", write("inductor_random", seed), dtype=BOOL)
    return [write("mul", write("mul", mask, numbers[0], dtype=dtype), dtype=dtype), mask]


def dropout_backward(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    shape, dtype = outs[0]
    write = Sheet(tracer, shape, strides)
    factor = write("mul", tracer.write("_to_copy", (numbers[1],), shape, dtype), dtype=dtype)
    return [write("mul", numbers[0], factor, dtype=dtype)]


def layer_norm(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    shape, dtype = outs[0]
    write = Sheet(tracer, shape, None)
    rows = outs[1][0]
    x = write.cast(numbers[0])
    mean = write("mean", x, key=0, shape=rows)
    centred = write("sub", x, mean)
    deviation = write("rsqrt", write("add", write("var", x, key=0, shape=rows), key=1, shape=rows), shape=rows)
    out = write("mul", centred, deviation)
    for place, parameter in enumerate(numbers[1:]):
        out = write("add" if place else "mul", out, parameter)
    return [write.cast(out, dtype), mean, deviation]


def layer_norm_backward(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    """Results in the order of input, weight, bias, as far as they are wanted."""
    gradient, x, *parameters = numbers
    values = tracer.graph.values
    shape = values[x].shape
    write = Sheet(tracer, shape, None)
    rows = (*shape[:-1], 1)
    incoming, kept = write.cast(gradient), write.cast(x)
    mean = write("mean", kept, key=0, shape=rows)
    deviation = write("rsqrt", write("add", write("var", kept, key=0, shape=rows), key=1, shape=rows), shape=rows)
    normal = write("mul", write("sub", kept, mean), deviation)
    found = []
    for wanted, dtype in outs:
        if wanted == shape:
            scaled = write("mul", incoming, parameters[0]) if parameters else incoming
            first = write("sum", scaled, key=0, shape=rows)
            second = write("sum", write("mul", scaled, normal), key=0, shape=rows)
            inner = write("sub", write("sub", scaled, first), write("mul", normal, second))
            found.append(write.cast(write("mul", inner, deviation), dtype))
        else:
            product = write("mul", incoming, normal) if len(found) < 2 else incoming
            found.append(write.cast(write("sum", product, key=("over", len(found)), shape=wanted), dtype))
    return found


def arange(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    return [tracer.write("arange", (), *outs[0], key=0)]


def shifted(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    """Positions plus where they start are the same wherever they are made."""
    of_positions = len(numbers) == 1 and tracer.graph.values[numbers[0]].op == "arange"
    return [tracer.write("add", numbers, *outs[0], strides, key=0 if of_positions else None)]


def scalar(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    """A mask's two numbers, made anew in every layer, are two constants."""
    tracer.scalars += 1
    return [tracer.write("scalar_tensor", (), *outs[0], key=tracer.scalars % 2)]


def outer_product(tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> list[int]:
    """Positions times frequencies: a batch of one is multiplied as matrices, after the views `matmul` takes. The views
    cost nothing; but the partitioner counts operations."""
    shape, dtype = outs[0]
    first, second = numbers
    of_first, of_second = (tracer.graph.values[number].shape for number in numbers)
    for step, view in enumerate((of_first, of_first, of_first, of_first[1:])):
        first = tracer.write("view", (first,), view, dtype, key=("first", step))
    for step, view in enumerate((of_second, of_second[1:])):
        second = tracer.write("view", (second,), view, dtype, key=("second", step))
    call = LibraryCall("mm", (Ref(first), Ref(second)), ((shape[1:], dtype),), 0, (Ref(first), Ref(second)), None)
    product = tracer.write("mm", (first, second), shape[1:], dtype, kind=EXTERN, call=call)
    return [tracer.write("view", (product,), shape, dtype, key="batch")]


def twice(tracer: Tracer, number: int, shape: Shape, dtype: Dtype) -> int:
    """The same twice side by side: turned around, expanded, copied."""
    parts = (*shape[:-1], 2, shape[-1] // 2)
    value = tracer.graph.values[number]
    turned = tracer.write("permute", (number,), (*shape[:-1], parts[-1]), dtype, key="turned")
    one = tracer.write("view", (turned,), (*shape[:-1], 1, parts[-1]), value.dtype, key="one")
    both = tracer.write("clone", (tracer.write("expand", (one,), parts, dtype, key="both"),), parts, dtype)
    return tracer.write("view", (both,), shape, dtype, key="joined")


RULES: Mapping[str, Rule] = {
    "arange": arange, "add": shifted, "scalar_tensor": scalar,
    "silu": silu, "silu_backward": silu_backward, "gelu": gelu, "gelu_backward": gelu_backward,
    "tanh_backward": by_result("tanh"), "sigmoid_backward": by_result("sigmoid"), "relu_backward": by_result("relu"),
    "_softmax": softmax, "_safe_softmax": softmax, "_softmax_backward_data": softmax_backward,
    "_log_softmax": log_softmax, "_log_softmax_backward_data": log_softmax_backward,
    "nll_loss_forward": nll_loss, "nll_loss_backward": nll_loss_backward,
    "embedding_dense_backward": embedding_backward,
    "slice_backward": slice_backward, "select_backward": slice_backward,
    "native_dropout": dropout, "native_dropout_backward": dropout_backward,
    "native_layer_norm": layer_norm, "native_layer_norm_backward": layer_norm_backward,
}  # fmt: skip
