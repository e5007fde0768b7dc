"""Linear layers with adapters (unsloth/kernels/fast_lora.py, utils.py): one autograd function for an MLP, one for
queries, keys and values, one for any other layer. Adapters are cast each time, gradients written over inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import ops
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.tensor import BOOL, Dtype, Machine, Tensor


class Scratch:
    """`_SCRATCH` of utils.py: the one buffer dense weights are written to, as large as the largest so far."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None

    def of(self, machine: Machine, numel: int, dtype: Dtype) -> Tensor:
        if self.buffer is None or self.buffer.numel() < numel:
            self.buffer = machine.run("empty", (), (numel,), dtype)
        return self.buffer.alias((numel,), None)


def dense(proj: Any, scratch: Scratch | None) -> Tensor:
    """`fast_dequantize`: a weight as it is, or written out from its 4 bits; scales are unpacked inside the kernel."""
    base = proj.base_layer
    if not isinstance(base, Linear4bit):
        return base.weight  # type: ignore[no-any-return]
    state, machine = base.state, base.machine
    rows, columns = state.shape
    if scratch is None:
        out = machine.run("empty", (), state.shape, state.dtype)
    else:
        out = scratch.of(machine, rows * columns, state.dtype).alias(state.shape, None)
    machine.launch("triton::_nf4_dequant_kernel", (state.packed, *state.tensors()), state.dtype, out.nbytes)
    return out


def mm(a: Tensor, b: Tensor) -> Tensor:
    return a.machine.run("mm", (a, b), (a.shape[0], b.shape[1]), a.dtype, 2 * a.numel() * b.shape[1], args=(a, b))


def into(name: str, out: Tensor, a: Tensor, b: Tensor) -> None:
    """A product written, or added, into memory that is there; of the factors' dtype, whatever the sum's is."""
    machine = out.machine
    inputs = (a, b) if name == "mm" else (out, a, b)
    machine.launch(name, inputs, b.dtype, out.nbytes, 2 * a.numel() * b.shape[1])
    machine.keep_workspaces("mm")


def cast(weight: Tensor, dtype: Dtype) -> Tensor:
    return weight if weight.dtype == dtype else ops.map_("_to_copy", weight.detached(), dtype)


