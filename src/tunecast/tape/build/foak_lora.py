"""foak's fused adapters on quantised attention: queries, keys and values in one autograd function, the output in one.

The frozen weight is dequantised whole in both directions. Dropout runs inside, without history, so no mask is kept: the
dropped input is, and where it is 0 the gradient is cut. What bitsandbytes' layers got as input, their gradient
overwrites; GPTQ's dequantise all three weights first.

Source   fms_acceleration_foak 0.4.0 and 0.6.0, fused_ops/unsloth_lora/{bnb,gptq}/fast_lora.py, utils.py;
         models/utils.py, `build_lora_fused_ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, start
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.gptq import LinearGPTQ
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.tensor import Tensor

QKV = ("q_proj", "k_proj", "v_proj")


SCALING = 1.0
"""alpha / rank."""


def is_adapted(module: Any) -> bool:
    return hasattr(module, "lora_A")


def fuse_attention(job: Job, attention: Any) -> None:
    """Each of the two where its layers are adapted; the first of the three to be called runs all three."""
    for projection in (attention.children[name] for name in (*QKV, "o_proj") if name in attention.children):
        if is_adapted(projection):
            require_fusable(job, projection)
    if all(is_adapted(attention.children[name]) for name in QKV):
        projections = [attention.children[name] for name in QKV]
        made: dict[Any, Tensor] = {}

        def forward(self: Any, x: Tensor) -> Tensor:
            if not made:
                made.update(zip(projections, adapted(x, projections), strict=True))
            return made.pop(self)

        for projection in projections:
            projection.forward = MethodType(forward, projection)
    if is_adapted(attention.o_proj):
        attention.o_proj.forward = MethodType(lambda self, x: adapted(x, [self])[0], attention.o_proj)


def require_fusable(job: Job, projection: Any) -> None:
    base = projection.base_layer
    if isinstance(base, LinearGPTQ) or (isinstance(base, Linear4bit) and base.state.nested and not job.lora.dora):
        return
    raise Unsupported(
        "kernels: foak's fused adapters need GPTQ, or nf4 with quantization.double_quant true; and no lora.dora",
        field="kernels",
    )


def refuse_adapted(mlp: Any) -> None:
    """`LoRA_MLP.backward` multiplies the gradient of `down_proj`'s result by a mask of its input, which is wider."""
    if all(is_adapted(child) for name, child in mlp.children.items() if name.endswith("_proj")):
        raise Unsupported(
            "kernels: foak 0.4.0 and 0.6.0 fail in the backward pass of an adapted MLP on quantised weights. "
            "To fix: lora.targets attention, or a list without one of gate_proj, up_proj and down_proj",
            field="kernels",
        )


# -------------------------------------------------------------------------------------------------------- functions


def dequantize(base: Any) -> Tensor:
    """[inputs, outputs]. bitsandbytes: `fast_dequantize` makes the weight before its scales."""
    if isinstance(base, LinearGPTQ):
        return base.dequantize()
    machine, state = base.machine, base.state
    out = machine.run("empty", (), state.shape, state.dtype)
    out_absmax = machine.run("empty", (), state.absmax.shape, FLOAT32)
    machine.launch("add_", (out_absmax, state.offset), FLOAT32, out_absmax.nbytes)
    return out.t()


