"""Causal convolutions of each channel by itself, on paper: torch's, which transformers takes where causal-conv1d is not
installed, and that package's own (causal-conv1d 1.7.0).

Source   transformers/models/{qwen3_5,qwen3_next,lfm2,granitemoehybrid,falcon_h1}/modeling_*.py, `causal_conv1d_fn`;
         causal_conv1d/{causal_conv1d_interface,cpp_functions}.py, csrc/causal_conv1d.cpp, whose kernels borrow nothing
         unless told to be deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.ops.views import kept_strides
from tunecast.tape.build.tensor import Tensor

PACKAGE = "causal-conv1d"


class CausalConv(Module):
    """Its weights; the layer it is part of runs it."""

    def __init__(self, machine: Machine, channels: int, width: int, bias: bool = False) -> None:
        super().__init__(machine)
        self.weight = self.parameter(channels, 1, width)
        self.bias: Any = self.parameter(channels) if bias else None


def causal_conv1d(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None, activation: Module | None = None
) -> Tensor:
    if PACKAGE in hidden_states.machine.kernels:
        return fused_conv1d(hidden_states, weight, bias)
    _, channels, length = hidden_states.shape
    padding = weight.shape[-1] - 1
    out = F.conv1d(hidden_states.to(weight.dtype), weight.unsqueeze(1), bias, padding, channels)[:, :, :length]
    if activation is not None:
        out = activation(out)
    return out.to(hidden_states.dtype)


def fused_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`CausalConv1dFn`: with its activation, where there is one, in one kernel."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        x, weight, *biases = node.taken
        dout = gradients[0]
        if not lies_in_rows(dout):
            dout = dout.contiguous()
        return fused_conv1d_bwd(x, weight, biases[0] if biases else None, dout)

    node = start(machine, (x, weight, bias), back)
    with machine.no_grad():
        if not lies_in_rows(x):
            x = x.contiguous()
        out = fused_conv1d_fwd(x, weight, bias)
    return finish(node, out, *[given for given in (x, weight, bias) if given is not None])


def lies_in_rows(x: Tensor) -> bool:
    """Tokens or channels lie beside each other."""
    return 1 in x.stride()[1:]


def fused_conv1d_fwd(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    machine = x.machine
    out = machine.run("empty_like", (x,), x.shape, x.dtype, strides=kept_strides(x))
    given = (x, weight) if bias is None else (x, weight, bias)
    machine.launch("causal_conv1d_fwd", given, x.dtype, out.nbytes)
    return out


def fused_conv1d_bwd(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, dx: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`causal_conv1d_bwd_function`: gradients of weights are summed in fp32, and that of the result laid out as the
    input is, where it is not."""
    machine = x.machine
    if dx is None:
        dx = machine.run("empty_like", (x,), x.shape, x.dtype, strides=kept_strides(x))
    dweight = machine.run("zeros_like", (weight,), weight.shape, FLOAT32)
    dbias = None if bias is None else machine.run("zeros_like", (bias,), bias.shape, FLOAT32)
    dim = 1 if x.stride()[1] == 1 and x.stride()[2] > 1 else 2
    if dout.stride()[dim] != 1:
        dout = machine.run("clone", (dout,), dout.shape, dout.dtype)
    machine.launch("causal_conv1d_bwd", (x, dout, weight), x.dtype, dx.nbytes + dweight.nbytes)
    del dout
    dweight = dweight.to(weight.dtype)
    if dbias is not None and bias is not None:
        dbias = dbias.to(bias.dtype)
    return dx, dweight, dbias
