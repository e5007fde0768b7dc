"""Megatron Core's GPT on paper, one rank's part of it (megatron/core/models/gpt, transformer/*, core 0.13 with TE 2).

Tensors are [tokens, batch, width]. Outside attention and MLP a rank has its part of the tokens (sequence parallelism,
which every published recipe with tensor parallelism turns on); inside, its part of the heads and of the inner width.
With context parallelism the tokens are cut before that, and keys and values go around a ring beside the attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tunecast.errors import UsageError
from tunecast.tape.build import ops
from tunecast.tape.build.autograd import Gradients, Node, checkpointed, finish, start
from tunecast.tape.build.modules import Module, ModuleList
from tunecast.tape.build.stacks.megatron.data import DataExchange
from tunecast.tape.build.stacks.megatron.experts import Experts
from tunecast.tape.build.stacks.megatron.linears import Factor, Parts, SplitLinear, activated, exchange, rms_norm
from tunecast.tape.build.tensor import FLOAT32, Machine, Tensor

CONTEXT_STREAM = 7
LORA_TARGETS = {"linear_qkv": ("q_proj", "k_proj", "v_proj", "qkv_proj"), "linear_proj": ("o_proj",),
                "linear_fc1": ("gate_proj", "up_proj"), "linear_fc2": ("down_proj",)}  # fmt: skip


class Shape(NamedTuple):
    """What Megatron's arguments say of a model."""

    layers: int
    width: int
    heads: int
    key_heads: int
    head: int
    inner: int
    vocabulary: int
    gated: bool
    tied: bool
    experts: int = 0
    chosen: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    dense_layers: int = 0
    """The first layers of a model with experts that have none."""


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    text = config.get("text_config", config)
    width = text.get("hidden_size") or text.get("n_embd")
    heads = text.get("num_attention_heads") or text.get("n_head")
    layers = text.get("num_hidden_layers") or text.get("n_layer")
    if not (width and heads and layers):
        return None
    experts = text.get("num_local_experts") or text.get("num_experts") or text.get("n_routed_experts") or 0
    inner = text.get("intermediate_size") or text.get("n_inner") or 4 * width
    expert_inner = text.get("moe_intermediate_size") or (inner if experts else 0)
    gpt = text.get("model_type") in ("gpt2", "gpt_neox", "nemotron")
    return Shape(
        layers, width, heads, text.get("num_key_value_heads") or heads, text.get("head_dim") or width // heads, inner,
        text["vocab_size"], not gpt, bool(text.get("tie_word_embeddings", gpt)), experts,
        text.get("num_experts_per_tok") or 0, expert_inner,
        text.get("shared_expert_intermediate_size") or (text.get("n_shared_experts") or 0) * expert_inner,
        text.get("first_k_dense_replace") or 0,
    )  # fmt: skip


