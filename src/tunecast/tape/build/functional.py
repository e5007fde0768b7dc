"""The functions of `torch` and `torch.nn.functional`, on tensors without contents."""

from tunecast.tape.build.ops.elementwise import (
    cat,
    gelu,
    logsigmoid,
    minimum,
    pad,
    relu,
    rsqrt,
    silu,
    softplus,
    stack,
    where,
)
from tunecast.tape.build.ops.images import avg_pool2d, conv2d, masked_scatter, unfold
from tunecast.tape.build.ops.layers import (
    conv1d,
    conv_patches,
    cross_entropy,
    dropout,
    embedding,
    gelu_fast,
    gelu_new,
    layer_norm,
    log_softmax,
    logsumexp,
    negative_log_likelihood,
    safe_softmax,
    softmax,
)
from tunecast.tape.build.ops.products import addmm, baddbmm, bmm, cast_for_product, linear, matmul, mm
from tunecast.tape.build.ops.scans import add_to_part, assign, cumsum, einsum, solve_triangular
from tunecast.tape.build.ops.views import kept_strides, to_contiguous, unbind

__all__ = [
    "add_to_part", "addmm", "assign", "avg_pool2d", "baddbmm", "bmm", "cast_for_product", "cat", "conv1d", "conv2d",
    "conv_patches", "cross_entropy", "cumsum", "dropout", "einsum", "embedding", "gelu", "gelu_fast", "gelu_new",
    "kept_strides", "layer_norm", "linear", "log_softmax", "logsigmoid", "logsumexp", "masked_scatter", "matmul",
    "minimum", "mm", "negative_log_likelihood", "pad", "relu", "rsqrt", "safe_softmax", "silu", "softmax", "softplus",
    "solve_triangular", "stack", "to_contiguous", "unbind", "unfold", "where",
]  # fmt: skip
