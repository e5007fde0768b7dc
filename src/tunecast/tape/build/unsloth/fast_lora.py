"""Linear layers with adapters (unsloth/kernels/fast_lora.py, utils.py): one autograd function for an MLP, one for
queries, keys and values, one for any other layer. Adapters are cast each time, gradients written over inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.tensor import Tensor


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
        return base.weight
    state, machine = base.state, base.machine
    if machine.graph is not None:
        outs = [(state.shape, state.dtype)]
        return machine.graph.kernel("triton::_nf4_dequant_kernel", (state.packed,), outs)[0]
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
    if machine.graph is not None:
        machine.graph.change("addmm_", inputs, out)
        return
    machine.launch(name, inputs, b.dtype, out.nbytes, 2 * a.numel() * b.shape[1])
    machine.keep_workspaces("mm")


def product_over(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A product written over `x`; traced, it is new."""
    if x.machine.graph is not None:
        return mm(a, b)
    into("mm", x, a, b)
    return x


def cast(weight: Tensor, dtype: Dtype) -> Tensor:
    return weight if weight.dtype == dtype else weight.detach().to(dtype)


def t(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


def matmul_lora(x: Tensor, proj: Any, scratch: Scratch | None, dropped: Tensor | None = None) -> Tensor:
    """`matmul_lora` and `_matmul_lora_ext`: the layer, and its adapter of x or of x after dropout."""
    dtype, shape = x.dtype, x.shape
    flat = x.view(-1, shape[-1])
    weight = dense(proj, scratch)
    out = mm(flat, t(weight))
    del weight
    adapted = flat if dropped is None else dropped.view(-1, shape[-1])
    a, b = adapters(proj)
    if dropped is None and x.machine.graph is not None:  # turned around, then cast
        xa = mm(adapted, cast(t(a), dtype))
        into("addmm_", out, xa, cast(t(b), dtype))
    else:
        xa = mm(adapted, t(cast(a, dtype)))
        into("addmm_", out, xa, t(cast(b, dtype)))
    return out.alias((*shape[:-1], out.shape[1]), None) if len(shape) == 3 else out


def dropout_forward(x: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    outs = ((x.shape, x.dtype), (x.shape, BOOL))
    out, mask = x.machine.run_many("native_dropout", (x,), outs, args=(x, probability, True))
    return out, mask


def by_rows(mask: Any) -> Any:
    """`mask.view(-1, hd)`: only the compiler minds."""
    return mask if mask is None or mask.machine.graph is None else mask.view(-1, mask.shape[-1])


def dropout_replay(x: Tensor, mask: Tensor) -> Tensor:
    return x.machine.run("native_dropout_backward", (x, mask), x.shape, x.dtype)


def add_lora_dx(dx: Tensor, y_db: Tensor, a: Tensor, mask: Tensor | None) -> None:
    if mask is None:
        into("addmm_", dx, y_db, back_again(a))
        return
    dx.machine.launch("add_", (dx, dropout_replay(mm(y_db, back_again(a)), mask)), dx.dtype, dx.nbytes)


def adapter_gradients(
    x: Tensor, y_db: Tensor, dy: Tensor, a: Tensor, d_a: Tensor, d_b: Tensor
) -> tuple[Tensor, Tensor]:
    return gradient_of_a(d_a, x, y_db), gradient_of_b(d_b, x, a, dy)


def gradient_of_a(d_a: Tensor, x: Tensor, y_db: Tensor) -> Tensor:
    """x.t() @ y_dB, into memory that is there; traced, into new memory, turned around."""
    if x.machine.graph is not None:
        return t(addmm(d_a, t(x), y_db))
    into("addmm_", d_a, t(y_db), x)
    return d_a


def gradient_of_b(d_b: Tensor, x: Tensor, a: Tensor, dy: Tensor) -> Tensor:
    """(A x.t()) @ dY, likewise."""
    if x.machine.graph is not None:
        return t(addmm(d_b, mm(back_again(a), t(x)), dy))
    into("addmm_", d_b, t(dy), t(mm(a, t(x))))
    return d_b


def addmm(out: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return a.machine.run("addmm", (out, a, b), (a.shape[0], b.shape[1]), a.dtype, args=(out, a, b))


def adapters(proj: Any) -> tuple[Tensor, Tensor]:
    return proj.lora_A.weight, proj.lora_B.weight


def in_dtype(dtype: Dtype, *projs: Any) -> list[Tensor]:
    """Adapters cast, and turned around: only the compiler minds. It undoes what is turned back where it is read, once,
    as B is (joint_graph.py, `pointless_permute_pair`)."""
    weights = [cast(weight, dtype) for proj in projs for weight in adapters(proj)]
    return [weight if place % 2 else back_again(weight) for place, weight in enumerate(weights)]


def back_again(x: Tensor) -> Tensor:
    return x if x.machine.graph is None else t(x)


def empty_like(x: Tensor) -> Tensor:
    if x.machine.graph is not None:
        return x.machine.run("empty", (), x.shape, x.dtype)
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
    if e.machine.graph is not None:
        return e.machine.graph.kernel(f"triton::{kernel}", (e, g), [(e.shape, e.dtype)])[0]
    h = e.machine.run("empty", (), e.shape, e.dtype)
    e.machine.launch(f"triton::{kernel}_forward", (e, g, h), e.dtype, h.nbytes)
    return h


def activated_backward(dw: Tensor, e: Tensor, g: Tensor, kernel: str) -> tuple[Tensor, Tensor, Tensor]:
    """h, df and de, written over what they are made from; traced, they are new (`_DWf_DW_dfg_traced`)."""
    machine, dtype = dw.machine, dw.dtype
    if machine.graph is None:
        machine.launch(f"triton::{kernel}_backward", (dw, e, g), dtype, 3 * dw.nbytes)
        return dw, e, g

    e_float = e.to(FLOAT32)
    se = e_float.sigmoid()
    f = (se * e_float).to(dtype)
    h, df, dg = f * g, dw * f, dw * g
    de = (dg.to(FLOAT32) * se * (1.0 + e_float * (1.0 - se))).to(dtype)
    return h, df, de


def lora_mlp_backward(
    node: Node, dy: Tensor, gate: Any, up: Any, down: Any, kernel: str, scratch: Scratch
) -> Sequence[Any]:
    x, e, g, gate_mask, up_mask, down_mask = (node.take(place) for place in range(6))
    shape, dtype, machine = x.shape, x.dtype, x.machine
    dy = dy.reshape(-1, dy.shape[-1])
    x, e, g = (each.view(-1, each.shape[-1]) for each in (x, e, g))
    gate_a, gate_b, up_a, up_b, down_a, down_b = in_dtype(dtype, gate, up, down)
    if down_mask is None:
        weight = dense(down, scratch)
        dw = mm(dy, weight)
        del weight
        turned = back_again(down_a)
        y_db = mm(dy, down_b)
        into("addmm_", dw, y_db, turned)
        del y_db, turned
    else:
        weight = dense(down, None)
        dw = mm(dy, weight)
        del weight
        down_mask = by_rows(down_mask)
        down_b = back_again(back_again(down_b))
        lora = mm(mm(dy, down_b), back_again(down_a))
        replayed = dropout_replay(lora, down_mask.view(-1, down_mask.shape[-1]))
        del lora
        machine.launch("add_", (dw, replayed), dtype, dw.nbytes)
        del replayed
    h, df, de = activated_backward(dw, e, g, kernel)
    if down_mask is not None:
        h = dropout_replay(h, down_mask)
    d_down_a, d_down_b = empty_like(down_a), empty_like(down_b)
    d_gate_a, d_gate_b = empty_like(gate_a), empty_like(gate_b)
    d_up_a, d_up_b = empty_like(up_a), empty_like(up_b)
    d_down_a = gradient_of_a(d_down_a, h, mm(dy, down_b))
    d_down_b = gradient_of_b(d_down_b, h, down_a, dy)
    up_db = mm(df, up_b)
    gate_db = mm(de, gate_b)
    up_mask, gate_mask = by_rows(up_mask), by_rows(gate_mask)
    xd = x if up_mask is None else dropout_replay(x, up_mask)
    d_up_a, d_up_b = adapter_gradients(xd, up_db, df, up_a, d_up_a, d_up_b)
    xd = x if gate_mask is None else dropout_replay(x, gate_mask)
    d_gate_a, d_gate_b = adapter_gradients(xd, gate_db, de, gate_a, d_gate_a, d_gate_b)
    del xd
    weight = dense(up, None)
    dx = product_over(x, df, weight)
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
        flat = x.view(-1, shape[-1])
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
    dys = [dy.reshape(-1, dy.shape[-1]) for dy in gradients]
    x = x.view(-1, shape[-1])
    weights = in_dtype(dtype, *projs)
    made = [empty_like(weight) for weight in weights]
    dbs = [mm(dy, b) for dy, b in zip(dys, weights[1::2], strict=True)]
    xd: Any = None
    for place, mask in enumerate(masks):
        xd = x if mask is None else dropout_replay(x, mask)
        pair = slice(2 * place, 2 * place + 2)
        made[pair] = adapter_gradients(xd, dbs[place], dys[place], weights[2 * place], *made[pair])
    del xd
    dx = x
    for place, mask in enumerate(masks):
        weight = dense(projs[place], None)
        if place:
            into("addmm_", dx, dys[place], weight)
        else:
            dx = product_over(x, dys[place], weight)
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
    dy = dy.reshape(-1, dy.shape[-1])
    x = x.reshape(-1, shape[-1])
    a, b = in_dtype(dtype, proj)
    d_a, d_b = empty_like(a), empty_like(b)
    y_db = mm(dy, b)
    mask = by_rows(mask)
    xd = x if mask is None else dropout_replay(x, mask)
    d_a, d_b = adapter_gradients(xd, y_db, dy, a, d_a, d_b)
    del xd
    weight = dense(proj, None)
    dx = mm(dy, weight)
    del weight
    add_lora_dx(dx, y_db, a, mask)
    return dx.alias(shape, None), d_a, d_b
