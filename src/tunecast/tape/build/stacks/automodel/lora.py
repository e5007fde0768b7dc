"""Automodel's adapters (components/_peft/lora.py, `LinearLoRA`): made in the weights' dtype, run without conversions.

What lies between the two matrices is not kept but computed again (`LoRATritonFunction` without its kernels,
`use_memory_efficient_lora`, on by default), and the layer's result is added to in place. An MLP of three adapted layers
is one function, which makes the activation and what enters the last layer again. `kernels: lora_triton` is
`use_triton`: both matrices in one kernel. Of layers that cards share neither is done
(`_should_use_memory_efficient_lora`).

Source   components/_peft/lora.py, `LinearLoRA`, `TritonLinearLoRA`; lora_kernel.py, `lora_forward_wrapper`,
         `lora_da_dx_update_wrapper`, `lora_db_update_wrapper`; lora_mlp.py; lora_experts.py, `GroupedExpertsLoRA`;
         module_matcher.py, `ModuleMatcher`, in tape/build/adapters.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.kernels import LORA_TRITON
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapted_by_pattern import matching_experts
from tunecast.tape.build.adapters import targets
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.experts import Experts, grouped_product
from tunecast.tape.build.modules import Activation, Linear, Module, bring
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role


def insert_adapters(job: Job, model: Any) -> None:
    """`apply_lora_to_linear_modules`."""
    if job.lora.dora:
        raise Unsupported.at("lora.dora", "Automodel's DoRA is not written down; allowed: false")
    for parameter in model.parameters():
        parameter.requires_grad = False
    kind = PlainLoRA if job.parallel.tensor > 1 else TritonLinearLoRA if LORA_TRITON in job.kernels else LinearLoRA
    for parent, name, base in list(targets(job, model)):
        adapted = kind(base, job.lora.rank, job.lora.dropout_fraction)
        adapted.name_all(base.path)
        dtype = base.compute_dtype if isinstance(base, Linear4bit) else base.weight.dtype
        for part in (adapted.lora_A, adapted.lora_B):
            bring(part.weight, part.path, Role.ADAPTERS, dtype)
        setattr(parent, name, adapted)
    for experts in matching_experts(job, model):
        adapt_experts(experts, job.lora.rank)
    for module in list(model.modules()) if job.parallel.tensor == 1 else ():
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
        if not self.dropout:
            return self.change(x, res).reshape(*res.shape)
        lora_res = F.dropout(self.change(x).reshape(*res.shape), self.dropout)
        return lora_res.add_(res)

    def change(self, x: Tensor, res: Tensor | None = None) -> Tensor:
        """What the two matrices make of the input, on top of the layer's result where that is given."""
        return memory_efficient(x, self.lora_A.weight, self.lora_B.weight, res)


class TritonLinearLoRA(LinearLoRA):
    def change(self, x: Tensor, res: Tensor | None = None) -> Tensor:
        return in_one_kernel(x, self.lora_A.weight, self.lora_B.weight, res)


class PlainLoRA(LinearLoRA):
    """Of matrices that are DTensors: two layers, whose result is added to a new one."""

    def forward(self, x: Tensor) -> Tensor:
        res = self.base_layer(x)
        return res + F.dropout(self.lora_B(times(self.lora_A(x))), self.dropout)


def memory_efficient(x: Tensor, lora_A: Tensor, lora_B: Tensor, res: Tensor | None = None) -> Tensor:
    """`LoRATritonFunction`: the input and both matrices are saved."""
    machine, shape = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept, first, second = (node.take(place) for place in range(3))
        d_y = gradients[0]
        flat = kept.reshape(-1, shape[-1])
        d_y_lora_B = F.linear(d_y, second.t())
        d_x = None
        if node.needs[0]:
            d_x = pointwise("empty_like", flat)
            add_product(d_x, d_y_lora_B, first)
        d_lora_A = times(F.matmul(d_y_lora_B.t(), flat))
        d_lora_B = pointwise("empty_like", second)
        add_product(d_lora_B, d_y.t(), F.linear(flat, first))
        d_x = None if d_x is None else d_x.view(*shape)
        return [d_x, d_lora_A, d_lora_B] + ([] if res_shape is None else [d_y.reshape(*res_shape)])

    res_shape = None if res is None else res.shape
    inputs = (x, lora_A, lora_B) if res is None else (x, lora_A, lora_B, res)
    node = start(machine, inputs, back)
    with machine.no_grad():
        flat = x.detach().reshape(-1, shape[-1])
        between = times(F.linear(flat, lora_A.detach()))
        out = F.linear(between, lora_B.detach())
        del between
        if res is not None:
            machine.launch("add_", (out, res), out.dtype, out.nbytes)
    return finish(node, out, x, lora_A, lora_B)


