"""flash-linear-attention on paper (fla-core 0.6.0): the gated delta rule in chunks of 64 tokens, whose states are kept
by nobody but computed again in the backward pass.

Fixed    Triton's kernels, not those of TileLang, FlashQLA or Gluon, which fla takes where they are installed too.
Ignored  what Triton allocates while it times its configurations, in the first step of a first run.
Source   fla/ops/gated_delta_rule/{chunk,chunk_fwd,wy_fast}.py, fla/ops/common/{chunk_delta_h,chunk_o}.py,
         fla/ops/utils/cumsum.py, fla/modules/norm/l2norm.py, fla/utils/decorators.py (`input_guard`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.card import shared_memory_bytes
from tunecast.tape.kernels.steps import ceil_div
from tunecast.tape.symbols import ask

CHUNK = 64
HOPPER_BYTES, AMPERE_BYTES, ADA_BYTES = 232448, 166912, 101376
"""Shared memory by which tiles are chosen (fla/utils/hardware.py, `Backend`)."""


def chunk_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """`ChunkGatedDeltaRuleFunction`, with `use_qk_l2norm_in_kernel`; heads of queries and keys as many as of values."""
    machine = q.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, q_rstd, k, k_rstd, v, g, _, beta, A = (node.take(place) for place in range(9))
        do = gradients[0].contiguous()
        dq, dk, dv, db, dg = _backward(q, k, v, g, beta, A, do)
        dq = l2norm_bwd(q, q_rstd, dq)
        dk = l2norm_bwd(k, k_rstd, dk)
        return dq, dk, dv, dg, db

    node = start(machine, (q, k, v, g, beta), back)
    with machine.no_grad():
        out, saved = _guarded_forward(q, k, v, g, beta)
    return finish(node, out, *saved)


def _guarded_forward(*given: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What is copied lives until the kernels are done."""
    guarded = [x.contiguous() for x in given]
    return _forward(*guarded)


def _forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    q, q_rstd = l2norm_fwd(q)
    k, k_rstd = l2norm_fwd(k)
    g = chunk_local_cumsum(g)
    A = kkt_solve(k, g, beta)
    w, u = recompute_w_u(k, v, g, beta, A)
    h, v_new = states(k, w, u, g)
    o = v.machine.run("empty_like", (v_new,), v_new.shape, v_new.dtype)
    flops = 2 * _products(q, v, with_state=1, by_keys=1, by_values=1)
    q.machine.launch("triton::chunk_fwd_kernel_o", (q, k, v_new, h, g), o.dtype, o.nbytes, flops)
    return o, (q, q_rstd, k, k_rstd, v, g, beta, beta, A)


def _backward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A: Tensor, do: Tensor) -> tuple[Tensor, ...]:
    w, u = recompute_w_u(k, v, g, beta, A)
    h, v_new = states(k, w, u, g)
    dv = values_gradient(q, k, g, do)
    dh, dv = states_gradient(q, k, w, g, do, dv)
    dq, dk, dw, dg = keys_gradient(q, k, v_new, w, g, h, dv, do, dh)
    dk2, dv, db, dg2 = wy_gradient(k, v, beta, g, A, dw, dv)
    machine = q.machine
    machine.launch("add_", (dk, dk2), dk.dtype, dk.nbytes)
    machine.launch("add_", (dg, dg2), dg.dtype, dg.nbytes)
    dg = chunk_local_cumsum(dg)
    return dq, dk, dv, db, dg


def _products(k: Tensor, v: Tensor, *, with_state: int = 0, by_keys: int = 0, by_values: int = 0) -> int:
    """Multiplications: of so many products with the state, and of so many between the tokens of a chunk along keys and
    along values."""
    tokens, k_width, v_width = v.numel() // v.shape[-1], k.shape[-1], v.shape[-1]
    return tokens * (with_state * k_width * v_width + CHUNK * (by_keys * k_width + by_values * v_width))


# ------------------------------------------------------------------------------------------------------------- kernels


def l2norm_fwd(x: Tensor) -> tuple[Tensor, Tensor]:
    machine = x.machine
    y = machine.run("empty_like", (x,), x.shape, x.dtype)
    rstd = machine.run("empty", (), x.shape[:-1], FLOAT32)
    machine.launch("triton::l2norm_fwd_kernel", (x,), x.dtype, y.nbytes + rstd.nbytes)
    return y, rstd


def l2norm_bwd(y: Tensor, rstd: Tensor, dy: Tensor) -> Tensor:
    dx = y.machine.run("empty_like", (y,), y.shape, y.dtype)
    y.machine.launch("triton::l2norm_bwd_kernel", (y, dy, rstd), y.dtype, dx.nbytes)
    return dx


def chunk_local_cumsum(g: Tensor) -> Tensor:
    out = g.machine.run("empty_like", (g,), g.shape, FLOAT32)
    g.machine.launch("triton::chunk_local_cumsum_scalar_kernel", (g,), FLOAT32, out.nbytes)
    return out


