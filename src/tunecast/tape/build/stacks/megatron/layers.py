"""Megatron Core's attention on paper, one rank's heads (megatron/core/transformer/attention.py), with TE's kernels.

Megatron Core's mixture of experts on paper (megatron/core/transformer/moe): route, permute, exchange, sort by expert,
grouped products, and back. Tokens are taken to spread evenly over the experts, as a balanced router sends them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.stacks.megatron.linears import (
    Factor,
    MegatronRank,
    SplitLinear,
    activate,
    called,
    gather,
    in_one_kernel,
    quantize,
    rms_norm,
    scatter,
)
from tunecast.tape.build.stacks.megatron.shape import MegatronShape
from tunecast.tape.build.tensor import Tensor

# ------------------------------------------------------------------------------------------------------------ attention


CONTEXT_STREAM = 7
SAMPLE = 384
"""Tokens of a sample in a packed row, where nothing is said: those of instruction data are a few hundred long."""
KERNELS = {
    "sdpa": ("te::fused_attn_fwd", "te::fused_attn_bwd"),
    "flash_attention_2": ("flash_attn::fwd", "flash_attn::bwd"),
    "flash_attention_3": ("flash_attn_3::fwd", "flash_attn_3::bwd"),
}
"""`--attention-backend fused` (cuDNN, on AMD's cards aiter), which TE takes by itself, or flash with either release."""


class Attention(Module):
    def __init__(self, machine: Machine, shape: MegatronShape, parts: MegatronRank, ranks: Mapping[str, int]) -> None:
        super().__init__(machine)
        self.parts, self.shape = parts, shape
        inner = shape.heads * shape.head
        self.linear_proj = SplitLinear(
            machine, inner, shape.width, parts, split="row", rank=ranks.get("linear_proj", 0), bias=shape.bias
        )
        outputs = (shape.heads + 2 * shape.key_heads) * shape.head
        self.linear_qkv = SplitLinear(
            machine, shape.width, outputs, parts, split="column", norm=True, rank=ranks.get("linear_qkv", 0),
            bias=shape.bias,
        )  # fmt: skip

    def forward(self, hidden_states: Tensor) -> Tensor:
        shape, ways = self.shape, self.parts.tensor
        mixed_qkv = self.linear_qkv(hidden_states)
        called(self.machine, self.parts)
        held = None
        widths = [shape.heads * shape.head // ways, *[shape.key_heads * shape.head // ways] * 2]
        query, key, value = mixed_qkv.split(widths, 2)
        if not shape.positions:
            groups = shape.key_heads // ways
            if 1 < groups < shape.heads // ways:  # queries of a group lie beside its key and value
                query = query.contiguous()
            held = query if self.parts.holds_queries else None
            rope = "fused_rope_fwd", "fused_rope_bwd"  # `fused_apply_rotary_pos_emb`: the table is all that is kept
            query = in_one_kernel(query, query.shape, *rope)
            key = in_one_kernel(key, key.shape, *rope)
        del mixed_qkv
        attention = attend_eagerly if self.parts.attention == "eager" else attend
        out = self.linear_proj(attention(query, key, value, shape, self.parts))
        del held
        return out


def by_batch(x: Tensor) -> Tensor:
    """[batch, tokens, heads x head]."""
    return x.transpose(0, 1).contiguous()


def with_strides_of_key(value: Tensor) -> Tensor:
    """`value.as_strided`, whose gradient goes into zeros: of a single row keys were not copied and have other
    strides."""
    machine, shape, dtype = value.machine, value.shape, value.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("new_zeros", (gradients[0],), shape, dtype),)

    return record(value.alias(shape, None), (value,), back)


def attend(query: Tensor, key: Tensor, value: Tensor, shape: MegatronShape, parts: MegatronRank) -> Tensor:
    """A fused attention in TE. In a ring each rank's queries meet every rank's keys: half of all pairs, since
    the tokens are dealt out from both ends (transformer_engine/pytorch/attention, `AttnFuncWithCPAndKVP2P`)."""
    machine, ways = query.machine, parts.tensor
    tokens, batch = query.shape[:2]
    every = tokens * parts.context
    heads, key_heads = shape.heads // ways, max(1, shape.key_heads // ways)
    turned = parts.by_batch and not shape.positions
    if turned:
        query, key, value = by_batch(query), by_batch(key), by_batch(value)
        if batch == 1:
            value = with_strides_of_key(value)
    elif not shape.positions:  # apart from each other, all three have to lie in order (TE's `get_qkv_layout`)
        value = value.contiguous()
    dtype, made = query.dtype, [t.shape for t in (query, key, value)]
    written, around_bytes, around_numel = query.nbytes, key.nbytes + value.nbytes, 2 * key.numel()
    rows, own, seen = (batch * tokens / SAMPLE, SAMPLE, SAMPLE) if parts.packed else (batch, tokens, every)
    flops = round(4 * rows * heads * own * seen * shape.head)
    forward, backward = KERNELS[parts.attention]
    shapes = tuple(
        Factor(machine, (-int(-rows // 1), *(size if "::" not in forward else size[::-1]), shape.head), query.dtype)
        for size in ((heads, own), (key_heads, seen), (key_heads, seen))
    )

    def around(times: int) -> None:
        if parts.context > 1:
            with machine.on_stream(CONTEXT_STREAM):
                machine.wait(0)
                nbytes = times * around_bytes
                for _ in range(parts.context - 1):
                    machine.collective("send", "context", parts.context, dtype, nbytes, nbytes, around_numel)

    def settle() -> None:
        if parts.context > 1:
            machine.wait(CONTEXT_STREAM)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        called(machine, parts)
        gradient = gradients[0].contiguous()
        around(2)
        launched = (Factor(machine, shapes[0].shape, dtype), *shapes)
        machine.launch(backward, launched, dtype, written + around_bytes, flops * 5 // 2)
        settle()
        results = [machine.tensor(part, dtype) for part in made]
        del gradient
        return results

    kept: tuple[Tensor, ...] = (query, key, value)
    if parts.frozen is not None:  # `fp8_dot_product_attention`
        kept = tuple(machine.run("_to_copy", (tensor,), tensor.shape, parts.frozen) for tensor in kept)
    node = start(machine, (query, key, value), back, kept)
    del kept
    around(1)
    machine.launch(forward, shapes, query.dtype, query.nbytes, flops)
    out = machine.tensor(query.shape, query.dtype)
    statistics = machine.tensor((batch, heads, tokens), FLOAT32)
    settle()
    held = out.detach() if parts.frozen is None else machine.run("_to_copy", (out,), out.shape, parts.frozen)
    out = finish(node, out, held, statistics)
    return out.transpose(0, 1) if turned else out


def attend_eagerly(query: Tensor, key: Tensor, value: Tensor, shape: MegatronShape, parts: MegatronRank) -> Tensor:
    """TE's `UnfusedDotProductAttention`: scores, their softmax in one kernel with scale and mask (backward it writes
    over the gradient), dropout, and the product with the values. Fewer key heads are copied to as many."""
    machine = query.machine
    tokens, batch = query.shape[:2]
    if not shape.positions:  # apart from each other, all three have to lie in order (TE's `get_qkv_layout`)
        value = value.contiguous()
    heads = shape.heads // parts.tensor
    size = (batch * heads, tokens, tokens)

    def by_head(x: Tensor) -> Tensor:
        """[batch x heads, tokens, head]: a view, as TE's layout of queries, keys and values allows it."""
        count = x.shape[-1] // shape.head
        if count < heads:
            split = x.reshape(tokens, batch, count, shape.head)
            x = split.repeat_interleave(heads // count, 2).reshape(tokens, batch, heads * shape.head)
        return seen_by_head(x, batch * heads, shape.head)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        machine.launch(
            "scaled_masked_softmax_bwd", (gradients[0], node.take(0)), gradients[0].dtype, gradients[0].nbytes
        )
        return (gradients[0],)

    scores = F.bmm(by_head(query), by_head(key).transpose(1, 2))
    node = start(machine, (scores,), back)
    weights = machine.run("scaled_masked_softmax_fwd", (scores,), size, query.dtype)
    weights = finish(node, weights, weights.detach())
    del scores
    weights = F.dropout(weights, shape.attention_dropout)
    context = F.bmm(weights, by_head(value))
    turned = context.t().reshape(tokens, batch, heads * shape.head)
    return turned.contiguous()


def seen_by_head(x: Tensor, rows: int, head: int) -> Tensor:
    whole = x.shape
    seen = x.alias((rows, whole[0], head), None)
    return record(seen, (x,), lambda node, gradients: (gradients[0].alias(whole, None),))


# -------------------------------------------------------------------------------------------------------------- experts


class Experts(Module):
    """`MoELayer` with grouped products (`TEGroupedMLP`) and the all-to-all dispatcher
    (token_dispatcher.py, `MoEAlltoAllTokenDispatcher`)."""

    def __init__(self, machine: Machine, shape: MegatronShape, parts: MegatronRank, ranks: Mapping[str, int]) -> None:
        super().__init__(machine)
        self.shape, self.parts = shape, parts
        here, inner = max(1, shape.experts // parts.expert), shape.expert_inner // parts.expert_tensor
        self.pre_mlp_layernorm = self.parameter(shape.width)
        self.router = self.parameter(shape.experts, shape.width)
        self.linear_fc1 = GroupedLinear(machine, here, shape.width, 2 * inner, parts, ranks.get("linear_fc1", 0))
        self.linear_fc2 = GroupedLinear(machine, here, inner, shape.width, parts, ranks.get("linear_fc2", 0))
        self.shared: Any = None
        if shape.shared_inner:
            self.shared = SharedExpert(machine, shape.width, shape.shared_inner, parts, ranks)

    def forward(self, hidden_states: Tensor) -> Tensor:
        shape, parts = self.shape, self.parts
        normed = rms_norm(hidden_states, self.pre_mlp_layernorm)
        tokens, batch, width = normed.shape
        rows = tokens * batch * shape.chosen
        scores = F.softmax(F.linear(normed, self.router), FLOAT32)
        permuted = in_one_kernel(normed, (rows, width), "moe_permute", "moe_permute_bwd")
        del scores
        one_expert = parts._replace(tensor=parts.expert_tensor, sequence=True, overlapped=False)
        dispatched = to_all(permuted, parts)
        output = self.routed(dispatched, one_expert)
        combined = to_all(output, parts)
        del permuted, dispatched, output  # `custom_forward` names them until here
        combined = in_one_kernel(combined, (tokens, batch, width), "moe_unpermute", "moe_unpermute_bwd")
        if self.shared is not None:
            combined = combined + self.shared(normed)
        return combined

    def routed(self, dispatched: Tensor, one_expert: MegatronRank) -> Tensor:
        """`routed_experts_compute`."""
        experts = self.linear_fc1.experts
        given = by_expert(gather(dispatched, one_expert), experts)
        made = self.linear_fc2(activate(self.linear_fc1(given), True, self.parts))
        return scatter(by_expert(made, experts), one_expert)


class GroupedLinear(Module):
    """`TEGroupedLinear`. In ms-swift an adapter is two of them, so that each expert has its own
    (mcore_bridge/tuners/lora.py, `LoraParallelLinear`); in NeMo a rank's experts share one."""

    def __init__(
        self, machine: Machine, experts: int, inputs: int, outputs: int, parts: MegatronRank, rank: int
    ) -> None:
        super().__init__(machine)
        self.parts, self.experts = parts, experts
        self.weight = self.parameter(experts, outputs, inputs)
        adapters = 1 if parts.shared_adapters else experts
        self.lora_a: Any = self.parameter(adapters, rank, inputs) if rank else None
        self.lora_b: Any = self.parameter(adapters, outputs, rank) if rank else None

    def forward(self, x: Tensor) -> Tensor:
        out = grouped(x, self.weight, self.parts)
        if self.lora_a is None:
            return out
        plain = self.parts._replace(low=None)
        low = grouped(F.dropout(x, self.parts.adapter_dropout), self.lora_a, plain)
        return out + grouped(low, self.lora_b, plain) * SCALING


SCALING = 2.0
"""Of an adapter's result: one product whatever the number."""


def by_expert(x: Tensor, experts: int) -> Tensor:
    """`sort_chunks_by_idxs`: what came from several ranks is put together for each expert, and back."""
    return in_one_kernel(x, x.shape, "moe_sort_chunks", "moe_sort_chunks_bwd") if experts > 1 else x


class SharedExpert(Module):
    def __init__(self, machine: Machine, width: int, inner: int, parts: MegatronRank, ranks: Mapping[str, int]) -> None:
        super().__init__(machine)
        self.parts = parts
        first, second = ranks.get("linear_fc1", 0), ranks.get("linear_fc2", 0)
        self.linear_fc1 = SplitLinear(machine, width, 2 * inner, parts, split="column", rank=first)
        self.linear_fc2 = SplitLinear(machine, inner, width, parts, split="row", rank=second)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(activate(self.linear_fc1(x), True, self.parts))


def to_all(x: Tensor, parts: MegatronRank) -> Tensor:
    machine = x.machine
    if parts.expert == 1:
        return x

    def send(tensor: Tensor) -> Tensor:
        out = machine.tensor(tensor.shape, tensor.dtype)
        machine.collective_of("all_to_all", "expert", parts.expert, tensor.dtype, tensor.numel())
        return out

    return record(send(x), (x,), lambda node, gradients: (send(gradients[0]),))


def grouped(x: Tensor, weights: Tensor, parts: MegatronRank) -> Tensor:
    """A product an expert: its share of the rows times its weight."""
    machine, (experts, outputs, inputs), rows = x.machine, weights.shape, x.shape[0]
    share, plain, shape = -(-rows // experts), x.dtype, x.shape
    name = "mm" if parts.low is None else "_scaled_mm"
    dtype = parts.low or x.dtype

    def launch(m: int, n: int, k: int, written: int) -> None:
        factors = (Factor(machine, (m, k), dtype), Factor(machine, (k, n), dtype))
        for _ in range(experts):
            machine.launch(name, factors, dtype, written, 2 * m * n * k)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = quantize(gradients[0], parts.low) if parts.low is not None else gradients[0]
        launch(share, inputs, outputs, share * inputs * plain.itemsize)
        made = machine.tensor(shape, plain)
        if node.needs[1]:
            launch(outputs, inputs, share, 2 * outputs * inputs * parts.gradients.itemsize)
        del gradient
        return made, None

    given = quantize(x, parts.low) if parts.low is not None else x
    node = start(machine, (x, weights), back, (given if weights.requires_grad else None, weights))
    launch(share, outputs, inputs, share * outputs * x.dtype.itemsize)
    return finish(node, machine.tensor((rows, outputs), x.dtype))