def adapted(x: Tensor, projections: Sequence[Any]) -> list[Tensor]:
    """`LoRA_QKV` of three projections, `LoRA_W` of one."""
    machine, shape, dtype = x.machine, x.shape, x.dtype
    autocast, count = machine.autocast, len(projections)
    gptq = isinstance(projections[0].base_layer, LinearGPTQ)
    matrices = [part.weight for projection in projections for part in (projection.lora_A, projection.lora_B)]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        with machine.autocasting(autocast):
            return differentiated(node, gradients, projections, overwrites=count > 1 and not gptq)

    node = start(machine, (x, *matrices), back)
    with machine.no_grad():
        flat = x.view(-1, shape[-1])
        weights = [dequantize(projection.base_layer) for projection in projections] if gptq else None
        outs, dropped = [], []
        for place, projection in enumerate(projections):
            out = F.matmul(flat, dequantize(projection.base_layer) if weights is None else weights[place])
            dropped.append(projection.lora_dropout(flat))
            add_adapted(out, dropped[-1], projection, dtype)
            if projection.base_layer.bias is not None:
                machine.launch("add_", (out, projection.base_layer.bias), out.dtype, out.nbytes)
            outs.append(out.view(*shape[:-1], out.shape[-1]))
            del out
    if node is not None:
        node.keep(machine, (x, *matrices, *dropped))
        node.outputs = count
        for number, given in enumerate(outs):
            given.node, given.number, given.requires_grad = node, number, True
    return outs


def add_adapted(out: Tensor, x: Tensor, projection: Any, dtype: Any) -> None:
    """out += (x @ A) @ (scaling * B)."""
    a, b = (part.weight.transpose(0, 1) for part in (projection.lora_A, projection.lora_B))
    add_into(out, F.matmul(F.matmul(x, a.to(dtype)), b.to(dtype) * SCALING))


def add_into(out: Tensor, part: Tensor) -> None:
    out.machine.launch("add_", (out, part), out.dtype, out.nbytes)


def differentiated(node: Node, gradients: Gradients, projections: Sequence[Any], overwrites: bool) -> Sequence[Any]:
    """The adapters' gradients first, then the input's, projection by projection."""
    count = len(projections)
    x, shape = node.take(0), node.take(0).shape
    dtype, machine = x.dtype, x.machine
    matrices = [node.take(1 + place).transpose(0, 1) for place in range(2 * count)]
    dropped = [node.take(1 + 2 * count + place) for place in range(count)]
    given = [gradient.reshape(-1, gradient.shape[-1]) for gradient in gradients]
    if machine.shared_workspace:  # from torch 2.13 on a function's gradients go when it ends (`give_away`)
        gradients[:] = [None] * count
    found = []
    for place, dy in enumerate(given):
        a, b, kept = matrices[2 * place], matrices[2 * place + 1], dropped[place]
        d_a = F.matmul(kept.transpose(0, 1), F.matmul(dy, b.transpose(0, 1)))
        d_b = F.matmul(F.matmul(a.transpose(0, 1), kept.transpose(0, 1)), dy)
        for part in (d_a, d_b):
            machine.launch("mul_", (part,), part.dtype, part.nbytes)
        found += [d_a.transpose(0, 1), d_b.transpose(0, 1)]
        del d_a, d_b, part
    dx: Any = x.view(-1, shape[-1]) if overwrites else None
    for place, (dy, projection) in enumerate(zip(given, projections, strict=True)):
        a, b = matrices[2 * place], matrices[2 * place + 1]
        if dx is None:
            dx = F.matmul(dy, dequantize(projection.base_layer).transpose(0, 1))
        elif place == 0:
            product_into(dy, dequantize(projection.base_layer).transpose(0, 1), dx)
        else:
            add_into(dx, F.matmul(dy, dequantize(projection.base_layer).transpose(0, 1)))
        add_into(dx, through_adapter(dy, a, b, dropped[place], dtype))
    return dx.view(*shape), *found


def product_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    machine: Machine = a.machine
    machine.launch("mm", (a, b, out), out.dtype, out.nbytes, 2 * a.numel() * b.shape[1])
    machine.keep_workspaces("mm")


def through_adapter(dy: Tensor, a: Tensor, b: Tensor, dropped: Tensor, dtype: Any) -> Tensor:
    """(dropped != 0) * (dy @ B @ (scaling * A))."""
    mask = dropped.ne(0)
    part = F.matmul(F.matmul(dy, b.to(dtype).transpose(0, 1)), a.to(dtype).transpose(0, 1) * SCALING)
    return dy.machine.run("mul", (mask, part), part.shape, part.dtype)
