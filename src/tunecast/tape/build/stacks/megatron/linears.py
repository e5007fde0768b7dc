"""TransformerEngine's linear layers on paper, as Megatron Core splits them over tensor-parallel ranks.

A column layer holds some of the outputs, a row layer some of the inputs. With sequence parallelism each rank has its
part of the tokens outside them: a column layer gathers all tokens before it multiplies, a row layer scatters the sums
after (Korthikanti et al. 2022, figure 5; megatron/core/tensor_parallel/layers.py). Without, every rank has all tokens
outside too: a row layer's sums, and a column layer's gradients, are summed where they are. Gradients of weights are
added to one buffer inside the product (`gradient_accumulation_fusion`); the gathered input is not kept but gathered
once more for them. A frozen weight has none, and nothing is kept of its input
(transformer_engine/pytorch/module/linear.py, `saved_inputmat`).

In float8 or float4, inputs, weights and gradients are cast with their transposes in one kernel each
(transformer_engine/common/transpose/cast_transpose.cu); weights once a step, with the first micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tunecast.job.releases import RELEASES, Numbers, numbers
from tunecast.records import NamedTuple
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.tensor import Tensor
from tunecast.units import MIB

TENSOR_STREAM = 6
"""Collectives of tensor parallelism, where they run beside the product they feed (user buffers of TE)."""


class MegatronRank(NamedTuple):
    """How a model is cut: what one rank of each dimension holds."""

    tensor: int = 1
    context: int = 1
    expert: int = 1
    overlapped: bool = False
    """TE pipelines a layer's collective with its product (`tp_comm_overlap`)."""
    low: Dtype | None = None
    """What products are done in, where it is less than 16 bits."""
    sequence: bool = True
    """Ranks of `tensor` split the tokens outside attention and MLP."""
    attention: str = "sdpa"
    """Whose kernel (`attention.py`, `KERNELS`); eager: none, scores are written down."""
    frozen: Dtype | None = None
    """What frozen weights are stored in, where it is less than 16 bits, and what attention and the MLP's activation
    keep of their inputs."""
    gradients: Dtype = FLOAT32
    """Of the buffer that gradients are added up in (`grad_reduce_in_fp32`)."""
    adapter_dropout: float = 0.0
    packed: bool = False
    """Rows are of several samples that attention keeps apart (`thd`, with `cu_seqlens`)."""

    release: Numbers = numbers(RELEASES["megatron-core"].newest)
    """Of Megatron Core."""
    graphed: bool = True
    """Layers are launched as CUDA graphs, as performance recipes have them; else Python calls every module."""
    expert_tensor: int = 1
    """Ranks that each expert is split over, which need not be those of the layers around it."""
    shared_adapters: bool = False
    """A rank's experts have one adapter together (Megatron Bridge, peft/lora.py: `share_expert_adapters`)."""
    fused_sums: bool = True
    """Products add gradients of weights to the buffer themselves (`gradient_accumulation_fusion`); else each is a
    tensor first."""

    @property
    def by_batch(self) -> bool:
        """Whether attention takes rotated queries and keys as `bshd` (extensions/transformer_engine.py,
        `TEDotProductAttention.forward`, before 0.14)."""
        return self.release < (0, 14)

    @property
    def holds_queries(self) -> bool:
        """Whether queries are held before their rotation too (transformer/attention.py, `Attention.forward`,
        `qkv_output`, from 0.15 on)."""
        return self.release >= (0, 15)

    @property
    def beside(self) -> bool:
        """Whether collectives of `tensor` run beside products."""
        return self.overlapped and self.sequence and self.tensor > 1


