"""The functions of `torch` and `torch.nn.functional`, on tensors without contents."""

from tunecast.tape.build.ops.elementwise import cat, gelu, pad, relu, rsqrt, silu, softplus, stack
from tunecast.tape.build.ops.layers import (
    conv1d,
    cross_entropy,
    dropout,
    embedding,
    gelu_fast,
    gelu_new,
    layer_norm,
    negative_log_likelihood,
    safe_softmax,
    softmax,
)
from tunecast.tape.build.ops.products import addmm, baddbmm, bmm, cast_for_product, linear, matmul, mm
from tunecast.tape.build.ops.scans import add_to_part, assign, cumsum, einsum, solve_triangular
from tunecast.tape.build.ops.views import kept_strides, to_contiguous

__all__ = [
    "add_to_part", "addmm", "assign", "baddbmm", "bmm", "cast_for_product", "cat", "conv1d", "cross_entropy", "cumsum",
    "dropout", "einsum", "embedding", "gelu", "gelu_fast", "gelu_new", "kept_strides", "layer_norm", "linear", "matmul",
    "mm", "negative_log_likelihood", "pad", "relu", "rsqrt", "safe_softmax", "silu", "softmax", "softplus",
    "solve_triangular", "stack", "to_contiguous",
]  # fmt: skip