class Attention(Module):
    def __init__(self, machine: Machine, shape: Shape, parts: Parts, ranks: Mapping[str, int]) -> None:
        super().__init__(machine)
        self.parts, self.shape = parts, shape
        outputs = (shape.heads + 2 * shape.key_heads) * shape.head
        self.linear_qkv = SplitLinear(
            machine, shape.width, outputs, parts, split="column", norm=True, rank=ranks.get("linear_qkv", 0)
        )
        inner = shape.heads * shape.head
        self.linear_proj = SplitLinear(
            machine, inner, shape.width, parts, split="row", rank=ranks.get("linear_proj", 0)
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        shape, ways = self.shape, self.parts.tensor
        mixed_qkv = self.linear_qkv(hidden_states)
        tokens, batch = mixed_qkv.shape[:2]
        widths = [shape.heads * shape.head // ways, *[shape.key_heads * shape.head // ways] * 2]
        query, key, value = ops.split(mixed_qkv, widths, 2)
        query, key = rotated(query), rotated(key)
        core = attend(query, key, value, shape, self.parts)
        return self.linear_proj(ops.view(core, tokens, batch, widths[0]))  # type: ignore[no-any-return]


def rotated(x: Tensor) -> Tensor:
    """`fused_apply_rotary_pos_emb`: one kernel either way, nothing but the table is kept."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("fused_rope_bwd", gradients, shape, dtype),)

    node = start(machine, (x,), back)
    return finish(node, machine.run("fused_rope_fwd", (x,), x.shape, x.dtype))


def attend(query: Tensor, key: Tensor, value: Tensor, shape: Shape, parts: Parts) -> Tensor:
    """cuDNN's fused attention in TE. In a ring each rank's queries meet every rank's keys: half of all pairs, since
    the tokens are dealt out from both ends (transformer_engine/pytorch/attention, `AttnFuncWithCPAndKVP2P`)."""
    machine, ways = query.machine, parts.tensor
    tokens, batch = query.shape[:2]
    every = tokens * parts.context
    heads, key_heads = shape.heads // ways, max(1, shape.key_heads // ways)
    dtype, made = query.dtype, [t.shape for t in (query, key, value)]
    written, around_bytes, around_numel = query.nbytes, key.nbytes + value.nbytes, 2 * key.numel()
    flops = 4 * batch * heads * tokens * every * shape.head
    shapes = tuple(
        Factor(machine, (batch, count, length, shape.head), query.dtype)
        for count, length in ((heads, tokens), (key_heads, every), (key_heads, every))
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
        around(2)
        launched = (Factor(machine, shapes[0].shape, dtype), *shapes)
        name = "_scaled_dot_product_cudnn_attention_backward"
        machine.launch(name, launched, dtype, written + around_bytes, flops * 5 // 2)
        settle()
        return [machine.tensor(part, dtype) for part in made]

    node = start(machine, (query, key, value), back, (query, key, value))
    around(1)
    machine.launch("_scaled_dot_product_cudnn_attention", shapes, query.dtype, query.nbytes, flops)
    out = machine.tensor(query.shape, query.dtype)
    statistics = machine.tensor((batch, heads, tokens), FLOAT32)
    settle()
    return finish(node, out, out.detached(), statistics)


class MLP(Module):
    def __init__(self, machine: Machine, shape: Shape, parts: Parts, ranks: Mapping[str, int]) -> None:
        super().__init__(machine)
        self.gated = shape.gated
        outputs = shape.inner * (2 if shape.gated else 1)
        self.linear_fc1 = SplitLinear(
            machine, shape.width, outputs, parts, split="column", norm=True, rank=ranks.get("linear_fc1", 0)
        )
        self.linear_fc2 = SplitLinear(
            machine, shape.inner, shape.width, parts, split="row", rank=ranks.get("linear_fc2", 0)
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.linear_fc2(activated(self.linear_fc1(hidden_states), self.gated))  # type: ignore[no-any-return]


class Layer(Module):
    def __init__(
        self, machine: Machine, shape: Shape, parts: Parts, ranks: Mapping[str, int], sparse: bool, recomputed: bool
    ) -> None:
        super().__init__(machine)
        self.self_attention = Attention(machine, shape, parts, ranks)
        self.mlp: Any = Experts(machine, shape, parts) if sparse else MLP(machine, shape, parts, ranks)
        self.recomputed = recomputed

    def trained_numel(self) -> int:
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def __call__(self, hidden_states: Tensor) -> Any:
        if self.recomputed:
            return checkpointed(self.machine, super().__call__, hidden_states)
        return super().__call__(hidden_states)

    def forward(self, hidden_states: Tensor) -> Tensor:
        residual = hidden_states
        hidden_states = self.self_attention(hidden_states)
        hidden_states = ops.add(hidden_states, residual)
        residual = hidden_states
        hidden_states = self.mlp(hidden_states)
        return ops.add(hidden_states, residual)


class GPT(Module):
    """One pipeline stage: `first` has the embedding, `last` the head."""

    def __init__(
        self, machine: Machine, shape: Shape, parts: Parts, ranks: Mapping[str, int], recomputed: bool = False,
        first: bool = True, last: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(machine)
        self.shape, self.parts, self.first, self.last = shape, parts, first, last
        self.exchange = DataExchange(machine, 1)
        """With the ranks that see other data."""
        for name, size in (("heads", shape.heads), ("inner width", shape.inner)):
            if size % parts.tensor:
                told = f"{name} split evenly: needs a divisor of {size}, has tensor={parts.tensor}"
                raise UsageError(f"parallel.tensor: {told}", field="parallel.tensor")
        rows = -(-shape.vocabulary // parts.tensor)
        self.word_embeddings: Any = self.parameter(rows, shape.width) if first else None
        self.decoder = ModuleList(machine)
        for number in range(shape.layers):
            sparse = shape.experts > 0 and number >= shape.dense_layers
            self.decoder.append(Layer(machine, shape, parts, ranks, sparse, recomputed))
        self.final_layernorm: Any = self.parameter(shape.width) if last else None
        self.output_layer: Any = None
        if last:
            plain = parts._replace(low=None)
            self.output_layer = SplitLinear(machine, shape.width, rows * parts.tensor, plain, split="column")

    def layers(self) -> list[Module]:
        return list(self.decoder)

    def forward(self, given: Tensor, labels: Tensor | None) -> Tensor:
        """The loss of a last stage, else what goes to the next one."""
        hidden_states = embedded(self, given) if self.first else given
        for layer in self.decoder:
            hidden_states = layer(self.exchange.around(layer, hidden_states))
        if labels is None:
            return hidden_states
        with self.machine.within("output_layer"):
            normed = rms_norm(hidden_states, self.final_layernorm)
            return cross_entropy(self.output_layer(normed), labels, self.parts)


def embedded(model: GPT, ids: Tensor) -> Tensor:
    """`VocabParallelEmbedding`: rows of others' are zero, and the sums are scattered over the tokens."""
    machine, parts = model.machine, model.parts
    found = ops.embedding(model.word_embeddings, ids)
    if parts.tensor == 1:
        return found

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (exchange(gradients[0], "all_gather", parts),)

    node = start(machine, (found,), back)
    return finish(node, exchange(found, "reduce_scatter", parts))


def cross_entropy(logits: Tensor, labels: Tensor, parts: Parts) -> Tensor:
    """TE's fused loss: the gradient is written over the logits in the forward pass; ranks exchange a maximum and a sum
    a token (transformer_engine/pytorch/cross_entropy.py)."""
    machine = logits.machine
    tokens = logits.numel() // logits.shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = node.take(0)
        machine.launch("element_mul", (kept, gradients[0]), kept.dtype, kept.nbytes)
        return (kept,)

    node = start(machine, (logits,), back)
    machine.launch("online_softmax", (logits, labels), logits.dtype, 3 * tokens * FLOAT32.itemsize)
    if parts.tensor > 1:
        nbytes = 3 * tokens * FLOAT32.itemsize
        machine.collective("all_gather", "tensor", parts.tensor, FLOAT32, nbytes, nbytes * parts.tensor, 3 * tokens)
    machine.launch("cross_entropy", (logits, labels), logits.dtype, logits.nbytes)
    loss = machine.tensor((), FLOAT32)
    return finish(node, loss, logits)