def t(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


def matmul_lora(x: Tensor, proj: Any, scratch: Scratch | None, dropped: Tensor | None = None) -> Tensor:
    """`matmul_lora` and `_matmul_lora_ext`: the layer, and its adapter of x or of x after dropout."""
    dtype, shape = x.dtype, x.shape
    flat = ops.view(x, -1, shape[-1])
    weight = dense(proj, scratch)
    out = mm(flat, t(weight))
    del weight
    adapted = flat if dropped is None else ops.view(dropped, -1, shape[-1])
    xa = mm(adapted, t(cast(proj.lora_A.weight, dtype)))
    into("addmm_", out, xa, t(cast(proj.lora_B.weight, dtype)))
    return out.alias((*shape[:-1], out.shape[1]), None) if len(shape) == 3 else out


def dropout_forward(x: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    outs = ((x.shape, x.dtype), (x.shape, BOOL))
    out, mask = x.machine.run_many("native_dropout", (x,), outs, args=(x, probability, True))
    return out, mask


def dropout_replay(x: Tensor, mask: Tensor) -> Tensor:
    return x.machine.run("native_dropout_backward", (x, mask), x.shape, x.dtype)


def add_lora_dx(dx: Tensor, y_db: Tensor, a: Tensor, mask: Tensor | None) -> None:
    if mask is None:
        into("addmm_", dx, y_db, a)
        return
    dx.machine.launch("add_", (dx, dropout_replay(mm(y_db, a), mask)), dx.dtype, dx.nbytes)


def adapter_gradients(x: Tensor, y_db: Tensor, dy: Tensor, a: Tensor, d_a: Tensor, d_b: Tensor) -> None:
    """d_A = x.t() @ y_dB, d_B = (A x.t()) @ dY, into memory that is there."""
    into("addmm_", d_a, t(y_db), x)
    into("addmm_", d_b, t(dy), t(mm(a, t(x))))


def adapters(proj: Any) -> tuple[Tensor, Tensor]:
    return proj.lora_A.weight, proj.lora_B.weight


def empty_like(x: Tensor) -> Tensor:
    return x.machine.run("empty_like", (x,), x.shape, x.dtype)


def several(node: Node | None, outs: Sequence[Tensor], *saved: Any) -> Sequence[Tensor]:
    """Results of a function written in Python; what it saves is saved when it has run."""
    if node is not None:
        node.keep(outs[0].machine, saved)
        node.outputs = len(outs)
        for number, out in enumerate(outs):
            out.node, out.number, out.requires_grad = node, number, True
    return outs


# ------------------------------------------------------------------------------------------------------- functions


def lora_mlp(x: Tensor, gate: Any, up: Any, down: Any, kernel: str, p: float, scratch: Scratch) -> Tensor:
    """`LoRA_MLP`."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return lora_mlp_backward(node, gradients[0], gate, up, down, kernel, scratch)

    node = start(machine, (x, *adapters(gate), *adapters(up), *adapters(down)), back)
    with machine.no_grad():
        masks: tuple[Any, ...] = (None, None, None)
        if not p:
            e = matmul_lora(x, gate, scratch)
            g = matmul_lora(x, up, scratch)
            h = activated(e, g, kernel)
            i = matmul_lora(h, down, scratch)
        else:
            xd, gate_mask = dropout_forward(x, p)
            e = matmul_lora(x, gate, None, xd)
            xd, up_mask = dropout_forward(x, p)
            g = matmul_lora(x, up, None, xd)
            del xd
            h = activated(e, g, kernel)
            hd, down_mask = dropout_forward(h, p)
            i = matmul_lora(h, down, None, hd)
            del hd
            masks = (gate_mask, up_mask, down_mask)
    if node is not None:
        node.keep(machine, (x, e, g, *masks))
    return finish(node, i)


def activated(e: Tensor, g: Tensor, kernel: str) -> Tensor:
    h = e.machine.run("empty", (), e.shape, e.dtype)
    e.machine.launch(f"triton::{kernel}_forward", (e, g, h), e.dtype, h.nbytes)
    return h


def lora_mlp_backward(
    node: Node, dy: Tensor, gate: Any, up: Any, down: Any, kernel: str, scratch: Scratch
) -> Sequence[Any]:
    x, e, g, gate_mask, up_mask, down_mask = (node.take(place) for place in range(6))
    shape, dtype, machine = x.shape, x.dtype, x.machine
    dy = ops.reshape(dy, -1, dy.shape[-1])
    x, e, g = (ops.view(each, -1, each.shape[-1]) for each in (x, e, g))
    gate_a, gate_b, up_a, up_b, down_a, down_b = [
        cast(weight, dtype) for proj in (gate, up, down) for weight in adapters(proj)
    ]
    if down_mask is None:
        weight = dense(down, scratch)
        dw = mm(dy, weight)
        del weight
        y_db = mm(dy, down_b)
        into("addmm_", dw, y_db, down_a)
        del y_db
    else:
        weight = dense(down, None)
        dw = mm(dy, weight)
        del weight
        lora = mm(mm(dy, down_b), down_a)
        replayed = dropout_replay(lora, ops.view(down_mask, -1, down_mask.shape[-1]))
        del lora
        machine.launch("add_", (dw, replayed), dtype, dw.nbytes)
        del replayed
    machine.launch(f"triton::{kernel}_backward", (dw, e, g), dtype, 3 * dw.nbytes)
    h, df, de = dw, e, g
    if down_mask is not None:
        h = dropout_replay(h, down_mask)
    d_down_a, d_down_b = empty_like(down_a), empty_like(down_b)
    d_gate_a, d_gate_b = empty_like(gate_a), empty_like(gate_b)
    d_up_a, d_up_b = empty_like(up_a), empty_like(up_b)
    into("addmm_", d_down_a, t(mm(dy, down_b)), h)
    into("addmm_", d_down_b, t(dy), t(mm(down_a, t(h))))
    up_db = mm(df, up_b)
    gate_db = mm(de, gate_b)
    xd = x if up_mask is None else dropout_replay(x, up_mask)
    adapter_gradients(xd, up_db, df, up_a, d_up_a, d_up_b)
    xd = x if gate_mask is None else dropout_replay(x, gate_mask)
    adapter_gradients(xd, gate_db, de, gate_a, d_gate_a, d_gate_b)
    del xd
    weight = dense(up, None)
    dx = x
    into("mm", dx, df, weight)
    del weight
    add_lora_dx(dx, up_db, up_a, up_mask)
    weight = dense(gate, None)
    into("addmm_", dx, de, weight)
    del weight
    add_lora_dx(dx, gate_db, gate_a, gate_mask)
    return dx.alias(shape, None), d_gate_a, d_gate_b, d_up_a, d_up_b, d_down_a, d_down_b


def lora_qkv(x: Tensor, projs: Sequence[Any], p: float, scratch: Scratch) -> Sequence[Tensor]:
    """`LoRA_QKV`."""
    machine, shape = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return lora_qkv_backward(node, gradients, projs)

    node = start(machine, (x, *[weight for proj in projs for weight in adapters(proj)]), back)
    with machine.no_grad():
        flat = ops.view(x, -1, shape[-1])
        masks: list[Any] = []
        outs = []
        xd: Any = None
        for proj in projs:
            if not p:
                outs.append(matmul_lora(flat, proj, scratch))
                masks.append(None)
            else:
                xd, mask = dropout_forward(flat, p)
                outs.append(matmul_lora(flat, proj, None, xd))
                masks.append(mask)
                del mask
        del xd
        outs = [out.alias((*shape[:-1], out.shape[1]), None) for out in outs]
    return several(node, outs, x, *masks)


def lora_qkv_backward(node: Node, gradients: Gradients, projs: Sequence[Any]) -> Sequence[Any]:
    x, *masks = (node.take(place) for place in range(4))
    shape, dtype = x.shape, x.dtype
    dys = [ops.reshape(dy, -1, dy.shape[-1]) for dy in gradients]
    x = ops.view(x, -1, shape[-1])
    weights = [cast(weight, dtype) for proj in projs for weight in adapters(proj)]
    made = [empty_like(weight) for weight in weights]
    dbs = [mm(dy, b) for dy, b in zip(dys, weights[1::2], strict=True)]
    xd: Any = None
    for place, mask in enumerate(masks):
        xd = x if mask is None else dropout_replay(x, mask)
        adapter_gradients(xd, dbs[place], dys[place], weights[2 * place], made[2 * place], made[2 * place + 1])
    del xd
    dx = x
    for place, mask in enumerate(masks):
        weight = dense(projs[place], None)
        into("addmm_" if place else "mm", dx, dys[place], weight)
        del weight
        add_lora_dx(dx, dbs[place], weights[2 * place], mask)
    return dx.alias(shape, None), *made


def lora_w(x: Tensor, proj: Any, p: float, scratch: Scratch) -> Tensor:
    """`LoRA_W`."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return lora_w_backward(node, gradients[0], proj)

    node = start(machine, (x, *adapters(proj)), back)
    with machine.no_grad():
        mask = None
        if not p:
            xw = matmul_lora(x, proj, scratch)
        else:
            xd, mask = dropout_forward(x, p)
            xw = matmul_lora(x, proj, None, xd)
            del xd
    if node is not None:
        node.keep(machine, (x, mask))
    return finish(node, xw)


def lora_w_backward(node: Node, dy: Tensor, proj: Any) -> Sequence[Any]:
    x, mask = node.take(0), node.take(1)
    shape, dtype = x.shape, x.dtype
    dy = ops.reshape(dy, -1, dy.shape[-1])
    x = ops.reshape(x, -1, shape[-1])
    a, b = [cast(weight, dtype) for weight in adapters(proj)]
    d_a, d_b = empty_like(a), empty_like(b)
    y_db = mm(dy, b)
    xd = x if mask is None else dropout_replay(x, mask)
    adapter_gradients(xd, y_db, dy, a, d_a, d_b)
    del xd
    weight = dense(proj, None)
    dx = mm(dy, weight)
    del weight
    add_lora_dx(dx, y_db, a, mask)
    return dx.alias(shape, None), d_a, d_b