def kkt_solve(k: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """`chunk_gated_delta_rule_fwd_intra`: what tokens of a chunk say of each other, inverted."""
    A = k.machine.run("zeros", (), (*beta.shape, CHUNK), k.dtype)
    flops = 2 * _products(k, k, by_keys=1)
    name = "triton::chunk_gated_delta_rule_fwd_kkt_solve_kernel"
    k.machine.launch(name, (k, g, beta), k.dtype, A.nbytes, flops)
    return A


def recompute_w_u(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    machine = k.machine
    w = machine.run("new_empty", (k,), (*v.shape[:-1], k.shape[-1]), k.dtype)
    u = machine.run("empty_like", (v,), v.shape, v.dtype)
    flops = 2 * _products(k, v, by_keys=1, by_values=1)
    machine.launch("triton::recompute_w_u_fwd_kernel", (k, v, A, beta, g), k.dtype, w.nbytes + u.nbytes, flops)
    return w, u


def states(k: Tensor, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """`chunk_gated_delta_rule_fwd_h`: the state before each chunk, one after another."""
    machine = k.machine
    h = machine.run("new_empty", (k,), _states_shape(k, u), k.dtype)
    v_new = machine.run("empty_like", (u,), u.shape, u.dtype)
    name = "triton::chunk_gated_delta_rule_fwd_kernel_h_blockdim64"
    machine.launch(name, (k, w, u, g), k.dtype, h.nbytes + v_new.nbytes, 2 * _products(k, u, with_state=2))
    return h, v_new


def _states_shape(k: Tensor, v: Tensor) -> tuple[int, ...]:
    batch, length, heads, v_width = v.shape
    return batch, ceil_div(length, CHUNK), heads, k.shape[-1], v_width


def values_gradient(q: Tensor, k: Tensor, g: Tensor, do: Tensor) -> Tensor:
    """`chunk_bwd_dv_local`: within chunks."""
    dv = do.machine.run("empty_like", (do,), do.shape, do.dtype)
    flops = 2 * _products(k, do, by_keys=1, by_values=1)
    do.machine.launch("triton::chunk_bwd_kernel_dv_local", (q, k, do, g), do.dtype, dv.nbytes, flops)
    return dv


def states_gradient(q: Tensor, k: Tensor, w: Tensor, g: Tensor, do: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
    """`chunk_gated_delta_rule_bwd_dhu`."""
    machine = q.machine
    dh = machine.run("new_empty", (q,), _states_shape(q, do), q.dtype)
    dv2 = machine.run("empty_like", (dv,), dv.shape, dv.dtype)
    name = "triton::chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64"
    flops = 2 * _products(q, do, with_state=3)
    machine.launch(name, (q, k, w, do, dv, g), q.dtype, dh.nbytes + dv2.nbytes, flops)
    return dh, dv2


def keys_gradient(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, g: Tensor, h: Tensor, dv: Tensor, do: Tensor, dh: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`chunk_bwd_dqkwg`: of the decay a part for each tile of keys, summed up."""
    machine, shape = q.machine, (*v.shape[:-1], k.shape[-1])
    tile = ask(_most_keys, q.dtype.itemsize, [machine.card.capability])
    dq = machine.run("new_empty", (q,), shape, q.dtype)
    dk = machine.run("new_empty", (k,), shape, k.dtype)
    dg = machine.run("empty", (), (ceil_div(k.shape[-1], tile), *g.shape), FLOAT32)
    dw = machine.run("empty_like", (w,), w.shape, w.dtype)
    written = dq.nbytes + dk.nbytes + dg.nbytes + dw.nbytes
    flops = 2 * _products(k, v, with_state=3, by_keys=2, by_values=1)
    machine.launch("triton::chunk_bwd_kernel_dqkwg", (q, k, v, g, h, do, dh, dv), q.dtype, written, flops)
    dg = dg.sum(0)
    return dq, dk, dw, dg


def _most_keys(itemsize: int, capability: tuple[int, int]) -> int:
    """The width of a tile where keys are as wide; a power of two below it takes one tile all the same."""
    room = shared_memory_bytes(capability)
    if room >= HOPPER_BYTES or (room >= AMPERE_BYTES and itemsize == 2):
        return 128
    return 64 if room >= ADA_BYTES else 32


def wy_gradient(
    k: Tensor, v: Tensor, beta: Tensor, g: Tensor, A: Tensor, dw: Tensor, du: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`prepare_wy_repr_bwd`."""
    machine = k.machine
    dk = machine.run("new_empty", (k,), (*v.shape[:-1], k.shape[-1]), k.dtype)
    dv = machine.run("empty_like", (v,), v.shape, v.dtype)
    dg = machine.run("empty_like", (g,), g.shape, g.dtype)
    db = machine.run("empty_like", (beta,), beta.shape, beta.dtype)
    written = dk.nbytes + dv.nbytes + dg.nbytes + db.nbytes
    flops = 2 * _products(k, v, by_keys=5, by_values=2)
    machine.launch("triton::prepare_wy_repr_bwd_kernel", (k, v, A, dw, du, g, beta), k.dtype, written, flops)
    return dk, dv, db, dg
