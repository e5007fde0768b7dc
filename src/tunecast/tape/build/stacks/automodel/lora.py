"""Automodel's adapters (components/_peft/lora.py, `LinearLoRA`): made in the weights' dtype, run without conversions.

What lies between the two matrices is not kept but computed again (`LoRATritonFunction` without its kernels,
`use_memory_efficient_lora`, on by default), and the layer's result is added to in place. An MLP of three adapted layers
is one function, which makes the activation and what enters the last layer again.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.tape.build import ops
from tunecast.tape.build.adapters import targets
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.modules import Activation, Linear, Module, bring
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role


def insert_adapters(job: Job, model: Any) -> None:
    """`apply_lora_to_linear_modules`."""
    if job.lora.dora:
        raise Unsupported("lora.dora: Automodel's DoRA is not written down; allowed: false", field="lora.dora")
    for parameter in model.parameters():
        parameter.requires_grad = False
    for parent, name, base in list(targets(job, model)):
        adapted = LinearLoRA(base, job.lora.rank, job.lora.dropout_fraction)
        adapted.name_all(base.path)
        dtype = base.compute_dtype if isinstance(base, Linear4bit) else base.weight.dtype
        for part in (adapted.lora_A, adapted.lora_B):
            bring(part.weight, part.path, Role.ADAPTERS, dtype)
        setattr(parent, name, adapted)
    for module in list(model.modules()):
        if is_fusible(module):
            object.__setattr__(module, "forward", MethodType(fused_mlp, module))


class LinearLoRA(Module):
    def __init__(self, base: Linear, rank: int, dropout: float) -> None:
        super().__init__(base.machine)
        self.lora_A = Linear(base.machine, base.inputs, rank)
        self.lora_B = Linear(base.machine, rank, base.outputs)
        self.base_layer = base  # last, as FSDP 2 finds a module's own weight after its children's
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        res = self.base_layer(x)
        weights = (self.lora_A.weight, self.lora_B.weight)
        if not self.dropout:
            return ops.reshape(memory_efficient(x, *weights, res), *res.shape)
        lora_res = ops.dropout(ops.reshape(memory_efficient(x, *weights), *res.shape), self.dropout)
        return ops.add_in_place(lora_res, res)


def memory_efficient(x: Tensor, lora_A: Tensor, lora_B: Tensor, res: Tensor | None = None) -> Tensor:
    """`LoRATritonFunction`: the input and both matrices are saved."""
    machine, shape = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept, first, second = (node.take(place) for place in range(3))
        d_y = gradients[0]
        flat = ops.reshape(kept, -1, shape[-1])
        d_y_lora_B = ops.linear(d_y, ops.transpose(second, 0, 1))
        d_x = None
        if node.needs[0]:
            d_x = ops.map_("empty_like", flat)
            add_product(d_x, d_y_lora_B, first)
        d_lora_A = times(ops.matmul(ops.transpose(d_y_lora_B, 0, 1), flat))
        d_lora_B = ops.map_("empty_like", second)
        add_product(d_lora_B, ops.transpose(d_y, 0, 1), ops.linear(flat, first))
        d_x = None if d_x is None else ops.view(d_x, *shape)
        return [d_x, d_lora_A, d_lora_B] + ([] if res_shape is None else [ops.reshape(d_y, *res_shape)])

    res_shape = None if res is None else res.shape
    inputs = (x, lora_A, lora_B) if res is None else (x, lora_A, lora_B, res)
    node = start(machine, inputs, back)
    with machine.no_grad():
        flat = ops.reshape(x.detached(), -1, shape[-1])
        between = times(ops.linear(flat, lora_A.detached()))
        out = ops.linear(between, lora_B.detached())
        del between
        if res is not None:
            machine.launch("add_", (out, res), out.dtype, out.nbytes)
    return finish(node, out, x, lora_A, lora_B)


# -------------------------------------------------------------------------------- all of an MLP (_peft/lora_mlp.py)

MLP = ("gate_proj", "up_proj", "down_proj")


def is_fusible(module: Module) -> bool:
    """`install_fused_lora_mlp`, `_fusible`: adapters without dropout on all three, over plain weights, and SwiGLU."""
    parts = [module.children.get(name) for name in MLP]
    act_fn = module.children.get("act_fn")
    swiglu = isinstance(act_fn, Activation) and act_fn.function is ops.silu
    return swiglu and all(
        isinstance(part, LinearLoRA) and not part.dropout and type(part.base_layer) is Linear for part in parts
    )


def fused_mlp(mlp: Any, x: Tensor) -> Tensor:
    """`LoRASwiGLUMLPFunction`: of what is as wide as the MLP, what gate and up give is kept."""
    machine, shape = x.machine, x.shape
    parts = [mlp.children[name] for name in MLP]
    (gW, uW, dW), firsts, seconds = (
        [part.base_layer.weight for part in parts], [part.lora_A.weight for part in parts],
        [part.lora_B.weight for part in parts],
    )  # fmt: skip

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        x, e, g, gA, gB, uA, uB, dA, dB = (node.take(place) for place in range(9))
        dY = ops.reshape(gradients[0], -1, gradients[0].shape[-1])
        d_P = times(ops.matmul(dY, dB))
        d_h = ops.add_matrix_product(ops.matmul(dY, dW.detached()), d_P, dA)
        machine.launch("triton::_swiglu_bwd_kernel", (d_h, e, g), e.dtype, 3 * e.nbytes)
        P = ops.linear(d_h, dA)
        d_dB = times(ops.matmul(ops.transpose(dY, 0, 1), P))
        d_dA = ops.matmul(ops.transpose(d_P, 0, 1), d_h)
        Q = ops.linear(x, uA)
        d_uB = times(ops.matmul(ops.transpose(e, 0, 1), Q))
        d_Q = times(ops.matmul(e, uB))
        d_uA = ops.matmul(ops.transpose(d_Q, 0, 1), x)
        R = ops.linear(x, gA)
        d_gB = times(ops.matmul(ops.transpose(g, 0, 1), R))
        d_R = times(ops.matmul(g, gB))
        d_gA = ops.matmul(ops.transpose(d_R, 0, 1), x)
        d_x = None
        if node.needs[0]:
            d_x = ops.add_matrix_product(ops.matmul(g, gW.detached()), d_R, gA)
            add_product(d_x, e, uW.detached())
            add_product(d_x, d_Q, uA)
            d_x = ops.view(d_x, *shape)
        return d_x, d_gA, d_gB, d_uA, d_uB, d_dA, d_dB

    (gA, uA, dA), (gB, uB, dB) = firsts, seconds
    node = start(machine, (x, gA, gB, uA, uB, dA, dB), back)
    with machine.no_grad():
        x2 = ops.reshape(x.detached(), -1, shape[-1])
        e, g = (adapted(x2, *of) for of in ((gW, gA, gB), (uW, uA, uB)))
        h = machine.run("empty_like", (e,), e.shape, e.dtype)
        machine.launch("triton::_swiglu_fwd_kernel", (e, g), e.dtype, e.nbytes)
        out = ops.view(adapted(h, dW, dA, dB), *shape[:-1], -1)
        del h
    return finish(node, out, x2, e, g, gA, gB, uA, uB, dA, dB)


def adapted(x: Tensor, weight: Tensor, lora_A: Tensor, lora_B: Tensor) -> Tensor:
    out = ops.linear(x, weight.detached())
    add_product(out, times(ops.linear(x, lora_A.detached())), ops.transpose(lora_B.detached(), 0, 1))
    return out


def times(x: Tensor) -> Tensor:
    """The scale."""
    return ops.map_("mul", x)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """`addmm_`."""
    total.machine.launch("addmm_", (total, a, b), total.dtype, total.nbytes, 2 * a.numel() * b.shape[1])