def in_one_kernel(x: Tensor, lora_A: Tensor, lora_B: Tensor, res: Tensor | None = None) -> Tensor:
    """The same with `use_triton_kernel`: what lies between the matrices stays in the kernel."""
    machine, shape = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept, first, second = (node.take(place) for place in range(3))
        d_y = gradients[0]
        flat = kept.reshape(-1, shape[-1])
        rank, tokens = first.shape[0], flat.shape[0]
        d_x = pointwise("empty_like", flat)
        dyb = machine.run("empty", (), (tokens, rank), flat.dtype)
        machine.launch("mm", (d_y, second), dyb.dtype, dyb.nbytes, 2 * tokens * rank * d_y.shape[1])
        machine.launch("mm", (dyb, first), d_x.dtype, d_x.nbytes, 2 * tokens * rank * shape[-1], kernels=0)
        d_lora_A = F.matmul(flat.t(), dyb).t()
        del dyb
        axt = machine.run("empty", (), (rank, tokens), flat.dtype)
        machine.launch("mm", (first, flat.t()), axt.dtype, axt.nbytes, 2 * tokens * rank * shape[-1])
        d_lora_B = F.matmul(axt, d_y).t()
        of_input = d_x.view(*shape) if node.needs[0] else None
        return [of_input, d_lora_A, d_lora_B] + ([] if res_shape is None else [d_y.reshape(*res_shape)])

    res_shape = None if res is None else res.shape
    inputs = (x, lora_A, lora_B) if res is None else (x, lora_A, lora_B, res)
    node = start(machine, inputs, back)
    with machine.no_grad():
        flat = x.detach().reshape(-1, shape[-1])
        out = machine.run("empty", (), (flat.shape[0], lora_B.shape[0]), x.dtype)
        rank, tokens = lora_A.shape[0], flat.shape[0]
        machine.launch("mm", (flat, lora_A.t()), out.dtype, 0, 2 * tokens * rank * shape[-1])
        machine.launch("mm", (out, lora_B.t()), out.dtype, out.nbytes, 2 * tokens * rank * lora_B.shape[0], kernels=0)
        if res is not None:
            machine.launch("add_", (out, res), out.dtype, out.nbytes)
    return finish(node, out, x, lora_A, lora_B)


# ------------------------------------------------------------------------------------ experts (_peft/lora_experts.py)


def adapt_experts(experts: Experts, rank: int) -> None:
    """`GroupedExpertsLoRA`: two matrices for every expert and each of its layers, multiplied in groups as they are."""
    for name in (experts.first, "down_proj"):
        weight = experts.own[name]
        inputs, outputs = weight.shape[1:] if experts.transposed else reversed(weight.shape[1:])
        for part, shape in (("A", (inputs, rank)), ("B", (rank, outputs))):
            adapter = experts.parameter(experts.count, *shape)
            bring(adapter, experts.path, Role.ADAPTERS, weight.dtype)
            setattr(experts, f"lora_{name}_{part}", adapter)
    object.__setattr__(experts, "product", MethodType(product_with_adapters, experts))


def product_with_adapters(self: Any, x: Tensor, weights: Tensor, offsets: Tensor, bias: Tensor | None) -> Tensor:
    name = self.first if weights is getattr(self, self.first) else "down_proj"
    out = type(self).product(self, x, weights, offsets, bias)
    x = x.to(weights.dtype)
    between = grouped_product(x, getattr(self, f"lora_{name}_A"), offsets)
    return out + times(grouped_product(between, getattr(self, f"lora_{name}_B"), offsets))


