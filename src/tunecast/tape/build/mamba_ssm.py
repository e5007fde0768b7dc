"""mamba-ssm on paper (2.3.2): convolution, scan, gated norm and projection of Mamba 2 as one function, which keeps its
input and what the scan gave; all else is computed again in the backward pass.

Ignored  what Triton allocates while it times its configurations. Which of them it takes decides no tensor's size.
Source   mamba_ssm/ops/triton/ssd_combined.py (`MambaSplitConv1dScanCombinedFn`), ssd_bmm.py, ssd_chunk_scan.py,
         ssd_chunk_state.py, ssd_state_passing.py, layernorm_gated.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.convolution import fused_conv1d_bwd, fused_conv1d_fwd
from tunecast.tape.build.dtypes import FLOAT32, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.ops.views import kept_strides
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels.steps import ceil_div
from tunecast.tape.symbols import compute

PACKAGE = "mamba-ssm"
LEAST_BLOCK = 32
"""Rows of a chunk that a thread block takes at least: sums over a chunk have so many parts."""
LEAST_STATE_BLOCK, WIDEST_BLOCK = 64, 128


class MambaWeights(NamedTuple):
    """In the order autograd asks for their gradients."""

    conv: Tensor
    conv_bias: Tensor | None
    dt_bias: Tensor
    A: Tensor
    D: Tensor
    norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None


class ScanSizes(NamedTuple):
    """Of one batch."""

    batch: int
    length: int
    heads: int
    width: int
    """Of a head."""
    groups: int
    state: int
    chunk: int

    @property
    def chunks(self) -> int:
        return ceil_div(self.length, self.chunk)

    @property
    def inner(self) -> int:
        return self.heads * self.width

    @property
    def side(self) -> int:
        return self.groups * self.state

    @property
    def parts(self) -> tuple[int, int, int]:
        """Gate, what is convolved, steps: side by side in the projection."""
        return self.inner, self.inner + 2 * self.side, self.heads

    @property
    def per_token(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.chunks, self.chunk

    @property
    def states(self) -> tuple[int, int, int, int, int]:
        return self.batch, self.chunks, self.heads, self.width, self.state

    @property
    def between_tokens(self) -> tuple[int, int, int, int, int]:
        return self.batch, self.chunks, self.groups, self.chunk, self.chunk

    def splits(self, machine: Machine) -> int:
        """Parts the heads of a group are summed in, so that the card is full."""
        return compute(_splits, (self.heads, self.groups), (self.batch, self.chunks, machine.card.sm_count))

    def products(self, *, with_state: int = 0, by_values: int = 0, by_state: int = 0) -> int:
        """FLOPs of so many products with the state, and of so many between the tokens of a chunk along values of every
        head and along the state of every group."""
        of_heads = self.heads * (with_state * self.width * self.state + by_values * self.chunk * self.width)
        return 2 * self.batch * self.length * (of_heads + by_state * self.chunk * self.side)


def _splits(counted: tuple[int, int], batch: int, chunks: int, sm_count: int) -> int:
    heads, groups = counted
    ratio = heads // groups
    each = max(min(ceil_div(batch * chunks * heads, sm_count), ratio), 1)
    return ceil_div(ratio, each)


def chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor, chunk_size: int
) -> Tensor:
    """`mamba_chunk_scan_combined`, which transformers takes outside training: without gradients."""
    batch, length, heads, width = x.shape
    groups, state = B.shape[2:]
    return scan_fwd(x, dt, B, C, ScanSizes(batch, length, heads, width, groups, state, chunk_size), None)[0]


def split_conv1d_scan_combined(zxbcdt: Tensor, weights: MambaWeights, sizes: ScanSizes) -> Tensor:
    machine, autocast = zxbcdt.machine, zxbcdt.machine.autocast

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        dout, gradients[0] = gradients[0], None
        taken = iter(node.taken)
        saved = [next(taken) if is_there else None for is_there in there]
        with machine.autocasting(autocast):
            return _backward(saved, dout, sizes)

    node = start(machine, (zxbcdt, *weights), back)
    with machine.no_grad():
        out, saved = _forward(zxbcdt, weights, sizes)
    there = [tensor is not None for tensor in saved]
    return finish(node, out, *[tensor for tensor in saved if tensor is not None])


def _forward(zxbcdt: Tensor, weights: MambaWeights, sizes: ScanSizes) -> tuple[Tensor, Sequence[Tensor | None]]:
    machine = zxbcdt.machine
    z, xBC, dt = zxbcdt.split(sizes.parts, -1)
    xBC_conv = convolved(xBC, weights)
    x, B, C = scan_inputs(xBC_conv, sizes)
    z = z.view(*x.shape)
    rstd = None
    if weights.norm is None:
        out, out_x, _held = scan_fwd(x, dt, B, C, sizes, z)
        out = out.view(sizes.batch, sizes.length, -1)
    else:
        out_x, _, _held = scan_fwd(x, dt, B, C, sizes, None)
        rows = out_x.view(-1, sizes.inner)
        out = machine.run("empty_like", (rows,), rows.shape, rows.dtype)
        rstd = machine.run("empty", (), (sizes.groups * rows.shape[0],), FLOAT32)
        machine.launch("triton::_layer_norm_fwd_1pass_kernel", (rows, z), out.dtype, out.nbytes)
        out = out.view(sizes.batch, sizes.length, -1)
    weight, bias = weights.out, weights.out_bias
    if machine.autocast is not None:
        out, weight = out.to(machine.autocast), weight.to(machine.autocast)
        bias = None if bias is None else bias.to(machine.autocast)
    out = F.linear(out, weight, bias)
    conv, conv_bias, dt_bias, A, D, norm, *_ = weights
    return out, (zxbcdt, conv, conv_bias, out_x, A, D, dt_bias, norm, rstd, weight, bias)


def in_rows_of_eight(x: Tensor) -> Tensor:
    """`ensure_stride`."""
    return x if x.stride()[1] % 8 == 0 else x.contiguous()


def convolved(xBC: Tensor, weights: MambaWeights) -> Tensor:
    return fused_conv1d_fwd(in_rows_of_eight(xBC).transpose(1, 2), weights.conv, weights.conv_bias).transpose(1, 2)


def scan_inputs(xBC: Tensor, sizes: ScanSizes) -> tuple[Tensor, Tensor, Tensor]:
    x, B, C = xBC.split((sizes.inner, sizes.side, sizes.side), -1)
    places = sizes.batch, sizes.length
    grouped = (*places, sizes.groups, sizes.state)
    return x.view(*places, sizes.heads, sizes.width), B.view(*grouped), C.view(*grouped)


def scan_fwd(
    x: Tensor, dt: Tensor, B: Tensor, C: Tensor, sizes: ScanSizes, z: Tensor | None
) -> tuple[Tensor, Tensor, Any]:
    """`_mamba_chunk_scan_combined_fwd`; what comes last is held by who calls it."""
    machine = x.machine
    dA_cumsum, dt = chunk_cumsum(dt, sizes)
    states = chunk_states(B, x, dt, dA_cumsum, sizes)
    states, final_states = passed_states(states, dA_cumsum, sizes, C.dtype)
    CB = between_tokens(C, B, sizes)
    out = machine.run("empty", (), x.shape, x.dtype)
    out_x = out if z is None else machine.run("empty", (), x.shape, x.dtype)
    flops = sizes.products(with_state=1, by_values=1)
    given = (CB, x, dt, dA_cumsum, C, states) if z is None else (CB, x, dt, dA_cumsum, C, states, z)
    machine.launch("triton::_chunk_scan_fwd_kernel", given, x.dtype, out.nbytes, flops)
    return out, out_x, (dt, dA_cumsum, states, final_states)


def chunk_cumsum(dt: Tensor, sizes: ScanSizes) -> tuple[Tensor, Tensor]:
    machine = dt.machine
    dt_out = machine.run("empty", (), sizes.per_token, FLOAT32)
    dA_cumsum = machine.run("empty", (), sizes.per_token, FLOAT32)
    machine.launch("triton::_chunk_cumsum_fwd_kernel", (dt,), FLOAT32, dt_out.nbytes + dA_cumsum.nbytes)
    return dA_cumsum, dt_out


def chunk_states(B: Tensor, x: Tensor, dt: Tensor, dA_cumsum: Tensor, sizes: ScanSizes) -> Tensor:
    machine = x.machine
    states = machine.run("empty", (), sizes.states, FLOAT32)
    flops = sizes.products(with_state=1)
    machine.launch("triton::_chunk_state_fwd_kernel", (x, B, dt, dA_cumsum), x.dtype, states.nbytes, flops)
    return states


def passed_states(states: Tensor, dA_cumsum: Tensor, sizes: ScanSizes, dtype: Dtype) -> tuple[Tensor, Tensor]:
    machine = states.machine
    out = machine.run("empty", (), sizes.states, dtype)
    final_states = machine.run("empty", (), (sizes.batch, *sizes.states[2:]), FLOAT32)
    machine.launch("triton::_state_passing_fwd_kernel", (states,), dtype, out.nbytes + final_states.nbytes)
    return out, final_states


def between_tokens(a: Tensor, b: Tensor, sizes: ScanSizes) -> Tensor:
    """`_bmm_chunk_fwd`."""
    machine = a.machine
    out = machine.run("empty", (), sizes.between_tokens, FLOAT32)
    machine.launch("triton::_bmm_chunk_fwd_kernel", (a, b), a.dtype, out.nbytes, sizes.products(by_state=1))
    return out


# ------------------------------------------------------------------------------------------------------------ backward


def _backward(saved: Sequence[Any], dout: Tensor, sizes: ScanSizes) -> Sequence[Any]:
    machine = dout.machine
    zxbcdt, conv, conv_bias, out, A, D, dt_bias, norm, rstd, weight, bias = saved
    weights = MambaWeights(conv, conv_bias, dt_bias, A, D, norm, weight, bias)
    places = sizes.batch, sizes.length
    out_recompute = machine.run("empty", (), (*places, sizes.inner), out.dtype)
    z, xBC, dt = zxbcdt.split(sizes.parts, -1)
    xBC_conv = convolved(xBC, weights)
    x, B, C = scan_inputs(xBC_conv, sizes)
    dzxbcdt = machine.run("empty_like", (zxbcdt,), zxbcdt.shape, zxbcdt.dtype)
    dxBC = machine.run("empty_like", (xBC,), xBC.shape, xBC.dtype)
    _, dxBC_given, _ = dzxbcdt.split(sizes.parts, -1)
    z = z.view(*x.shape)
    dout_og = dout
    dout = F.linear(dout, weight.t())
    dout = dout.view(*x.shape)
    drmsnorm_weight = None
    if norm is None:
        dA, dD, ddt_bias, out_for_linear = scan_bwd(dout, x, dt, B, C, out, weights, sizes, z)
        out_for_linear = out_for_linear.view(*places, -1)
    else:
        dy_rms = dout
        dout, drmsnorm_weight = gated_norm_bwd(dy_rms, out, z, rstd, norm, sizes)
        out_for_linear = out_recompute
        dA, dD, ddt_bias, _ = scan_bwd(dout, x, dt, B, C, out, weights, sizes, None)
    doutproj_weight = F.einsum("bso,bsd->od", dout_og, out_for_linear)
    doutproj_bias = None if bias is None else dout_og.sum((0, 1))
    rows = in_rows_of_eight(xBC).transpose(1, 2), in_rows_of_eight(dxBC).transpose(1, 2)
    given = in_rows_of_eight(dxBC_given).transpose(1, 2)
    update, dweight, dbias = fused_conv1d_bwd(rows[0], conv, conv_bias, rows[1], given)
    del rows, given
    if update.storage is not dzxbcdt.storage:
        machine.launch("copy_", (update,), update.dtype, update.nbytes)
    return dzxbcdt, dweight, dbias, ddt_bias, dA, dD, drmsnorm_weight, doutproj_weight, doutproj_bias


def gated_norm_bwd(
    dy: Tensor, out: Tensor, z: Tensor, rstd: Tensor, weight: Tensor, sizes: ScanSizes
) -> tuple[Tensor, Tensor]:
    """`_layer_norm_bwd`: of the weight's gradient a row for each thread block, or several where a group is narrow."""
    machine = dy.machine
    dx = machine.run("empty_like", (out,), out.shape, out.dtype)
    group = sizes.inner // sizes.groups
    warps = min(max((1 << (group - 1).bit_length()) // 256, 1), 8)
    blocks = ceil_div(machine.card.sm_count * ceil_div(4, warps), sizes.groups)
    partial = machine.run("empty", (), (blocks, sizes.inner), FLOAT32)
    written = dx.nbytes + z.nbytes + out.nbytes + partial.nbytes
    machine.launch("triton::_layer_norm_bwd_kernel", (dy, out, z, rstd), dy.dtype, written)
    return dx, partial.sum(0).to(weight.dtype)


def scan_bwd(
    dout: Tensor, x: Tensor, dt: Tensor, B: Tensor, C: Tensor, out: Tensor, weights: MambaWeights, sizes: ScanSizes,
    z: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Any]:  # fmt: skip
    """`_mamba_chunk_scan_combined_bwd`: gradients of x, B, C, dt and the gate go where the caller has room for them."""
    machine = x.machine
    dt_in = dt.clone()
    dA_cumsum, dt = chunk_cumsum(dt_in, sizes)
    CB = between_tokens(C, B, sizes)
    states = chunk_states(B, x, dt, dA_cumsum, sizes)
    states, _final = passed_states(states, dA_cumsum, sizes, states.dtype)
    dD = outz = None
    if z is not None:
        dout, dD, outz = gate_bwd(x, z, out, dout, weights.D, sizes)
    dstates = machine.run("empty", (), sizes.states, states.dtype)
    flops = sizes.products(with_state=1)
    machine.launch("triton::_chunk_scan_bwd_dstates_kernel", (dout, C, dA_cumsum), x.dtype, dstates.nbytes, flops)
    dstates, ddA_chunk_cumsum, states = states_bwd(states, dstates, x.dtype, sizes)
    ddt, dD_from_x = values_bwd(x, dt, dA_cumsum, B, CB, dout, dstates, weights.D, sizes)
    dB, ddA_next = keys_bwd("triton::_chunk_state_bwd_db_kernel", (x, dstates, B, dt, dA_cumsum), sizes)
    machine.launch("cumsum", (ddA_next,), FLOAT32, ddA_next.nbytes)
    dC, ddA_cumsum_prev = keys_bwd("triton::_chunk_scan_bwd_dc_kernel", (dout, states, C, dA_cumsum), sizes)
    dCB = between_bwd(x, dt, dA_cumsum, dout, sizes)
    flops = sizes.products(by_state=1)
    for a, residual in ((C, dB), (B, dC)):
        machine.launch("triton::_bmm_chunk_bwd_kernel", (a, dCB, residual), a.dtype, a.nbytes, flops)
    if z is None:
        dD = dD_from_x
    last = ddA_cumsum_prev[..., -1]
    machine.launch("add_", (last, ddA_chunk_cumsum), FLOAT32, last.nbytes)
    machine.launch("copy_", (last,), FLOAT32, last.nbytes)
    ddA_prev = pointwise("flip", F.cumsum(pointwise("flip", ddA_cumsum_prev), -1))
    ddA = decay_bwd(x, dt, dA_cumsum, dout, CB, sizes)
    total = ddA_next + ddA_prev
    machine.launch("add_", (ddA, total), FLOAT32, ddA.nbytes)
    del total
    ddt_bias = machine.run("empty_like", (weights.dt_bias,), weights.dt_bias.shape, FLOAT32)
    dA = machine.run("empty_like", (weights.A,), weights.A.shape, FLOAT32)
    machine.launch("triton::_chunk_cumsum_bwd_kernel", (ddA, ddt, dt_in), FLOAT32, dt_in.nbytes)
    assert dD is not None
    return dA, dD, ddt_bias, outz


def gate_bwd(
    x: Tensor, z: Tensor, out: Tensor, dout: Tensor, D: Tensor, sizes: ScanSizes
) -> tuple[Tensor, Tensor, Tensor]:
    """`_chunk_scan_bwd_dz`, with the gated result once more."""
    machine = x.machine
    dD = machine.run("empty", (), _blocks_shape(sizes), FLOAT32)
    outz = machine.run("empty_like", (x,), x.shape, x.dtype, strides=kept_strides(x))
    dout_x = machine.run("empty_like", (dout,), dout.shape, dout.dtype)
    written = 2 * dout.nbytes + outz.nbytes
    machine.launch("triton::_chunk_scan_bwd_dz_kernel", (dout, out, z, x), dout.dtype, written)
    dD = dD.sum((0, 1, 2)).to(D.dtype)
    return dout_x, dD.view(-1), outz


def _blocks_shape(sizes: ScanSizes) -> tuple[int, ...]:
    return ceil_div(sizes.chunk, LEAST_BLOCK), sizes.batch, sizes.chunks, sizes.heads, 1


def states_bwd(states: Tensor, dout: Tensor, dtype: Dtype, sizes: ScanSizes) -> tuple[Tensor, Tensor, Tensor]:
    """`_state_passing_bwd`."""
    machine = states.machine
    dstates = machine.run("empty_like", (dout,), dout.shape, dtype)
    converted = states if dtype == states.dtype else machine.run("empty_like", (states,), states.shape, dtype)
    blocks = ceil_div(sizes.width * sizes.state, LEAST_STATE_BLOCK)
    partial = machine.run("empty", (), (sizes.batch, sizes.heads, sizes.chunks, blocks), FLOAT32)
    written = dstates.nbytes + partial.nbytes + (0 if converted is states else converted.nbytes)
    machine.launch("triton::_state_passing_bwd_kernel", (dout, states), FLOAT32, written)
    return dstates, partial.sum(-1), converted


def values_bwd(
    x: Tensor, dt: Tensor, dA_cumsum: Tensor, B: Tensor, CB: Tensor, dout: Tensor, dstates: Tensor, D: Tensor,
    sizes: ScanSizes,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`_chunk_scan_chunk_state_bwd_dx`: of the blocks of a chunk as many are summed as the widest tile makes."""
    machine = x.machine
    dD = machine.run("zeros", (), _blocks_shape(sizes), FLOAT32)
    ddt = machine.run("empty", (), sizes.per_token, FLOAT32)
    flops = sizes.products(with_state=1, by_values=1)
    given = (x, CB, dout, dt, dA_cumsum, B, dstates)
    machine.launch("triton::_chunk_scan_chunk_state_bwd_dx_kernel", given, x.dtype, x.nbytes + ddt.nbytes, flops)
    dD = dD[: ceil_div(sizes.chunk, WIDEST_BLOCK)].sum((0, 1, 2))
    dD = dD.sum(-1)
    return ddt, dD.to(D.dtype)


def keys_bwd(name: str, given: Sequence[Tensor], sizes: ScanSizes) -> tuple[Tensor, Tensor]:
    """`_chunk_state_bwd_db` and `_chunk_scan_bwd_dC`: in parts of a group's heads, summed up."""
    machine = given[0].machine
    decay = machine.run("empty", (), sizes.per_token, FLOAT32)
    shape = sizes.batch, sizes.length, sizes.splits(machine), sizes.groups, sizes.state
    parts = machine.run("empty", (), shape, FLOAT32)
    flops = sizes.products(with_state=1)
    machine.launch(name, given, given[0].dtype, parts.nbytes + decay.nbytes, flops)
    return parts.sum(2), decay


def between_bwd(x: Tensor, dt: Tensor, dA_cumsum: Tensor, dout: Tensor, sizes: ScanSizes) -> Tensor:
    """`_chunk_scan_bwd_dcb`."""
    machine = x.machine
    batch, chunks, *rest = sizes.between_tokens
    parts = machine.run("empty", (), (batch, chunks, sizes.splits(machine), *rest), FLOAT32)
    flops = sizes.products(by_values=1)
    machine.launch("triton::_chunk_scan_bwd_dcb_kernel", (x, dout, dt, dA_cumsum), x.dtype, parts.nbytes, flops)
    return parts.sum(2)


def decay_bwd(x: Tensor, dt: Tensor, dA_cumsum: Tensor, dout: Tensor, CB: Tensor, sizes: ScanSizes) -> Tensor:
    """`_chunk_scan_bwd_ddAcs_stable`."""
    machine = x.machine
    blocks = ceil_div(sizes.chunk, LEAST_BLOCK)
    parts = machine.run("empty", (), (*sizes.per_token[:3], blocks, sizes.chunk), FLOAT32)
    given = (x, dout, dt, dA_cumsum, CB)
    flops = sizes.products(by_values=1)
    machine.launch("triton::_chunk_scan_bwd_ddAcs_stable_kernel", given, x.dtype, parts.nbytes, flops)
    return parts.sum(3)
