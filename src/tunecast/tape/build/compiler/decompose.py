"""Operations Inductor takes apart, as it takes them apart (torch/_decomp/decompositions.py, torch/_refs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.compiler.graph import EXTERN, FUSED_ONLY, POINT, POINTWISE, REDUCTIONS, LibraryCall, Ref
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Dtype, Shape

if TYPE_CHECKING:
    from tunecast.tape.build.compiler.record import Tracer

Outs = Sequence[tuple[Shape, Dtype]]
Rule = Callable[["Sheet"], list[int]]


def is_inductors_own(name: str) -> bool:
    """Whether Inductor writes the kernel itself."""
    return name in POINTWISE or name in REDUCTIONS or name in FUSED_ONLY


class Sheet:
    """An operation that is taken apart: what it reads and makes, and the shape and layout its parts are written in."""

    def __init__(self, tracer: Tracer, numbers: Sequence[int], outs: Outs, strides: Any) -> None:
        self.tracer, self.numbers, self.outs, self.strides = tracer, numbers, outs, strides
        self.shape, self.dtype = outs[0]

    @property
    def rows(self) -> Shape:
        """A number for each row."""
        return (*self.shape[:-1], 1)

    def plain(self, shape: Shape) -> Sheet:
        """For parts of this shape, one row behind the other."""
        plain = Sheet(self.tracer, self.numbers, self.outs, None)
        plain.shape = shape
        return plain

    def __call__(self, op: str, *inputs: int, dtype: Dtype = FLOAT32, key: Any = None, shape: Any = None) -> int:
        strides = self.strides if shape is None else None
        return self.tracer.write(op, inputs, self.shape if shape is None else shape, dtype, strides, key=key)

    def cast(self, number: int, dtype: Dtype = FLOAT32) -> int:
        value = self.tracer.graph.values[number]
        return self.tracer.write("_to_copy", (number,), value.shape, dtype, value.strides)


def silu(write: Sheet) -> list[int]:
    x = write.cast(write.numbers[0])
    below = write("add", write("exp", write("neg", x)), key=1)
    return [write.cast(write("div", x, below), write.dtype)]


def silu_backward(write: Sheet) -> list[int]:
    gradient, x = write.cast(write.numbers[0]), write.cast(write.numbers[1])
    below = write("add", write("exp", write("neg", x)), key=1)
    sigmoid = write("mul", write("reciprocal", below), key=1)
    first = write("mul", gradient, sigmoid)
    rest = write("add", write("mul", x, write("sub", sigmoid, key=1)), key=1)
    return [write.cast(write("mul", first, rest), write.dtype)]


def gelu(write: Sheet) -> list[int]:
    x = write.cast(write.numbers[0])
    inner = write("add", write("erf", write("mul", x, key="root")), key=1)
    return [write.cast(write("mul", write("mul", x, key="half"), inner), write.dtype)]


def gelu_backward(write: Sheet) -> list[int]:
    gradient, x = write.cast(write.numbers[0]), write.cast(write.numbers[1])
    inner = write("mul", write("add", write("erf", write("mul", x, key="root")), key=1), key="half")
    density = write("mul", write("exp", write("mul", write("mul", x, x), key="half")), key="scale")
    return [write.cast(write("mul", gradient, write("add", inner, write("mul", x, density))), write.dtype)]


def by_result(op: str) -> Rule:
    """tanh, sigmoid, relu: a few operations on the gradient and the result."""

    def rule(write: Sheet) -> list[int]:
        kept = write.numbers[1]
        slope = write("sub", write("mul", kept, kept, dtype=write.dtype), key=op, dtype=write.dtype)
        return [write("mul", write.numbers[0], slope, dtype=write.dtype)]

    return rule


def softmax(write: Sheet) -> list[int]:
    x = write.cast(write.numbers[0])
    powers = write("exp", write("sub", x, write("amax", x, key=0, shape=write.rows)))
    return [write.cast(write("div", powers, write("sum", powers, key=0, shape=write.rows)), write.dtype)]


def softmax_backward(write: Sheet) -> list[int]:
    product = write("mul", write.numbers[0], write.numbers[1])
    total = write("sum", product, key=0, shape=write.rows)
    return [write.cast(write("fma", total, write.numbers[1], product), write.dtype)]


def log_softmax(write: Sheet) -> list[int]:
    x = write.cast(write.numbers[0])
    shifted = write("sub", x, write("amax", x, key=0, shape=write.rows))
    log = write("log", write("sum", write("exp", shifted), key=0, shape=write.rows), shape=write.rows)
    return [write.cast(write("sub", shifted, log), write.dtype)]


def log_softmax_backward(write: Sheet) -> list[int]:
    gradient, result = write.numbers[:2]
    total = write("sum", gradient, key=0, shape=write.rows)
    return [write.cast(write("sub", gradient, write("mul", write("exp", result), total)), write.dtype)]


def nll_loss(write: Sheet) -> list[int]:
    log, labels = write.numbers[:2]
    dtype, rows = write.dtype, write.tracer.graph.values[labels].shape
    write = write.plain(rows)
    counted = write("ne", labels, key=0, dtype=BOOL)
    chosen = write("where", counted, labels, write("full", key="label", dtype=INT64, shape=()), dtype=INT64)
    chosen = write("gather", log, write("view", chosen, key=0, dtype=INT64, shape=(*rows, 1)), shape=(*rows, 1))
    losses = write("neg", write("view", chosen, key=0, dtype=dtype), dtype=dtype)
    losses = write("where", counted, losses, write("full", key="loss", dtype=dtype, shape=()), dtype=dtype)
    count = _count(write, labels)
    return [write("div", write("sum", losses, key=0, dtype=dtype, shape=()), count, dtype=dtype, shape=()), count]


def _count(write: Sheet, labels: int) -> int:
    """How many labels count."""
    each = write.plain(write.tracer.graph.values[labels].shape)
    return each.cast(each("sum", each("ne", labels, key=0, dtype=BOOL), key=0, dtype=INT64, shape=()), write.dtype)


def nll_loss_backward(write: Sheet) -> list[int]:
    """A comparison in the place of a scatter (fx_passes/joint_graph.py, `scatter_upon_const_tensor`)."""
    gradient, _, labels = write.numbers[:3]
    dtype, rows = write.dtype, write.rows
    count = _count(write, labels)
    counted = write("ne", labels, key="rows", dtype=BOOL, shape=rows)
    each = write("div", gradient, count, dtype=dtype, shape=())
    chosen = write("eq", labels, dtype=BOOL, key="classes")
    return [write("mul", write("where", chosen, dtype=dtype, key=0),
                  write("where", counted, each, dtype=dtype, shape=rows), dtype=dtype)]  # fmt: skip


def embedding_backward(write: Sheet) -> list[int]:
    """Added up in fp32, then cast (torch/_inductor/decomposition.py, `embedding_dense_backward`)."""
    write, dtype = write.plain(write.shape), write.dtype
    zeros = write("full")  # its own, as it is added to
    return [write.cast(write("scatter_add", zeros, write.cast(write.numbers[0]), write.numbers[1]), dtype)]


def slice_backward(write: Sheet) -> list[int]:
    write, dtype = write.plain(write.shape), write.dtype
    return [write("slice_scatter", write("full", key=0, dtype=dtype), write.numbers[0], dtype=dtype)]


def dropout(write: Sheet) -> list[int]:
    """Random numbers are compared and gone; the comparison is the mask (fx_passes/replace_random.py)."""
    tracer, write, dtype = write.tracer, write.plain(write.shape), write.dtype
    if tracer.seeds is None:
        inside, tracer.checkpoint = tracer.checkpoint, 0
        tracer.seeds = tracer.write("inductor_seeds", (), (1,), INT64, kind=EXTERN)
        tracer.checkpoint = inside
    elif tracer.exact:  # one more
        seeds = tracer.graph.values[tracer.seeds]
        seeds.shape = (seeds.shape[0] + 1,)
    seed = tracer.write("inductor_lookup_seed", (tracer.seeds,), (), INT64, kind=POINT if tracer.exact else EXTERN)
    mask = write("gt", write("inductor_random", seed), dtype=BOOL)
    return [write("mul", write("mul", mask, write.numbers[0], dtype=dtype), dtype=dtype), mask]


def dropout_backward(write: Sheet) -> list[int]:
    dtype = write.dtype
    factor = write("mul", write.tracer.write("_to_copy", (write.numbers[1],), write.shape, dtype), dtype=dtype)
    return [write("mul", write.numbers[0], factor, dtype=dtype)]


def layer_norm(write: Sheet) -> list[int]:
    write, dtype, rows = write.plain(write.shape), write.dtype, write.outs[1][0]
    x = write.cast(write.numbers[0])
    mean = write("mean", x, key=0, shape=rows)
    centred = write("sub", x, mean)
    deviation = write("rsqrt", write("add", write("var", x, key=0, shape=rows), key=1, shape=rows), shape=rows)
    out = write("mul", centred, deviation)
    for place, parameter in enumerate(write.numbers[1:]):
        out = write("add" if place else "mul", out, parameter)
    return [write.cast(out, dtype), mean, deviation]


def layer_norm_backward(write: Sheet) -> list[int]:
    """Results in the order of input, weight, bias, as far as they are wanted."""
    gradient, x, *parameters = write.numbers
    shape = write.tracer.graph.values[x].shape
    write = write.plain(shape)
    rows = write.rows
    incoming, kept = write.cast(gradient), write.cast(x)
    mean = write("mean", kept, key=0, shape=rows)
    deviation = write("rsqrt", write("add", write("var", kept, key=0, shape=rows), key=1, shape=rows), shape=rows)
    normal = write("mul", write("sub", kept, mean), deviation)
    found = []
    for wanted, dtype in write.outs:
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


def arange(write: Sheet) -> list[int]:
    return [write.tracer.write("arange", (), *write.outs[0], key=0)]


def shifted(write: Sheet) -> list[int]:
    """Positions plus where they start are the same wherever they are made."""
    of_positions = len(write.numbers) == 1 and write.tracer.graph.values[write.numbers[0]].op == "arange"
    return [write.tracer.write("add", write.numbers, *write.outs[0], write.strides, key=0 if of_positions else None)]


def scalar(write: Sheet) -> list[int]:
    """A mask's two numbers, made anew in every layer, are two constants."""
    tracer = write.tracer
    tracer.scalars += 1
    return [tracer.write("scalar_tensor", (), *write.outs[0], key=tracer.scalars % 2)]


def outer_product(write: Sheet) -> list[int]:
    """Positions times frequencies: a batch of one is multiplied as matrices, after the views `matmul` takes. The views
    cost nothing; but the partitioner counts operations."""
    tracer, shape, dtype = write.tracer, write.shape, write.dtype
    first, second = write.numbers
    of_first, of_second = (tracer.graph.values[number].shape for number in write.numbers)
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