# -------------------------------------------------------------------------------- all of an MLP (_peft/lora_mlp.py)

MLP_LAYERS = ("gate_proj", "up_proj", "down_proj")


def is_fusible(module: Module) -> bool:
    """`install_fused_lora_mlp`, `_fusible`: adapters without dropout on all three, over plain weights, and SwiGLU."""
    parts = [module.children.get(name) for name in MLP_LAYERS]
    act_fn = module.children.get("act_fn")
    swiglu = isinstance(act_fn, Activation) and act_fn.function is F.silu
    return swiglu and all(
        isinstance(part, LinearLoRA) and not part.dropout and type(part.base_layer) is Linear for part in parts
    )


def fused_mlp(mlp: Any, x: Tensor) -> Tensor:
    """`LoRASwiGLUMLPFunction`: of what is as wide as the MLP, what gate and up give is kept."""
    machine, shape = x.machine, x.shape
    parts = [mlp.children[name] for name in MLP_LAYERS]
    (gW, uW, dW), firsts, seconds = (
        [part.base_layer.weight for part in parts], [part.lora_A.weight for part in parts],
        [part.lora_B.weight for part in parts],
    )  # fmt: skip

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        x, e, g, gA, gB, uA, uB, dA, dB = (node.take(place) for place in range(9))
        dY = gradients[0].reshape(-1, gradients[0].shape[-1])
        d_P = times(F.matmul(dY, dB))
        d_h = F.addmm(F.matmul(dY, dW.detach()), d_P, dA)
        machine.launch("triton::_swiglu_bwd_kernel", (d_h, e, g), e.dtype, 3 * e.nbytes)
        P = F.linear(d_h, dA)
        d_dB = times(F.matmul(dY.t(), P))
        d_dA = F.matmul(d_P.t(), d_h)
        Q = F.linear(x, uA)
        d_uB = times(F.matmul(e.t(), Q))
        d_Q = times(F.matmul(e, uB))
        d_uA = F.matmul(d_Q.t(), x)
        R = F.linear(x, gA)
        d_gB = times(F.matmul(g.t(), R))
        d_R = times(F.matmul(g, gB))
        d_gA = F.matmul(d_R.t(), x)
        d_x = None
        if node.needs[0]:
            d_x = F.addmm(F.matmul(g, gW.detach()), d_R, gA)
            add_product(d_x, e, uW.detach())
            add_product(d_x, d_Q, uA)
            d_x = d_x.view(*shape)
        return d_x, d_gA, d_gB, d_uA, d_uB, d_dA, d_dB

    (gA, uA, dA), (gB, uB, dB) = firsts, seconds
    node = start(machine, (x, gA, gB, uA, uB, dA, dB), back)
    with machine.no_grad():
        x2 = x.detach().reshape(-1, shape[-1])
        e, g = (adapted(x2, *of) for of in ((gW, gA, gB), (uW, uA, uB)))
        h = machine.run("empty_like", (e,), e.shape, e.dtype)
        machine.launch("triton::_swiglu_fwd_kernel", (e, g), e.dtype, e.nbytes)
        out = adapted(h, dW, dA, dB).view(*shape[:-1], -1)
        del h
    return finish(node, out, x2, e, g, gA, gB, uA, uB, dA, dB)


def adapted(x: Tensor, weight: Tensor, lora_A: Tensor, lora_B: Tensor) -> Tensor:
    out = F.linear(x, weight.detach())
    add_product(out, times(F.linear(x, lora_A.detach())), lora_B.detach().t())
    return out


def times(x: Tensor) -> Tensor:
    """Times alpha / rank."""
    scale = 1.0
    return x * scale


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """`addmm_`."""
    total.machine.launch("addmm_", (total, a, b), total.dtype, total.nbytes, 2 * a.numel() * b.shape[1])