class SplitLinear(Module):
    """`TEColumnParallelLinear`, `TERowParallelLinear`, or with `norm` `TELayerNormColumnParallelLinear`."""

    def __init__(
        self, machine: Machine, inputs: int, outputs: int, parts: MegatronRank, *, split: str, norm: bool = False,
        rank: int = 0, bias: bool = False, weight: Tensor | None = None, in_torch: bool = False,
    ) -> None:  # fmt: skip
        """`weight`: of a layer that has none of its own (a tied head). `in_torch`: torch multiplies, not TE."""
        super().__init__(machine)
        self.parts, self.split = parts, split
        self.in_torch = in_torch
        self.gathered: list[Tensor] = []
        self.stand_in: list[Tensor] = []
        ways = parts.tensor
        self.inputs, self.outputs = (inputs, outputs // ways) if split == "column" else (inputs // ways, outputs)
        self.norm: Any = self.parameter(inputs) if norm else None
        self.norm_bias: Any = self.parameter(inputs) if norm and bias else None
        if weight is None:
            self.weight = self.parameter(self.outputs, self.inputs)
        else:
            object.__setattr__(self, "weight", weight)
        self.bias: Any = self.parameter(self.outputs) if bias else None
        self.lora_a: Any = self.parameter(rank, self.inputs) if rank else None
        self.lora_b: Any = self.parameter(self.outputs, rank) if rank else None

    def forward(self, x: Tensor) -> Tensor:
        if self.lora_a is None:
            return self.product(x, self.norm)
        if self.norm is not None:  # which gives the adapter its result too (`return_layernorm_output`)
            x = rms_norm(x, self.norm)
        out = self.product(x)
        x = F.dropout(x, self.parts.adapter_dropout)
        whole = gather(x, self.parts) if self.split == "column" else x
        low = F.linear(F.linear(whole, self.lora_a), self.lora_b)
        return out + (low if self.split == "column" else scatter(low, self.parts))

    def product(self, x: Tensor, norm: Tensor | None = None) -> Tensor:
        """The whole layer, with its norm, is one node: what it keeps of its input is the rank's own part of the
        tokens."""
        parts, machine, weight = self.parts, self.machine, self.weight
        column = self.split == "column"
        rest, dtype = x.shape[1:-1], x.dtype
        called(machine, parts)
        x = x.contiguous()  # `prepare_forward`

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            called(machine, parts)
            gradient = gradients[0]
            if parts.low is not None:
                gradient = quantize(gradient, parts.low)
            if not column:
                gradient = exchange(gradient, "all_gather", parts)
            wants_x, wants_weight = node.needs[0], node.needs[1]
            shape = (gradient.shape[0], *rest, self.inputs)
            if column and wants_x and wants_weight and parts.beside:
                grad_x: Any = in_bulk(weight, node.take(0), gradient, shape, dtype, parts)
            else:
                whole = None
                if wants_weight:
                    whole = self.all_tokens(node.take(0)) if column else node.take(0)
                grad_x = _unsummed = None
                if wants_x:
                    turned = transpose_cast(weight, parts)
                    _unsummed, grad_x = self.product_and_sums(gradient, shape, self.outputs, dtype, sums=column)
                    del turned
                if whole is not None:
                    settle(machine, parts)
                    add_to_main_gradient(weight, whole, gradient, parts)
                del whole
            if norm is not None:
                if not (column and parts.tensor > 1 and parts.sequence):
                    let_go(node, 0)  # `clear_tensor_data`
                grad_x = norm_gradient(grad_x, node.take(2))
            grad_weight = self.answer_for(weight) if wants_weight else None
            return (grad_x, grad_weight) if norm is None else (grad_x, grad_weight, None)

        inputs = (x, weight) if norm is None else (x, weight, norm)
        node = start(machine, inputs, back)
        given, factors = (x, None) if norm is None else normed(x, norm)
        if parts.low is not None:
            given = quantize(given, parts.low)
        if node is not None:
            node.keep(machine, (given if weight.requires_grad else None, weight))
            if norm is not None:
                node.keep(machine, (x, factors))
        whole = self.all_tokens(given) if column else given
        shape = (whole.shape[0], *rest, self.outputs)
        out = self.product_and_sums(whole, shape, self.inputs, dtype, sums=not column)[1]
        settle(machine, parts)
        return finish(node, out)

    def product_and_sums(
        self, x: Tensor, shape: tuple[int, ...], inner: int, dtype: Dtype, sums: bool
    ) -> tuple[Tensor, Tensor]:
        """A product, and with `sums` the rank's part of the sums over ranks. Overlapped, pieces of it are on their way
        while others are computed: the collective starts with the product, and is awaited after it (`settle`)."""
        machine, parts = x.machine, self.parts
        if not (sums and parts.beside):  # without sequence parallelism there is no gather or scatter to pipeline
            whole = matmul(x, shape, inner, dtype, parts, self.in_torch)
            return whole, exchange(whole, "reduce_scatter", parts) if sums else whole
        numel = prod(shape)
        send(machine, "reduce_scatter", parts, dtype, numel, numel // parts.tensor)
        whole = matmul(x, shape, inner, dtype, parts, self.in_torch)
        return whole, machine.tensor((shape[0] // parts.tensor, *shape[1:]), dtype)

    def all_tokens(self, x: Tensor) -> Tensor:
        """What a column layer multiplies. Megatron Core's own gathers into a buffer that it has for good
        (megatron/core/utils.py, `GlobalMemoryBuffer`)."""
        machine, parts = self.machine, self.parts
        if not self.in_torch or parts.tensor == 1 or not parts.sequence:
            return exchange(x, "all_gather", parts)
        whole = (x.shape[0] * parts.tensor, *x.shape[1:])
        numel = prod(whole)
        if not self.gathered or self.gathered[0].numel() < numel:
            self.gathered = [machine.tensor(whole, x.dtype)]
        send(machine, "all_gather", parts, x.dtype, x.numel(), numel)
        return self.gathered[0].alias(whole, None)

    def answer_for(self, weight: Tensor) -> Tensor | None:
        """A gradient that was added to the buffer already must be there for autograd all the same, without a content:
        TE has one of each shape for good (module/base.py, `get_dummy_wgrad`). So has Megatron Core's own layer from
        0.14 on, which before made one for each call (tensor_parallel/layers.py, `grad_added_to_main_grad`). Of a tied
        head it waits for the embedding's. Where products do not add to the buffer, it is the gradient."""
        machine, parts = self.machine, self.parts
        if not parts.fused_sums or (self.in_torch and parts.release < (0, 14)):
            return machine.run("empty", (), weight.shape, weight.dtype)
        if self.in_torch:
            if not self.stand_in:
                self.stand_in = [machine.run("empty", (), weight.shape, weight.dtype)]
            return self.stand_in[0].alias(weight.shape, None)
        name = f"{DUMMY}.{weight.shape[0]}.{weight.shape[1]}"
        if not any(machine.blocks[block].module == name for block in machine.kept):
            with machine.within(name):
                machine.kept.add(machine.allocate(weight.nbytes))
        return None


DUMMY = "te_dummy_wgrad"


def let_go(node: Node, place: int) -> None:
    """What was saved is not needed any more."""
    node.saved[place] = node.taken[place] = None


def in_bulk(
    weight: Tensor, kept: Tensor, gradient: Tensor, shape: tuple[int, ...], dtype: Dtype, parts: MegatronRank
) -> Tensor:
    """Back through a column layer: its input is gathered beside the one product, and the sums of that scattered beside
    the other (`BulkOverlapCfg` of qkv and fc1, dgrad and wgrad)."""
    machine = weight.machine
    whole = exchange(kept, "all_gather", parts)
    sums = matmul(gradient, shape, weight.shape[0], dtype, parts._replace(overlapped=False))
    settle(machine, parts)
    grad_x = exchange(sums, "reduce_scatter", parts)
    add_to_main_gradient(weight, whole, gradient, parts)
    settle(machine, parts)
    return grad_x


CALLS = 11
"""A module of TransformerEngine is Python, forward and backward, as long as so many calls of torch's modules (0.37 ms
of the host that is taken): a layer's forward pass, five of them, takes 1.9 ms, by which two of Megatron-LM's tests on
an H100 differ that compute the same 12 layers once and twice (uniform_full_recompute and dist_optimizer_fim_dataset of
benchmarks/data/megatron_ci.jsonl; on an A100's host 1.6)."""


def called(machine: Machine, parts: MegatronRank) -> None:
    if not parts.graphed:
        machine.calls += CALLS


def matmul(
    x: Tensor, shape: tuple[int, ...], inner: int, dtype: Dtype, parts: MegatronRank, in_torch: bool = False
) -> Tensor:
    """[tokens, batch, inner] times a weight: rows are tokens times batch. Beside a ring of other ranks' tokens, one
    product for each rank's (`RingExchangeOverlapCfg`; `PipelineOverlapCfg` has four)."""
    rows = prod(shape[:-1])
    flops = 2 * rows * inner * shape[-1]
    name = "mm" if parts.low is None else "_scaled_mm"
    machine = x.machine
    pieces = parts.tensor if parts.beside else 1
    flat = x.alias((rows // pieces, inner), None)
    weight = Factor(machine, (inner, shape[-1]), x.dtype)
    written = rows * shape[-1] * dtype.itemsize
    if not in_torch:
        keep_workspace(machine)
    for _ in range(pieces):
        machine.launch(name, (flat, weight), parts.low or dtype, written // pieces, flops // pieces)
    out = machine.tensor(shape, dtype)
    if in_torch:
        machine.keep_workspaces("mm")
    return out


LARGE_WORKSPACE, SMALL_WORKSPACE = 32 * MIB + 1024, 4 * MIB
"""transformer_engine/pytorch/cpp_extensions/gemm.py, `get_cublas_workspace_size_bytes`: Hopper and later, others."""


def keep_workspace(machine: Machine) -> None:
    """TE's products have one workspace of their own, forward and backward; torch's come besides where torch multiplies
    (the head, adapters, a router, eager attention)."""
    if not any(machine.blocks[block].module == WORKSPACE for block in machine.kept):
        large = machine.card.capability[0] >= HOPPER
        with machine.within(WORKSPACE):
            machine.kept.add(machine.allocate(LARGE_WORKSPACE if large else SMALL_WORKSPACE))


WORKSPACE, HOPPER = "te_workspace", 9


def transpose_cast(weight: Tensor, parts: MegatronRank) -> Tensor | None:
    """Frozen float8 weights are stored once; back, the product takes them turned around, made for it
    (`disable_parameter_transpose_cache`)."""
    if parts.frozen is None or weight.requires_grad:
        return None
    return weight.machine.run("fp8_transpose", (weight,), weight.shape, parts.frozen)


class Factor(Tensor):
    """A factor of a product whose memory is somebody else's: only its shape counts."""

    __slots__ = ()

    def __init__(self, machine: Machine, shape: tuple[int, ...], dtype: Dtype) -> None:
        super().__init__(machine, None, shape, dtype)  # type: ignore[arg-type]


def add_to_main_gradient(weight: Tensor, x: Tensor, gradient: Tensor, parts: MegatronRank) -> None:
    """`wgrad_gemm_accum_fp32`, or `_fp16`: the sum so far is read and written by the product."""
    machine = weight.machine
    outputs, inputs = weight.shape
    rows = gradient.numel() // outputs
    name = "mm" if parts.low is None else "_scaled_mm"
    factors = (Factor(machine, (outputs, rows), gradient.dtype), Factor(machine, (rows, inputs), x.dtype))
    machine.launch(
        name, factors, gradient.dtype, 2 * weight.numel() * parts.gradients.itemsize, 2 * rows * outputs * inputs
    )


def quantize(x: Tensor, low: Dtype) -> Tensor:
    """One kernel reads 16-bit numbers and writes codes twice: by row for this product, by column for the other."""
    machine = x.machine
    machine.launch("cast_transpose", (x,), low, 2 * (x.numel() * low.itemsize))
    return machine.tensor(x.shape, low, max(1, x.numel() * low.itemsize))


def exchange(x: Tensor, what: str, parts: MegatronRank) -> Tensor:
    """Tokens of all ranks, or each rank's part of the sums."""
    ways, machine = parts.tensor, x.machine
    if ways == 1 or (what == "all_gather" and not parts.sequence):
        return x
    if not parts.sequence:
        send(machine, "all_reduce", parts, x.dtype, x.numel(), x.numel())
        return x
    tokens = x.shape[0] * ways if what == "all_gather" else x.shape[0] // ways
    out = machine.tensor((tokens, *x.shape[1:]), x.dtype)
    send(machine, what, parts, x.dtype, x.numel(), out.numel())
    return out


def send(machine: Machine, what: str, parts: MegatronRank, dtype: Dtype, sent: int, received: int) -> None:
    with machine.on_stream(TENSOR_STREAM if parts.beside else 0):
        if parts.beside:
            machine.wait(0)
        size = dtype.itemsize
        machine.collective(what, "tensor", parts.tensor, dtype, sent * size, received * size, sent)


def settle(machine: Machine, parts: MegatronRank) -> None:
    """What ran beside the product is awaited once the product is launched."""
    if parts.beside:
        machine.wait(TENSOR_STREAM)


def gather(x: Tensor, parts: MegatronRank) -> Tensor:
    """All tokens, for an adapter; back, each rank has the sum for its own."""
    if parts.tensor == 1:
        return x
    out = exchange(x, "all_gather", parts) if parts.sequence else x.alias(x.shape, x.strides)
    return record(out, (x,), lambda node, gradients: (exchange(gradients[0], "reduce_scatter", parts),))


def scatter(x: Tensor, parts: MegatronRank) -> Tensor:
    """Each rank's part of the sums; back, all tokens."""
    if parts.tensor == 1:
        return x
    out = exchange(x, "reduce_scatter", parts)
    return record(out, (x,), lambda node, gradients: (exchange(gradients[0], "all_gather", parts),))


def in_one_kernel(x: Tensor, shape: tuple[int, ...], forward: str, backward: str) -> Tensor:
    """One kernel either way; nothing is kept."""
    machine, old, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run(backward, gradients, old, dtype),)

    return record(machine.run(forward, (x,), shape, dtype), (x,), back)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """One kernel forward, two back (transformer_engine/common/normalization): what is kept is the input and a factor a
    row."""

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return norm_gradient(gradients[0], node.take(0)), None

    node = start(x.machine, (x, weight), back, (x,))
    out, factors = normed(x, weight)
    return finish(node, out, factors)


def normed(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """pytorch/csrc/extensions/normalization.cpp, `rmsnorm_fwd`: factors first."""
    machine = x.machine
    machine.launch("rmsnorm_fwd", (x, weight), x.dtype, x.nbytes)
    factors = machine.tensor((x.numel() // x.shape[-1],), FLOAT32)
    return machine.tensor(x.shape, x.dtype), factors


def norm_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Of a norm's input: a view, since rows are tokens times batch to the kernel. The weight's is a row."""
    machine = x.machine
    machine.launch("rmsnorm_bwd", (gradient, x), x.dtype, x.nbytes, kernels=2)
    return machine.tensor(x.shape, x.dtype).alias(x.shape, None)


def activate(x: Tensor, gated: bool, parts: MegatronRank) -> Tensor:
    """`bias_swiglu_fusion`, or a fused gelu: one kernel either way. Its input is kept, or a float8 copy of it that is
    widened again for the way back (`activation_func_fp8_input_store`)."""
    machine, whole, dtype = x.machine, x.shape, x.dtype
    shape = (*whole[:-1], whole[-1] // 2) if gated else whole
    name = "swiglu" if gated else "gelu"

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = node.take(0)
        if parts.frozen is not None:
            kept = machine.run("_to_copy", (kept,), whole, dtype)
        return (machine.run(name + "_bwd", (gradients[0], kept), whole, dtype),)

    kept = x if parts.frozen is None else machine.run("_to_copy", (x,), whole, parts.frozen)
    node = start(machine, (x,), back, (kept,))
    del kept
    return finish(node, machine.run(name + "_fwd", (x,), shape, x.dtype))


def dropout_add(x: Tensor, residual: Tensor, probability: float) -> Tensor:
    """`bias_dropout_add_fused_train`: one kernel either way; what is kept is the mask. Without dropout, a sum."""
    if not probability:
        return x + residual
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return machine.run("bias_dropout_bwd", (gradients[0], node.take(0)), shape, dtype), gradients[0]

    node = start(machine, (x, residual), back)
    mask = machine.tensor(shape, BOOL)
    return finish(node, machine.run("bias_dropout_add", (x, residual), shape, dtype), mask)
