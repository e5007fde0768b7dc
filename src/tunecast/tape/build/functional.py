"""The functions of `torch` and `torch.nn.functional`, on tensors without contents."""

from tunecast.tape.build.ops.elementwise import cat, gelu, pad, relu, rsqrt, silu, stack
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
from tunecast.tape.build.ops.views import kept_strides

__all__ = [
    "addmm", "baddbmm", "bmm", "cast_for_product", "cat", "conv1d", "cross_entropy", "dropout", "embedding", "gelu",
    "gelu_fast", "gelu_new", "kept_strides", "layer_norm", "linear", "matmul", "mm", "negative_log_likelihood", "pad",
    "relu", "rsqrt", "safe_softmax", "silu", "softmax", "stack",
]  # fmt: skip
